"""What privacy costs, and what personal heads buy: the experiments of privacy.toml, a json file for each cell."""
