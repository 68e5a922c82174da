"""What a reader sees of tables and leaderboard: Markdown pages in docs/, tables on the terminal."""
