"""A federation of processes on loopback: one server and its clients, started as a person would start them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.federation.forked import start
from tests.federation.wire import free_port, until

from torso import Config
from torso.federation.flower.control import admit, admitted
from torso.federation.flower.server import FlowerServerLink
from torso.federation.folder import ClientFolder, ServerFolder, init
from torso.federation.keys import make_key
from torso.federation.run import run_federation
from torso.federation.split import split
from torso.results.result import Result
from torso.runs.events import Listener

ENVIRONMENT = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


@dataclass
class Process:
    """A command of torso's, with what it says in a file; it ends with everything that it has started."""

    words: Sequence[str]
    log: Path
    child: Any = field(init=False)  # a `subprocess.Popen`, or what is like one

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as file:
            self.child = start(
                [sys.executable, "-m", "torso", *map(str, self.words)],
                stdout=file,
                stderr=file,
                env=ENVIRONMENT,
                start_new_session=True,
            )

    @property
    def printed(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def wait_for(self, words: str, times: int = 1) -> None:
        until(lambda: self._heard(words, times), f"{words!r} in what {self.log.name} says")

    def _heard(self, words: str, times: int) -> bool:
        assert self.child.poll() is None or self.printed.count(words) >= times, (
            f"{self.log.name} has ended:\n{self.printed}"
        )
        return self.printed.count(words) >= times

    def kill(self) -> None:
        """SIGKILL, to it alone: what it has started must notice by itself."""
        self.child.kill()
        self.child.wait()

    def interrupt(self) -> None:
        if self.child.poll() is None:
            os.killpg(self.child.pid, signal.SIGINT)

    def stop(self) -> None:
        for sign in (signal.SIGINT, signal.SIGKILL):
            if self.child.poll() is None:
                try:
                    os.killpg(self.child.pid, sign)
                    self.child.wait(20)
                except (ProcessLookupError, subprocess.TimeoutExpired):
                    continue


@dataclass
class Running:
    """A federation that runs."""

    folder: Path
    place: ServerFolder
    config: Config  # as `split` has written it
    server: Process
    clients: dict[str, Process]

    def run(self, config: Config, out: Path, *, resume: bool = False, listener: Listener | None = None) -> Result:
        link = FlowerServerLink(self.place)
        return run_federation(config, link, out, resume=resume, listener=listener, say=lambda _: None)

    def home(self, name: str) -> Path:
        return self.folder / "machines" / name / name

    def online(self) -> set[str]:
        return {one.name for one in admitted(self.place) if one.state == "online"}


def join(folder: Path, name: str, data: Path) -> Process:
    place = folder / "machines" / name
    words = ["federation", "join", place, "--name", name, "--data", data]
    return Process(list(map(str, words)), folder / f"{name}.log")


def machine(folder: Path, place: ServerFolder, name: str) -> ClientFolder:
    """A client's machine: a copy of the folder `client`, and a key that is admitted."""
    shutil.copytree(place.path / "client", folder / "machines" / name)
    there = ClientFolder.open(folder / "machines" / name)
    admit(place, make_key(there, name), name)
    return there


@contextmanager
def running(folder: Path, config: Config) -> Iterator[Running]:
    """The clients of a simulated run as a real federation."""
    files = split(config, folder / "split")
    place = init(folder / "federation", "127.0.0.1", free_port(), config=folder / "split" / "config.toml")
    server = Process(["federation", "serve", str(place.path)], folder / "server.log")
    clients: dict[str, Process] = {}
    try:
        server.wait_for("TLS and authentication of clients are on")
        for file in files:
            machine(folder, place, file.stem)
            clients[file.stem] = join(folder, file.stem, file)
        for client in clients.values():
            client.wait_for("is connected")
        yield Running(folder, place, Config.load(folder / "split" / "config.toml"), server, clients)
    finally:
        for client in clients.values():
            client.interrupt()  # all of them, before one is waited for
        for process in (*clients.values(), server):
            process.stop()
