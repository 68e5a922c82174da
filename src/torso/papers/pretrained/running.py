"""Run the blocks, the most important first, until time is up. A second call continues where the first stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torso.errors import RequestError
from torso.papers.experiments.datasets import KNOWN
from torso.papers.experiments.deadline import Deadline, run_in_time
from torso.papers.experiments.outcome import is_final
from torso.papers.experiments.result_files import Record
from torso.papers.pretrained import records
from torso.papers.pretrained.cells import Cell, Plan, Trial
from torso.papers.pretrained.definition import Block
from torso.parallel.hire import pool
from torso.parallel.pool import ProcessPool
from torso.results.result import Result
from torso.runs.events import Listener

Say = Callable[[str], None]


@dataclass
class Runs:
    """The runs of a plan, and the json files of its cells."""

    plan: Plan
    folder: Path  # of the json files
    stop: Deadline
    say: Say = print
    listener: Listener | None = None
    cells: dict[str, Record] = field(default_factory=dict)  # name of a cell → record
    broken: dict[str, str] = field(default_factory=dict)  # name of a run or block → what went wrong

    def __post_init__(self) -> None:
        self.cells = records.read(self.folder)

    def go(self, blocks: Sequence[Block], processes: int = 1) -> bool:
        """Run what is missing, and return whether all is done.

        A block needs bodies first, then tuning runs, then final runs. The final runs of a block, the tuning runs of the
        next block and the bodies of the one after it run in parallel, so that no process waits for the last run of a
        block."""
        possible = [block for block in blocks if self._possible(block)]
        if possible:
            cell = self.plan.cells(possible[0])[0]
            run = self.plan.final(cell, self.plan.points(cell)[0], 0).config.run
            with pool(run, processes) as workers:
                for number in range(len(possible) + 2):
                    trials = list(self._wave(possible, number))
                    if trials and not self._run(trials, workers):
                        return False
        return not self.broken

    def _possible(self, block: Block) -> bool:
        """Whether all configs of a block are accepted here. If one is not, the block is left out and noted."""
        try:
            for cell in self.plan.cells(block):
                self.plan.tuning(cell)
                _check_data(self.plan.final(cell, self.plan.points(cell)[0], 0))
            self.plan.bodies(block)
        except RequestError as error:
            self._lost(f"block {block.name}", error)
            return False
        return True

    def _wave(self, blocks: Sequence[Block], number: int) -> Iterator[Trial]:
        """The missing runs of a step: bodies of block `number`, tuning runs of the block before it, and final runs of
        the one before that. The final runs come first."""
        given: set[str] = set()
        for place, trials_of in ((number - 2, self._seeds), (number - 1, self._rates), (number, self._bodies)):
            if not 0 <= place < len(blocks):
                continue
            for trial in trials_of(blocks[place]):
                if trial.name not in given:
                    given.add(trial.name)
                    yield trial

    def _bodies(self, block: Block) -> Iterator[Trial]:
        wanted = any(self._missing(cell, block.seeds) for cell in self.plan.cells(block))
        yield from self.plan.bodies(block) if wanted else ()

    def _rates(self, block: Block) -> Iterator[Trial]:
        for cell in self.plan.cells(block):
            tuning = self.plan.tuning(cell) if self._missing(cell, block.seeds) else []
            yield from (trial for trial in tuning if not records.knows(self.cells.get(cell.name), trial))

    def _seeds(self, block: Block) -> Iterator[Trial]:
        for cell in self.plan.cells(block):
            if records.chosen(self.cells.get(cell.name), self.plan.tuning(cell), self.plan.points(cell)) is not None:
                yield from self._missing(cell, block.seeds)

    def _missing(self, cell: Cell, seeds: int) -> list[Trial]:
        """The final runs that are still to do. If no rate has been chosen yet, those of the grid's first point."""
        known, points = self.cells.get(cell.name), self.plan.points(cell)
        point = records.chosen(known, self.plan.tuning(cell), points)
        trials = [self.plan.final(cell, points[0] if point is None else point, seed) for seed in range(seeds)]
        return [trial for trial in trials if not records.knows(known, trial)]

    def _run(self, trials: Sequence[Trial], workers: ProcessPool | None) -> bool:
        """Run the trials; False if time was up."""
        return run_in_time(
            trials, self.plan.work, self.stop, self._note, self.say, pool=workers, listener=self.listener
        )

    def _note(self, trial: Trial, result: Result | Exception) -> None:
        if isinstance(result, Exception) or not is_final(result):
            self._lost(trial.name, result if isinstance(result, Exception) else result.status)
            return
        found = ", ".join(f"{name} {accuracy.mean:.1f}" for name, accuracy in result.accuracy.items())
        took = result.seconds.get("train", 0.0), result.seconds.get("measure", 0.0)
        self.say(
            f"{self.stop.passed:5.0f} s: {trial.name}: {found or result.status} "
            f"(train {took[0]:.1f} s, measure {took[1]:.1f} s)"
        )
        if trial.kind != "body":
            record = self.cells.setdefault(trial.cell.name, records.empty(trial.cell))
            records.note(record, trial, result, self.plan.work / trial.name)
            records.write(self.folder, record)

    def _lost(self, name: str, why: object) -> None:
        self.broken[name] = str(why)
        self.say(f"{self.stop.passed:5.0f} s: {name}: {type(why).__name__ if isinstance(why, Exception) else ''} {why}")


def _check_data(trial: Trial) -> None:
    """Raise a RequestError if the files of the data are missing."""
    data = trial.config.data
    if not data.root and data.source in KNOWN:
        raise RequestError(f"{trial.cell.setting}: the data of data.source = {data.source!r} are in no --data-root")
