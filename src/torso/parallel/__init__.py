"""Many runs at once: which of them share a stack, which processes do them, and who deals them out."""
