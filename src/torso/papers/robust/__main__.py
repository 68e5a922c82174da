"""`python -m torso.papers.robust --seconds 500 --data-root DIR`: run a plan (by default cifar10.toml) until time is up.

Each method under an attack has a json file in `--folder` (by default docs/robustness/ and the plan's name). Results in
these files are not run again. Run folders are below `--work`. `--pack FILE` writes all json files into one archive, to
move them to another machine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from torso.errors import RequestError, did_you_mean
from torso.papers.experiments.datasets import data_root, known_roots
from torso.papers.experiments.deadline import Deadline
from torso.papers.experiments.evidence_command import common_options, run_command
from torso.papers.experiments.result_files import write_archive
from torso.papers.robust.cells import Plan
from torso.papers.robust.definition import FILE, Evidence, load
from torso.papers.robust.running import Runs

FOLDER = Path("docs") / "robustness"


def main(words: Sequence[str]) -> int:
    return run_command(_go, _parser().parse_args(words))


def _go(said: argparse.Namespace) -> int:
    evidence = load(said.plan)
    said.folder = said.folder or FOLDER / said.plan.stem
    roots: dict[str, str] = {}
    for root in said.data_root or [data_root(None)]:
        roots = {**known_roots(root), **roots}
    only = _only(evidence, said.only)
    plan = Plan(evidence, said.work, tuple(said.set), roots, said.rounds, only, said.seeds)
    return _run(plan, said)


def _only(evidence: Evidence, text: str) -> frozenset[str]:
    """The names of --only. Raises a RequestError if one is unknown."""
    names = frozenset(filter(None, text.split(",")))
    known = {**evidence.methods, **evidence.attacks, **evidence.rules}
    for name in sorted(names - known.keys()):
        raise RequestError(f"--only {name}: no method, attack or rule has this name{did_you_mean(name, known)}")
    return names


def _run(plan: Plan, said: argparse.Namespace) -> int:
    from torso.parallel.hire import processes_for

    runs = Runs(plan, said.folder, Deadline(said.seconds), say=lambda text: print(text, flush=True))
    try:
        done = runs.go(said.processes or processes_for(plan.plain(plan.methods[0]).config.run))
    finally:
        if said.pack:
            write_archive(said.folder, said.pack)
    for name, why in runs.broken.items():
        print(f"not done: {name}: {why}")
    left = len(runs.missing())
    print(f"{'all is done' if done else f'{left} runs are left'} after {runs.stop.passed:.0f} s; {said.folder}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = common_options("robust", str(__doc__), FILE, None)
    parser.add_argument("--only", default="", help="names of methods, attacks and rules, separated by commas")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
