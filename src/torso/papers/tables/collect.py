"""Results of tables go from folders of runs into json files: of runs that the recipes, as they stand, would make."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from torso.config import Config
from torso.learn.phases import Phase
from torso.papers.experiments.provenance import changed
from torso.papers.tables.answers import Answer, answers_of, failures, is_divergence
from torso.papers.tables.plan import TablePlan, plan
from torso.papers.tables.published import names, recipe
from torso.report.summary import counted
from torso.results.checkpoint import write_text

_OURS = ("ours", "status", "failed", "config", "machine", "versions", "data")
_FREE = ("run.", "personalize.sweep", "measure.names", "measure.every", "measure.during", "measure.analyses")
"""Keys that say where and how it ran, and what else was measured."""


@cache
def whole_table(name: str) -> TablePlan:
    """The plan of a table as its recipe stands, with one seed."""
    return plan(recipe(name))


def blank(name: str) -> list[Answer]:
    """The records of a table of which nothing has been run."""
    made = whole_table(name)
    return answers_of(made, [{} for _ in made.lines])


def read(folder: Path) -> dict[str, list[Answer]]:
    """Table → its records, for the tables that have a file."""
    there = {name: folder / _file(name) for name in names()}
    return {name: json.loads(path.read_text("utf-8")) for name, path in there.items() if path.is_file()}


def collect(out: Path, folder: Path) -> dict[str, list[str]]:
    """Bring the results of runs into the folder: what has been run, or has diverged, replaces what was there, unless
    that has more seeds.

    Table → what was not taken, in words: where the config is not the recipe's (`--set train.rounds=1`), fewer seeds."""
    before, taken = read(folder), {}
    for name in names():
        path = out / name.replace("/", "-") / "table.json"
        if path.is_file():
            found = json.loads(path.read_text("utf-8"))
            taken[name] = _write(folder, name, _own(found), _own(before.get(name, [])))
    return taken


def tidy(folder: Path) -> dict[str, list[str]]:
    """Drop what the recipes would no longer run like that, add lines that they have got since, and answer anew what
    other tables ask of the same runs. As `collect`."""
    dropped: dict[str, list[str]] = {}
    for name, answers in read(folder).items():
        if left := _write(folder, name, _own(answers)):
            dropped[name] = left
    _share(folder)
    return dropped


def _share(folder: Path) -> None:
    """Where a table has not run what it asks, the answer of one that has; `from` names that one."""
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
    """By their keys, those that the table itself has run."""
    return {_key(answer): answer for answer in answers if (answer["ours"] or failures(answer)) and "from" not in answer}


def _write(folder: Path, name: str, *sources: Mapping[str, Answer]) -> list[str]:
    """`sources`: by the key of a line, what is known of it, the newest first."""
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
            best = max(fitting, key=_seeds)  # of equals the newest
            lines[place] = {**line, **_ours(best)}
            if best is not fitting[0]:
                left.append(f"{line['method']}: {counted(_seeds(fitting[0]), 'seed')}, not {_seeds(best)}")
    _store(folder, name, lines)
    return list(dict.fromkeys(left))


def _store(folder: Path, name: str, lines: Sequence[Answer]) -> None:
    path = folder / _file(name)
    if any("config" in line for line in lines):
        folder.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(lines, indent=1, ensure_ascii=False) + "\n")
    else:
        path.unlink(missing_ok=True)


def _ours(answer: Answer) -> Answer:
    return {key: answer[key] for key in _OURS if key in answer}


def _seeds(answer: Answer) -> int:
    """With how many it came to an end, good or bad; where the machine failed it says nothing."""
    return len(answer["ours"]["seeds"] if answer["ours"] else ()) + sum(map(is_divergence, failures(answer)))


@cache
def _configs(name: str) -> Mapping[int, Mapping[str, Any]]:
    """Place of a line → the config by which the recipe answers it, as it stands in a file."""
    runs = [(run, json.loads(json.dumps(changed(run.config)))) for run in whole_table(name).runs]
    return {place: config for run, config in runs for place in run.answers}


def _questions(name: str) -> dict[int, str]:
    """Place of a line → what it asks, in words that are the same where two tables ask the same."""
    made, told = whole_table(name), _configs(name)
    found = {}
    for run in made.runs:
        for place, measure in run.answers.items():
            asked = {key: value for key, value in told[place].items() if not key.startswith(_FREE)}
            number = made.lines[place].published
            found[place] = json.dumps([asked | _tuned(run.config), measure, number.std_over], sort_keys=True)
    return found


def _tuned(config: Config) -> dict[str, str]:
    """Fine-tuning as the method has it, where that is to train everything, is fine-tuning everything."""
    as_all = config.personalize.part == "method" and config.method.personal.phases == (Phase("all"),)
    return {"personalize.part": "full"} if as_all else {}


def _differences(found: Mapping[str, Any], told: Mapping[str, Any]) -> list[str]:
    keys = [key for key in {**found, **told} if not key.startswith(_FREE) and found.get(key) != told.get(key)]
    return [f"{key} = {found.get(key, 'as usual')}, not {told.get(key, 'as usual')}" for key in keys]


def _key(answer: Answer) -> str:
    return json.dumps([answer[key] for key in ("setting", "dataset", "model", "method", "variant", "metric")])


def _file(name: str) -> str:
    return f"{name.replace('/', '-')}.json"
