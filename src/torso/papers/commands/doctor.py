"""The command `torso doctor`: parse, call, print. It is in this package because it looks for the papers' data sets."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from torso.papers.commands.options import Root
from torso.report.doctor import Report, examine
from torso.report.options import Json
from torso.report.starting import starting


def add_to(app: typer.Typer) -> None:
    """Add this command to the command line."""
    app.command()(doctor)


def doctor(data_root: Root = None, as_json: Json = False) -> None:
    """Check this installation: versions, devices, extras, data, free disk and memory, and what is missing.

    Exit status: 0 unless something is broken that every command needs."""
    with starting():
        report = _examined(data_root)
    if as_json:
        print(json.dumps({"ok": report.ok, **asdict(report)}))
    else:
        _show(report)
    raise typer.Exit(0 if report.ok else 1)


def _examined(given: Path | None) -> Report:
    try:
        from torso.papers.experiments import datasets
    except ImportError:  # torch is missing or broken: the report says so
        return examine(given or Path("data"), {})
    root = datasets.data_root(given)
    found = datasets.known_roots(root)
    return examine(root, {name: found.get(name) for name in datasets.DATASETS})


def _show(report: Report) -> None:
    console = Console()
    view = Table.grid(padding=(0, 2))
    for title, lines in _lines(report).items():
        for place, line in enumerate(lines):
            view.add_row(title if place == 0 else "", line)
    console.print(view, highlight=False, markup=False)
    for problem in report.problems:
        console.print(f"broken: {problem}", style="red", highlight=False, markup=False, soft_wrap=True)
    for lack in report.missing:
        console.print(f"missing: {lack}", style="yellow", highlight=False, markup=False, soft_wrap=True)
    absent = [row["name"] for row in report.extras if not row["present"]]
    if absent:
        hint = f"An extra is installed with: pip install 'torso[{absent[0]}]'"
        console.print(hint, highlight=False, markup=False, soft_wrap=True)
    if report.ok:
        console.print("Torso can run here.", highlight=False)


def _lines(report: Report) -> dict[str, list[str]]:
    """Title → lines of the report."""
    machine = report.machine
    versions = [f"{name} {version}" for name, version in report.versions.items()]
    devices = [f"{row['name']}: {row['what']}" + _of_memory(row) for row in report.devices]
    memory = machine["memory_free_gb"]
    sets = report.data["sets"].items()
    return {
        "versions": [", ".join(versions)],
        "python": [machine["executable"]],
        "devices": devices or ["unknown: torch cannot be imported"],
        "threads": [f"{machine.get('threads', '?')} in torch, {machine['cores']} cores"],
        "memory": ["unknown" if memory is None else f"{memory} GB free"],
        "disk": [f"{machine['disk_free_gb']} GB free in {machine['folder']}"],
        "data": [
            f"looked for in {report.data['root']} ({report.data['from']})",
            "digits, synthetic: always there",
            *(f"{name}: {'not found' if place is None else f'found in {place}'}" for name, place in sets),
            "torso data list shows all data sets; torso data get NAME downloads one",
        ],
        "extras": [
            f"{row['name']}: {'present' if row['present'] else 'absent, lacks ' + ', '.join(row['absent'])}"
            + (f"; for {row['for']}" if row["for"] else "")
            for row in report.extras
        ],
    }


def _of_memory(device: dict[str, object]) -> str:
    return f", {device['memory_free_gb']} of {device['memory_gb']} GB free" if "memory_gb" in device else ""
