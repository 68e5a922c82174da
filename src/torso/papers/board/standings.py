"""Places on the board, differences to the best known method, and cells of its tables: pure functions of the rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from torso.papers.board.definition import Board
from torso.papers.board.trials import best_of, score
from torso.papers.tables.review import ranks
from torso.report.statistics import student_interval

RANKED = ("personal", "generic", "new_client")  # columns with places
TITLES = {
    "personal": "personal",
    "generic": "generic",
    "new_client": "new client",
    "new_client_before": "new client, before",
    "worst_tenth": "worst tenth",
}
Row = Mapping[str, Any]


def judged(rows: Sequence[Row]) -> list[Row]:
    """The rows that finished at every seed. A mean over only the seeds that did not diverge would be too good."""
    return [row for row in rows if row["status"] == "ok"]


def in_setting(rows: Sequence[Row], setting: str) -> list[Row]:
    """The rows of a setting, sorted by personal accuracy; rows without a place come last."""
    there = [row for row in rows if row["setting"] == setting]
    placed = sorted(judged(there), key=lambda row: -float(row["personal"]["mean"]))
    return [*placed, *(row for row in there if row["status"] != "ok")]


def places(rows: Sequence[Row], column: str) -> dict[str, float]:
    """Method → place in one setting; 1 is the best. Methods with equal means share the mean of their places."""
    there = judged(rows)
    found = ranks([-row[column]["mean"] for row in there])
    return {str(row["method"]): float(place) for row, place in zip(there, found, strict=True)}


def best_known(rows: Sequence[Row], column: str) -> Row | None:
    """The best method of a setting that the search did not find."""
    there = [row for row in judged(rows) if not row["new"]]
    return max(there, key=lambda row: float(row[column]["mean"]), default=None)


def apart(row: Row, other: Row, column: str) -> tuple[float, float]:
    """Mean difference and its standard error, paired by seed, since at a seed both had the same clients and initial
    weights. The error is NaN with fewer than two common seeds."""
    pairs = paired(row, other, column)
    if not pairs:
        return math.nan, math.nan
    return fmean(pairs), stdev(pairs) / math.sqrt(len(pairs)) if len(pairs) > 1 else math.nan


def paired(row: Row, other: Row, column: str) -> list[float]:
    """The differences at the seeds that both rows have."""
    mine, theirs = row[column]["seeds"], other[column]["seeds"]
    return [mine[seed] - theirs[seed] for seed in mine if seed in theirs]


def clearly(row: Row, other: Row, column: str) -> int:
    """1: clearly above the other, −1: clearly below it, 0: not clear.

    It is not clear if Student's 95 % interval of the difference contains zero. With three seeds the interval has 4.3
    standard errors on either side; with one seed there is none."""
    pairs = paired(row, other, column)
    _, low, high = student_interval(pairs) if pairs else (math.nan, None, None)
    if low is None or high is None:
        return 0
    return int(low > 0) - int(high < 0)


def untried(row: Row, board: Board) -> list[tuple[str, float]]:
    """Key and value of the untried neighbours of the row's chosen point."""
    best = row["chosen"]
    if not best:
        return []
    tried = [{key: value for key, value in point.items() if key != "validation"} for point in row["tried"]]
    near = board.untried(best, tried)
    return [(key, point[key]) for point in near for key in point if point[key] != best[key]]


def overall(rows: Sequence[Row], settings: Sequence[str]) -> list[dict[str, Any]]:
    """The mean place over the settings in each column, for methods with a place in every setting; the best first."""
    by_setting = {setting: [row for row in rows if row["setting"] == setting] for setting in settings}
    found = {column: [places(there, column) for there in by_setting.values()] for column in RANKED}
    new = {str(row["method"]): bool(row["new"]) for row in rows}
    whole = [name for name in new if all(name in there for there in found[RANKED[0]])] if settings else []
    table = [
        {"method": name, "new": new[name]}
        | {column: round(fmean(there[name] for there in found[column]), 2) for column in RANKED}
        for name in whole
    ]
    return sorted(table, key=lambda row: sum(float(row[column]) for column in RANKED))


