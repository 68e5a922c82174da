"""Spec section 18, as far as the methods of the catalogue go."""

from __future__ import annotations

import pytest
import torch
from tests.near import body_for

from torso import Config, Result, run
from torso.methods import methods
from torso.nets import Tensors

SMALL = {"rounds": 3, "local_epochs": 2, "fraction": 0.4, "batch_size": 10, "lr": 0.05}
FEW = {"source": "synthetic", "synthetic": {"samples": 400, "test_samples": 100}}  # 40 and 10 a client


def go(
    method: object, *, body: str = "mlp", norm: str = "default", data: dict[str, object] | None = None, **train: object
) -> Result:
    return run(
        Config(
            method=method,
            data={"clients": 10, "server_fraction": 0.02, **FEW, **(data or {})},
            model={"body": body, "norm": norm},
            train={**SMALL, **train},
            personalize={"epochs": 1},
            run={"workers": 1},
        )
    )


@pytest.fixture(scope="module")
def fedavg() -> Result:
    return go("fedavg")


@pytest.fixture(scope="module")
def fedbabu() -> Result:
    return go("fedbabu")


def model(result: Result) -> Tensors:
    assert result.state is not None
    return result.state.model


def same_bits(one: Result, other: Result) -> None:
    assert all(torch.equal(tensor, model(other)[name]) for name, tensor in model(one).items())
    assert one.accuracy == other.accuracy


def head_start(result: Result) -> Tensors:
    assert result.initial is not None
    return {f"head.{name}": tensor for name, tensor in result.initial.head.state_dict().items()}


def test_fedbabu_head_is_bit_identical_to_its_start() -> None:
    result = go("fedbabu", weight_decay=0.1)
    assert all(torch.equal(model(result)[name], tensor) for name, tensor in head_start(result).items())


def test_fedavg_with_head_rate_zero_is_fedbabu_bit_for_bit_and_byte_for_byte(fedbabu: Result) -> None:
    frozen = go("fedavg", head_lr_factor=0.0)
    same_bits(frozen, fedbabu)
    assert frozen.cost == fedbabu.cost


def test_fedprox_without_pull_is_fedavg(fedavg: Result) -> None:
    same_bits(go({"name": "fedprox", "drift": {"mu": 0.0}}), fedavg)


@pytest.mark.parametrize(
    "method",
    [
        {"name": "fedlc", "objective": {"tau": 0.0}},
        {"name": "fedrs", "objective": {"alpha": 1.0}},
        {"name": "fedntd", "objective": {"beta": 0.0}},
        {"name": "moon", "objective": {"mu": 0.0}},
        {"name": "fedsam", "step": {"rho": 0.0}},
        {"name": "mofedsam", "step": {"rho": 0.0}, "drift": {"beta": 1.0}},
    ],
    ids=lambda method: method["name"],
)
def test_without_what_makes_it_a_method_it_is_fedavg(method: dict[str, object], fedavg: Result) -> None:
    same_bits(go(method), fedavg)


def test_running_statistics_of_fedsam_are_those_at_the_model_it_steps_from() -> None:
    """A visit of one step: the second pass, elsewhere, leaves none behind, so they are FedAvg's."""
    once = {"rounds": 1, "local_epochs": 1, "batch_size": 500}
    plain, sam = (model(go(method, body="conv3", norm="running", **once)) for method in ("fedavg", "fedsam"))
    counted = [name for name in plain if "running" in name or "num_batches" in name]
    assert counted
    assert all(torch.equal(plain[name], sam[name]) for name in counted)
    assert not any(torch.equal(plain[name], sam[name]) for name in plain if name.endswith("conv.weight"))


def test_partial_update_of_all_blocks_is_fedbabu(fedbabu: Result) -> None:
    same_bits(go({"name": "partial-update", "train": "blocks:2"}), fedbabu)


def test_partial_update_leaves_later_blocks() -> None:
    result = go({"name": "partial-update", "train": "blocks:2"}, body="conv3")
    assert result.initial is not None
    for name, tensor in result.initial.state_dict().items():
        moved = not torch.equal(model(result)[name], tensor)
        assert moved == name.startswith(("body.blocks.0.", "body.blocks.1."))


