"""`python -m torso.papers.pretrained --seconds 500 --data-root DIR`: run pretrained.toml until time is up.

Each cell (a method in a setting) has a json file in `--folder`. Results in these files are not run again. Run folders
are below `--work`. `--pack FILE` writes all json files into one archive, to move them to another machine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from torso.papers.experiments.datasets import data_root, known_roots
from torso.papers.experiments.deadline import Deadline
from torso.papers.experiments.evidence_command import common_options, run_command
from torso.papers.experiments.result_files import write_archive
from torso.papers.pretrained.cells import Plan
from torso.papers.pretrained.definition import FILE, Block, load
from torso.papers.pretrained.estimate import print_estimate
from torso.papers.pretrained.running import Runs

FOLDER = Path("docs") / "pretrained"


def main(words: Sequence[str]) -> int:
    return run_command(_go, _parser().parse_args(words))


def _go(said: argparse.Namespace) -> int:
    evidence = load(Path(said.plan))
    defaults = [f"{key}={value}" for key, value in _network(said).items() if value is not None]
    plan = Plan(evidence, said.work, tuple(defaults), tuple(said.set), _roots(said.data_root), said.rounds)
    blocks = [block for block in evidence.blocks if not said.only or block.name in said.only.split(",")]
    if said.seeds:
        blocks = [block.model_copy(update={"seeds": said.seeds}) for block in blocks]
    if said.estimate:
        print_estimate(plan, blocks, said.estimate)
        return 0
    return _run(plan, blocks, said)


def _roots(given: Sequence[Path]) -> dict[str, str]:
    """Source → data.root, for the data sets that are found."""
    found: dict[str, str] = {}
    for root in given or [data_root(None)]:
        found = {**known_roots(root), **found}
    return found


def _run(plan: Plan, blocks: Sequence[Block], said: argparse.Namespace) -> int:
    from torso.parallel.hire import processes_for

    runs = Runs(plan, said.folder, Deadline(said.seconds), say=lambda text: print(text, flush=True))
    run = plan.final(cell := plan.cells(blocks[0])[0], plan.points(cell)[0], 0).config.run if blocks else None
    try:
        done = runs.go(blocks, said.processes or (processes_for(run) if run else 1))
    finally:
        if said.pack:
            write_archive(said.folder, said.pack)
    for name, why in runs.broken.items():
        print(f"not done: {name}: {why}")
    print(f"{'all is done' if done else 'not all is done'} after {runs.stop.passed:.0f} s; {said.folder}")
    return 0


def _network(said: argparse.Namespace) -> dict[str, object]:
    """The network of the options in place of the plan's own. A setting that names another network keeps it."""
    return {"model.body": said.body, "model.weights": said.weights, "data.size": said.size}


def _parser() -> argparse.ArgumentParser:
    parser = common_options("pretrained", str(__doc__), FILE, FOLDER)
    parser.add_argument("--only", default="", help="names of blocks, separated by commas")
    parser.add_argument("--body", help="model.body of settings that have none")
    parser.add_argument("--weights", help="model.weights of settings that have none")
    parser.add_argument("--size", type=int, help="data.size of settings that have none")
    parser.add_argument(
        "--estimate",
        type=float,
        default=0.0,
        metavar="RATE",
        help="print the time of each block at this many trained images a second, and run nothing",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
