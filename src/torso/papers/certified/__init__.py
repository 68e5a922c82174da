"""Small runs whose every bit is known: they are run again with every change, and a number that moves is seen."""
