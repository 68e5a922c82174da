"""Runs that diverge, runs on other numbers of threads and stacks, runs that begin at another run, comparisons."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from torso import RequestError, Result, run
from torso.learn.phases import Phase
from torso.learn.schedule import schedules
from torso.methods import methods
from torso.methods.method import method
from torso.nets import Tensors
from torso.parallel.compare import compare
from torso.runs.job import simulate
from torso.runs.sampling import sample

from .samples import TINY, bits, digits, history_of, last_tensors, result_of, same_tensors, tiny


def weights(result: Result) -> Tensors:
    assert result.state is not None
    return result.state.model


# a loss that is not finite


@pytest.fixture
def explosion(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule that is harmless for two rounds and then is not, and a method that never is."""
    monkeypatch.setitem(schedules, "explosion", lambda round, rounds, decay: 1e30 if round > 2 else 1.0)
    bomb = method(train=[Phase("all", lr=1e30)])
    monkeypatch.setitem(methods, "bomb", bomb.but(name="bomb"))


@pytest.mark.usefixtures("explosion")
def test_a_loss_that_is_not_finite_ends_the_run_and_keeps_the_history(tmp_path: Path) -> None:
    result = run(tiny("fedavg", "train.schedule=explosion"), tmp_path / "run", federation=digits())
    third = sample(digits(), 0.3, 0, 3)
    assert result.status in {f"failed: non-finite loss in round 3, client {k}" for k in third}
    assert not result.ok
    assert [line["round"] for line in history_of(tmp_path / "run")] == [1, 2]
    tree = result_of(tmp_path / "run")
    assert (tree["status"], tree["rounds"], tree["accuracy"]) == (result.status, 2, {})
    assert tree["cost"]["bytes_up"] == history_of(tmp_path / "run")[-1]["bytes_up"]
    assert Result.read(tmp_path / "run").status == result.status
    again = run(tiny("fedavg", "train.schedule=explosion"), tmp_path / "run", resume=True)
    assert again.status == result.status


def test_a_failure_in_the_first_round_is_a_result_too(tmp_path: Path) -> None:
    result = run(tiny("fedavg", "train.lr=1e30"), tmp_path / "run", federation=digits())
    assert result.status.startswith("failed: non-finite loss in round 1, client ")
    assert result_of(tmp_path / "run")["rounds"] == 0


@pytest.mark.usefixtures("explosion")
def test_the_failing_client_does_not_depend_on_workers() -> None:
    found = {run(tiny("bomb", f"run.workers={n}"), federation=digits()).status for n in (1, 3)}
    assert len(found) == 1


# engines agree


RAGGED = (
    "model.body=conv3",
    "data.partition=dirichlet-class",
    "train.fraction=0.7",
    "train.rounds=3",
    "measure.names=[]",
)


@pytest.fixture(scope="module")
def ragged() -> Result:
    return run(tiny("fedavg", *RAGGED))


@pytest.mark.parametrize("workers", [2, 3])
def test_the_number_of_workers_changes_no_bit(workers: int, ragged: Result) -> None:
    other = run(tiny("fedavg", *RAGGED, f"run.workers={workers}"))
    assert other.state is not None
    assert ragged.state is not None
    assert bits(other.state) == bits(ragged.state)


@pytest.mark.parametrize("stack", [3, 7])
def test_stacking_clients_changes_weights_only_by_rounding(stack: int, ragged: Result) -> None:
    """Usually 1e-6 to 1e-5; 1e-4 where rounding tips one ReLU of one client (float64 agrees to 1e-15)."""
    other = weights(run(tiny("fedavg", *RAGGED, f"run.clients_at_once={stack}")))
    for name, tensor in weights(ragged).items():
        assert (other[name] - tensor).norm() < 1e-3 * max(tensor.norm().item(), 1.0), name


def test_the_ragged_federation_is_ragged() -> None:
    sizes = simulate(tiny("fedavg", *RAGGED)).federation.train.sizes
    assert sizes.max() > 2 * sizes.min()


# LG-FedAvg begins at FedAvg (spec 4.3)


def test_the_first_stage_of_lg_fedavg_is_fedavg_bit_for_bit(tmp_path: Path) -> None:
    run(tiny("fedavg"), tmp_path / "fedavg", federation=digits())
    run(tiny("lg-fedavg"), tmp_path / "lg", federation=digits())  # four rounds of FedAvg, one of its own
    after = "checkpoints/round-000004.safetensors"
    assert (tmp_path / "lg" / after).read_bytes() == (tmp_path / "fedavg" / after).read_bytes()
    assert history_of(tmp_path / "lg")[:4] == history_of(tmp_path / "fedavg")
    last = history_of(tmp_path / "lg")[4]
    assert (last["stage"], last["lr"]) == ("lg-fedavg", 0.001)


def test_in_the_second_stage_only_the_head_of_the_server_moves(tmp_path: Path) -> None:
    before = weights(run(tiny("fedavg"), federation=digits()))
    result = run(tiny("lg-fedavg"), federation=digits())
    after = weights(result)
    assert all(torch.equal(before[n], after[n]) for n in before if n.startswith("body."))
    assert not any(torch.equal(before[n], after[n]) for n in before if n.startswith("head."))
    assert result.state is not None
    kept = result.state.clients.of_kind("kept")
    assert set(kept) == set(sample(digits().roster, 0.3, 0, 5))  # those of round 5 keep a body
    assert all(n.startswith("body.") for own in kept.values() for n in own)


