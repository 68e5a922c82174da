"""Bytes (spec 14.1 and 18.11): messages of real runs as they would be sent, and the table worked out for MobileNet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Self, cast

import numpy as np
import pytest
import torch

from torso import Config, Result, run
from torso.config import DataConfig, RunConfig
from torso.data import Federation, Pixels, Split, build
from torso.engine import SERVER, Desk, Engine, OneByOne, engines
from torso.engine.base import T, Work
from torso.methods import methods
from torso.nets import Network, Tensors
from torso.nets import build as build_net
from torso.personal import Fomo
from torso.personal.state import State
from torso.runs.cost import down, up
from torso.runs.exchange import ClassSums, opened
from torso.runs.job import simulate
from torso.runs.rounds import play_round
from torso.runs.stages import Stage, stages
from torso.runs.visit import Sent, Visit
from torso.server.state import Cost

DATA: dict[str, Any] = {
    "source": "synthetic",
    "clients": 6,
    "partition": "dirichlet-class",
    "min_size": 10,
    "server_fraction": 0.1,
    "meta_per_class": 2,
    "synthetic": {"samples": 240, "test_samples": 60, "size": 8, "classes": 5},
}


class Spy:
    """An engine that keeps what it is asked to do: visits, and what came back; class sums of FedNCM."""

    def __init__(self, net: Network, federation: Federation, workers: int, at_once: int) -> None:
        self.inner, self.desk = OneByOne(net, federation, workers, at_once), Desk.at(net, federation)
        self.visits: list[tuple[Visit, tuple[int, ...], list[Sent]]] = []
        self.sums: list[Tensors] = []

    def __enter__(self) -> Self:
        self.inner.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self.inner.__exit__(*exc)

    def map(self, work: Work[T], clients: Sequence[int]) -> Iterator[T]:
        came, what = list(self.inner.map(work, clients)), cast(object, work)
        if isinstance(what, Visit) and list(clients) != [SERVER]:
            self.visits.append((what, tuple(clients), cast(list[Sent], came)))
        if isinstance(what, ClassSums):
            self.sums += cast(list[Tensors], came)
        return iter(came)


def wire(tensors: Tensors) -> int:
    """The length of the tensors' bytes, one after the other."""
    return len(b"".join(tensor.contiguous().cpu().numpy().tobytes() for tensor in tensors.values()))


@cache
def data() -> Federation:
    return build(DataConfig(**DATA), 0, torch.device("cpu"))


def watched(
    patch: pytest.MonkeyPatch, name: str, body: str = "mlp", rounds: int = 2
) -> tuple[Result, Spy, list[Stage]]:
    """A run of three of six clients a round, what its engine saw, and the stage of each visit."""
    made: list[Spy] = []

    def make(net: Network, federation: Federation, options: RunConfig) -> Engine:
        made.append(Spy(net, federation, options.workers, options.clients_at_once))
        return made[0]

    patch.setitem(engines, "spy", make)
    config = Config(
        method=name,
        data=DATA,
        model={"body": body},
        train={"rounds": rounds, "local_epochs": 1, "fraction": 0.5, "batch_size": 20, "lr": 0.05},
        measure={"names": ("generic",)},
        run={"engine": "spy", "workers": 1, "device": "cpu"},
    )
    result = run(config, federation=data())
    job = simulate(config, data())
    return result, made[0], [job.stage(visit.state.round + 1) for visit, _, _ in made[0].visits]


def once(result: Result) -> Cost:
    """Images that travel a single time: to everybody that took part, or to the server."""
    assert result.state is not None
    method, images = methods[result.method], data().train.samples
    meta = method.meta_data or method.step.uses_meta
    given = len(images[data().meta_rows].numpy().tobytes()) * len(result.state.met) if meta else 0
    taken = len(images[data().server_rows].numpy().tobytes()) if method.server_data != "none" else 0
    return Cost(bytes_up=taken, bytes_down=given)


