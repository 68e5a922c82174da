"""The tables of results that `torso run` and `torso compare` print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from torso.measure import Accuracy
from torso.measure.fairness import worst
from torso.report.charts.clients import in_words
from torso.report.comparison import Comparison, title_of
from torso.report.privacy import epsilon_cell
from torso.report.statistics import Difference, Refused
from torso.results.result import Result

UNLIMITED_WIDTH = 1_000_000  # columns of a terminal that is wide enough for any table
_OWN = ("benign", "personalized")  # measures whose worst tenth is shown: that of honest clients if they are measured


@dataclass(frozen=True)
class Row:
    """One method over its seeds. Accuracies pool the clients of all seeds; costs are means over seeds."""

    method: str
    seeds: int
    failed: int
    accuracy: dict[str, Accuracy]
    megabytes: float | None
    seconds: float | None
    worst: float | None  # mean personalised accuracy of the worst tenth of the (honest) clients
    why: str = "failed"  # what is said of runs without a result: "failed" or "not finished"
    epsilon: str = "–"  # the ε of private runs


def rows(results: Sequence[Result]) -> list[Row]:
    """A row for each method, in order of appearance."""
    by_method: dict[str, list[Result]] = {}
    for result in results:
        by_method.setdefault(result.method, []).append(result)
    return [_row(method, group) for method, group in by_method.items()]


def _row(method: str, group: Sequence[Result]) -> Row:
    good = [result for result in group if result.ok]
    names = list(dict.fromkeys(name for result in good for name in result.accuracy))
    pooled = {name: _pool([result.accuracy[name] for result in good if name in result.accuracy]) for name in names}
    moved = sum(r.cost.bytes_up + r.cost.bytes_down for r in group) / len(group) / 1e6
    taken = sum(r.seconds["total"] for r in group) / len(group)
    measure = next((name for name in _OWN if name in pooled), "")
    own = [value for result in good if measure in result.accuracy for value in result.accuracy[measure].clients]
    failed, epsilon = len(group) - len(good), _epsilon([result.privacy for result in group])
    return Row(method, len(group), failed, pooled, moved, taken, _worst(own), epsilon=epsilon)


def _epsilon(privacy: Sequence[Any]) -> str:
    """The ε of a method's runs in ascending order, such as `1.2 to 1.5`: it may differ with the clients."""
    different = {epsilon_cell(each) for each in privacy}
    return " to ".join(sorted(different, key=_place))


def _place(cell: str) -> float:
    return float({"–": "-inf", "∞": "inf"}.get(cell, cell))


def _worst(values: Sequence[float | None]) -> float | None:
    """The mean of the worst tenth; None if no client was measured."""
    return worst(values) if any(value is not None for value in values) else None


def _pool(found: Sequence[Accuracy]) -> Accuracy:
    """The accuracy over the clients of all seeds; over seeds if the measure has no clients."""
    values = [v for a in found for v in (a.clients or (a.mean,)) if v is not None]
    return Accuracy.over(values, per_client=False)


def table(results: Sequence[Result], console: Console) -> Table:
    """The table of results: accuracy in % as mean ± std over the clients of all seeds, megabytes sent in both
    directions, seconds of a run."""
    return fitted(rows(results), console)


def fitted(made: Sequence[Row], console: Console) -> Table:
    """The table of these rows: wide, compact, or with a line for each number, the first that fits the terminal."""
    for view in (view_of(made), view_of(made, narrow=True)):
        needed = Measurement.get(console, console.options.update(max_width=UNLIMITED_WIDTH), view).maximum
        if needed <= console.width:
            return view
    return upright(made)


def view_of(made: Sequence[Row], narrow: bool = False) -> Table:
    """The table of these rows, `narrow` or wide. Sweeps of epochs (personalized@E) are left out: `--json` and
    `torso report` show them."""

    titles, cells = _numbers(made, "±" if narrow else " ± ")
    view = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    view.add_column("method", no_wrap=True)
    for title in titles:
        folded = title.replace(" ", "\n").replace("personalised", "personal-\nised")
        view.add_column(folded if narrow else title, justify="right", no_wrap=narrow)
    for row, numbers in zip(made, cells, strict=True):
        view.add_row(_name(row), *numbers)
    return view


def upright(made: Sequence[Row]) -> Table:
    """The same numbers with one line for each, for terminals in which they do not fit side by side."""
    titles, cells = _numbers(made, " ± ")
    view = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    view.add_column("method", overflow="fold")
    view.add_column("measure")
    view.add_column("value", justify="right", no_wrap=True)
    for row, numbers in zip(made, cells, strict=True):
        for place, (title, number) in enumerate(zip(titles, numbers, strict=True)):
            view.add_row(_name(row) if place == 0 else "", title, number)
    return view


def _numbers(made: Sequence[Row], between: str) -> tuple[list[str], list[list[str]]]:
    """The titles of the columns beside the method, and the cells of each row."""
    names = list(dict.fromkeys(name for row in made for name in row.accuracy if "@" not in name))
    private, worst_known = any(row.epsilon != "–" for row in made), any(row.worst is not None for row in made)
    titles = [*map(title_of, names), "MB", "seconds", *["ε"] * private, *["worst tenth"] * worst_known]
    cells = [
        [
            *(_cell(row.accuracy.get(name), between) for name in names),
            *(_amount(row.megabytes), _amount(row.seconds)),
            *[row.epsilon] * private,
            *[_amount(row.worst)] * worst_known,
        ]
        for row in made
    ]
    return titles, cells


def _name(row: Row) -> str:
    failed = f" [red]({row.failed} of {row.seeds} {row.why})[/red]" if row.failed else ""
    return escape(row.method) + failed


def rows_of(comparison: Comparison) -> list[Row]:
    """A row for each entry of a comparison of run folders."""
    return [
        Row(
            entry.label,
            len(entry.runs),
            entry.failed,
            {name: Accuracy(s.mean, s.std, s.n) for name in entry.measures if (s := entry.pooled(name))},
            entry.megabytes,
            entry.seconds,
            next((_worst(own.clients) for name in _OWN if (own := entry.pooled(name))), None),
            "not finished" if all(run.ok or run.status == "unfinished" for run in entry.runs) else "failed",
            _epsilon([run.result.get("privacy") for run in entry.runs]),
        )
        for entry in comparison.entries
    ]


def differences(comparison: Comparison) -> Table | None:
    """The table of differences to the baseline in points, with 95% intervals; None if there is no other entry."""
    others = [entry for entry in comparison.entries if entry is not comparison.baseline]
    if not others or not comparison.measures:
        return None
    view = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    view.add_column(f"against {escape(comparison.baseline.label)}", no_wrap=True)
    view.add_column("accuracy")
    view.add_column("difference", no_wrap=True)
    for entry in others:
        for place, name in enumerate(
            comparison.measures
        ):  # one line for each measure: intervals side by side would be too wide
            apart = _apart(comparison.difference(entry, name))
            view.add_row(escape(entry.label) if place == 0 else "", title_of(name), apart)
    return view


def _apart(d: Difference | Refused) -> str:
    if isinstance(d, Refused):
        return "–" if d.reason == "not measured" else "not tested"
    return f"[bold]{escape(in_words(d))}[/bold]" if d.clear else escape(in_words(d))


def _amount(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _cell(found: Accuracy | None, between: str) -> str:
    if found is None or found.n == 0:
        return "–"
    return f"{found.mean:.1f}" if found.n == 1 else f"{found.mean:.1f}{between}{found.std:.1f}"
