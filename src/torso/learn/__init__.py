"""What a client does with its data: the local loop, objectives, drift corrections, steps, attacks and schedules."""