def test_one_client_is_centralised_sgd_with_a_fresh_optimiser_each_round() -> None:
    data = {"clients": 1, "partition": "iid"}
    one = go("fedavg", data=data, fraction=1.0, local_epochs=1)
    alone = go("local-only", data=data, fraction=1.0, local_epochs=1)
    assert alone.state is not None
    assert all(torch.equal(tensor, alone.state.clients[0].kept[name]) for name, tensor in model(one).items())


def test_weightings_agree_when_sizes_are_equal() -> None:
    data = {"partition": "iid"}
    by_samples, uniform = go("fedavg", data=data), go("fedavg", data=data, weighting="uniform")
    for name, tensor in model(by_samples).items():
        torch.testing.assert_close(tensor, model(uniform)[name])


def test_every_method_sees_the_same_participants_and_start(fedavg: Result, fedbabu: Result) -> None:
    results = [fedavg, fedbabu, go("fedper")]
    assert len({frozenset(result.state.server.met) for result in results if result.state}) == 1
    starts = [result.initial.state_dict() for result in results if result.initial]
    assert all(torch.equal(starts[0][name], other[name]) for other in starts for name in other)


@pytest.mark.parametrize("name", sorted(methods))
def test_every_method_runs_and_measures_clients_that_never_took_part(name: str) -> None:
    result = go(name, body=body_for(name), rounds=2, fraction=0.1)
    assert result.ok
    assert result.state is not None
    absent = set(range(10)) - result.state.server.met
    assert absent or name == "local-only"
    for measured in ("initial", "personalized", "without_head"):
        assert result.accuracy[measured].n == 10
        assert all(0 <= value <= 100 for value in result.accuracy[measured].clients if value is not None)
    kept = {n for own in result.state.clients.of_kind("kept").values() for n in own}
    assert all(own.keys() == kept for own in result.state.clients.of_kind("kept").values())


def test_frozen_head_can_be_sent_once() -> None:
    seed = go("fedbabu", rounds=5)
    once = go({"name": "fedbabu", "share": {"frozen": "once"}}, rounds=5)
    assert seed.state is not None
    head_bytes = sum(tensor.numel() * 4 for tensor in head_start(seed).values())
    assert once.cost.bytes_down - seed.cost.bytes_down == head_bytes * len(seed.state.server.met)
    assert once.cost.bytes_up == seed.cost.bytes_up


def test_forward_passes_follow_the_formula(fedavg: Result) -> None:
    """Spec 14.2: three per sample and epoch for full training, one for the head alone (FedRep: E head + 1 body)."""
    rep = go("fedrep")
    assert fedavg.cost.forward_passes % (3 * 2) == 0
    samples = fedavg.cost.forward_passes // (3 * 2)
    assert rep.cost.forward_passes == samples * (2 * 1 + 1 * 3)


def test_running_statistics_travel_with_the_body_and_stay_when_it_is_frozen() -> None:
    moved = go("fedbabu", body="resnet8", rounds=1, local_epochs=1)
    assert moved.initial is not None
    start = moved.initial.state_dict()
    statistics = [name for name in start if "running_" in name or name.endswith("num_batches_tracked")]
    assert statistics
    assert all(not torch.equal(model(moved)[name], start[name]) for name in statistics)
    frozen = go({"name": "fedavg", "train": "head"}, body="resnet8", rounds=1, local_epochs=1)
    assert all(torch.equal(model(frozen)[name], start[name]) for name in statistics)


def test_the_trained_networks_come_out_as_modules() -> None:
    """The generic network gives the generic accuracy; a FedPer client's network has its own head."""
    from torso.data import build
    from torso.runs.job import simulate

    config = Config(
        method="fedper",
        data={"clients": 10},
        train={**SMALL, "fraction": 1.0},
        measure={"names": ["initial", "generic"]},
        run={"workers": 1},
    )
    job = simulate(config)
    result = run(config, federation=job.federation)
    federation = build(config.data, 0, job.model["head.weight"].device)
    images = federation.test.samples.movedim(-1, 1) / 255
    images = (images - federation.input.mean[0]) / federation.input.std[0]
    right = result.network()(images).argmax(dim=1) == federation.test.labels
    assert right.float().mean().item() * 100 == pytest.approx(result.accuracy["generic"].mean, abs=1e-3)
    for client in (0, 3):
        rows = federation.test.rows(client)
        hits = result.network(client, personal=False)(images[rows]).argmax(dim=1) == federation.test.labels[rows]
        assert hits.float().mean().item() * 100 == pytest.approx(result.accuracy["initial"].clients[client], abs=1e-3)
