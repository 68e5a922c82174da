"""Malicious clients: every method × attack × server rule of robust.toml, run in a given time, one json file for each
method and attack."""
