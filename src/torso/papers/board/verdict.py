"""The answer of the leaderboard: does a new combination beat the known methods, and which method is best where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from torso.papers.board.definition import Board
from torso.papers.board.search import score_of
from torso.papers.board.standings import RANKED, TITLES, Row, clearly, in_setting, judged, paired, untried
from torso.papers.board.trials import presets
from torso.report.docs import table as markdown
from torso.report.statistics import student_interval, student_quantile
from torso.report.summary import listed

_OPEN = "Not settled."
QUESTION = "Does a combination that no paper tried beat them all?"


@dataclass(frozen=True)
class BoardComparison:
    """A combination found by the search against every known method, in one accuracy of one setting."""

    setting: str
    column: str
    combination: Row
    best: Row  # the best known method
    level: tuple[Row, ...]  # known methods that the combination is not clearly ahead of

    @property
    def ahead(self) -> bool:
        """Whether its mean is higher than that of the best known method."""
        return fmean(paired(self.combination, self.best, self.column) or [0.0]) > 0


def combinations_in_order(rows: Sequence[Row], found: Mapping[str, Any]) -> list[str]:
    """The names of the combinations found by the search, in the order of their scores on validation data."""
    entered = [str(row["name"]) for row in found.get("entered", ())]
    return list(dict.fromkeys([*entered, *(str(row["method"]) for row in rows if row["new"])]))


def compare_found(rows: Sequence[Row], order: Sequence[str], settings: Sequence[str]) -> list[BoardComparison]:
    """The comparisons of one combination in each setting: the first of `order` that was run there. It is the same for
    every accuracy, because a choice among several by test data would favour luck."""
    said = []
    for setting in settings:
        there = {str(row["method"]): row for row in judged(in_setting(rows, setting))}
        combination = next((there[name] for name in order if name in there), None)
        known = [row for row in there.values() if not row["new"]]
        if combination is None or not known:
            continue
        for column in RANKED:
            best = max(known, key=lambda row: float(row[column]["mean"]))
            level = tuple(row for row in known if clearly(combination, row, column) < 1)
            said.append(BoardComparison(setting, column, combination, best, level))
    return said


def answer(rows: Sequence[Row], found: Mapping[str, Any], board: Board) -> list[str]:
    """The section on the question: the answer, what keeps it open, and the table of comparisons."""
    order = combinations_in_order(rows, found)
    comparisons = compare_found(rows, order, list(board.settings))
    said = [f"## {QUESTION}", ""]
    if not comparisons:
        return [*said, "Not known: no combination of the search has been measured on test data.", ""]
    doubts = _doubts(rows, found, board, order, comparisons)
    word = _word(comparisons, bool(doubts))
    before = "Why it is open:" if word == _OPEN else "Limits of this answer:"
    more = [before, "", *(f"- {text}" for text in doubts), ""] if doubts else []
    usual = usual_machine(rows)
    return [
        *said,
        *_headline(comparisons, word),
        "",
        *more,
        _legend(comparisons),
        "",
        markdown(_table(comparisons, usual)),
        "",
    ]


def _headline(comparisons: Sequence[BoardComparison], word: str) -> list[str]:
    """The answer in a word, and how many comparisons it comes from."""
    combinations = {str(one.combination["method"]): one.combination for one in comparisons}
    named = [f"{name} ({', '.join(f'`{text}`' for text in _choices(row))})" for name, row in combinations.items()]
    settings = listed(list(dict.fromkeys(one.setting for one in comparisons)))
    clear = sum(clearly(one.combination, one.best, one.column) > 0 for one in comparisons)
    lost = [one for one in comparisons if clearly(one.combination, one.best, one.column) < 0]
    behind = [f"- clearly behind the best known method: {len(lost)} ({_spoken(lost)})"] if lost else []
    return [
        f"**{word}** {listed(named)} was chosen on validation data alone. On test data there are {len(comparisons)} "
        f"comparisons with the known methods: {listed([TITLES[column] for column in RANKED])} accuracy in {settings}.",
        "",
        f"- higher mean than the best known method: {sum(one.ahead for one in comparisons)}",
        f"- clearly ahead of the best known method: {clear}",
        f"- clearly ahead of every known method that was judged there: {sum(not one.level for one in comparisons)}",
        *behind,
    ]


def _spoken(comparisons: Sequence[BoardComparison]) -> str:
    """Which accuracies in which settings; settings with the same accuracies are named together."""
    columns: dict[str, list[str]] = {}
    for one in comparisons:
        columns.setdefault(one.setting, []).append(TITLES[one.column])
    settings: dict[str, list[str]] = {}
    for setting, names in columns.items():
        settings.setdefault(listed(names), []).append(setting)
    return "; ".join(f"{names} accuracy in {listed(there)}" for names, there in settings.items())


def _word(comparisons: Sequence[BoardComparison], doubted: bool) -> str:
    """The answer in one to three words."""
    if any(clearly(one.combination, one.best, one.column) < 0 for one in comparisons):
        return "No."
    if doubted:
        return _OPEN
    return "Not in everything." if any(one.level for one in comparisons) else "Yes."


def _choices(combination: Row) -> list[str]:
    return [text for text in combination["sets"] if text != "method.name=custom"]


def _doubts(
    rows: Sequence[Row],
    found: Mapping[str, Any],
    board: Board,
    order: Sequence[str],
    comparisons: Sequence[BoardComparison],
) -> list[str]:
    """Sentences on what limits the answer or keeps it open."""
    settings = list(dict.fromkeys(one.setting for one in comparisons))
    combinations = {one.setting: one.combination for one in comparisons}
    said = [*_unjudged(rows, found, board, combinations), *_machines(comparisons), *_untuned(comparisons)]
    waiting = {str(row["method"]) for row in rows if row["setting"] in settings and untried(row, board)}
    mine = {str(one["method"]) for one in combinations.values()}
    if waiting:
        ours = "The new combination has some, too" if waiting & mine else "The new combination has none"
        said.append(
            f"Known methods whose best rate has neighbours that [were not tried yet](#the-grid-and-what-was-chosen) in "
            f"{listed(settings)}: {len(waiting - set(order))}. {ours}."
        )
    ahead: dict[str, list[str]] = {}
    for setting, one in combinations.items():
        for name in order[: order.index(str(one["method"]))]:
            ahead.setdefault(name, []).append(setting)
    said += [
        f"{name} was ahead of it on validation data, and is not judged in {listed(s)}." for name, s in ahead.items()
    ]
    without = [name for name in board.settings if name not in settings]
    return [*said, *([f"No new combination was measured in {listed(without)}."] if without else [])]


def _unjudged(
    rows: Sequence[Row], found: Mapping[str, Any], board: Board, combinations: Mapping[str, Row]
) -> list[str]:
    """Sentences on known methods without a place in settings in which the combination has one, and their scores in the
    search."""
    places = {(row["setting"], row["method"]) for row in judged(rows)}
    missing: dict[tuple[str, ...], list[str]] = {}
    for setting in combinations:
        names = tuple(name for name in board.entries if (setting, name) not in places)
        missing.setdefault(names, []).append(setting)
    said = [
        f"Known, but not judged in {listed(there)}: {', '.join(names)}." for names, there in missing.items() if names
    ]
    ranked = {str(row["method"]): float(row["score"]) for row in found.get("ranked", ())}
    ours = next(
        (f"{row['method']} {ranked[row['method']]:.1f}" for row in combinations.values() if row["method"] in ranked), ""
    )
    waiting = {name for names in missing for name in names}
    theirs = [
        f"{entry.name} {score:.1f}"
        for entry in presets(board)
        if entry.name in waiting and (score := score_of(found, entry)) is not None
    ]
    if ours and theirs:
        said.append(
            f"The search tried some of them on validation data, at one seed: {listed(theirs)}, against {ours} "
            "(generic + personalised accuracy)."
        )
    return said


def _machines(comparisons: Sequence[BoardComparison]) -> list[str]:
    """Sentences on comparisons between runs on different machines."""
    apart = sorted(
        {(where(one.combination), where(one.best)) for one in comparisons if where(one.combination) != where(one.best)}
    )
    return [
        f"The new combination was measured on {mine}, the best known methods on {theirs}. How much of the difference "
        "comes from the machine and the precision is not known."
        for mine, theirs in apart
    ]


def _untuned(comparisons: Sequence[BoardComparison]) -> list[str]:
    """Sentences on settings in which the combination was fine-tuned at a chosen rate and the best known method not."""
    return [
        f"In {one.setting} the best known by personal accuracy, {one.best['method']}, is measured without "
        "fine-tuning and the new combination with it ([caveats](#caveats))."
        for one in comparisons
        if one.column == "personal" and set(one.combination["chosen"] or ()) - set(one.best["chosen"] or ())
    ]


def where(row: Row) -> str:
    """Machine and precision of a row."""
    machine = row.get("machine") or {}
    return f"{machine.get('device', 'an unknown machine')} ({machine.get('precision', '?')})"


def usual_machine(rows: Sequence[Row]) -> str:
    """Machine and precision of most rows."""
    return max(Counter(where(row) for row in rows if row["seeds"]).items(), key=lambda one: one[1], default=("", 0))[0]


def mark(row: Row, usual: str) -> str:
    """† if the row was run on another machine or with another precision than most rows."""
    return " †" if row["seeds"] and where(row) != usual else ""


def _legend(comparisons: Sequence[BoardComparison]) -> str:
    """How to read the table of comparisons."""
    pairs = [len(paired(one.combination, one.best, one.column)) for one in comparisons]
    wide = ", ".join(f"{student_quantile(n - 1):.1f} standard errors with {n} seeds" for n in sorted({*pairs}) if n > 1)
    return (
        "In brackets: Student's 95 % interval of the difference, paired by seed. A difference is clear if its interval "
        "does not contain zero"
        + (f" ({wide}). The intervals are not corrected for the number of comparisons. " if wide else ". ")
        + "In each setting one new combination is compared: of those measured there, the best on validation data. The "
        "others are in the tables below. Personal and new client accuracy also depend on what is "
        "[not equal](#caveats) between methods. †: measured on another machine or in another precision than most rows."
    )


def _table(comparisons: Sequence[BoardComparison], usual: str) -> list[dict[str, object]]:
    return [
        {
            "setting": one.setting,
            "accuracy": TITLES[one.column],
            "best known": _reached(one.best, one.column, usual),
            "new combination": _reached(one.combination, one.column, usual),
            "new − best known": _difference(one),
            "known methods not clearly behind it": listed([str(row["method"]) for row in one.level]) or "none",
        }
        for one in comparisons
    ]


def _reached(row: Row, column: str, usual: str) -> str:
    return f"{row['method']}{mark(row, usual)} {row[column]['mean']:.1f}"


def _difference(one: BoardComparison) -> str:
    pairs = paired(one.combination, one.best, one.column)
    if not pairs:
        return "no seed in common"
    mean, low, high = student_interval(pairs)
    if low is None or high is None:
        return f"{_signed(mean)}, one seed"
    clear = "clear" if clearly(one.combination, one.best, one.column) else "not clear"
    return f"{_signed(mean)} [{_signed(low)}, {_signed(high)}], {clear}"


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")  # with one digit, an end of 0.02 would look like zero


def best_section(rows: Sequence[Row], settings: Sequence[str]) -> list[str]:
    """The section on the best method in each setting and accuracy, and how many others are not clearly below it."""
    usual = usual_machine(rows)
    table: list[dict[str, object]] = []
    for setting in settings:
        there = judged(in_setting(rows, setting))
        line: dict[str, object] = {"setting": setting}
        for column, title in TITLES.items():
            best = max(there, key=lambda one: float(one[column]["mean"]))
            ties = sum(one is not best and not clearly(best, one, column) for one in there)
            line[title] = _reached(best, column, usual)
            if len(best["seeds"]) < 2:
                line[title] = f"{line[title]} (one seed)"
            elif ties:
                line[title] = f"{line[title]} (+{ties})"
        table.append(line)
    legend = (
        "A cell has the method with the highest mean. (+2): two other methods are not clearly below it, since the 95 % "
        "interval of the difference (Student, paired by seed) contains zero. With one seed there is no interval."
    )
    return ["## The best", "", legend, "", markdown(table), ""]
