"""Malicious clients: every method × attack × server rule of cifar10.toml or digits.toml, run in a given time, one json
file for each method and attack."""