@pytest.mark.parametrize("name", sorted(methods))
def test_the_messages_of_a_run_are_as_long_as_its_cost_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    result, spy, plan = watched(monkeypatch, name)
    assert result.ok
    sent, got = 0, sum(map(wire, spy.sums))  # class sums are FedNCM's only message
    for (visit, clients, _), stage in zip(spy.visits, plan, strict=True):
        for client in clients:
            sent, got = sent + wire(down(stage, visit, client)), got + wire(up(stage, visit, client))
    extra = once(result)
    assert (result.cost.bytes_down, result.cost.bytes_up) == (sent + extra.bytes_down, got + extra.bytes_up)
    assert (sent + got == 0) == (name in {"local-only", "centralized", "centralized-body"})


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "mtl", "fedfomo", "pfedme"])
def test_running_statistics_are_in_the_messages(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """ResNet-8's statistics travel with the model, two floats a channel and a counter of 8 bytes a layer (spec 1.6)."""
    result, spy, plan = watched(monkeypatch, name, "resnet8")
    sent = got = 0
    for (visit, clients, _), stage in zip(spy.visits, plan, strict=True):
        for client in clients:
            sent, got = sent + wire(down(stage, visit, client)), got + wire(up(stage, visit, client))
            assert any(key.endswith("running_mean") for key in up(stage, visit, client))
            assert any(tensor.dtype == torch.int64 for tensor in up(stage, visit, client).values())
    assert (result.cost.bytes_down, result.cost.bytes_up) == (sent, got)


def told(visit: Visit, stage: Stage, client: int, start: Tensors) -> Visit:
    """The visit of a client that knows the model of the start, its own store, and the message: nothing else."""
    state, message = visit.state, down(stage, visit, client)

    def part(kind: str) -> Tensors:
        return {key.partition("/")[2]: t for key, t in message.items() if key.partition("/")[0] == kind}

    def own(held: Any) -> dict[int, Tensors]:
        return {client: held[client]} if client in held else {}

    others = {other: part(f"model {other}") for other in visit.offers.get(client, ()) if other != client}
    alone = State(
        model={**start, **part("model")},
        round=state.round,
        drift=part("drift"),
        private={**others, **own(state.private)},
        memory=own(state.memory),
        own=own(state.own),
        notes=own(state.notes),
        origin=start if state.origin else {},
    )
    return replace(visit, state=alone, gathered=part("mean"))


@pytest.mark.parametrize("name", sorted(methods))
def test_a_message_is_all_that_a_participant_needs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same visit from the message alone: the same bits come back, and the server uses nothing that is not in `up`.

    FedDyn's memory is worked out by both sides from the model that travels, so it is not sent (spec 3.8)."""
    _, spy, plan = watched(monkeypatch, name, rounds=3)
    starts: dict[int, Tensors] = {}
    for (visit, clients, came), stage in zip(spy.visits, plan, strict=True):
        start = starts.setdefault(stage.first, visit.state.model)
        for client, sent in zip(clients, came, strict=True):
            again = told(visit, stage, client, start)(spy.desk, [client])
            assert torch.equal(again.loss, sent.loss)
            for found, expected in [
                (again.total, sent.total),
                (again.change, sent.change),
                *[
                    (getattr(again, held).get(client, {}), getattr(sent, held).get(client, {}))
                    for held in ("kept", "memory", "own", "notes")
                ],
            ]:
                assert found.keys() == expected.keys()
                assert all(torch.equal(found[key], expected[key]) for key in found)
            message = up(stage, visit, client)
            returned = {f"model/{key}" for key in (sent.total if visit.averaged else sent.kept[client])}
            returned |= {f"drift/{key}" for key in sent.change} if stage.method.drift.sends else set()
            assert returned == message.keys() - {"scores"}
            if "scores" in message:
                assert len(message["scores"]) == len(visit.offers[client])


# The table of spec 14.1, for MobileNet and 100 classes

P, P_H, FEATURES, CLASSES = 3_309_476, 102_500, 1024, 100
P_B = P - P_H
P_NU = 16 * (CLASSES + CLASSES * FEATURES)  # the hypernetwork: C → 16 → C·d, no biases
ROW = CLASSES * FEATURES + CLASSES  # Cd + C
TABLE: dict[str, tuple[int, int]] = {
    **dict.fromkeys(
        [
            *("fedavg", "fedavg-ft", "fedprox", "fedadam", "fedyogi", "fedadagrad", "fedavgm", "fedexp", "feddyn"),
            *("per-fedavg", "ditto", "pfedme", "fedfr", "ft", "random", "fedrod-linear", "fedavg-brm", "fedavg-meta"),
        ],
        (4 * P, 4 * P),
    ),
    "fedfn": (4 * (P - CLASSES), 4 * (P - CLASSES)),  # its head has no bias (spec 8.1)
    **dict.fromkeys(
        ["fedbabu", "fedbabu-ft", "fedprox-babu", "spherefed-ce", "spherefed-mse", "fedper", "fedper-reset", "fedrep"],
        (4 * P_B, 4 * P_B),
    ),
    "lg-fedavg": (4 * P_H, 4 * P_H),
    "scaffold": (8 * P, 8 * P),
    "scaffold-babu": (8 * P_B, 8 * P_B),
    **dict.fromkeys(
        ["fedrod-hyper", "fedrod-hyper-ce", "fedrod-hyper-feddyn", "fedrod-hyper-fedprox", "fedrod-meta-bsm"],
        (4 * (P + P_NU), 4 * (P + P_NU)),
    ),
    "fedrod-hyper-scaffold": (4 * (P + P_NU) + 4 * P, 4 * (P + P_NU) + 4 * P),
    "mtl": (4 * P, 4 * P),
    "fedfomo": (4 * P * 5, 4 * P + 4 * 5),
    "lp": (4 * ROW, 4 * ROW),
    "local-only": (0, 0),
}


class Idle:
    """An engine whose clients send back what they have got, so that a round costs bytes and no time."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def map(self, work: Any, clients: Sequence[int]) -> Iterator[Any]:
        if isinstance(work, ClassSums):
            return iter([{"total": torch.zeros(CLASSES, FEATURES), "count": torch.zeros(CLASSES)}] * len(clients))
        return (self._sent(work, client) for client in clients)

    def _sent(self, visit: Visit, client: int) -> Sent:
        model, nothing = visit.state.model, torch.zeros(())
        corrected = self.stage.corrected if self.stage.method.drift.remembers else ()
        return Sent(
            clients=(client,),
            total={n: model[n] * visit.weights[client] for n in self.stage.travels} if visit.averaged else {},
            squares=nothing,
            change={name: torch.zeros_like(model[name]) for name in corrected},
            kept={client: {name: model[name] for name in self.stage.keeps}},
            memory={},
            own={},
            notes={},
            loss=torch.zeros(1),
            finite=torch.tensor(True),
        )


def mobilenet(method: str) -> tuple[Stage, State]:
    config = Config(method=method, train={"fraction": 1.0})
    net = build_net("mobilenet", CLASSES, (3, 32, 32), config.method.head)
    stage = stages(config, net)[-1]
    return stage, State.begin({n: t.detach() for n, t in net.state_dict().items()}, round=stage.first - 1)


def six_clients() -> Federation:
    """Six clients with one image each; the server has two for everybody."""
    images = torch.zeros(6, 32, 32, 3, dtype=torch.uint8)
    split = Split(images, torch.arange(6), torch.arange(6), np.arange(7))
    empty = torch.zeros(0, dtype=torch.int64)
    none = np.zeros(0, dtype=np.int64)
    return Federation("six", split, split, CLASSES, Pixels(3, 32, 32), "none", 6, none, empty, torch.tensor([0, 1]))


def each_way(before: Cost, after: Cost, clients: int) -> tuple[float, float]:
    return (after.bytes_down - before.bytes_down) / clients, (after.bytes_up - before.bytes_up) / clients


@pytest.mark.parametrize(("method", "expected"), TABLE.items())
def test_bytes_per_participant_are_those_of_the_table(method: str, expected: tuple[int, int]) -> None:
    """The second round of six participants: what travels once has travelled, and FedFomo's models are available."""
    stage, start = mobilenet(method)
    first, _ = play_round(stage, start, six_clients(), cast(Engine, Idle(stage)), seed=0)
    second, played = play_round(stage, first, six_clients(), cast(Engine, Idle(stage)), seed=0)
    assert len(played.participants) == 6
    assert each_way(first.cost, second.cost, 6) == expected


def test_the_tables_numbers_are_mobilenets() -> None:
    """13,237,904 B and 12,827,904 B in spec 4.1; 8.472 and 8.210 GB for ten participants and 32 rounds in 14.1."""
    assert (4 * P, 4 * P_B) == (13_237_904, 12_827_904)
    assert (round(2 * 10 * 32 * 4 * P / 1e9, 3), round(2 * 10 * 32 * 4 * P_B / 1e9, 3)) == (8.472, 8.210)
    _, start = mobilenet("fedavg")
    assert sum(tensor.numel() for tensor in start.model.values()) == P


def test_fedfomo_sends_as_many_models_as_there_are() -> None:
    """Nobody has uploaded before the first round: nothing goes down, and no scores come up. With M = 2 of six: 2."""
    stage, start = mobilenet("fedfomo")
    first, _ = play_round(stage, start, six_clients(), cast(Engine, Idle(stage)), seed=0)
    assert each_way(Cost(), first.cost, 6) == (0, 4 * P)
    few = replace(stage, method=stage.method.but(personal=Fomo(models=2)))
    second, _ = play_round(few, first, six_clients(), cast(Engine, Idle(few)), seed=0)
    assert each_way(first.cost, second.cost, 6) == (4 * P * 2, 4 * P + 4 * 2)


def test_fedncm_sends_class_sums_and_counts_once() -> None:
    stage, start = mobilenet("fedncm")
    begun = opened(stage, start, six_clients(), cast(Engine, Idle(stage)), batch_size=1, seed=0)
    assert each_way(Cost(), begun.cost, 6) == (0, 4 * ROW)
    assert stage.rounds == 0


@pytest.mark.parametrize("method", ["fedavg-meta", "fedrod-meta-bsm"])
def test_balanced_images_are_three_bytes_a_pixel_once(method: str) -> None:
    stage, start = mobilenet(method)
    first, _ = play_round(stage, start, six_clients(), cast(Engine, Idle(stage)), seed=0)
    assert each_way(Cost(), first.cost, 6) == (TABLE[method][0] + 2 * 32 * 32 * 3, TABLE[method][1])


def test_a_frozen_head_that_is_sent_once_goes_to_each_client_when_it_is_first_met() -> None:
    stage, start = mobilenet("fedbabu")
    stage = replace(stage, method=stage.method.but(share=replace(stage.method.share, frozen="once")))
    first, _ = play_round(stage, start, six_clients(), cast(Engine, Idle(stage)), seed=0)
    second, _ = play_round(stage, first, six_clients(), cast(Engine, Idle(stage)), seed=0)
    assert each_way(Cost(), first.cost, 6) == (4 * P, 4 * P_B)
    assert each_way(first.cost, second.cost, 6) == (4 * P_B, 4 * P_B)
