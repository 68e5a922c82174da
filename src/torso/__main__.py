"""The command `torso`, also as `python -m torso`. A signal during the import of the command line prints one line too,
not a traceback."""

from __future__ import annotations

import sys


def main() -> None:
    from torso.signals import AT_ONCE, terminated_as_interrupted

    try:
        with terminated_as_interrupted():
            from torso.cli import main as command
    except KeyboardInterrupt:
        print(f"torso: {AT_ONCE}", file=sys.stderr)
        sys.exit(130)
    command()


if __name__ == "__main__":
    main()
