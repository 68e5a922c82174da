"""A Ray session that belongs to one run: how Ray's processes start, and how they and their files are removed."""

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

from torso.errors import NoWorkerLeft, TorsoError

# A program that prints the last line of its stdin when stdin ends, that is, when the process that writes to it ends.
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
    """A connection to Ray that was made for one run.

    Ray ends this process with `_exit` when one of Ray's own processes dies. A small second process, the speaker, then
    prints the message for the user."""

    folder: Path | None = None  # Ray's folder, if this run started Ray
    _speaker: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def set_exit_message(self, how: str) -> None:
        """Set what is printed if Ray ends this process: `how` the user continues. A second call replaces the first."""
        logs = f" (logs: {self.folder / 'logs'})" if self.folder else ""
        self._tell(
            f"torso: the process of this run has died; Ray ends it when Ray loses a process of its own{logs}. {how}"
        )

    def _tell(self, line: str) -> None:
        with suppress(OSError):  # if the machine cannot start one more process, the run goes on without the message
            if self._speaker is None:
                self._speaker = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _SPEAKER],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,  # a signal to our process group must not end the speaker
                )
            assert self._speaker.stdin is not None
            self._speaker.stdin.write(" ".join(line.split()).encode() + b"\n")
            self._speaker.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the session. Ray's logs are kept after a lost worker or an unexpected error, since they tell why."""
        error = exc[1] if exc else None
        unexpected = isinstance(error, Exception) and not isinstance(error, TorsoError)
        self.end(keep_logs=unexpected or isinstance(error, NoWorkerLeft))

    def end(self, keep_logs: bool = False) -> None:
        """Disconnect. If this run started Ray, Ray ends and its folder is removed (unless `keep_logs`)."""
        import ray

        ray.shutdown()
        if self._speaker is not None:
            self._tell("")
            self._speaker.communicate()
            self._speaker = None
        if self.folder is not None and not keep_logs:
            _remove(self.folder)


def _say_nothing(*_: Any) -> None:
    """Stands in for a function that Ray runs in a thread to print messages."""


def _remove(folder: Path) -> None:
    """Remove a session's folder, and the link `session_latest` if it leads there. Other sessions' folders stay."""
    shutil.rmtree(folder, ignore_errors=True)
    newest = folder.with_name("session_latest")
    with suppress(OSError):
        if Path(os.readlink(newest)).name == folder.name:
            newest.unlink()


@contextmanager
def starting_apart() -> Iterator[None]:
    """Patch Ray for the block in which it starts.

    - Ray's processes get separate process groups. Schedulers send SIGTERM to our whole group, and the run still needs
      Ray's processes for its checkpoint.
    - Ray does not install its own SIGTERM handler in place of ours, not even for seconds.
    - The pages that Ray's processes print when they die stay in Ray's logs."""
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
