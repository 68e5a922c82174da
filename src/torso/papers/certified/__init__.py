"""Small runs whose bits are recorded. The tests run them again, so a change that moves a number is noticed."""
