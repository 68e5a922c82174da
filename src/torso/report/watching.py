"""Progress of a run on the terminal, and stopping it with Ctrl-C. torch is loaded only when `watching` is called."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console

if TYPE_CHECKING:
    from torso.runs.events import Listener, Stop

    Displays = tuple[Callable[[Console], AbstractContextManager[Listener]], Callable[[Console], Listener]]


@contextmanager
def watching(quiet: bool, tensorboard: bool = False, shown: Displays | None = None) -> Iterator[tuple[Listener, Stop]]:
    """Shows progress on the error stream. Ctrl-C or SIGTERM stops the run after its round or measure; a second one at
    once.

    `shown`: displays to use instead of the default ones: (for a terminal, for everything else)."""
    from torso.runs.events import Listener, Stop
    from torso.runs.progress import LiveBars, PlainLines

    console, stop = Console(stderr=True), Stop()
    bars_of, lines_of = shown or (LiveBars, PlainLines)

    def interrupt(*_: Any) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.ask()
        console.print(f"stopping {stop.when}", soft_wrap=True)

    def with_events(listener: Listener) -> Listener:
        if not tensorboard:
            return listener
        from torso.report.tensorboard import TensorBoard

        return TensorBoard(listener)

    signals = (signal.SIGINT, signal.SIGTERM)  # a cluster's scheduler sends SIGTERM before it kills
    before = {number: signal.signal(number, interrupt) for number in signals}
    try:
        if quiet or not console.is_terminal:
            yield with_events(Listener() if quiet else lines_of(console)), stop
        else:
            with bars_of(console) as bars:
                yield with_events(bars), stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
