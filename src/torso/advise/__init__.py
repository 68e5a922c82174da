"""`torso advise`: which method suits some data. Methods compete on held-out training samples within a budget; the best
are compared again on samples that were not used before."""
