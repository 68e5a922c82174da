"""Many runs at once: in one stack, side by side in several processes, or on the workers of a cluster."""
