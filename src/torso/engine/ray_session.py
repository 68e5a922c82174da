"""A Ray that was started for one run: how its processes start, and what is left of it when the run ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

from torso.errors import PlaceLost, TorsoError

# Prints the newest line that it was given, once whoever gave it has ended without a word.
_SPEAKER = """
import sys
line = b""
for line in sys.stdin.buffer:
    pass
if line.strip():
    sys.stderr.buffer.write(line)
"""


@dataclass
class Session:
    """`folder`: Ray's folder, where this run made it. Ray ends our process with `_exit` when its own processes die,
    so another process, the speaker, has the words for that."""

    folder: Path | None = None
    _speaker: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def last_words(self, how: str) -> None:
        """What to say if Ray ends this process: `how` the user continues. Said again, it replaces what was said."""
        logs = f" (logs: {self.folder / 'logs'})" if self.folder else ""
        self._tell(
            f"torso: the process of this run has died; Ray ends it when Ray loses a process of its own{logs}. {how}"
        )

    def _tell(self, line: str) -> None:
        with suppress(OSError):  # a machine without room for one more process: the run goes on without last words
            self._speaker = self._speaker or subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _SPEAKER],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # what ends us does not end it
            )
            assert self._speaker.stdin is not None
            self._speaker.stdin.write(" ".join(line.split()).encode() + b"\n")
            self._speaker.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Ray's logs tell what went wrong where workers were lost, or where nobody has words for it."""
        error = exc[1] if exc else None
        unexpected = isinstance(error, Exception) and not isinstance(error, TorsoError)
        self.end(keep_logs=unexpected or isinstance(error, PlaceLost))

    def end(self, keep_logs: bool = False) -> None:
        """Disconnect. A Ray of our own ends, and its folder goes, unless its logs may tell what went wrong."""
        import ray

        ray.shutdown()
        if self._speaker is not None:
            self._tell("")
            self._speaker.communicate()
            self._speaker = None
        if self.folder is not None and not keep_logs:
            _remove(self.folder)


def _say_nothing(*_: Any) -> None:
    """In place of a thread of Ray's that prints."""


def _remove(folder: Path) -> None:
    """Of the folders beside it nothing: they belong to others."""
    shutil.rmtree(folder, ignore_errors=True)
    newest = folder.with_name("session_latest")
    with suppress(OSError):
        if Path(os.readlink(newest)).name == folder.name:
            newest.unlink()


@contextmanager
def starting_apart() -> Iterator[None]:
    """Ray's processes start in groups of their own: schedulers send SIGTERM to our whole group, and the run needs them
    for its checkpoint. Ray must not put its own handler of SIGTERM in place of ours either, not even for seconds; and
    what its processes say when they die, pages of it, stays in its logs."""
    from ray._private import services, utils, worker

    class Apart(services.ConsolePopen):  # type: ignore[misc]  # Ray is Any
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{"start_new_session": True, **options})

    before = signal.getsignal(signal.SIGTERM)
    ours = callable(before) and threading.current_thread() is threading.main_thread()
    with patch.object(services, "ConsolePopen", Apart), patch.object(worker, "listen_error_messages", _say_nothing):
        if not ours:
            yield
            return
        with patch.object(utils, "set_sigterm_handler", lambda handler: None):
            yield
        signal.signal(signal.SIGTERM, before)
