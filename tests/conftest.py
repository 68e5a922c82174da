"""One thread, here and in what tests start: the tensors are small, and threads that wait for each other on a busy
machine take minutes. One Ray. No waiting for the disk.
A run that does not say how many workers it wants has one, too: two that take turns cost half as much time again.

And the CPU, on machines with an accelerator too: what is written out here is of a CPU. TORSO_TEST_CUDA=1
(`make test-cuda`) leaves the accelerator to the tests that are about it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anybody loads torch
os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's is 15: beside other tests its workers would hardly run
import torch

from torso.caches import CACHE
from torso.cli import main
from torso.data.augment import Lens, PixelLens
from torso.engine import threads

if os.environ.get("TORSO_TEST_CUDA") != "1":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # of the commands that tests start, too

# what a shell starts with `&` ignores Ctrl-C, and so would all that tests start: they would wait for what never ends
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threads, "os", SimpleNamespace(cpu_count=lambda: 1))
        yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk() -> Iterator[None]:
    """A test does not outlive a power cut; a sixth of the time of runs with a folder went to `fsync`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The user's cache is neither read nor written; that of compiled kernels is settled before and stays."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE, str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything in float64, where a ReLU that stands at its edge does not fall to either side by rounding."""
    for lens in (Lens, PixelLens):
        look = vars(lens)["look"]
        monkeypatch.setattr(lens, "look", lambda *args, look=look: look(*args).double())
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """Ray with room for three workers, started once for all tests that want it (they are one group for xdist)."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    ray.init("local", num_cpus=3, object_store_memory=100 * 2**20, log_to_driver=False)
    yield
    ray.shutdown()


@dataclass(frozen=True)
class Said:
    """What a command left behind."""

    status: int
    out: str
    err: str


Torso = Callable[..., Said]


@pytest.fixture
def torso(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Torso:
    """`torso(...)` runs a command in an empty folder, as the shell would."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("TORSO_DATA", raising=False)

    def call(*words: str, sets: tuple[str, ...] = ()) -> Said:
        monkeypatch.setattr(sys, "argv", ["torso", *words, *(f"--set={text}" for text in sets)])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return Said(int(end.value.code or 0), said.out, said.err)

    return call