def spoken(value: Mapping[str, Any] | None) -> str:
    """`71.2 ± 0.4`; with one seed the mean alone; a dash without a value."""
    if value is None:
        return "–"
    return f"{value['mean']:.1f}" + (f" ± {value['std']:.1f}" if value["std"] is not None else "")


def spoken_difference(row: Row, best: Row | None, column: str) -> str:
    """The difference to the best known method: `−1.2 (s.e. 0.3)`."""
    if best is None or row["status"] != "ok":
        return "–"
    if row is best:
        return "best known"
    mean, error = apart(row, best, column)
    if math.isnan(mean):
        return "–"
    return f"{mean:+.1f}".replace("-", "−") + ("" if math.isnan(error) else f" (s.e. {error:.1f})")


def spoken_point(point: Mapping[str, Any] | None) -> str:
    """`train.lr 0.1, personalize.lr 0.01`; a dash if nothing is chosen."""
    if not point:
        return "–"
    return ", ".join(f"{key} {value:g}" for key, value in point.items() if key != "validation")


def name_of(row: Row) -> str:
    """The method's name, with "(new)" if the search found it."""
    return f"{row['method']} (new)" if row["new"] else str(row["method"])


def line(row: Row, there: Sequence[Row]) -> dict[str, object]:
    """A row as cells: place, accuracies, costs. `there`: all rows of the setting."""
    place = places(there, "personal").get(str(row["method"]))
    found: dict[str, object] = {"": "✗" if place is None else f"{place:g}", "method": name_of(row)}
    for column, title in TITLES.items():
        found[title] = spoken(row[column])
        if column in ("personal", "generic"):
            found[f"{title}, to best"] = spoken_difference(row, best_known(there, column), column)
    found["MB"] = f"{row['megabytes']['mean']:,.0f}" if row["megabytes"] else "–"
    found["passes"] = f"{row['forward_passes']['mean']:.2g}" if row["forward_passes"] else "–"
    found["seeds"] = len(row["seeds"])
    found["status"] = row["status"]
    return found


def searched(found: Mapping[str, Any]) -> list[dict[str, object]]:
    """The table of the combinations that were tried, the best first: score on validation data and point by setting."""
    by_name: dict[str, dict[str, Row]] = {}
    for row in found["tried"]:
        by_name.setdefault(str(row["method"]), {})[str(row["setting"])] = row
    order = {str(row["method"]): row["score"] for row in found["ranked"]}
    entered = {row["name"] for row in found["entered"]}
    names = sorted(by_name, key=lambda name: (name not in order, -float(order.get(name, 0.0))))
    lines = []
    for place, name in enumerate(names, 1):
        there = by_name[name]
        first = next(iter(there.values()))
        known = f"known: {first['known_as']}" if first["known_as"] else "new"
        cells: dict[str, object] = {
            "": place if name in order else "–",
            "combination": " · ".join(first["axes"].values()),
        }
        cells["known"] = f"{known}, entered" if name in entered else known
        cells["mean sum"] = f"{order[name]:.1f}" if name in order else "–"
        for setting in found["settings"]:
            cells[setting] = _best_cell(there.get(setting))
        lines.append(cells)
    return lines


def _best_cell(row: Row | None) -> str:
    """Generic + personalised accuracy and the point: `48.1 + 81.0 (train.lr 0.1)`."""
    if row is None or not row["tried"]:
        return "–"
    best = best_of(row["tried"])
    if not score(best["validation"]):
        return "✗ diverged"
    said = f"{best['validation']['generic']:.1f} + {best['validation']['personalized']:.1f} ({spoken_point(best)})"
    return f"{said}; {row['unfinished']} runs left" if row["unfinished"] else said


def view(lines: Sequence[Mapping[str, object]]) -> Table:
    """A table for the terminal."""
    found = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    for name in lines[0]:
        words = name in ("method", "combination", "known", "status", "chosen")
        found.add_column(escape(name), justify="left" if words else "right", no_wrap=name == "method")
    for one in lines:
        found.add_row(*(escape(str(value)) for value in one.values()))
    return found
