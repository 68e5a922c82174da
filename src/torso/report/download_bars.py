"""Progress of a download: bars on a terminal, a line for every quarter elsewhere."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from torso.data.fetch import DownloadListener


class Lines(DownloadListener):
    """Progress as lines, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.quarters: dict[str, int] = {}  # file → the last quarter that was printed

    def moved(self, file: str, done: int, total: int) -> None:
        self._tell(file, done, total, f"{total / 1e6:,.1f} MB")

    def making(self, file: str, done: int, total: int) -> None:
        self._tell(f"making {file}", done, total, f"{total:,}")

    def _tell(self, what: str, done: int, total: int, amount: str) -> None:
        quarters = 4 * done // max(1, total)
        if quarters > self.quarters.get(what, -1):
            self.quarters[what] = quarters
            self.note(f"{what}: {100 * done // max(1, total)}% of {amount}")

    def note(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, highlight=False, markup=False)


class _Amount(ProgressColumn):
    """How much is done: `25.2 / 170.5 MB  20.9 MB/s` of a file, `500 / 110,000` samples of what is being converted."""

    def render(self, task: Task) -> Text:
        if not task.fields["in_bytes"]:
            return Text(f"{int(task.completed):,} / {int(task.total or 0):,}")
        speed = f"  {task.speed / 1e6:,.1f} MB/s" if task.speed else ""
        return Text(f"{task.completed / 1e6:,.1f} / {(task.total or 0) / 1e6:,.1f} MB{speed}")


class Bars(DownloadListener):
    """Progress as bars: one for each file, and one for each conversion of files."""

    def __init__(self, console: Console) -> None:
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=18),
            _Amount(),
            TimeRemainingColumn(compact=True),
            console=console,
        )
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Bars:
        self.progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.progress.stop()

    def moved(self, file: str, done: int, total: int) -> None:
        self._update(file, done, total, in_bytes=True)

    def making(self, file: str, done: int, total: int) -> None:
        self._update(f"making {file}", done, total, in_bytes=False)

    def _update(self, what: str, done: int, total: int, in_bytes: bool) -> None:
        if what not in self.tasks:
            self.tasks[what] = self.progress.add_task(what, total=total, in_bytes=in_bytes)
        self.progress.update(self.tasks[what], completed=done, total=total)

    def note(self, text: str) -> None:
        self.progress.console.print(text, soft_wrap=True, highlight=False, markup=False)
