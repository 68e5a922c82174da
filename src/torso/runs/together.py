"""Several independent runs, each in a folder of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from torso.config import Config
from torso.runs.events import Listener, Stop
from torso.runs.result import Result
from torso.runs.run import Stopped, run


def run_together(
    configs: Sequence[Config],
    outs: Sequence[Path],
    *,
    listener: Listener | None = None,
    stop: Stop | None = None,
) -> Iterator[tuple[int, Result | Exception]]:
    """Run them all, and tell of each as it ends: its place in the list, and its result or what went wrong.

    A folder that holds an unfinished run of its config is resumed. `Stopped` is raised, not told: it ends them all."""
    for place, (config, out) in enumerate(zip(configs, outs, strict=True)):
        try:
            result: Result | Exception = run(
                config, out, resume=(out / "config.toml").exists(), listener=listener, stop=stop
            )
        except Stopped:
            raise
        except Exception as error:  # one run's trouble is not the others'
            result = error
        yield place, result
