"""`python -m torso.papers.privacy --seconds 300 --data-root DIR`: run privacy.toml until time is up.

It has the options of `python -m torso.papers.pretrained`. Every cell has a json file in docs/privacy."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from torso.papers.pretrained.__main__ import main as run_plan
from torso.papers.privacy.definition import FILE, FOLDER


def main(words: Sequence[str]) -> int:
    usual = ["--plan", str(FILE), "--folder", str(FOLDER), "--work", "runs/privacy"]
    return run_plan([*usual, *words])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
