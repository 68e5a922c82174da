"""What is shown while a table or the leaderboard runs."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console
from tests.runs.samples import tiny

from torso import run
from torso.papers.commands.progress import TableBar, TableLines
from torso.runs.events import Begin
from torso.runs.rounds import Round
from torso.server.state import Cost


def test_a_search_that_goes_on_beyond_what_was_foreseen_does_not_count_past_its_total(tmp_path: Path) -> None:
    result = run(tiny("fedavg", "train.rounds=1"), tmp_path / "run")
    with TableBar(Console(quiet=True)) as bar:
        bar.expect("leaderboard", 1, 1, 0)
        task = bar.progress.tasks[0]
        for runs in ("1/1", "2 (1 foreseen)", "3 (1 foreseen)"):
            bar.round(Round(1, "", 0.1, (0,), 1.0, Cost()), 0.1, {})
            bar.end(result)
            assert task.fields["runs"] == runs
            assert (task.total or 0) >= task.completed
        assert not task.finished
    told = Console(record=True, file=io.StringIO(), width=200)
    lines = TableLines(told)
    lines.expect("leaderboard", 1, 1, 0)
    for _ in range(2):
        lines.end(result)
    assert [line.split("  ")[0] for line in told.export_text().splitlines()[1:]] == [
        "leaderboard: 1/1",
        "leaderboard: 2 (1 foreseen)",
    ]


def test_a_run_that_begins_again_is_not_counted_twice() -> None:
    with TableBar(Console(quiet=True)) as bar:
        bar.expect("fedbabu/13", 1, 3, 0)
        one = bar.beside()
        for done in (0, 1):  # two rounds, of which one was kept; then the other again, and the third
            one.begin(Begin("fedavg", 0, 10, 3, done))
            for number in (done + 1, done + 2):
                one.round(Round(number, "", 0.1, (0,), 1.0, Cost()), 0.1, {})
        assert bar.progress.tasks[0].completed == 3
