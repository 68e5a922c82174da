"""The cost of a run of the leaderboard for each method: seconds of training and of measuring, launches, memory.

    python bench/board_seconds.py --data-root DIR [--methods fedavg,fedpac] [--settings cifar10-s2] [--profile]

Every method runs twice in this process, alone: the first run compiles and records, the second run is reported.
`--profile` adds where the host's time went, for methods that take more than twice as long as the first method.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import json
import pstats
import time
from collections.abc import Sequence
from pathlib import Path

import torch

import torso
from torso.config import Config
from torso.papers.board.definition import load
from torso.papers.board.trials import BoardMethod, BoardPlan
from torso.papers.experiments.datasets import known_roots

GIB = 2**30


def config_of(plan: BoardPlan, setting: str, method: str) -> Config:
    """The config of a final run, at the middle of the grid."""
    point = {axis.key: axis.values[len(axis.values) // 2] for axis in plan.board.grid}
    said = plan.board.later[setting].entries if setting in plan.board.later else {}
    sets = said.get(method, plan.board.entries.get(method, ()))
    return plan.final(setting, BoardMethod(method, (f"method.name={method}", *sets)), point, 0).config


def once(config: Config, profile: cProfile.Profile | None = None) -> dict[str, float]:
    accelerated = torch.cuda.is_available()
    if accelerated:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    found = torso.run(config) if profile is None else profile.runcall(torso.run, config)
    return {
        "whole": time.perf_counter() - began,
        "train": found.seconds["train"],
        "measure": found.seconds["measure"],
        "GiB": torch.cuda.max_memory_reserved() / GIB if accelerated else 0.0,
        "personal": found.accuracy["personalized"].mean,
        "generic": found.accuracy["generic"].mean,
    }


def top(profile: cProfile.Profile, lines: int) -> str:
    """The functions in which most of the host's time passed."""
    told = io.StringIO()
    pstats.Stats(profile, stream=told).sort_stats("tottime").print_stats(lines)
    rows = [line for line in told.getvalue().splitlines() if line.strip() and line.strip()[0].isdigit()]
    return "\n".join(f"      {row.strip()}" for row in rows[1:])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--methods", default="")
    parser.add_argument("--settings", default="cifar10-s2")
    parser.add_argument("--set", action="append", default=[], dest="sets")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no method after so many")
    parser.add_argument("--out", type=Path)
    said = parser.parse_args(arguments)
    board = load()
    plan = BoardPlan(board, tuple(said.sets), known_roots(said.data_root))
    began, rows = time.perf_counter(), []
    for setting in said.settings.split(","):
        usual = 0.0
        for method in said.methods.split(",") if said.methods else board.entries:
            if time.perf_counter() - began > said.seconds:
                print(f"{method}: not begun")
                continue
            try:
                config = config_of(plan, setting, method)
                first = once(config)
                second = once(config)
            except Exception as error:  # a method that fails must not hide the others
                print(f"{setting} {method}: {type(error).__name__}: {str(error)[:300]}", flush=True)
                continue
            rows.append({"setting": setting, "method": method, "first": first, "second": second})
            print(
                f"{setting:16} {method:16} first {first['whole']:6.2f} s; second {second['whole']:6.2f} s: "
                f"train {second['train']:6.2f}, measure {second['measure']:6.2f}; {second['GiB']:5.1f} GiB; "
                f"{second['personal']:5.1f} / {second['generic']:5.1f}",
                flush=True,
            )
            usual = usual or second["whole"]
            if said.profile and second["whole"] > 2 * usual:
                profile = cProfile.Profile()
                once(config, profile)
                print(top(profile, 14), flush=True)
    if said.out is not None:
        said.out.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
