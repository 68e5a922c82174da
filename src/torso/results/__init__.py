"""What is left of a run: its folder, its checkpoints, its result, and the models that go out of it."""
