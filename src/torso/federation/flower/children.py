"""Processes of Flower's that are started here: quiet, in a group of their own, and gone when we are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from torso.federation.flower import QUIET

_PARENT = "TORSO_PARENT"
_GRACE = 8.0  # seconds; Flower itself takes up to five to end


def start(
    module: str, arguments: Sequence[str], log: Path, home: Path, settings: Mapping[str, str], **popen: Any
) -> subprocess.Popen[str]:
    """`python -m module arguments`; what it says goes to the log, unless `popen` says otherwise."""
    environment = {**os.environ, **QUIET, **settings}
    environment |= {"FLWR_LOG_LEVEL": "WARNING", "FLWR_HOME": str(home), _PARENT: str(os.getpid())}
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as said:
        said.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} {module}\n")
        said.flush()
        return subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],  # -P: nothing of the folder that we happen to be in
            **{"stdout": said, "stderr": said, "stdin": subprocess.DEVNULL, "text": True, **popen},
            env=environment,
            start_new_session=True,  # Ctrl-C is for us; we end it in order
        )


def stop(child: subprocess.Popen[str]) -> None:
    """End it and whatever it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if child.poll() is not None:
            break
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)  # what is left of its group


def die_with_parent() -> None:
    """Called in the child: end in order when the process that started it is gone, however it went."""
    parent = int(os.environ.get(_PARENT, "0"))
    if not parent:
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GRACE)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def tail(log: Path, lines: int = 12) -> str:
    """The last lines of a log, for an error that nobody has words for."""
    try:
        return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
