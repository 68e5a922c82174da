"""Estimated minutes on an H200 for each line of a plan, as `torso papers` estimates: within a factor of two.

    python bench/estimate.py bench/plans/queue.plan

A line that runs no tables has no estimate. Runs that two lines share count in both."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

from torso.papers.experiments.estimate import _H200, Rate, seconds
from torso.papers.tables.plan import plan
from torso.papers.tables.published import recipe
from torso.parallel.packs import CLIENTS


def minutes(words: list[str], rate: Rate) -> tuple[float, int]:
    """The minutes and the number of runs of a command."""
    said = dict(pairwise(words))
    sets = [value for key, value in pairwise(words) if key == "--set"]
    made = plan(recipe(words[1]), said.get("--only", ""), int(said.get("--seeds", "1")), sets)
    return seconds(made.runs, rate) / 60, len(made.runs)


def main(path: Path) -> None:
    rate = Rate("H200", {body: (float(low), float(high)) for body, (low, high) in _H200.items()}, True, CLIENTS)
    for line in path.read_text("utf-8").splitlines():
        name, _, rest = line.removeprefix("# ").partition(": ")
        commands = [part.split() for part in rest.partition("    #")[0].split(";")]
        if all(words and words[0] == "reproduce" and "/" in words[1] for words in commands):
            found = [minutes(words, rate) for words in commands]
            print(f"{sum(it[0] for it in found):6.1f} min  {sum(it[1] for it in found):4d} runs  {name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
