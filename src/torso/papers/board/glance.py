"""A few sentences on a setting of the leaderboard: the best methods, and those that do not clearly differ from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torso.papers.board.standings import Row, clearly, judged
from torso.report.summary import counted, listed

FIRST = "fedavg"  # the method that others are compared with
BOTH = ("personal", "generic")


def level_with_best(rows: Sequence[Row], column: str) -> tuple[Row, list[Row]]:
    """The row with the highest mean, and the others that are not clearly below it, the highest first."""
    there = sorted(judged(rows), key=lambda row: -float(row[column]["mean"]))
    return there[0], [row for row in there[1:] if not clearly(there[0], row, column)]


def sentence(setting: str, rows: Sequence[Row]) -> str:
    """Which method leads, how many are level with it, how FedAvg compares, and which are among the best in both."""
    found = {column: level_with_best(rows, column) for column in BOTH}
    good = [{str(best["method"]), *(str(row["method"]) for row in level)} for best, level in found.values()]
    both = [str(row["method"]) for row in judged(rows) if str(row["method"]) in set.intersection(*good)]
    among = f"Among the best in both: {listed(both, 6)}." if both else "No method is among the best in both."
    first = next((row for row in judged(rows) if row["method"] == FIRST), None)
    beside = f" FedAvg with fine-tuning has {_of_first(first, found)}." if first is not None else ""
    return f"**{setting}.** {_leaders(found)}{beside} {among}"


def _leaders(found: Mapping[str, tuple[Row, Sequence[Row]]]) -> str:
    """Which method has the highest accuracies: one for both, or one for each."""
    names = dict.fromkeys(str(best["method"]) for best, _ in found.values())
    reached = [f"{column} accuracy ({_reached(column, *one)})" for column, one in found.items()]
    if len(names) == 1:
        return f"{next(iter(names))} has the highest {listed(reached)}."
    return f"{listed([f'{name} has the highest {one}' for name, one in zip(names, reached, strict=True)])}."


def _reached(column: str, best: Row, level: Sequence[Row]) -> str:
    if len(best["seeds"]) < 2:
        apart = "one seed, so it is not known which methods are level"
    else:
        apart = f"{counted(len(level), 'other')} level" if level else "clearly ahead of all others"
    return f"{best[column]['mean']:.1f} %, {apart}"


def _of_first(first: Row, found: Mapping[str, tuple[Row, Sequence[Row]]]) -> str:
    """FedAvg's accuracies: `82.0 and 41.0 %, both clearly below`, or with words for each."""
    words = []
    for best, level in found.values():
        if first is best:
            words.append("the best")
        else:
            words.append("not clearly below" if first in level else "clearly below")
    values = [f"{first[column]['mean']:.1f}" for column in found]
    if len(set(words)) == 1:
        return f"{listed(values)} %, both {words[0]}"
    return listed([f"{value} % ({word})" for value, word in zip(values, words, strict=True)])
