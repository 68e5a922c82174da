"""Runs of many configs, each in its own folder: what the tables and the leaderboard have in common."""
