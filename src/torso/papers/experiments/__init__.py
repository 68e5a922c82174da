"""Run many configs, each in a folder of its own: what the tables and the leaderboard have in common."""
