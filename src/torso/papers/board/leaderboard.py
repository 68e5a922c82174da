"""Run the leaderboard: every contestant's rates are chosen on validation data, then it meets the test data."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any

from torso.measure.fairness import worst
from torso.papers.board.definition import CHOOSES, NAME, Arena, Entry, Point, Trial
from torso.papers.board.search import FILE, Combination, best_of, entered, ranked, read_found, score
from torso.papers.commands.progress import TableBar, TableLines
from torso.papers.experiments.datasets import file_of
from torso.papers.experiments.reuse import finished_runs, thin, training_key
from torso.papers.experiments.runner import finished, run_all
from torso.papers.tables.answers import changed, machine_of, one_after_another, over_seeds
from torso.parallel.crew import Crew
from torso.parallel.packs import alike
from torso.results.checkpoint import write_text
from torso.results.folder import make
from torso.results.result import Result
from torso.runs.events import Listener, Stop
from torso.runs.run import Stopped

BOARD = "board.json"
Row = dict[str, Any]


@dataclass
class Contestant:
    """An entry in a setting, with the runs that choose its rates and, once chosen, those that are judged."""

    arena: Arena
    setting: str
    entry: Entry
    combination: Combination | None = None  # of the search
    tuning: list[Trial] = field(init=False)
    finals: dict[int, Trial] = field(default_factory=dict)  # by seed
    facts: dict[tuple[int, ...], Row] = field(default_factory=dict)  # of the judged runs, by their seeds

    def __post_init__(self) -> None:
        self.tuning = self.arena.tuning(self.setting, self.entry)

    def final(self, point: Point, seed: int) -> Trial:
        if seed not in self.finals:
            self.finals[seed] = self.arena.final(self.setting, self.entry, point, seed)
        return self.finals[seed]

    def widen(self, best: Point) -> list[Trial]:
        """Further runs that choose: the neighbours of the best so far."""
        points = self.arena.board.untried(best, [trial.point for trial in self.tuning])
        more = self.arena.tuning(self.setting, self.entry, points)
        self.tuning += more
        return more

    def stand_ins(self, seeds: int) -> list[Trial]:
        """As many runs as will be judged, before anybody knows their rates: for estimates."""
        point = self.tuning[0].point
        return [self.arena.final(self.setting, self.entry, point, seed) for seed in range(seeds)]


@dataclass
class Ledger:
    """The runs below OUT/leaderboard, and what came of them so far."""

    out: Path
    listener: Listener | None = None
    stop: Stop | None = None
    hire: Callable[[], Crew | None] = lambda: None  # processes that share the runs; asked once there are any
    at_once: int = 1  # families of methods that are run together
    results: dict[str, Result | Exception] = field(default_factory=dict)
    known: dict[str, Path] | None = None

    @property
    def folder(self) -> Path:
        return self.out / NAME

    @property
    def broken(self) -> dict[str, Exception]:
        return {name: found for name, found in self.results.items() if isinstance(found, Exception)}

    def recall(self, trials: Iterable[Trial]) -> None:
        """Read those that are finished."""
        for trial in trials:
            if trial.name not in self.results:
                found = finished(trial.config, self.folder / trial.name)
                if found is not None:
                    self.results[trial.name] = found

    def run(self, trials: Sequence[Trial], note: Callable[[], None]) -> None:
        """Run the others; those that train the same after the first of them, and not at all where that one diverged."""
        leaders: dict[str, Trial] = {}
        led = [(trial, leaders.setdefault(training_key(trial.config), trial)) for trial in trials]
        self._run([trial for trial, leader in led if trial is leader], note)
        for trial, leader in led:
            first = self.results[leader.name]
            if not (isinstance(first, Result) and first.ok):
                self.results.setdefault(trial.name, first)
        self._run([trial for trial, _ in led], note)

    def recall_tuning(self, one: Contestant) -> None:
        """Read what is finished of the runs that choose, and of those that follow from it."""
        self.recall(one.tuning)
        while not self.missing(one) and (more := one.widen(self._best(one))):
            self.recall(more)

    def tune(self, contestants: Sequence[Contestant], note: Callable[[], None]) -> None:
        """Run all that choose, until everybody's best has no neighbour that was not tried."""
        while any(trial.name not in self.results for one in contestants for trial in one.tuning):
            self.run([trial for one in contestants for trial in one.tuning], note)
            for one in contestants:
                self.recall_tuning(one)
        # nobody begins at them any more, and there are a thousand
        thin([self.folder / trial.name for one in contestants for trial in one.tuning], above=0)
        self.known = {key: at for key, at in (self.known or {}).items() if (at / "checkpoints").is_dir()}

    def _run(self, trials: Sequence[Trial], note: Callable[[], None]) -> None:
        waiting = [trial for trial in trials if trial.name not in self.results]
        if waiting and self.known is None:
            self.known = finished_runs(self.out)
        known = {} if self.known is None else self.known
        crew = self.hire() if waiting else None
        with closing(run_all(waiting, self.folder, known, self.listener, self.stop, crew)) as ends:
            for trial, result in ends:
                self.results[trial.name] = result
                note()

    def validation(self, trial: Trial) -> dict[str, float] | None:
        """What a run that chooses has reached; None where it diverged."""
        found = self.results[trial.name]
        if not (isinstance(found, Result) and found.ok):
            return None
        means = {name: round(found.accuracy[name].mean, 4) for name in CHOOSES}
        return means if all(map(math.isfinite, means.values())) else None

    def tried(self, contestant: Contestant) -> list[Row]:
        return [
            {**trial.point, "validation": self.validation(trial)}
            for trial in contestant.tuning
            if trial.name in self.results
        ]

    def missing(self, contestant: Contestant) -> list[Trial]:
        """Runs that choose and have no result of their own: not run yet, or broken by something else than training."""
        return [t for t in contestant.tuning if not isinstance(self.results.get(t.name), Result)]

    def chosen(self, contestant: Contestant) -> Point | None:
        """The point with the largest sum on validation data; None while that is not known, or where all diverged."""
        if self.missing(contestant):
            return None
        reached = best_of(self.tried(contestant))["validation"]
        return self._best(contestant) if score(reached) > 0 else None

    def _best(self, contestant: Contestant) -> Point:
        best = best_of(self.tried(contestant))
        return {key: best[key] for key in contestant.tuning[0].point}

    def announce(self, title: str, left: int, rounds: int) -> None:
        if left and isinstance(self.listener, TableLines | TableBar):
            self.listener.table(title, left, rounds, len(self.results))

    def stopped(self) -> Stopped:
        done = sum(isinstance(found, Result) for found in self.results.values())
        return Stopped(f"stopped with {done} runs finished in {self.folder}. The same command continues with the rest.")

    def write(self, name: str, data: Any) -> None:
        make(self.folder)
        write_text(self.folder / name, json.dumps(data, indent=1, ensure_ascii=False) + "\n")


