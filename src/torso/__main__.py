"""`python -m torso` is the command `torso`."""

from torso.cli import main

main()
