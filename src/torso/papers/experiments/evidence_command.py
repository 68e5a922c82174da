"""What the commands have in common that run experiments of a TOML file for a given time."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from torso.errors import TorsoError


def go(work: Callable[[argparse.Namespace], int], said: argparse.Namespace) -> int:
    """The exit status of a command; what is wrong is said in one line."""
    try:
        return work(said)
    except TorsoError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print("stopped; the same command goes on with what is not known yet", file=sys.stderr)
        return 130


def common_options(name: str, about: str, plan: Path, folder: Path | None) -> argparse.ArgumentParser:
    """A parser with the options of all such commands; `plan`: the TOML file, `folder`: of the json files."""
    parser = argparse.ArgumentParser(prog=f"python -m torso.papers.{name}", description=about)
    add = parser.add_argument
    add("--plan", type=Path, default=plan, help=f"another file like {plan.name}")
    add("--seconds", type=float, default=500.0, help="runs end, with a checkpoint, after this time")
    add("--data-root", type=Path, action="append", default=[], help="folder with data sets; several may be given")
    add("--folder", type=Path, default=folder, help="of the json files")
    add("--work", type=Path, default=Path("runs") / name, help="of the run folders")
    add("--pack", type=Path, default=None, help="an archive of all json files, written at the end")
    add("--seeds", type=int, default=0, help="in place of the plan's number of seeds")
    add("--rounds", type=float, default=1.0, help="share of all rounds: 0.5 halves them")
    add("--processes", type=int, default=0, help="that share the device; 0: as many as keep it busy")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="of every run, above all else")
    return parser
