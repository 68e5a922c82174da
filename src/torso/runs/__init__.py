"""The round loop, the run folder, checkpoints, resume, and the events that displays listen to."""
