"""Combinations that mean nothing are refused with the reason; those that mean something survive a stop."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from torso import Config, RequestError, run
from torso.methods import methods
from torso.parallel.compare import compare
from torso.runs.events import Listener, Stop
from torso.runs.job import simulate
from torso.runs.run import Stopped

from .tiny import job, play


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ({"name": "scaffold", "share": "none"}, "act on what travels, and nothing does"),
        ({"name": "local-only", "server": "fedexp"}, "act on what travels, and nothing does"),
        ({"name": "fedbabu-data-sharing", "server_data": "all"}, "trains parts that do not travel"),
        ({"name": "lg-fedavg", "start": {"method": "fedfn"}}, "has another head"),
        ({"name": "fedavg", "train": "none"}, "nothing to train"),
        ({"name": "spherefed-ce", "head": {"tau": 0.0}}, "method.head.tau = 0.0"),
        ({"name": "fedadam", "server": {"beta1": 1.0}}, "method.server.beta1 = 1.0"),
        ({"name": "fedper", "train": "personal"}, "trains nothing"),
    ],
)
def test_refused_with_the_reason(method: dict[str, object], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        simulate(Config(method=method, data={"clients": 10, "server_fraction": 0.1}))


def test_more_classes_than_features_do_not_fit_on_a_sphere() -> None:
    data = {"source": "synthetic", "clients": 5, "partition": "iid", "synthetic": {"classes": 201}}
    with pytest.raises(RequestError, match="201"):
        simulate(Config(method="spherefed-ce", data=data))


def test_server_images_are_uploaded_once() -> None:
    plain = play(job("fedavg"), rounds=2).cost.bytes_up
    assert play(job("fedavg-data-sharing", server_rows=(0, 1, 2)), rounds=2).cost.bytes_up - plain == 3 * 2  # pixels


def test_divergence_in_the_last_step_is_seen_in_what_clients_keep() -> None:
    """The loss of the last step is computed before it: only the weights tell."""
    result = run(
        Config(
            method="local-only",
            data={"clients": 2, "partition": "iid"},
            train={"rounds": 1, "local_epochs": 1, "lr": 1e60, "weight_decay": 1e3, "batch_size": 5000},
        )
    )
    assert result.status == "failed: non-finite weights after round 1"


def test_comparison_takes_options_that_fit_its_methods() -> None:
    results = compare(["fedprox", "fedprox-babu"], sets=["method.drift.mu=0.1", "train.rounds=1", "data.clients=10"])
    assert [result.status for result in results] == ["ok", "ok"]


def test_the_order_of_method_name_and_other_keys_does_not_matter() -> None:
    one = Config.load(None, ["method.drift=proximal", "method.name=fedbabu"])
    assert one == Config.load(None, ["method.name=fedbabu", "method.drift=proximal"])
    assert type(one.method.drift).__name__ == "Proximal"


class StopAfterOne(Listener):
    def __init__(self, stop: Stop) -> None:
        self.stop = stop

    def round(self, *_: object) -> None:
        self.stop.ask()


@pytest.mark.parametrize("name", sorted(methods))
def test_every_method_resumes_bit_for_bit_with_running_statistics(name: str, tmp_path: Path) -> None:
    """Three rounds of stage lengths that end in the middle of whatever state the method has."""
    config = Config(
        method=name,
        data={
            "clients": 4,
            "partition": "iid",
            "server_fraction": 0.02,
            "source": "synthetic",
            "synthetic": {"samples": 80, "test_samples": 20},
        },
        model={"body": "conv3", "norm": "running"},
        train={"rounds": 3, "local_epochs": 1, "fraction": 0.5, "batch_size": 20, "lr": 0.01},
        measure={"names": ["generic"]},
        run={"checkpoint_every": 0},
    )
    whole = run(config)
    stop = Stop()
    if simulate(config).rounds:
        with pytest.raises(Stopped):
            run(config, tmp_path / "run", listener=StopAfterOne(stop), stop=stop)
    else:  # FedNCM: nothing to stop; the folder may have lost its result
        run(config, tmp_path / "run")
        (tmp_path / "run" / "result.json").unlink()
    resumed = run(config, tmp_path / "run", resume=True)
    assert resumed.status == whole.status == "ok"
    assert resumed.accuracy == whole.accuracy
    assert resumed.cost == whole.cost
    assert resumed.state is not None
    assert whole.state is not None
    for kind in ("model", "shown"):
        mine, theirs = (getattr(result.state.server, kind) for result in (resumed, whole))
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(tensor, theirs[key]) for key, tensor in mine.items())
