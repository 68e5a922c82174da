"""What a setting of the leaderboard says at a glance: the best, and who cannot be told apart from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torso.papers.board.standings import Row, clearly, judged
from torso.report.summary import counted, listed

FIRST = "fedavg"  # what everybody knows
BOTH = ("personal", "generic")


def level_with_best(rows: Sequence[Row], column: str) -> tuple[Row, list[Row]]:
    """The row with the highest mean, and the others that are not clearly below it, the highest first."""
    there = sorted(judged(rows), key=lambda row: -float(row[column]["mean"]))
    return there[0], [row for row in there[1:] if not clearly(there[0], row, column)]


def sentence(setting: str, rows: Sequence[Row]) -> str:
    """One honest sentence: who is among the best in both accuracies, how far that goes, and where FedAvg stands."""
    found = {column: level_with_best(rows, column) for column in BOTH}
    good = [{str(best["method"]), *(str(row["method"]) for row in level)} for best, level in found.values()]
    both = [str(row["method"]) for row in judged(rows) if str(row["method"]) in set.intersection(*good)]
    leaders = f"Among the best in both: {listed(both, 6)}." if both else "No method is among the best in both."
    reached = "; ".join(_reached(column, *one) for column, one in found.items())
    first = next((row for row in judged(rows) if row["method"] == FIRST), None)
    beside = f" FedAvg with fine-tuning: {_of_first(first, found)}." if first is not None else ""
    return f"**{setting}.** {leaders} Highest {reached}.{beside}"


def _reached(column: str, best: Row, level: Sequence[Row]) -> str:
    if len(best["seeds"]) < 2:
        apart = "one seed, so nobody can say who is level"
    else:
        apart = f"not told apart from {counted(len(level), 'other')}" if level else "clearly ahead of all others"
    return f"{column} {best[column]['mean']:.1f} % ({best['method']}, {apart})"


def _of_first(first: Row, found: Mapping[str, tuple[Row, Sequence[Row]]]) -> str:
    parts = []
    for column, (best, level) in found.items():
        behind = first is not best and first not in level
        said = "the best" if first is best else "clearly below" if behind else "not clearly below"
        parts.append(f"{column} {first[column]['mean']:.1f} % ({said})")
    return ", ".join(parts)
