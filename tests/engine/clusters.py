"""What the tests of the cluster share: a ragged federation, two workers, and when two runs are the same."""

from __future__ import annotations

from typing import Any

import pytest
from tests.near import assert_states_near

from torso import Config, Result
from torso.engine.dealing import split_by_cost
from torso.methods import Method
from torso.runs.job import simulate
from torso.runs.sampling import participants

RAGGED = {"clients": 12, "partition": "dirichlet-class", "alpha": 0.3, "server_fraction": 0.02}
TRAIN = {"rounds": 3, "local_epochs": 1, "fraction": 0.5, "batch_size": 16, "lr": 0.05}
SEEN = {"names": ["initial", "personalized", "generic"]}


def config(method: str | Method, engine: str = "ray", **sections: Any) -> Config:
    # a busy machine takes its time to start a process: tests of a worker that does not come say so themselves
    where = {"engine": engine, "workers": 1, "checkpoint_every": 1, "ray": {"workers": 2, "wait": 300.0}}
    given = {"data": RAGGED, "train": TRAIN, "attack": {}, "measure": SEEN, "personalize": {"epochs": 1}, "run": where}
    return Config(method=method, **{k: {**v, **sections.get(k, {})} for k, v in given.items()})


def assert_near(one: Result, other: Result) -> None:
    assert one.status == other.status == "ok"
    assert_states_near(one, other, model=1e-5, kept=1e-4)
    assert one.accuracy.keys() == other.accuracy.keys()
    for name, found in one.accuracy.items():
        assert len(found.clients) == len(other.accuracy[name].clients)
        assert other.accuracy[name].clients == pytest.approx(
            found.clients, abs=3.0, nan_ok=True
        )  # a test sample or two


def last_of_first(workers: int, **sections: Any) -> int:
    """In round 2, the last client of the first worker's share: it has done others before it dies."""
    job = simulate(config("fedper", "one-by-one", **sections))
    chosen = participants(job.plan[0], job.roster, 0, 2)
    steps = [-(-int(size) // job.config.train.batch_size) for size in job.federation.train.sizes_of(chosen)]
    dealt = split_by_cost(chosen, steps, workers)
    assert len(dealt[0]) > 1
    return dealt[0][-1]