def test_lg_fedavg_begins_at_the_model_of_a_finished_run(tmp_path: Path) -> None:
    """Participants and shuffles go by the round's number in its run, so the bits differ from a run in one go."""
    fedavg = run(tiny("fedavg"), tmp_path / "fedavg", federation=digits())
    config = tiny("lg-fedavg", f"method.start.run={tmp_path / 'fedavg'}")
    job = simulate(config, digits())
    assert same_tensors(job.model, weights(fedavg))
    assert [(stage.method.name, stage.first, stage.rounds) for stage in job.plan] == [("lg-fedavg", 1, 1)]
    result = run(config, federation=digits())
    assert result.rounds == 1
    assert result.state is not None
    assert result.state.server.met == frozenset(sample(digits().roster, 0.3, 0, 1))


def test_where_no_chance_is_left_both_ways_to_lg_fedavg_agree(tmp_path: Path) -> None:
    """Everybody takes part and a batch holds all of a client's samples: order matters only to rounding."""
    sets = ("train.fraction=1.0", "train.batch_size=500", "method.start.rounds=0.5")
    run(tiny("fedavg", *sets[:2]), tmp_path / "fedavg", federation=digits())
    at_once = run(tiny("lg-fedavg", *sets), federation=digits())
    in_two = run(tiny("lg-fedavg", *sets, f"method.start.run={tmp_path / 'fedavg'}"), federation=digits())
    assert (at_once.rounds, in_two.rounds) == (6, 2)
    for name, tensor in weights(at_once).items():
        torch.testing.assert_close(weights(in_two)[name], tensor, rtol=1e-4, atol=1e-6)


def test_a_finished_run_of_another_network_is_refused(tmp_path: Path) -> None:
    run(tiny("fedavg", "model.body=conv3", "train.rounds=1", "measure.names=[]"), tmp_path / "conv")
    with pytest.raises(RequestError, match="which this network does not have"):
        run(tiny("lg-fedavg", f"method.start.run={tmp_path / 'conv'}"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


# comparisons


def test_methods_meet_the_same_clients_weights_and_participants(tmp_path: Path) -> None:
    results = compare(["fedavg", "fedbabu", "fedper"], None, TINY, seeds=2, out=tmp_path)
    assert [(r.method, r.seed) for r in results] == [(m, s) for s in (0, 1) for m in ("fedavg", "fedbabu", "fedper")]
    drawn = {r: [line["participants"] for line in history_of(tmp_path / r)] for r in ("fedavg-seed0", "fedper-seed0")}
    assert drawn["fedavg-seed0"] == drawn["fedper-seed0"]
    assert drawn["fedavg-seed0"] != [line["participants"] for line in history_of(tmp_path / "fedavg-seed1")]
    alone = run(tiny("fedper", "run.seed=1"), tmp_path / "alone")
    assert alone.accuracy == results[-1].accuracy
    assert same_tensors(last_tensors(tmp_path / "alone"), last_tensors(tmp_path / "fedper-seed1"))


@pytest.mark.usefixtures("explosion")
def test_a_run_that_fails_does_not_end_the_others(tmp_path: Path) -> None:
    results = compare(["bomb", "fedavg"], None, TINY, out=tmp_path)
    assert [r.ok for r in results] == [False, True]
    assert np.isfinite(results[1].accuracy["initial"].mean)
    assert result_of(tmp_path / "bomb-seed0")["status"].startswith("failed: non-finite loss in round 1, client ")


def test_a_comparison_resumes_where_it_was(tmp_path: Path) -> None:
    compare(["fedavg"], None, TINY, out=tmp_path)
    before = (tmp_path / "fedavg-seed0" / "result.json").read_bytes()
    results = compare(["fedavg", "fedper"], None, TINY, out=tmp_path, resume=True)
    assert [r.method for r in results] == ["fedavg", "fedper"]
    assert (tmp_path / "fedavg-seed0" / "result.json").read_bytes() == before


def test_a_method_named_twice_runs_once() -> None:
    assert len(compare(["fedavg", "fedavg"], None, [*TINY, "train.rounds=1"])) == 1


@pytest.mark.parametrize(
    ("names", "sets", "words"),
    [
        (["fedavg", "fedbab"], [], "method.name = 'fedbab' is unknown; did you mean 'fedbabu'"),
        (["fedavg", "fedavg-data-sharing"], [], "'fedavg-data-sharing' trains on server data and there are none"),
        (["fedavg", "fedper"], ["data.shards=0"], "data.shards = 0"),
        (["fedavg"], ["data.clients=7"], "7 × 2 shards do not divide among 10 classes"),
    ],
)
def test_a_comparison_checks_every_request_first(names: list[str], sets: list[str], words: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=words):
        compare(names, None, [*TINY, *sets], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_fine_tuning_may_have_a_batch_of_its_own() -> None:
    """Table 9 of FedBABU: one machine trains in batches of 128, clients fine-tune in batches of 50 (spec 9.2)."""
    usual, said, other = (
        run(tiny("fedavg", "personalize.lr=0.1", f"personalize.batch_size={size}"), federation=digits()).accuracy
        for size in (0, 50, 5)
    )
    assert said == usual
    assert other["initial"] == usual["initial"]
    assert other["personalized"] != usual["personalized"]
