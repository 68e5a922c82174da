"""A table in the layout of the paper. Each cell has our number, the published one and the difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from torso.papers.tables.answers import Answer, failures
from torso.papers.tables.published import Recipe
from torso.registry import plain
from torso.report.summary import counted

_WORDS = {"local_epochs": "epochs", "algorithm": "method", "finetune_epochs": "tuned", "finetune_part": "tuned part"}
_METRICS = {
    "initial_with_head": "with head",
    "initial_without_head": "without head",
    "ID_accuracy_before_personalization": "ID before",
    "ID_accuracy_after_personalization": "ID after",
    "OOD_accuracy_before_personalization": "OOD before",
    "OOD_accuracy_after_personalization": "OOD after",
    "P-FL on new clients, before local training": "before",
    "P-FL on new clients, after local training": "after",
    "total_compute_forward_passes": "forward passes",
    "total_communication_GB": "GB",
    "global accuracy on full test set": "generic",
}


def layout(recipe: Recipe, answers: Sequence[Answer]) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """The headings of the rows and of the columns, in the order of the answers."""
    rows = list(dict.fromkeys(place(recipe.rows, answer) for answer in answers))
    columns = list(dict.fromkeys(place(recipe.columns, answer) for answer in answers))
    return rows, columns


def place(keys: Sequence[str], answer: Answer) -> tuple[str, ...]:
    """The heading of an answer's row or column: its values of these keys, in words."""
    return tuple(_word(key, answer) for key in keys)


def _word(key: str, answer: Answer) -> str:
    if key == "algorithm":
        return f"{answer['method']} ({answer['variant']})" if answer["variant"] else str(answer["method"])
    if key == "metric":
        return _METRICS.get(answer["metric"], str(answer["metric"]))
    value = answer["setting"].get(key, answer.get(key))
    return "" if value is None else str(value)


def view(recipe: Recipe, answers: Sequence[Answer]) -> Table:
    """The table for the terminal."""
    rows, columns = layout(recipe, answers)
    cells: dict[tuple[Any, Any], list[str]] = {}
    for answer in answers:
        cells.setdefault((place(recipe.rows, answer), place(recipe.columns, answer)), []).append(cell(answer))
    found = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    for key in recipe.rows:
        found.add_column(_WORDS.get(key, key.replace("_", " ")), no_wrap=True)
    for column in columns:
        found.add_column(escape("\n".join(word for word in column if word)), justify="right")
    for row in rows:
        there = [" / ".join(cells.get((row, column), [""])) for column in columns]
        found.add_row(*map(escape, row), *map(escape, there))
    return found


def cell(answer: Answer) -> str:
    """`88.2 (85.1, +3.1)`: ours, published, difference.

    A dash: not run. ✗: training failed at all seeds. ✗ with a mean: it failed at some seeds, and the mean is over the
    others."""
    ours, published, failed = answer["ours"], answer["published"]["mean"], len(failures(answer))
    theirs = "✗" if published is None else number(published)
    if ours is None:
        return f"{'✗' if failed else '–'} ({theirs})"
    mark = f" ✗ {failed} of {failed + len(ours['seeds'])} failed" if failed else ""
    apart = "" if published is None else f", {difference(ours['mean'], published)}"
    return f"{number(ours['mean'])}{mark} ({theirs}{apart})"


def number(value: float) -> str:
    """One decimal; three digits for very large and very small numbers."""
    return f"{value:.3g}" if value and (abs(value) >= 1e4 or abs(value) < 0.1) else f"{value:.1f}"


def difference(ours: float, published: float) -> str:
    apart = ours - published
    return f"{apart:+.3g}" if abs(apart) >= 1e4 else f"{apart:+.1f}"


def notes(recipe: Recipe, answers: Sequence[Answer]) -> list[str]:
    """The notes on a table: caveats, mistakes in the paper's code, numbers that cannot be run, doubtful numbers."""
    said = [*recipe.caveats]
    for method in dict.fromkeys(str(answer["method"]) for answer in answers):
        label = recipe.label(method)
        if label.why:
            said.append(f"{method}: {label.why}")
        if label.bug:
            said.append(f"{method}: the published number is not comparable: {label.bug}.")
    reasons: Mapping[str, str] = {str(a["status"]): str(a["why"]) for a in answers if "why" in a}
    for status, why in reasons.items():
        count = sum(a["status"] == status for a in answers)
        said.append(f"{counted(count, 'number')} {status}: {why}.")
    doubts = [str(a["published"]["note"]) for a in answers if a["published"]["note"] and not a["variant"]]
    for doubt in dict.fromkeys(doubts):
        count = doubts.count(doubt)
        said.append(f"{counted(count, 'published number')}: {doubt}.")
    return [plain(text) for text in said]
