"""docs/federation.md as it is written: a server and two clients, each in a network namespace of its own, and every
command of the page in its order. What the page shows is what is said, but for numbers."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.conftest import Torso
from tests.federation.flower import ENVIRONMENT
from tests.federation.wire import PATIENCE, until

from torso.report.federation_command import _app
from torso.results.result import Result

pytestmark = pytest.mark.xdist_group("federation")
pytest.importorskip("flwr", reason="the extra flower is not installed")

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "federation.md"
ADDRESS = "10.0.0.1"  # the server's, on the page and in its namespace
CLIENTS = ("clinic-1", "clinic-2")
BLOCK = re.compile(r"^```(?:console|text (\S+))\n(.*?)^```", re.DOTALL | re.MULTILINE)
PROMPT = re.compile(r"(server|clinic-\d)\$ (.*)")
CLONE_NEWNET = 0x40000000  # of <sched.h>
FOR_EVER = ("torso federation serve", "torso federation join")
LITERAL_OR_NOT = re.compile(rf"(clinic-\d|{re.escape(ADDRESS)}:9092|…|\d+(?:\.\d+)?|─+|\s+)")
COPY = """#!/bin/sh
# Files from one machine to another, as scp does it between hosts: HOST:PATH is PATH in the folder of the host.
for word; do
    case "$word" in *:*) word="{machines}/${{word%%:*}}/${{word#*:}}" ;; esac
    set -- "$@" "$word"
    shift
