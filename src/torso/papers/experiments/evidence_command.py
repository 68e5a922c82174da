"""What the commands share that run the experiments of a TOML file for a given time: options and exit status."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from torso.errors import TorsoError


def run_command(work: Callable[[argparse.Namespace], int], said: argparse.Namespace) -> int:
    """Run a command and return its exit status. An error is printed in one line."""
    try:
        return work(said)
    except TorsoError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print("stopped; the same command continues with what is missing", file=sys.stderr)
        return 130


def common_options(name: str, about: str, plan: Path, folder: Path | None) -> argparse.ArgumentParser:
    """A parser with the options of all these commands. `plan`: the TOML file. `folder`: of the json files."""
    parser = argparse.ArgumentParser(prog=f"python -m torso.papers.{name}", description=about)
    add = parser.add_argument
    add("--plan", type=Path, default=plan, help=f"another file like {plan.name}")
    add("--seconds", type=float, default=500.0, help="runs stop, with a checkpoint, after this time")
    add("--data-root", type=Path, action="append", default=[], help="folder with data sets; several may be given")
    add("--folder", type=Path, default=folder, help="folder of the json files")
    add("--work", type=Path, default=Path("runs") / name, help="folder of the run folders")
    add("--pack", type=Path, default=None, help="write an archive of all json files at the end")
    add("--seeds", type=int, default=0, help="number of seeds, in place of the plan's")
    add("--rounds", type=float, default=1.0, help="share of all rounds: 0.5 halves them")
    add("--processes", type=int, default=0, help="processes that share the device; 0: as many as keep it busy")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="change a key of every run")
    return parser
