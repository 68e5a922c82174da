"""Collect results of tables into the json files of docs/reproduction, if their config is still the recipe's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from torso.config import Config
from torso.errors import RequestError
from torso.learn.phases import Phase
from torso.papers.experiments.outcome import is_divergence
from torso.papers.experiments.provenance import changed_as_json
from torso.papers.tables.answers import Answer, answers_of, failures
from torso.papers.tables.plan import WEIGHTS, TablePlan, plan
from torso.papers.tables.published import names, recipe
from torso.report.summary import counted
from torso.results.files import write_text

_OURS = ("ours", "status", "failed", "config", "machine", "versions", "data", "sha256")
_FREE = ("run.", "personalize.sweep", "measure.names", "measure.every", "measure.during", "measure.analyses")
"""Beginnings of config keys that do not change a number: where and how a run ran, and what else it measured."""


@cache
def whole_table(name: str) -> TablePlan:
    """The plan of a whole table, with one seed."""
    return plan(recipe(name))


def blank(name: str) -> list[Answer]:
    """The answers of a table as if nothing of it had been run."""
    made = whole_table(name)
    return answers_of(made, [{} for _ in made.lines])


def read(folder: Path) -> dict[str, list[Answer]]:
    """Table → its answers, for the tables that have a file."""
    there = {name: folder / _file(name) for name in names()}
    return {name: json.loads(path.read_text("utf-8")) for name, path in there.items() if path.is_file()}


def collect(out: Path, folder: Path) -> dict[str, list[str]]:
    """Add the results below `out` to the folder. A new result replaces the old one, unless the old one has more seeds.

    Returns table → messages on results that were not taken, because their config is not the recipe's (`--set
    train.rounds=1`) or because they have fewer seeds."""
    before, taken = read(folder), {}
    for name in names():
        path = out / name.replace("/", "-") / "table.json"
        if path.is_file():
            found = json.loads(path.read_text("utf-8"))
            taken[name] = _write(folder, name, _own(found), _own(before.get(name, [])))
    return taken


def tidy(folder: Path) -> dict[str, list[str]]:
    """Drop results whose recipe has changed, add the lines that are new in recipes, and copy results between tables
    that need the same run. Returns messages as `collect` does."""
    dropped: dict[str, list[str]] = {}
    for name, answers in read(folder).items():
        if left := _write(folder, name, _own(answers)):
            dropped[name] = left
    _share(folder)
    return dropped


def _share(folder: Path) -> None:
    """Copy answers into tables that need the same run and have not run it. `from` names the table that has."""
    there, asked = read(folder), {name: _questions(name) for name in names()}
    known: dict[str, Answer] = {}
    for name, answers in there.items():
        for place, question in asked[name].items():
            if _seeds(answers[place]) > (_seeds(known[question]) if question in known else 0):
                known[question] = {**_ours(answers[place]), "from": name}
    for name, questions in asked.items():
        lines = there.get(name) or blank(name)
        copied = {place: known[asks] for place, asks in questions.items() if asks in known and not _seeds(lines[place])}
        if copied:
            _store(folder, name, [{**line, **copied.get(place, {})} for place, line in enumerate(lines)])


def _own(answers: Sequence[Answer]) -> dict[str, Answer]:
    """Key → answer, for the answers that the table has run itself."""
    return {_key(answer): answer for answer in answers if (answer["ours"] or failures(answer)) and "from" not in answer}


def _write(folder: Path, name: str, *sources: Mapping[str, Answer]) -> list[str]:
    """Write the table's file, and return messages on answers that were left out. `sources`: key of a line → answer,
    the newest source first."""
    wanted, lines = _configs(name), blank(name)
    sources = tuple(_replaced(name, source) for source in sources)
    left: list[str] = []
    for place, line in enumerate(lines):
        fitting: list[Answer] = []
        for answer in (source[_key(line)] for source in sources if _key(line) in source):
            differences = _differences(answer.get("config", {}), wanted.get(place, {}))
            if not differences:
                fitting.append(answer)
            elif not fitting:
                left.append(f"{line['method']}: {', '.join(differences)}")
        if fitting:
            best = max(fitting, key=_seeds)  # the newest of equal ones
            lines[place] = {key: value for key, value in line.items() if key != "why"} | _ours(best)
            if best is not fitting[0]:
                left.append(f"{line['method']}: {counted(_seeds(fitting[0]), 'seed')}, not {_seeds(best)}")
    _store(folder, name, lines)
    return list(dict.fromkeys(left))


def _replaced(name: str, source: Mapping[str, Answer]) -> dict[str, Answer]:
    """The answers, each at the line that has its config. If a recipe has made its main run a variant, the old result
    moves with it. It never moves to a line that measures something else."""
    wanted, measures, lines = _configs(name), _measures(name), blank(name)
    places = {_key(line): place for place, line in enumerate(lines)}
    found = dict(source)
    for key, answer in source.items():
        at = places.get(key)
        if at is None or not _differences(answer.get("config", {}), wanted.get(at, {})):
            continue
        for place, line in enumerate(lines):
            same = _number(line) == _number(answer) and measures.get(place) == measures.get(at)
            if same and _key(line) not in source and not _differences(answer["config"], wanted.get(place, {})):
                found[_key(line)] = found.pop(key)
                break
    return found


def _store(folder: Path, name: str, lines: Sequence[Answer]) -> None:
    """Write the table's file; a table without any run has none."""
    path = folder / _file(name)
    if any("config" in line for line in lines):
        folder.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(lines, indent=1, ensure_ascii=False) + "\n")
    else:
        path.unlink(missing_ok=True)


def _ours(answer: Answer) -> Answer:
    return {key: answer[key] for key in _OURS if key in answer}


def _seeds(answer: Answer) -> int:
    """How many seeds finished or diverged; seeds at which the machine failed do not count."""
    return len(answer["ours"]["seeds"] if answer["ours"] else ()) + sum(map(is_divergence, failures(answer)))


@cache
def _planned(name: str) -> TablePlan:
    """The plan of the whole table, with the lines that need a file of weights if their body can be built here."""
    made = whole_table(name)
    if "file" not in made.refused:
        return made
    try:
        return plan(recipe(name), sets=(f"{WEIGHTS}PATH",))
    except RequestError:  # the body comes from a library that is not installed
        return made


@cache
def _configs(name: str) -> Mapping[int, Mapping[str, Any]]:
    """Place of a line → the config of the recipe, as a json file has it."""
    runs = [(run, changed_as_json(run.config)) for run in _planned(name).runs]
    return {place: config for run, config in runs for place in run.answers}


@cache
def _measures(name: str) -> Mapping[int, str]:
    """Place of a line → the measure that answers it."""
    return {place: measure for run in _planned(name).runs for place, measure in run.answers.items()}


def _questions(name: str) -> dict[int, str]:
    """Place of a line → a key that is equal for lines of two tables that need the same measure of the same run."""
    made, wanted = _planned(name), _configs(name)
    found = {}
    for run in made.runs:
        for place, measure in run.answers.items():
            asked = {key: value for key, value in wanted[place].items() if not key.startswith(_FREE)}
            number = made.lines[place].published
            found[place] = json.dumps([asked | _tuned(run.config), measure, number.std_over], sort_keys=True)
    return found


def _tuned(config: Config) -> dict[str, str]:
    """The settings that make a method that fine-tunes all parts equal to `personalize.part=full`."""
    as_all = config.personalize.part == "method" and config.method.personal.phases == (Phase("all"),)
    return {"personalize.part": "full"} if as_all else {}


def _differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """In which keys a result's config differs from the recipe's, in words."""
    free: tuple[str, ...] = _FREE
    if "model.weights" in wanted and found.get("model.weights"):
        free = (*free, "model.weights")  # a path, which differs between machines
    keys = [key for key in {**found, **wanted} if not key.startswith(free) and found.get(key) != wanted.get(key)]
    return [f"{key} = {found.get(key, 'as usual')}, not {wanted.get(key, 'as usual')}" for key in keys]


def _number(answer: Answer) -> str:
    """The published number of a line, as a key."""
    return json.dumps([answer[key] for key in ("setting", "dataset", "model", "method", "metric")])


def _key(answer: Answer) -> str:
    return f"{_number(answer)} {answer['variant']}"


def _file(name: str) -> str:
    return f"{name.replace('/', '-')}.json"
