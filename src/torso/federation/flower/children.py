"""Starts and stops Flower's processes: without output, in separate process groups, and never outliving this one."""

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
_GRACE = 8.0  # seconds between SIGTERM and SIGKILL; Flower takes up to five to end


def start(
    module: str, arguments: Sequence[str], log: Path, home: Path, settings: Mapping[str, str], **popen: Any
) -> subprocess.Popen[str]:
    """Start `python -m module arguments`. Its output goes to the log, unless `popen` redirects it.

    `home`: Flower's home folder. `settings`: further environment variables."""
    environment = {**os.environ, **QUIET, **settings}
    environment |= {"FLWR_LOG_LEVEL": "WARNING", "FLWR_HOME": str(home), _PARENT: str(os.getpid())}
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        file.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} {module}\n")
        file.flush()
        return subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],  # -P: no imports from the current folder
            **{"stdout": file, "stderr": file, "stdin": subprocess.DEVNULL, "text": True, **popen},
            env=environment,
            start_new_session=True,  # Ctrl-C reaches only this process, which then stops the child
        )


def stop(child: subprocess.Popen[str]) -> None:
    """End a process and all processes that it has started."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        if child.poll() is not None:
            break
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal_number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)  # remaining processes of its group


def die_with_parent() -> None:
    """Called in a child process: terminate it when its parent has ended, for whatever reason."""
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
    """The last lines of a log, for the message of an unexpected error."""
    try:
        return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
