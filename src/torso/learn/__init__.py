"""What a client does with its data: objectives, drift corrections, schedules and the one local loop."""
