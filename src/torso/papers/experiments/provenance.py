"""The origin of a number, so that it can be made again: config, machine, versions."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from torso.config import Config
from torso.papers.experiments.code_path import code_path
from torso.precision import precision_of
from torso.report.comparison import flat
from torso.results.files import write_text
from torso.results.same_run import is_free
from torso.runs.devices import device_of


def changed(config: Config) -> dict[str, Any]:
    """The keys of a config that differ from its preset and the defaults. With the seed and data.root, `torso run
    --set …` repeats the run.

    Keys that say where and how a run runs (run.device) are left out. A file of weights is named without its folder."""
    usual = flat(Config.load(None, [f"method.name={config.method.name}"]).as_tree())
    differing = {key: value for key, value in flat(config.as_tree()).items() if usual.get(key) != value}
    kept: dict[str, Any] = {}
    for key, value in differing.items():
        if key in ("data.root", "run.seed") or is_free(key):
            continue
        kept[key] = Path(value).name if key == "model.weights" else value
    return {"method.name": config.method.name, **kept}


def changed_as_json(config: Config) -> dict[str, Any]:
    """`changed` as a JSON file has it: tuples are lists."""
    found: dict[str, Any] = json.loads(json.dumps(changed(config)))
    return found


def machine(config: Config) -> dict[str, str]:
    """Device, system and precision of a run; on CPU also the code path, which decides how sums are rounded."""
    device = device_of(config.run)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()}, CPU"
    path = {} if device.type == "cuda" else {"path": code_path()}
    return {
        "device": name,
        "system": platform.system(),
        "precision": precision_of(config.run.precision, device),
        **path,
    }


def machines_and_versions(run: Sequence[Mapping[str, Any]]) -> list[str]:
    """Two sentences: the machines of these results, and their versions."""
    machines = dict.fromkeys("{device} ({precision})".format(**a["machine"]) for a in run if a["machine"])
    versions = dict.fromkeys(
        ", ".join(f"{name} {number}" for name, number in sorted(a["versions"].items())) for a in run
    )
    return [f"Machine (precision): {'; '.join(machines)}.", f"Versions: {'; '.join(versions)}."]


def note_machine(config: Config, folder: Path) -> None:
    """Write machine.json, in the process that made the run.

    A run that was resumed on another machine, or that began at the end of another run, names both machines. Of a run
    that was killed only the last machine is known."""
    path, result = folder / "machine.json", folder / "result.json"
    if path.exists() and result.exists() and path.stat().st_mtime >= result.stat().st_mtime:
        return  # the run was finished before
    write_text(path, json.dumps(merged_machines([machine_of(folder), machine(config)])) + "\n")


def merged_machines(machines: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """The machines merged into one record: where they differ, it names each in turn (`cuda, then CPU`)."""
    found: dict[str, str] = {}
    for each in machines:
        found |= {key: _then(found.get(key, name), name) for key, name in each.items()}
    return found


def _then(before: str, now: str) -> str:
    return before if before == now or before.endswith(f", then {now}") else f"{before}, then {now}"


def machine_of(folder: Path) -> dict[str, str]:
    """What machine.json says; empty without it."""
    path = folder / "machine.json"
    found: dict[str, str] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return found
