"""An empirical audit of differential privacy: runs with canaries, and the bounds on ε that their scores prove."""
