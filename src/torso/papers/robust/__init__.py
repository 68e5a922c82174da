"""Malicious clients: every method × attack × server rule of cifar10.toml or digits.toml, run in a given time.

Each method under an attack has a json file."""