def compete(
    contestants: Sequence[Contestant], ledger: Ledger, seeds: int, others: Collection[tuple[str, str]] = ()
) -> list[Row]:
    """Family by family, or some at once, in all settings: choose, then run what is judged.

    `others`: (setting, method) of the whole board, of which board.json keeps what other commands have found."""
    for one in contestants:
        ledger.recall_tuning(one)
        _recall_finals(ledger, one, seeds)
    path = ledger.folder / BOARD
    there = json.loads(path.read_text("utf-8")) if path.is_file() else []
    before = {key_of(row): row for row in there if key_of(row) in others}

    def note() -> None:
        ledger.write(BOARD, list({**before, **{key_of(row): row for row in rows(contestants, ledger)}}.values()))

    note()
    left = sum(len(ledger.missing(one)) + seeds - len(one.finals) for one in contestants)
    ledger.announce(NAME, left, left * int(contestants[0].tuning[0].config.train.rounds))
    try:
        for group in _in_turn(contestants, ledger.at_once):
            ledger.tune(group, note)
            points = [(one, point) for one in group if (point := ledger.chosen(one)) is not None]
            ledger.run([one.final(point, seed) for one, point in points for seed in range(seeds)], note)
    except Stopped:
        raise ledger.stopped() from None
    note()
    return rows(contestants, ledger)


def _recall_finals(ledger: Ledger, one: Contestant, seeds: int) -> None:
    """Also those of further seeds that an earlier command has run."""
    point = ledger.chosen(one)
    for seed in count() if point is not None else ():
        trial = one.arena.final(one.setting, one.entry, point or {}, seed)
        ledger.recall([trial])
        if trial.name in ledger.results:
            one.finals[seed] = trial
        elif seed >= seeds:
            break


def _in_turn(contestants: Sequence[Contestant], at_once: int) -> list[list[Contestant]]:
    """Families, so many together: what is finished when somebody stops is whole."""
    families = _families(contestants)
    starts = range(0, len(families), at_once)
    return [list(chain.from_iterable(families[start : start + at_once])) for start in starts]


def _families(contestants: Sequence[Contestant]) -> list[list[Contestant]]:
    """Methods whose clients learn alike share a device's steps, whatever their setting; others wait."""
    setting, kin = contestants[0].setting, dict[str, str]()
    groups: dict[str, list[Contestant]] = {}
    for one in contestants:
        name = one.entry.name
        if name not in kin:
            kin[name] = alike(one.arena.config(setting, one.entry, {}))
        groups.setdefault(kin[name], []).append(one)
    return list(groups.values())


def key_of(row: Mapping[str, Any]) -> tuple[str, str]:
    """Setting and method: whose row it is."""
    return str(row["setting"]), str(row["method"])


def rows(contestants: Sequence[Contestant], ledger: Ledger) -> list[Row]:
    return [_row(one, ledger) for one in contestants]


