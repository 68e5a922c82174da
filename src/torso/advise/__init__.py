"""Which method for these data? A short tournament on validation data, and a judgement on samples that it never saw."""
