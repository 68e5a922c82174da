"""A key that was set and that nothing reads in this run is told, once, and never fatal."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from tests.runs.samples import Heard, tiny

import torso
from torso import Config
from torso.config import DataConfig
from torso.data import sources
from torso.data.images import Dataset
from torso.data.keys import recording_reads, unread
from torso.data.partitions import partitions
from torso.data.sources.made import digits
from torso.runs.job import simulate


def told(*sets: str, method: str = "fedavg") -> list[str]:
    """What a run would say of its keys."""
    from torso.runs.unused_keys import unread_keys

    job = simulate(tiny(method, *sets))
    return [note for note in (*job.roster.remarks, *unread_keys(job.config, job.plan)) if "no effect" in note]


def test_keys_that_neither_source_nor_partition_reads_are_told_in_one_note() -> None:
    assert told("data.root=mine", "data.min_size=4", "data.synthetic.noise=0.5") == [
        "data.root = 'mine', data.min_size = 4, data.synthetic.noise = 0.5 are set, but have no effect: neither "
        "data.source = 'digits' nor data.partition = 'shards' reads them"
    ]


@pytest.mark.parametrize(
    "sets",
    [
        ("data.partition=dirichlet-class", "data.min_size=4", "data.alpha=5"),
        ("data.source=synthetic", "data.synthetic.noise=0.5", "data.synthetic.samples=400"),
        ("data.imbalance=3", "data.imbalance_test=true"),
        ("data.validation=0.2", "data.new_clients=2", "data.augment=none", "data.normalize=statistics"),
        ("train.schedule=exp", "train.decay=0.5"),
        ("attack.kind=label-flip", "attack.fraction=0.2"),
        ("measure.every=1", "measure.during=generic"),
        ("data.shards=2", "data.alpha=0.3"),  # as by default: nothing would change
    ],
)
def test_keys_that_are_read_are_not_told(sets: tuple[str, ...]) -> None:
    assert told(*sets) == []


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("data.alpha=9", "reads it"),
        ("data.imbalance_test=true", "reads it"),
        ("train.decay=0.5", "train.schedule = 'step-half-3q' does not use it"),
        ("attack.fraction=0.2", "attack.kind = 'none'"),
        ("measure.during=generic", "measure.every = 0"),
        ("measure.analyses_every=3", "measure.analyses names none that is taken of rounds"),
        ("data.meta_per_class=3", "method 'fedavg' uses no samples of the server"),
        ("run.flower.deadline=3", "run.engine = 'auto'"),
    ],
)
def test_other_keys_without_a_reader_are_told_with_the_reason(key: str, reason: str) -> None:
    (note,) = told(key)
    assert note.startswith(f"{key.partition('=')[0]} = ")
    assert note.endswith(reason)


def test_a_run_tells_its_listener_and_goes_on(tmp_path: Path) -> None:
    seen = Heard()
    assert torso.run(tiny("fedavg", "train.rounds=1", "data.root=mine"), tmp_path / "run", listener=seen).ok
    assert sum("data.root = 'mine' is set, but has no effect" in note for note in seen.notes) == 1


def test_of_a_shared_data_set_every_run_hears_the_same() -> None:
    from torso.data import DataCache
    from torso.runs.job import data_of

    data_cache = DataCache()
    first, second = (data_of(tiny("fedavg", "data.root=mine"), data_cache).remarks for _ in range(2))
    assert first == second != ()
    assert data_of(tiny("fedavg"), data_cache).remarks == ()


def test_a_source_of_somebodys_own_reads_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    def curious(options: DataConfig, seed: int) -> Dataset:
        assert isinstance(options, DataConfig)
        assert pickle.loads(pickle.dumps(options)) == Config().data.model_copy(update={"source": "curious"})
        return digits(options, seed)

    def shy(options: DataConfig, seed: int) -> Dataset:
        return digits(options, seed)

    monkeypatch.setitem(sources, "curious", curious)
    monkeypatch.setitem(sources, "shy", shy)
    monkeypatch.setitem(partitions, "mine", partitions["iid"])
    read = set[str]()
    curious(recording_reads(Config().data.model_copy(update={"source": "curious"}), read), 0)
    assert unread(Config().data.model_copy(update={"root": "x"}), read) == []  # another process may have read anything
    assert len(told("data.source=shy", "data.root=x", "data.partition=mine")) == 1
