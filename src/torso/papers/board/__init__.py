"""The leaderboard: its definition (leaderboard.toml), its runs, the search for new combinations, places and verdict."""