def no_row(setting: str, entry: Entry) -> Row:
    """The row of an entry of which nothing is known."""
    return {
        "setting": setting,
        "method": entry.name,
        "new": entry.new,
        "sets": list(entry.sets),
        "chosen": None,
        "tried": [],
        "seeds": [],
        **dict.fromkeys(MEASURED),
        "status": "not run",
    }


def _row(one: Contestant, ledger: Ledger) -> Row:
    point = ledger.chosen(one)
    known = {"chosen": point, "tried": ledger.tried(one), "status": _choosing(one, ledger)}
    row = no_row(one.setting, one.entry) | known
    finals = {seed: (t, ledger.results[t.name]) for seed, t in sorted(one.finals.items()) if t.name in ledger.results}
    if point is None or not finals:
        return row
    good = {seed: found for seed, (_, found) in finals.items() if isinstance(found, Result) and found.ok}
    bad = [_status(found) for seed, (_, found) in finals.items() if seed not in good]
    row |= {"seeds": list(good), "status": bad[0] if bad else "ok"}
    if good:
        row |= {name: over_seeds({s: read(found) for s, found in good.items()}) for name, read in MEASURED.items()}
        if tuple(good) not in one.facts:  # the board is written after every run of anybody
            one.facts[tuple(good)] = _facts([finals[seed][0] for seed in good], next(iter(good.values())), ledger)
        row |= one.facts[tuple(good)]
    return row


def _facts(judged: Sequence[Trial], first: Result, ledger: Ledger) -> Row:
    config = judged[0].config
    return {
        "config": changed(config),
        "machine": one_after_another(machine_of(ledger.folder / trial.name) for trial in judged),
        "versions": dict(first.versions),
        "data": file_of(config.data.source, config.data.root),
    }


MEASURED: Mapping[str, Callable[[Result], float]] = {
    "generic": lambda found: found.accuracy["generic"].mean,
    "personal": lambda found: found.accuracy["personalized"].mean,
    "initial": lambda found: found.accuracy["initial"].mean,
    "new_client": lambda found: found.accuracy["new_after"].mean,
    "new_client_before": lambda found: found.accuracy["new_before"].mean,
    "worst_tenth": lambda found: worst(found.accuracy["personalized"].clients),
    "megabytes": lambda found: (found.cost.bytes_up + found.cost.bytes_down) / 1e6,
    "forward_passes": lambda found: float(found.cost.forward_passes),
}
"""Column of the board → its value in one judged run; worst tenth is of the clients' own models."""


def _choosing(one: Contestant, ledger: Ledger) -> str:
    missing = ledger.missing(one)
    if len(missing) == len(one.tuning) and not any(t.name in ledger.results for t in missing):
        return "not run"
    broken = [_status(ledger.results[t.name]) for t in missing if t.name in ledger.results]
    if broken:
        return broken[0]
    if missing:
        return f"choosing: {len(one.tuning) - len(missing)} of {len(one.tuning)} runs"
    return "chosen" if ledger.chosen(one) is not None else "failed: diverged at every point of the grid"


def _status(found: Result | Exception) -> str:
    return found.status if isinstance(found, Result) else f"failed: {found}"


def search(contestants: Sequence[Contestant], whole: Sequence[Combination], ledger: Ledger) -> dict[str, Any]:
    """Try combinations on validation data alone, and write found.json: all that was tried, and what is entered.

    Nothing is entered before the whole space has been tried in every setting: the best of a part is no finding."""
    board = contestants[0].arena.board
    for one in contestants:
        ledger.recall_tuning(one)
    wanted = {(setting, c.entry.name) for setting in board.search.settings for c in whole if not c.refused}
    before = {key_of(row): row for row in read_found(ledger.folder).get("tried", ()) if key_of(row) in wanted}

    def found() -> dict[str, Any]:
        tried = {**before, **{key_of(row): row for one in contestants if (row := _tried(one, ledger))["tried"]}}
        order = ranked(list(tried.values()), board.search.settings)
        left = len(wanted - {key for key, row in tried.items() if not row["unfinished"]})
        return {
            "settings": list(board.search.settings),
            "complete": not left,
            "left": left,
            "entered": [] if left else entered(order, board.search.best),
            "ranked": order,
            "tried": list(tried.values()),
            "refused": [{"method": c.entry.name, "why": c.refused} for c in whole if c.refused],
        }

    left = sum(len(ledger.missing(one)) for one in contestants)
    ledger.announce(f"{NAME}, search", left, left * int(contestants[0].tuning[0].config.train.rounds))
    try:
        for group in _in_turn(contestants, ledger.at_once):
            ledger.tune(group, lambda: ledger.write(FILE, found()))
    except Stopped:
        raise ledger.stopped() from None
    ledger.write(FILE, found())
    return found()


def _tried(one: Contestant, ledger: Ledger) -> Row:
    assert one.combination is not None
    return {
        "setting": one.setting,
        "method": one.entry.name,
        "axes": dict(one.combination.axes),
        "known_as": one.combination.known_as,
        "sets": list(one.entry.sets),
        "tried": ledger.tried(one),
        "unfinished": len(ledger.missing(one)),
    }
