"""How a download goes, for a person: bars on a terminal, a line for every quarter elsewhere."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from torso.data.fetch import Watcher


class Lines(Watcher):
    """For logs and pipes."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.told: dict[str, int] = {}  # file → quarters that were told

    def moved(self, what: str, done: int, total: int) -> None:
        quarters = 4 * done // max(1, total)
        if quarters > self.told.get(what, -1):
            self.told[what] = quarters
            self.note(f"{what}: {100 * done // max(1, total)}% of {total:,}")

    def note(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, highlight=False, markup=False)


class Bars(Watcher):
    """One bar for each file, and one for what is made of them."""

    def __init__(self, console: Console) -> None:
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(compact=True),
            console=console,
        )
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Bars:
        self.progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.progress.stop()

    def moved(self, what: str, done: int, total: int) -> None:
        if what not in self.tasks:
            self.tasks[what] = self.progress.add_task(what, total=total)
        self.progress.update(self.tasks[what], completed=done, total=total)

    def note(self, text: str) -> None:
        self.progress.console.print(text, soft_wrap=True, highlight=False, markup=False)
