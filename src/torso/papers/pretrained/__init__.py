"""Bodies trained elsewhere: the experiments of pretrained.toml, run in a given time, a json file for each cell."""
