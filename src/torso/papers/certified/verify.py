"""`torso reproduce --verify docs/reproduction --sample 20`: run random cells of published results again and compare.

A cell is a number of a table at one seed, or a small run of cells.json. A number of a table must have the same bits if
it runs on the code path that made it and its file has the SHA-256 of the model. Otherwise, and on an accelerator, it
must lie within the spread: two standard deviations over the seeds of its cell, and at least two points."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import stdev
from typing import Any

import torso
from torso.config import Config
from torso.errors import RequestError
from torso.papers.certified.cells import Cell, cells
from torso.papers.certified.ledger import Ledger, here, roots, run_cells
from torso.papers.certified.record import differences
from torso.papers.experiments.datasets import DATASETS, known_roots, rooted
from torso.papers.experiments.estimate import Rate, rate_of, seconds
from torso.papers.tables import collect
from torso.papers.tables.answers import Answer, read
from torso.papers.tables.plan import TableRun
from torso.results.checksums import model_checksum
from torso.runs.devices import device_named

LEAST = 2.0  # points: two sessions on one accelerator can differ by this much at one seed


@dataclass(frozen=True)
class Number:
    """A number of a table at one seed, and the run that makes it again."""

    table: str
    place: int  # of its line
    seed: int
    answer: Answer
    run: TableRun

    @property
    def name(self) -> str:
        answer = self.answer
        way = f" ({answer['variant']})" if answer["variant"] else ""
        kept = [
            f"{k}={answer['setting'][k]}"
            for k in ("shards", "alpha", "fraction", "local_epochs")
            if k in answer["setting"]
        ]
        return f"{self.table} {answer['method']}{way}, {answer['metric']}, {', '.join([*kept, f'seed {self.seed}'])}"

    @property
    def recorded(self) -> float:
        return float(self.answer["ours"]["seeds"][str(self.seed)])


@dataclass(frozen=True)
class Outcome:
    """A cell that was run again."""

    name: str
    recorded: str
    now: str
    how: str  # it was compared: same bits, or within how many points
    wrong: str = ""  # how it differs; empty if it agrees


@dataclass
class Verification:
    """The cells that were run again."""

    draw: int  # seed of the draw
    outcomes: list[Outcome] = field(default_factory=list)
    left: Counter[str] = field(default_factory=Counter)  # why cells that were drawn were not run → how many

    @property
    def ok(self) -> bool:
        return not any(outcome.wrong for outcome in self.outcomes)


def verify(folder: Path, sample: int, *, root: Path, device: str, minutes: float, draw: int) -> Verification:
    """Draw cells until `sample` of them fit this machine, and run each again. A cell fits if its data are found and it
    takes at most `minutes`."""
    found, ledger = Verification(draw), Ledger.read(folder)
    numbers, small = list(numbers_of(folder)), [cell for cell in cells() if cell.name in ledger.records]
    there, data = roots(small, root), known_roots(root)
    everything: list[Number | Cell] = [*numbers, *small]
    if not everything:
        raise RequestError(
            f"--verify {str(folder)!r} holds no results: neither cells.json nor a file of a table, such as "
            "fedbabu-13.json. Expected: a folder such as docs/reproduction"
        )
    random.Random(draw).shuffle(everything)
    rate = rate_of(device) if numbers else None
    for one in everything:
        if len(found.outcomes) == sample:
            break
        why = _unfit(one, there) if isinstance(one, Cell) else _too_much(one, data, rate, minutes)
        if why:
            found.left[why] += 1
        else:
            found.outcomes.append(_small(one, ledger, there) if isinstance(one, Cell) else _again(one, data, device))
    return found


def numbers_of(folder: Path) -> Iterator[Number]:
    """Every number of every table at every seed, without copies of other tables' results."""
    for table, answers in collect.read(folder).items():
        made = {place: run for run in collect.whole_table(table).runs for place in run.answers}
        for place, answer in enumerate(answers):
            if answer["ours"] and "from" not in answer:
                yield from (Number(table, place, int(s), answer, made[place]) for s in answer["ours"]["seeds"])


def spread(seeds: Sequence[float]) -> float:
    """By how many points a number may differ if it cannot have the same bits. `seeds`: its values."""
    return max(LEAST, 2 * stdev(seeds)) if len(seeds) > 1 else LEAST


def _unfit(cell: Cell, there: Mapping[str, str]) -> str:
    return f"{cell.file} is not there" if cell.file and cell.file not in there else ""


def _too_much(number: Number, data: Mapping[str, str], rate: Rate | None, minutes: float) -> str:
    source = number.run.config.data.source
    if source in DATASETS and source not in data:
        return f"{source} is not there"
    assert rate is not None
    return f"longer than {minutes:g} min" if seconds([number.run], rate) > 60 * minutes else ""


def _small(cell: Cell, ledger: Ledger, there: Mapping[str, str]) -> Outcome:
    before, exact = ledger.records[cell.name], ledger.exact(cell.name)
    ((_, now),) = run_cells([cell], there)
    assert now is not None
    wrong = "; ".join(differences(before, now, exact=exact))
    return Outcome(cell.name, before.model[:12], now.model[:12], "same bits" if exact else "to rounding", wrong)


def _again(number: Number, data: Mapping[str, str], device: str) -> Outcome:
    config = _config(number, data, device)
    result = torso.run(config)
    found = read(result, config, {number.place: number.run.answers[number.place]}, {})
    if not result.ok:
        return Outcome(number.name, f"{number.recorded:.2f}", result.status, "", result.status)
    value, allowed = found.values[number.place][0], spread(list(number.answer["ours"]["seeds"].values()))
    recorded, now = f"{number.recorded:.2f}", f"{value:.2f}"
    model = number.answer.get("sha256", {}).get(str(number.seed), {}).get("model")
    if model and _made_here(number.answer, config):
        assert result.state is not None
        same = model_checksum(result.state) == model and abs(value - number.recorded) < 1e-4
        return Outcome(number.name, recorded, now, "same bits", "" if same else "other bits")
    apart = abs(value - number.recorded)
    wrong = "" if apart <= allowed else f"{apart:.1f} points apart"
    return Outcome(number.name, recorded, now, f"within {allowed:.1f}", wrong)


def _config(number: Number, data: Mapping[str, str], device: str) -> Config:
    config = rooted(number.run.config.but(f"run.seed={number.seed}", f"run.device={device}"), data)
    precision = number.answer["config"].get("run.precision", "auto")
    return config.but(f"run.precision={precision}") if device_named(device).type == "cuda" else config


def _made_here(answer: Mapping[str, Any], config: Config) -> bool:
    """Whether a number was made on CPU, on the code path of this machine."""
    now = here()
    then = {"path": answer["machine"].get("path"), **{key: answer["versions"].get(key) for key in ("torch", "numpy")}}
    return device_named(config.run.device).type == "cpu" and then == now
