"""Run a table: its runs in order, each in its folder, and table.json rewritten after each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch

from torso.config import Config
from torso.errors import RequestError, TorsoError
from torso.papers.answers import Answer, Found, failed, machine_of, note_machine, read, records
from torso.papers.plan import Plan, Run
from torso.papers.progress import TableBar, TableLines
from torso.papers.sharing import begin_at, finished_runs, opening_key, thin, training_key
from torso.runs.checkpoint import write_text
from torso.runs.events import Listener, Stop
from torso.runs.folder import RunFolder, fingerprint
from torso.runs.result import Result
from torso.runs.run import Stopped
from torso.runs.together import Crew, crew, run_together


@dataclass
class Table:
    """A table that is being run: `answers` so far, and what went wrong with runs that broke."""

    plan: Plan
    out: Path
    whole: Plan | None = None  # the table without --only, for table.json
    found: list[dict[int, Found]] = field(default_factory=list)
    broken: dict[str, Exception] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.found = [{} for _ in self.plan.lines]

    @property
    def folder(self) -> Path:
        return self.out / self.plan.recipe.name.replace("/", "-")

    def place(self, run: Run) -> Path:
        return self.folder / run.name

    @property
    def answers(self) -> list[Answer]:
        return records(self.plan, self.found)

    def note(self, run: Run, result: Result | Exception) -> None:
        """Take the result of a run in."""
        if isinstance(result, Exception):
            self.broken[run.name] = result
            found = failed(result, run.config)
        else:
            found = read(result, run.config, run.answers, machine_of(self.place(run)))
        self.done.add(run.name)
        for line in run.answers:
            self.found[line][found.seed] = found

    def write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        answers = records(self.whole or self.plan, self.found)
        write_text(self.folder / "table.json", json.dumps(answers, indent=1, ensure_ascii=False) + "\n")


def reproduce(
    plan: Plan, out: Path, *, whole: Plan | None = None, listener: Listener | None = None, stop: Stop | None = None
) -> Table:
    """Run what is not finished yet. A run that breaks does not end the others; a stop does, and is resumed later.

    `whole`: the plan of the whole table; table.json then has what other commands have found, too."""
    table = Table(plan, out, whole)
    _recall(table)
    waiting = []
    for run in plan.runs:
        before = finished(run.config, table.place(run))
        if before is None:
            waiting.append(run)
        else:
            table.note(run, before)
    table.write()
    if waiting and isinstance(listener, TableLines | TableBar):
        rounds = sum(int(r.config.train.rounds) for r in waiting)
        listener.table(plan.recipe.name, len(waiting), rounds, len(table.done))
    try:
        with crew(plan.runs[0].config.run) if waiting else nullcontext() as hands:
            for wave in waves(table, waiting):
                _run_wave(table, wave, listener, stop, hands)
    except Stopped:
        left = len(plan.runs) - len(table.done)
        raise Stopped(
            f"stopped with {len(table.done)} of {len(plan.runs)} runs finished in {table.folder}. "
            f"The same command continues with the other {left}."
        ) from None
    return table


def _run_wave(
    table: Table, wave: Sequence[Run], listener: Listener | None, stop: Stop | None, hands: Crew | None
) -> None:
    configs, places = [run.config for run in wave], [table.place(run) for run in wave]
    ends = run_together(configs, places, listener=listener, stop=stop, after=note_machine, crew=hands)
    with closing(ends):
        for number, result in ends:
            _check(result, wave[number])
            table.note(wave[number], result)
            table.write()
            thin([places[number]])


def _recall(table: Table) -> None:
    """Take in what was finished before and is not asked for now."""
    asked = {run.name for run in table.plan.runs}
    for run in table.whole.runs if table.whole else ():
        place = table.place(run)
        if run.name in asked or not (place / "result.json").exists():
            continue
        if fingerprint(Config.load(place / "config.toml")) == fingerprint(run.config):
            table.note(run, Result.read(place))
    table.done.clear()


def _check(result: Result | Exception, run: Run) -> None:
    """What is wrong with the request, or with the device, ends the table."""
    if isinstance(result, torch.OutOfMemoryError | MemoryError):
        raise RequestError(
            f"{run.name} does not fit into the memory of the device ({str(result).splitlines()[0]}). Fewer clients at "
            "once: --set run.clients_at_once=10, or a larger device: --device cuda:N"
        )
    if isinstance(result, RequestError):
        raise result
    if isinstance(result, Exception) and not isinstance(result, TorsoError | RuntimeError):
        raise result


def finished(config: Config, folder: Path) -> Result | None:
    """The result of a run that is finished; raises RequestError where the folder holds another run."""
    if not (folder / "config.toml").exists():
        RunFolder.check(folder, config, resume=False)
        return None
    RunFolder.check(folder, config, resume=True)
    return Result.read(folder) if (folder / "result.json").exists() else None


def waves(table: Table, waiting: Sequence[Run]) -> Iterator[list[Run]]:
    """Runs in the order in which they can begin: first those that train from the start, then those whose rounds
    another run has done, from where that one ended."""
    left = {run.name: run for run in waiting}
    keys = {run.name: training_key(run.config) for run in waiting}
    opens = {run.name: opening_key(run.config) for run in waiting}
    known = finished_runs(table.out) if left else {}
    while left:
        leaders: dict[str, str] = {}
        for name in left:
            if keys[name] not in known:
                leaders.setdefault(keys[name], name)
        wave = [
            run
            for name, run in left.items()
            if keys[name] in known or (leaders[keys[name]] == name and opens[name] not in leaders)
        ]
        for run in wave:
            donor = known.get(keys[run.name]) or known.get(opens[run.name])
            if donor is not None and not (table.place(run) / "config.toml").exists():
                begin_at(donor, run.config, table.place(run))
            del left[run.name]
        yield wave
        known |= _now_finished(table, wave, keys)


def _now_finished(table: Table, wave: Sequence[Run], keys: Mapping[str, str]) -> dict[str, Path]:
    places = {keys[run.name]: table.place(run) for run in wave}
    return {key: place for key, place in places.items() if _can_be_begun_at(place)}


def _can_be_begun_at(place: Path) -> bool:
    return (place / "checkpoints").is_dir() and (place / "result.json").exists() and Result.read(place).ok
