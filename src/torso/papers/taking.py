"""Results of tables go from folders of runs into json files: of runs that the recipes, as they stand, would make."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torso.config import Config
from torso.papers.answers import Answer, changed, failures, records
from torso.papers.plan import plan
from torso.papers.published import names, recipe

_OURS = ("ours", "status", "failed", "config", "machine", "versions", "data")
_FREE = (  # where and how it ran, and what else was measured
    *("run.", "personalize.sweep", "measure.names", "measure.every", "measure.during", "measure.analyses"),
)


def blank(name: str) -> list[Answer]:
    """The records of a table of which nothing has been run."""
    made = plan(recipe(name))
    return records(made, [{} for _ in made.lines])


def read(folder: Path) -> dict[str, list[Answer]]:
    """Table → its records, for the tables that have a file."""
    there = {name: folder / _file(name) for name in names()}
    return {name: json.loads(path.read_text("utf-8")) for name, path in there.items() if path.is_file()}


def take(out: Path, folder: Path) -> dict[str, list[str]]:
    """Bring the results of runs into the folder: what has been run, or has failed, replaces what was there, unless that
    has more seeds.

    Table → what was not taken, in words: runs whose config is not the recipe's (`--set train.rounds=1`)."""
    before, taken = read(folder), {}
    for name in names():
        path = out / name.replace("/", "-") / "table.json"
        if path.is_file():
            found = json.loads(path.read_text("utf-8"))
            taken[name] = _write(folder, name, _by_key(found), _by_key(before.get(name, [])))
    return taken


def tidy(folder: Path) -> dict[str, list[str]]:
    """Drop what the recipes would no longer run like that, add lines that they have got since, and answer what another
    table has asked of the same run. As `take`."""
    there = read(folder)
    dropped = {name: left for name, known in there.items() if (left := _write(folder, name, _by_key(known)))}
    there, asked = read(folder), {name: _questions(name) for name in names()}
    run = [(asked[name][place], a) for name in there for place, a in enumerate(there[name]) if a["ours"]]
    known = dict(sorted(run, key=lambda pair: _seeds(pair[1])))  # the last counts
    for name, questions in asked.items():
        mine = there.get(name) or blank(name)
        twins = {_key(mine[place]): known[question] for place, question in questions.items() if question in known}
        if any(_seeds(twins[_key(line)]) > _seeds(line) for line in mine if _key(line) in twins):
            _write(folder, name, _by_key(mine), twins)
    return dropped


def _by_key(answers: Sequence[Answer]) -> dict[str, Answer]:
    """Those that have been run, or have failed."""
    return {_key(answer): answer for answer in answers if answer["ours"] or failures(answer)}


def _write(folder: Path, name: str, *sources: Mapping[str, Answer]) -> list[str]:
    """`sources`: by the key of a line, what is known of it; of several with as many seeds the first counts."""
    told, lines = _configs(name), blank(name)
    left: list[str] = []
    for place, line in enumerate(lines):
        fitting: list[Answer] = []
        for answer in (source[_key(line)] for source in sources if _key(line) in source):
            strange = _differences(answer.get("config", {}), told.get(place, {}))
            if not strange:
                fitting.append(answer)
            elif not fitting:
                left.append(f"{line['method']}: {', '.join(strange)}")
        if fitting:
            best = max(fitting, key=_seeds)
            lines[place] = {**line, **{key: best[key] for key in _OURS if key in best}}
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
    return {place: _plain(run.config) for run in runs for place in run.answers}


def _questions(name: str) -> dict[int, str]:
    """Place of a line → what it asks, in words that are the same where two tables ask the same."""
    made = plan(recipe(name))
    found = {}
    for run in made.runs:
        config = {key: value for key, value in sorted(_plain(run.config).items()) if not key.startswith(_FREE)}
        for place, measure in run.answers.items():
            found[place] = json.dumps([config, measure, made.lines[place].record.std_over])
    return found


def _plain(config: Config) -> dict[str, Any]:
    """As it stands in a file."""
    found: dict[str, Any] = json.loads(json.dumps(changed(config)))
    return found


def _differences(found: Mapping[str, Any], told: Mapping[str, Any]) -> list[str]:
    keys = [key for key in {**found, **told} if not key.startswith(_FREE) and found.get(key) != told.get(key)]
    return [f"{key} = {found.get(key, 'as usual')}, not {told.get(key, 'as usual')}" for key in keys]


def _seeds(answer: Answer) -> int:
    """With how many it was run, those included at which it failed."""
    return len(answer["ours"]["seeds"] if answer["ours"] else ()) + len(failures(answer))


def _key(answer: Answer) -> str:
    return json.dumps([answer[key] for key in ("setting", "dataset", "model", "method", "variant", "metric")])


def _file(name: str) -> str:
    return f"{name.replace('/', '-')}.json"
