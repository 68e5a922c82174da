"""Run the leaderboard: choose the rates of every method on validation data, then measure it on test data."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from itertools import count

from torso.papers.board.contestants import Contestant, in_turn
from torso.papers.board.definition import NAME, Point
from torso.papers.board.rows import BOARD, Row, key_of, rows
from torso.papers.board.runs import BoardRuns
from torso.runs.run import Stopped


def run_leaderboard(
    contestants: Sequence[Contestant],
    runs: BoardRuns,
    seeds: int,
    others: Collection[tuple[str, str]] = (),
    published: Sequence[Row] = (),
    tuned: Sequence[Row] = (),
) -> list[Row]:
    """Make the tuning runs and the final runs of the contestants, and return their rows. Finished runs are not
    repeated.

    `others`: (setting, method) of the whole board; board.json keeps their rows of earlier commands. `published`: rows
    whose runs count as run. `tuned`: published tuning runs that count as run, too."""
    published_rows, tuned_rows = ({key_of(row): row for row in there} for there in (published, tuned))
    for one in contestants:
        key = one.setting, one.entry.name
        if key in published_rows:
            runs.take(one, published_rows[key])
        if key in tuned_rows:
            runs.take_tuned(one, tuned_rows[key])
        runs.recall_tuning(one)
        _recall_finals(runs, one, seeds)
    path = runs.folder / BOARD
    earlier = json.loads(path.read_text("utf-8")) if path.is_file() else []
    before = {key_of(row): row for row in earlier if key_of(row) in others}

    def note() -> None:
        runs.write(BOARD, list({**before, **{key_of(row): row for row in rows(contestants, runs)}}.values()))

    note()
    left = sum(len(runs.missing(one)) + _finals_left(one, runs, seeds) for one in contestants)
    runs.announce(NAME, left, left * int(contestants[0].tuning[0].config.train.rounds))
    try:
        for group in in_turn(contestants, runs.at_once):
            runs.tune(group, note)
            points = [(one, point) for one in group if (point := _to_judge(one, runs, seeds)) is not None]
            runs.run([one.final(point, seed) for one, point in points for seed in range(seeds)], note)
    except Stopped:
        raise runs.stopped() from None
    note()
    return rows(contestants, runs)


def _to_judge(one: Contestant, runs: BoardRuns, seeds: int) -> Point | None:
    """The chosen point, if it is known and its final runs are not in the published row."""
    point = runs.chosen(one)
    return None if point is None or one.is_judged(point, seeds) else point


def _finals_left(one: Contestant, runs: BoardRuns, seeds: int) -> int:
    """How many final runs are still to do."""
    judged = runs.chosen(one) is not None and _to_judge(one, runs, seeds) is None
    return 0 if judged else seeds - len(one.finals)


def _recall_finals(runs: BoardRuns, one: Contestant, seeds: int) -> None:
    """Read the final runs that are finished, also at seeds beyond `seeds` that an earlier command has run."""
    point = _to_judge(one, runs, seeds)
    if point is None:
        return
    for seed in count():
        trial = one.plan.final(one.setting, one.entry, point, seed)
        runs.recall([trial])
        if trial.name in runs.results:
            one.finals[seed] = trial
        elif seed >= seeds:
            break