done
exec cp "$@"
"""


@dataclass(frozen=True)
class Step:
    """A command on a machine, or (no command) what the one that runs there for ever says next."""

    machine: str
    command: str
    shown: tuple[str, ...]


def steps(page: str) -> list[Step]:
    found: list[tuple[str, str, list[str]]] = []
    for speaker, block in BLOCK.findall(page):
        if speaker:
            found.append((speaker, "", []))
        for line in block.replace("\\\n", " ").splitlines():
            if typed := PROMPT.fullmatch(line):
                found.append((*typed.groups(), []))
            elif line.strip() and not line.startswith("$ "):
                found[-1][2].append(line)
    return [Step(machine, command, tuple(shown)) for machine, command, shown in found]


def pattern(line: str) -> re.Pattern[str]:
    """The line with any numbers, any space, and anything for `…`."""
    anything = {"…": ".*", "─": "─+", " ": r"\s+"}

    def loose(piece: str) -> str:
        if re.fullmatch(r"\d+(\.\d+)?", piece):
            return r"[\d.]+"
        return anything.get(piece[:1].replace("\t", " "), re.escape(piece))

    return re.compile("".join(map(loose, filter(None, LITERAL_OR_NOT.split(line.strip())))))


def not_said(shown: tuple[str, ...], printed: str) -> str:
    """The first line of a page that was not said after those before it; "": all were."""
    lines = iter(printed.splitlines())
    for wanted in shown:
        look = pattern(wanted)
        if not any(look.search(line) for line in lines):
            return wanted
    return ""


@dataclass
class Machine:
    name: str
    namespace: str
    folder: Path
    environment: dict[str, str]
    running: subprocess.Popen[bytes] | None = None
    logs: list[Path] = field(default_factory=list)

    def call_here(self, step: Step, torso: Torso, patch: pytest.MonkeyPatch) -> None:
        """By this process, which has loaded torch, on the machine's network."""
        patch.chdir(self.folder)
        with on_the_network_of(self.namespace):
            done = torso(*shlex.split(step.command)[1:])
        self._check(step, done.status, done.err + done.out)

    def call(self, step: Step) -> None:
        words = self._words(f"exec {step.command}")
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        self._check(step, done.returncode, done.stderr + done.stdout)

    @staticmethod
    def _check(step: Step, status: int, printed: str) -> None:
        assert status == 0, f"{step.command}\n{printed}"
        assert not not_said(step.shown, printed), (
            f"{step.command}\nnot said: {not_said(step.shown, printed)}\nbut: {printed}"
        )

    def start(self, step: Step) -> None:
        assert self.running is None, f"{self.name} is busy"
        self.logs.append(self.folder / f"said-{len(self.logs)}")
        with self.logs[-1].open("wb") as log:
            self.running = subprocess.Popen(
                self._words(f"exec {step.command}"),
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.listen(step)

    def listen(self, step: Step) -> None:
        """Wait until what runs here has said what the page shows; `^C` interrupts it."""
        assert self.running is not None
        shown, ends = step.shown, step.shown[:1] == ("^C",)
        if ends:
            shown = shown[1:]
            for _ in range(6):  # as a person would: Python may drop the first one where it comes in a destructor
                self.signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    self.running.wait(PATIENCE / 6)
                    break
        until(lambda: self._has_ended() or not not_said(shown, self.printed), f"{shown} on {self.name}")
        assert not not_said(shown, self.printed), f"not said: {not_said(shown, self.printed)}\nbut: {self.printed}"
        if self._has_ended():
            self.running = None

    @property
    def printed(self) -> str:
        return self.logs[-1].read_text(encoding="utf-8", errors="replace")

    def _has_ended(self) -> bool:
        return self.running is None or self.running.poll() is not None

    def _words(self, command: str) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, "sh", "-c", command]

    def signal(self, number: int) -> None:
        if self.running is not None and self.running.poll() is None:
            os.killpg(self.running.pid, number)

    def end(self) -> None:
        """Whatever is left here, and what it has started."""
        if self.running is not None:
            with suppress(subprocess.TimeoutExpired):
                self.running.wait(20)
            self.signal(signal.SIGKILL)
            self.running.wait(PATIENCE)
        words = ["ip", "netns", "pids", self.namespace]
        left = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE).stdout
        for process in left.split():
            with suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)

    def open_ports(self) -> set[int]:
        """Those at which others could reach this machine."""
        words = self._words("cat /proc/net/tcp*")
        table = subprocess.run(words, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout
        rows = [line.split() for line in table.splitlines() if ":" in line]
        listening = [row[1].split(":") for row in rows if row[3] == "0A"]
        loopback = ("0100007F", "00000000000000000000000001000000")
        return {int(port, 16) for address, port in listening if address not in loopback}


@contextmanager
def on_the_network_of(namespace: str) -> Iterator[None]:
    """This thread, and those that it starts meanwhile."""
    system = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/net") as own, open(f"/run/netns/{namespace}") as other:
        enter(system, other.fileno())
        try:
            yield
        finally:
            enter(system, own.fileno())


def enter(system: ctypes.CDLL, namespace: int) -> None:
    if system.setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False, timeout=PATIENCE)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def wire(server: str, namespaces: list[str]) -> None:
    """Every client has a wire to the server, and to nobody else."""
    for namespace in (server, *namespaces):
        ip("netns", "add", namespace)
        ip("-n", namespace, "link", "set", "lo", "up")
    for number, namespace in enumerate(namespaces, start=2):
        here, own = f"to-{number}", f"10.0.0.{number}"
        ip("link", "add", here, "netns", server, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        for where, device, mine, other in ((server, here, ADDRESS, own), (namespace, "eth0", own, ADDRESS)):
            ip("-n", where, "address", "add", mine, "peer", other, "dev", device)
            ip("-n", where, "link", "set", device, "up")


def script(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[dict[str, Machine]]:
    for tool in ("ip", "openssl"):
        if shutil.which(tool) is None:
            pytest.skip(f"there is no {tool} here")
    names = ("server", *CLIENTS)
    spaces = {name: f"torso-{os.getpid()}-{name}" for name in names}
    tools = tmp_path / "tools"
    tools.mkdir()
    script(tools / "torso", f'#!/bin/sh\nexec "{sys.executable}" -m torso "$@"\n')
    script(tools / "scp", COPY.format(machines=tmp_path / "machines"))
    environment = {**ENVIRONMENT, "PATH": f"{tools}:{os.environ['PATH']}", "COLUMNS": "120"}
    found: dict[str, Machine] = {}
    try:
        try:
            wire(spaces["server"], [spaces[name] for name in CLIENTS])
        except OSError as error:
            pytest.skip(f"network namespaces cannot be made here ({error})")
        for name in names:
            folder = tmp_path / "machines" / name
            folder.mkdir(parents=True)
            found[name] = Machine(name, spaces[name], folder, environment)
        yield found
    finally:
        for machine in reversed(found.values()):
            machine.signal(signal.SIGINT)
        for machine in found.values():
            machine.end()
        for space in spaces.values():
            subprocess.run(["ip", "netns", "delete", space], capture_output=True, check=False, timeout=PATIENCE)


def test_the_page_shows_every_command_of_a_federation() -> None:
    typed = " ".join(step.command for step in steps(PAGE.read_text(encoding="utf-8")))
    shown = set(re.findall(r"torso federation (\w+)", typed))
    assert shown == {command.name or getattr(command.callback, "__name__", "") for command in _app.registered_commands}


def test_a_line_that_is_not_said_is_found() -> None:
    assert not not_said(("round 1/5  loss 0.5", "… is over"), "round 1/5 loss 0.25\nmore\nfedavg is over\n")
    assert not_said(("… is over", "round 1/5"), "round 1/5 loss 0.25\nfedavg is over\n") == "round 1/5"
    assert not_said(("clinic-1 is there",), "clinic-2 is there") == "clinic-1 is there"


def test_the_table_of_the_floor_is_that_of_the_bench() -> None:
    spec = importlib.util.spec_from_file_location("federation_floor", ROOT / "bench" / "federation_floor.py")
    assert spec is not None
    assert spec.loader is not None
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    page = PAGE.read_text(encoding="utf-8")
    found = json.loads((ROOT / "bench" / "federation_floor.json").read_text(encoding="utf-8"))
    assert bench.fill(page, found) == page, "run: python bench/federation_floor.py --fill"


def test_the_page_on_federations_works_as_written(
    machines: dict[str, Machine], torso: Torso, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    server = machines["server"]
    for step in steps(PAGE.read_text(encoding="utf-8")):
        machine = machines[step.machine]
        if not step.command:
            machine.listen(step)
        elif step.command.startswith(FOR_EVER):
            machine.start(step)
        elif step.command.startswith("torso "):
            machine.call_here(step, torso, monkeypatch)
        else:
            machine.call(step)
        if step.command.startswith("torso federation run"):  # everybody is connected
            assert server.open_ports() == {9092}
            assert [machines[name].open_ports() for name in CLIENTS] == [set(), set()]
            homes = [machines[name].folder / "client" / name for name in CLIENTS]
            assert [home.stat().st_mode & 0o777 for home in homes] == [0o700, 0o700]
    real, simulated = (Result.read(server.folder / "runs" / name) for name in ("first", "simulated"))
    assert real.accuracy == simulated.accuracy
