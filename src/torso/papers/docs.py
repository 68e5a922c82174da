"""`python -m torso.papers.docs [OUT]`: write the generated pages in docs/ from the json files beside them.

The pages are docs/reproduction, docs/leaderboard.md, docs/pretrained.md, docs/robustness-study.md and a part of
docs/privacy.md. With OUT, the folder of `torso reproduce` and `torso leaderboard`, the results in it are added to the
json files first.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from torso.papers.pages import leaderboard, pretrained, privacy, reproduction, robustness
from torso.papers.tables.collect import collect, tidy


def main(words: Sequence[str]) -> None:
    for out in words:
        for name, left in collect(Path(out), reproduction.FOLDER).items():
            print(f"{name}: taken from {out}")
            _print_each(left, "not taken")
        if leaderboard.collect(Path(out)):
            print(f"leaderboard: taken from {out}")
    for name, left in tidy(reproduction.FOLDER).items():
        _print_each([f"{name}, {text}" for text in left], "dropped, since the recipe has changed")
    reproduction.write()
    leaderboard.write(reproduction.FOLDER.parent)
    pretrained.write(reproduction.FOLDER.parent)
    robustness.write(reproduction.FOLDER.parent)
    privacy.write(reproduction.FOLDER.parent)


def _print_each(left: Sequence[str], why: str) -> None:
    for text in left:
        print(f"{why}: {text}")


if __name__ == "__main__":
    main(sys.argv[1:])
