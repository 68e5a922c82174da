"""Processes that fork from one that has loaded torch and Flower: to load them takes longer than most of what they do.

`Forked` stands in for `subprocess.Popen([sys.executable, "-m", MODULE, …])`, in the process of the tests and in those
that are forked. Such a process has its own session, environment, folder and files, and runs MODULE from its beginning.
One thing differs: its parent is the one that forks, so `os.getppid` tells it who has asked for it, as long as that
lives. `tests/federation/test_wire.py` and `test_docs.py` have processes that begin at nothing.
"""

from __future__ import annotations

import array
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

ADDRESS = "TORSO_TESTS_FORK_AT"  # where the one that forks listens
LOADS = (
    *("torso.cli", "torso.report.federation_command", "torso.federation.run", "torso.federation.client_service"),
    *("torso.federation.flower.client", "torso.federation.flower.server", "torso.federation.flower.serve"),
    *("flwr.supernode.cli.flower_supernode", "flwr.superlink.cli.flower_superlink", "flwr.superlink.main", "uvicorn"),
)


class Forked:
    """A process, with what tests and `torso.federation.flower.children` ask of a `subprocess.Popen`."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        stdout: IO[Any] | int,
        stderr: IO[Any],
        env: Mapping[str, str],
        stdin: int = subprocess.DEVNULL,
        start_new_session: bool = True,
        text: bool = False,
    ) -> None:
        assert start_new_session
        arguments = list(words[words.index("-m") + 1 :])
        known = {**env, ADDRESS: os.environ[ADDRESS]}
        request = {"words": arguments, "env": known, "folder": os.getcwd(), "parent": os.getpid()}
        self.returncode: int | None = None
        self.stdout: IO[str] | None = None
        mine = -1
        if stdout == subprocess.PIPE:
            mine, out = os.pipe()
            self.stdout = os.fdopen(mine, encoding="utf-8")
        else:
            assert not isinstance(stdout, int)
            out = stdout.fileno()
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line.connect(os.environ[ADDRESS])
        files = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [out, stderr.fileno()]))]
        self._line.sendmsg([json.dumps(request).encode()], files)
        if mine >= 0:
            os.close(out)
        self.pid = int(self._line.recv(100))

    def poll(self) -> int | None:
        return self._status(0)

    def wait(self, timeout: float | None = None) -> int:
        found = self._status(timeout)
        if found is None:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0)
        return found

    def _status(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._line], [], [], seconds)[0]:
            status = self._line.recv(100)
            self.returncode = int(status) if status else -signal.SIGKILL
            self._line.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(words: Sequence[str], **how: Any) -> Any:
    """A forked process where somebody forks, else an ordinary one."""
    return (Forked if ADDRESS in os.environ else subprocess.Popen)(words, **how)


# what `torso.federation.flower.children` gets in place of the module `subprocess`
SUBPROCESS = SimpleNamespace(**{**vars(subprocess), "Popen": start})


@contextmanager
def forking() -> Iterator[str]:
    """Somebody forks at an address, in the block; "": nobody can here."""
    if not hasattr(os, "pidfd_open"):
        yield ""
        return
    with tempfile.TemporaryDirectory(prefix="torso-") as folder:
        address = str(Path(folder) / "fork")
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.federation.forked", address],
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            start_new_session=True,
        )
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        try:
            yield address
        finally:
            server.communicate()  # the end of its input is the end of it


@contextmanager
def forked_at(address: str) -> Iterator[None]:
    """`start`, and `children` here and in what is started, go there."""
    with pytest.MonkeyPatch.context() as patch:
        if address:
            patch.setenv(ADDRESS, address)
            patch.setattr("torso.federation.flower.children.subprocess", SUBPROCESS)
        yield


def main(address: str) -> None:
    for name in LOADS:
        importlib.import_module(name)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen(64)
    gc.collect()
    gc.freeze()  # what is shared stays shared
    print("ready", flush=True)
    request = _serve(listener)
    if request is not None:
        _become(request)


def _serve(listener: socket.socket) -> dict[str, Any] | None:
    """Fork for whoever asks, and tell them how it has ended; a request: in the process that was forked for it."""
    living: dict[int, tuple[int, socket.socket]] = {}  # by the descriptor that tells when a process ends
    while True:
        ready, _, _ = select.select([0, listener, *living], [], [])
        for one in ready:
            if one == 0:
                return None
            if one is not listener:
                process, line = living.pop(one)
                os.close(one)
                status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
                with suppress(OSError), line:
                    line.send(str(status).encode())
                continue
            line, _ = listener.accept()
            data, ancillary, _, _ = line.recvmsg(2**20, socket.CMSG_SPACE(8))
            files = array.array("i", ancillary[0][2])
            process = os.fork()
            if not process:
                for held in (listener, line, *(line for _, line in living.values())):
                    held.close()
                for descriptor in living:
                    os.close(descriptor)
                return {**json.loads(data), "files": list(files)}
            for file in files:
                os.close(file)
            living[os.pidfd_open(process)] = process, line
            line.send(str(process).encode())


def _become(request: dict[str, Any]) -> None:
    """What `python -m` does, in the process that was forked for it."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for here, there in ((nothing, 0), (request["files"][0], 1), (request["files"][1], 2)):
        os.dup2(here, there)
        os.close(here)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["env"])
    parent = request["parent"]
    os.getppid = lambda: parent if os.path.exists(f"/proc/{parent}") else 1
    from flwr.supercore.logger import update_console_handler

    from torso.federation.flower import children

    update_console_handler(level=os.environ["FLWR_LOG_LEVEL"], timestamps=False, colored=True)  # as at its import
    vars(children)["subprocess"] = SUBPROCESS
    sys.argv = request["words"]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1])
