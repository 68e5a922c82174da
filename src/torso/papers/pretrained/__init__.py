"""Bodies trained elsewhere: the experiments of pretrained.toml, run in a given time, one json file a cell."""
