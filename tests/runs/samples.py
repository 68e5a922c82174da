"""What the tests of this folder share: a small run, its bits, and a run that stops or dies when told to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from torso import Config, RequestError, Result
from torso.data import Federation, build
from torso.measure import Accuracy
from torso.parallel.packs import AfterRun
from torso.parallel.pool import ProcessPool
from torso.parallel.together import run_together
from torso.personal.state import State
from torso.personal.store import KINDS
from torso.results.pending import numbers_of, tensors_of
from torso.runs.events import Begin, Listener, Stop
from torso.runs.rounds import Round

TINY = (
    "data.clients=10",
    "train.rounds=4",
    "train.fraction=0.3",
    "train.local_epochs=1",
    "personalize.epochs=1",
    "run.workers=1",
    "run.checkpoint_every=1",
)


def tiny(method: str = "fedavg", *sets: str) -> Config:
    """Ten clients of scikit-learn's digits, four short rounds."""
    return Config.load(None, [f"method.name={method}", *TINY, *sets])


@cache
def digits() -> Federation:
    """The data of every tiny run with seed 0, loaded once."""
    config = tiny()
    return build(config.data, config.run.seed, torch.device("cpu"))


def bits(state: State) -> dict[str, Any]:
    """Everything that a state holds, tensors as bytes."""
    server = state.server
    by_name = {
        kind: getattr(server, kind) for kind in ("model", "shown", "rule", "drift", "origin", "privacy", "statistics")
    }
    by_client = {kind: getattr(server, kind) for kind in ("uploads", "of_clients")}
    by_client |= {kind: state.clients.of_kind(kind) for kind in KINDS}
    tensors = {f"{kind}/{n}": t for kind, held in by_name.items() for n, t in held.items()}
    tensors |= {
        f"{kind}/{k}/{n}": t for kind, held in by_client.items() for k, own in held.items() for n, t in own.items()
    }
    tensors |= tensors_of(state.pending)
    named = {name: (t.dtype, tuple(t.shape), t.numpy().tobytes()) for name, t in tensors.items()}
    visits = numbers_of(state.pending)
    return {**named, "round": state.round, "met": server.met, "cost": state.cost, "pending": visits}


def assert_same_state(one: State, other: State) -> None:
    """All that the server and the clients hold, to the bit."""
    mine, theirs = bits(one), bits(other)
    assert mine.keys() == theirs.keys()
    assert [name for name in mine if mine[name] != theirs[name]] == []


def last_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of the newest checkpoint as they lie on disk: the server's, and the clients' newest."""
    newest = max((folder / "checkpoints").glob("round-*.json"))
    tensors = load_file(newest.with_suffix(".safetensors"))
    for name, entry in json.loads(newest.read_text())["clients"].items():
        of = {f"client {client}" for client in entry["of"]}
        tensors |= {n: t for n, t in load_file(newest.with_name(name)).items() if n.partition("/")[0] in of}
    return tensors


def same_tensors(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def result_of(folder: Path) -> dict[str, Any]:
    """result.json without times and memory."""
    tree: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return {key: value for key, value in tree.items() if key not in ("seconds", "peak_memory_bytes")}


def history_of(folder: Path) -> list[dict[str, Any]]:
    """history.jsonl without times, and without the checksums of lines that hold them."""
    lines = (folder / "history.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in ("seconds", "check")} for line in lines]


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, hidden ones too."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def assert_same_run(folder: Path, other: Path) -> None:
    assert result_of(folder) == result_of(other)
    assert history_of(folder) == history_of(other)
    assert same_tensors(last_tensors(folder), last_tensors(other))
    assert set(files(folder)) == set(files(other))  # and so no temporary files


class StopAfter(Listener):
    """Asks for a stop right after a round; 0: before the first."""

    def __init__(self, round: int) -> None:
        self.at, self.stop, self.began = round, Stop(), ""
        if not round:
            self.stop.ask()

    def begin(self, begin: Begin) -> None:
        self.began = begin.note

    def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
        if round.round == self.at:
            self.stop.ask()


class Heard(Listener):
    def __init__(self, stop_at: int = 0) -> None:
        self.notes, self.stop, self.at = list[str](), Stop(), stop_at

    def note(self, text: str) -> None:
        self.notes.append(text)

    def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
        if round.round == self.at:
            self.stop.ask()


def check_packs(root: Path, sets: Sequence[str], after: AfterRun, pool: ProcessPool | None = None) -> list[Path]:
    """Two runs in one stack, one that bursts beside them, a folder in use: elsewhere they are what they are here, told
    as they end, in any order. Gives the folders of those that ran."""
    cases = ("data.shards=2", "data.shards=5", "train.lr=1e30", "run.seed=1")
    asked = [tiny("fedper", "run.engine=batched", *sets, case) for case in cases]
    (root / "there" / "3").mkdir(parents=True)
    (root / "there" / "3" / "mine.txt").write_text("not a run")
    outs = [root / "there" / str(place) for place in range(4)]
    # without `pool` the call uses the default, which some tests replace
    together = run_together if pool is None else partial(run_together, pool=pool)
    seen = list(together(asked, outs, clients=6, after=after))
    assert sorted(place for place, _ in seen) == [0, 1, 2, 3]
    found = dict(seen)
    here = [config.but("run.engine=batched") for config in asked[:2]]
    for place, alone in run_together(here, [root / "here" / str(place) for place in range(2)], clients=6, pool=None):
        beside = found[place]
        assert isinstance(alone, Result)
        assert isinstance(beside, Result)
        assert beside.accuracy == alone.accuracy
        assert same_tensors(last_tensors(outs[place]), last_tensors(root / "here" / str(place)))
    burst, refused = found[2], found[3]
    assert isinstance(burst, Result)
    assert burst.status.startswith("failed: non-finite")
    assert isinstance(refused, RequestError)
    assert "is not empty" in str(refused)
    return outs[:3]
