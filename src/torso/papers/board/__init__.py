"""The leaderboard: settings, methods and grid (leaderboard.toml), the runs that follow, places and verdict."""
