"""Results of tables go from folders of runs into json files: of runs that the recipes, as they stand, would make."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torso.papers.answers import Answer, changed, failures, records
from torso.papers.plan import plan
from torso.papers.published import names, recipe

_OURS = ("ours", "status", "failed", "config", "machine", "versions", "data")
_FREE = ("run.", "measure.", "personalize.sweep")  # where and how it ran, and what else was measured


def blank(name: str) -> list[Answer]:
    """The records of a table of which nothing has been run."""
    made = plan(recipe(name))
    return records(made, [{} for _ in made.lines])


def read(folder: Path) -> dict[str, list[Answer]]:
    """Table → its records, for the tables that have a file."""
    there = {name: folder / _file(name) for name in names()}
    return {name: json.loads(path.read_text("utf-8")) for name, path in there.items() if path.is_file()}


def take(out: Path, folder: Path) -> dict[str, list[str]]:
    """Bring the results of runs into the folder: what has been run, or has failed, replaces what was there.

    Table → what was not taken, in words: runs whose config is not the recipe's (`--set train.rounds=1`)."""
    before, taken = read(folder), {}
    for name in names():
        path = out / name.replace("/", "-") / "table.json"
        if path.is_file():
            found = json.loads(path.read_text("utf-8"))
            taken[name] = _write(folder, name, found, before.get(name, []))
    return taken


def tidy(folder: Path) -> dict[str, list[str]]:
    """Drop what the recipes would no longer run like that, and add lines that they have got since. As `take`."""
    return {name: left for name, there in read(folder).items() if (left := _write(folder, name, there))}


def _write(folder: Path, name: str, *sources: Sequence[Answer]) -> list[str]:
    told, lines = _configs(name), blank(name)
    known = [{_key(a): a for a in source if a["ours"] or failures(a)} for source in sources]
    left: list[str] = []
    for place, line in enumerate(lines):
        for answer in (source[_key(line)] for source in known if _key(line) in source):
            strange = _differences(answer.get("config", {}), told.get(place, {}))
            if not strange:
                lines[place] = {**line, **{key: answer[key] for key in _OURS if key in answer}}
                break
            left.append(f"{line['method']}: {', '.join(strange)}")
    path = folder / _file(name)
    if any("config" in line for line in lines):
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(lines, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    else:
        path.unlink(missing_ok=True)
    return list(dict.fromkeys(left))


def _configs(name: str) -> dict[int, dict[str, Any]]:
    """Place of a line → the config by which the recipe answers it."""
    runs = plan(recipe(name)).runs
    return {place: json.loads(json.dumps(changed(run.config))) for run in runs for place in run.answers}


def _differences(found: Mapping[str, Any], told: Mapping[str, Any]) -> list[str]:
    keys = [key for key in {**found, **told} if not key.startswith(_FREE) and found.get(key) != told.get(key)]
    return [f"{key} = {found.get(key, 'as usual')}, not {told.get(key, 'as usual')}" for key in keys]


def _key(answer: Answer) -> str:
    return json.dumps([answer[key] for key in ("setting", "dataset", "model", "method", "variant", "metric")])


def _file(name: str) -> str:
    return f"{name.replace('/', '-')}.json"
