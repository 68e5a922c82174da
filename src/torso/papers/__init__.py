"""The papers that Torso reproduces: what they call things, and what we do."""
