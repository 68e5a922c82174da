"""What privacy costs, and what personal heads buy: the experiments of privacy.toml, one json file a cell."""
