"""Bytes (spec 14.1; 18, point 11): messages of real runs and from outside, and the table worked out for MobileNet."""

from __future__ import annotations

import json
import math
import pickle
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Self, cast

import numpy as np
import pytest
import torch
from tests.near import body_for

from torso import Config, Result, run
from torso.config import DataConfig, RunConfig
from torso.data import Federation, Pixels, Split, build
from torso.engine import SERVER, Engine, OneByOne, Workspace, engines
from torso.engine.base import T, Work
from torso.errors import RequestError
from torso.methods import methods
from torso.nets import Head, Network, Tensors
from torso.nets import build as build_net
from torso.personal import Fomo
from torso.personal.state import State
from torso.personal.store import EMPTY_STATE, KINDS, ClientState, Store
from torso.runs.cost import download_of, schema_bytes, upload_schema
from torso.runs.exchange import ClassSums, state_after_start
from torso.runs.job import simulate
from torso.runs.messages import Message, MessageNumbers, Schema, Sent, Told, schema_of
from torso.runs.rounds import play_round
from torso.runs.stage import Stage
from torso.runs.stages import stages
from torso.runs.telling import visit_of
from torso.runs.visit import Visit
from torso.server.state import Cost

from .by_hand import equal

DATA: dict[str, Any] = {
    "source": "synthetic",
    "clients": 6,
    "partition": "dirichlet-class",
    "min_size": 10,
    "server_fraction": 0.1,
    "meta_per_class": 2,
    "synthetic": {"samples": 240, "test_samples": 60, "size": 8, "classes": 5},
}


@dataclass(frozen=True)
class Visited:
    """The visits of one round, as an engine sees them."""

    visit: Visit
    clients: tuple[int, ...]
    store: Store  # what the clients held before
    came: tuple[Sent, ...]

    @property
    def told(self) -> Told:
        return self.visit.told

    def messages(self) -> Iterator[tuple[Message, Message]]:
        """What each client was sent, and what it sent back."""
        places = ((sent, place) for sent in self.came for place in range(len(sent.clients)))
        for client, (sent, place) in zip(self.clients, places, strict=True):
            yield self.told.message(client), sent.message(place)


class Spy:
    """An engine that keeps what it is asked to do: visits, and what came back; class sums of FedNCM."""

    def __init__(self, net: Network, federation: Federation, workers: int, at_once: int) -> None:
        self.inner, self.workspace = OneByOne(net, federation, workers, at_once), Workspace.at(net, federation)
        self.visits: list[Visited] = []
        self.sums: list[Tensors] = []

    def __enter__(self) -> Self:
        self.inner.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self.inner.__exit__(*exc)

    def map(self, work: Work[T], clients: Sequence[int], store: Store | None = None) -> Iterator[T]:
        came, what = list(self.inner.map(work, clients, store)), cast(object, work)
        if isinstance(what, Visit) and list(clients) != [SERVER]:
            self.visits.append(Visited(what, tuple(clients), store or Store(), tuple(cast(list[Sent], came))))
        if isinstance(what, ClassSums):
            self.sums += cast(list[Tensors], came)
        return iter(came)


def wire(tensors: Tensors) -> int:
    """The length of the tensors' bytes, one after the other."""
    return len(b"".join(tensor.contiguous().cpu().numpy().tobytes() for tensor in tensors.values()))


@cache
def data() -> Federation:
    return build(DataConfig(**DATA), 0, torch.device("cpu"))


@dataclass(frozen=True)
class Watched:
    """A run of three of six clients a round, what its engine saw, and the stage of each visit."""

    result: Result
    spy: Spy
    plan: list[Stage]


def watched(name: str, body: str = "mlp", rounds: int = 2) -> Watched:
    made: list[Spy] = []

    def make(net: Network, federation: Federation, options: RunConfig) -> Engine:
        made.append(Spy(net, federation, options.workers, options.clients_at_once))
        return made[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(engines, "spy", make)
        config = Config(
            method=name,
            data=DATA,
            model={"body": body},
            train={"rounds": rounds, "local_epochs": 1, "fraction": 0.5, "batch_size": 20, "lr": 0.05},
            measure={"names": ("generic",)},
            run={"engine": "spy", "workers": 1, "clients_at_once": 1, "device": "cpu", "features": "off"},
        )
        result = run(config, federation=data())
        job = simulate(config, data())
    return Watched(result, made[0], [job.stage(visited.told.round) for visited in made[0].visits])


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.xdist_group(f"run of {name}")) for name in sorted(methods)],
)
def seen(request: pytest.FixtureRequest) -> Watched:
    """Three rounds of every method, for all that can be told of its messages."""
    return watched(request.param, body_for(request.param), rounds=3)


def once(result: Result) -> Cost:
    """Images that travel a single time: to everybody that took part, or to the server."""
    assert result.state is not None
    method, images = methods[result.method], data().train.samples
    meta = method.meta_data or method.step.uses_meta
    given = len(images[data().meta_rows].numpy().tobytes()) * len(result.state.server.met) if meta else 0
    taken = len(images[data().server_rows].numpy().tobytes()) if method.server_data != "none" else 0
    return Cost(bytes_up=taken, bytes_down=given)


def test_the_messages_of_a_run_are_as_long_as_its_cost_says(seen: Watched) -> None:
    """What is counted is what is sent: the tensors of each message, which are those that `cost` has said before."""
    result = seen.result
    assert result.ok
    sent, got = 0, sum(map(wire, seen.spy.sums))  # class sums are FedNCM's only message
    for visited, stage in zip(seen.spy.visits, seen.plan, strict=True):
        for client, (down_there, back) in zip(visited.clients, visited.messages(), strict=True):
            sent, got = sent + wire(down_there.tensors), got + wire(back.tensors)
            assert down_there.schema == schema_of(download_of(visited.told, client))
            assert back.schema == upload_schema(stage, visited.told, client)
            assert wire(back.tensors) == schema_bytes(upload_schema(stage, visited.told, client))
    extra = once(result)
    assert (result.cost.bytes_down, result.cost.bytes_up) == (sent + extra.bytes_down, got + extra.bytes_up)
    assert (sent + got == 0) == (result.method in {"local-only", "centralized", "centralized-body"})


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "mtl", "fedfomo", "pfedme"])
def test_running_statistics_are_in_the_messages(name: str) -> None:
    """ResNet-8's statistics travel with the model, two floats a channel and a counter of 8 bytes a layer (spec 1.6)."""
    seen = watched(name, "resnet8")
    result, sent, got = seen.result, 0, 0
    for visited, stage in zip(seen.spy.visits, seen.plan, strict=True):
        for client, (down_there, back) in zip(visited.clients, visited.messages(), strict=True):
            sent, got = sent + wire(down_there.tensors), got + wire(back.tensors)
            assert back.schema == upload_schema(stage, visited.told, client)
            assert any(key.endswith("running_mean") for key in back.tensors)
            assert any(tensor.dtype == torch.int64 for tensor in back.tensors.values())
    assert (result.cost.bytes_down, result.cost.bytes_up) == (sent, got)


def posted(message: Message, schema: Schema) -> Message:
    """The message after its way as bytes, which are the tensors and a header."""
    data = message.encode()
    came = Message.decode(data, schema)
    assert came.numbers == message.numbers
    assert equal(came.tensors, message.tensors)
    assert len(data) == 8 + int.from_bytes(data[:8], "little") + wire(message.tensors)
    return came


def test_a_message_is_all_that_a_participant_needs(seen: Watched) -> None:
    """The same visit from the bytes of the message alone, by a client that knows the model of the start and its own
    store: the same bits come back. The server has them from the bytes of the answer alone, and its schema.

    FedDyn's memory is worked out by both sides from the model that travels, so it is not sent (spec 3.8)."""
    starts: dict[int, Tensors] = {}
    for visited, stage in zip(seen.spy.visits, seen.plan, strict=True):
        told = visited.told
        start = starts.setdefault(stage.first, told.model)
        for client, sent, (down_there, back) in zip(visited.clients, visited.came, visited.messages(), strict=True):
            heard = Told.heard(
                posted(down_there, down_there.schema), start, start if stage.method.personal.from_start else None
            )
            workspace = seen.spy.workspace.holding(visited.store.of([client]))
            again = visit_of(stage, heard, seed=0)(workspace, [client])
            assert_same_sent(again, sent)
            for kind in KINDS:
                assert equal(*(getattr(each.left.get(client, EMPTY_STATE), kind) for each in (again, sent)))
            assert back.numbers.samples == data().roster.sizes[client]
            assert_same_sent(Sent.received(posted(back, upload_schema(stage, told, client))), sent)


def assert_same_sent(one: Sent, other: Sent) -> None:
    """All that the server is told."""
    assert (one.round, one.clients, one.samples) == (other.round, other.clients, other.samples)
    assert torch.equal(one.loss, other.loss)
    assert bool(one.finite) == bool(other.finite)
    assert equal(one.model, other.model)
    assert equal(one.drift, other.drift)
    assert equal(one.said, other.said)


def test_clients_are_told_of_no_models_but_those_that_they_are_offered() -> None:
    """Whoever carries the message of some clients has what those get, and no more."""
    uploads = {k: {"w": torch.full((2,), float(k))} for k in range(4)}
    told = Told(2, {"w": torch.zeros(2)}, (), 3, offers={0: (1, 3), 1: (3,), 2: ()}, uploads=uploads)
    part = told.for_clients([0, 2])
    assert part.offers == {0: (1, 3), 2: ()}
    assert list(part.uploads) == [1, 3]
    assert set(told.message(0).tensors) == {"model 1/w", "model 3/w"} == set(part.message(0).tensors)
    assert told.message(1).numbers.offers == (3,)
    assert told.message(2).tensors == {}
    plain = Told(2, {"w": torch.zeros(2)}, ("w",), 3)
    assert plain.for_clients([1]) is plain


# Messages from outside

NUMBERS = MessageNumbers(kind="sent", round=3, client=1, samples=40, loss=0.5)
SENT = Message(
    NUMBERS,
    {"model/w": torch.arange(6.0).view(2, 3), "model/count": torch.tensor(7), "scores": torch.tensor([1.0, -2.0])},
)


@pytest.mark.parametrize("loss", [0.1, math.inf, math.nan])
def test_numbers_come_back_as_they_were(loss: float) -> None:
    """A float has all its bits, and a loss that burst stays one: the server says so (spec 3.7)."""
    sent = Message(NUMBERS.model_copy(update={"loss": loss}), SENT.tensors)
    came = Message.decode(sent.encode(), SENT.schema).numbers
    assert struct.pack("d", came.loss) == struct.pack("d", loss)
    assert bool(Sent.received(sent).finite) == math.isfinite(loss)
    assert came.model_copy(update={"loss": 0.5}) == NUMBERS


def test_a_tensor_of_a_stack_is_sent_alone() -> None:
    """Rows of [G, *], columns, and a tensor that is repeated without memory of its own."""
    stack = torch.arange(12.0).view(3, 2, 2)
    tensors = {"row": stack[1], "turned": stack[0].T, "wide": torch.ones(1).expand(4, 1), "none": torch.zeros(0, 3)}
    came = Message.decode(Message(NUMBERS, tensors).encode(), schema_of(tensors))
    assert equal(came.tensors, tensors)


def header_of(message: Message, without: str = "", **changes: Any) -> bytes:
    """The bytes of a message with another header."""
    data = message.encode()
    size = int.from_bytes(data[:8], "little")
    header = {k: v for k, v in {**json.loads(data[8 : 8 + size]), **changes}.items() if k != without}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


def numbers(**changes: Any) -> dict[str, str]:
    return {"torso": json.dumps({**json.loads(NUMBERS.model_dump_json()), **changes})}


def scores(dtype: str, shape: Sequence[int], begin: int = 0) -> bytes:
    one = Message(NUMBERS, {"scores": SENT.tensors["scores"]})
    return header_of(one, scores={"dtype": dtype, "shape": shape, "data_offsets": [begin, begin + 8]})


WRONG: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "it is too short for a header"),
    "noise": (bytes(range(256)), "Expected: at most 248"),
    "cut": (SENT.encode()[:-1], "file not fully covered"),
    "longer": (SENT.encode() + b"!", "file not fully covered"),
    "a pickle": (pickle.dumps({"model/w": 1}), "Expected: at most"),
    "no numbers": (header_of(SENT, without="__metadata__"), "its header has no numbers"),
    "no metadata": (header_of(SENT, __metadata__=None), "its header has no numbers"),
    "others' metadata": (header_of(SENT, __metadata__={"format": "pt"}), "Expected: an entry 'torso'"),
    "a list of numbers": (header_of(SENT, __metadata__={"torso": "[1, 2]"}), "numbers: Input should be an object"),
    "no JSON": (header_of(SENT, __metadata__={"torso": "{"}), "Expecting property name"),
    "deep": (header_of(SENT, __metadata__={"torso": "[" * 100_000}), "it is nested too deeply"),
    "another kind": (
        header_of(SENT, __metadata__=numbers(kind="asked")),
        "numbers.kind: Input should be 'told' or 'sent'",
    ),
    "a word": (header_of(SENT, __metadata__=numbers(samples="40")), "numbers.samples: Input should be a valid integer"),
    "one too many": (header_of(SENT, __metadata__=numbers(price=3)), "numbers.price: Extra inputs are not permitted"),
    "half a client": (
        header_of(SENT, __metadata__=numbers(client=1.5)),
        "numbers.client: Input should be a valid integer",
    ),
    "a tensor of no type": (scores("F7", [2]), "unknown variant `F7`"),
    "a tensor of a strange type": (scores("F4", [16]), "F4"),
    "a tensor of another length": (scores("F32", [3]), "invalid shape, data type, or offset"),
    "a tensor of negative length": (scores("F32", [-2]), "-2"),
    "a tensor without end": (scores("F32", [2**62, 4]), "overflow"),
    "a tensor from elsewhere": (scores("F32", [2], 10**6), "tensor `scores`"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_message_is_refused(what: str) -> None:
    data, said = WRONG[what]
    with pytest.raises(RequestError, match=rf"^a message of {len(data)} bytes cannot be read: .*{re.escape(said)}"):
        Message.decode(data)


@pytest.mark.parametrize("checked", [True, False])
def test_a_message_of_mutated_bytes_is_read_or_refused(checked: bool) -> None:
    """Bytes changed, cut out, repeated or put in, most of them in the header: a message, or RequestError; what is read
    fits the schema."""
    rng, whole = np.random.default_rng(0), SENT.encode()
    header, schema, read = 8 + int.from_bytes(whole[:8], "little"), SENT.schema if checked else None, 0
    for _ in range(4000):
        bent = bytearray(whole)
        for _ in range(rng.integers(1, 4)):
            at = int(rng.integers(header if rng.random() < 0.9 else len(bent)))
            piece = bytes(rng.integers(32, 127, rng.integers(1, 4), dtype=np.uint8))
            change = rng.integers(4)
            if change == 0:
                bent[at] = int(rng.integers(256))
            elif change == 1:
                bent[at : at + 1] = piece
            elif change == 2:
                del bent[at : at + int(rng.integers(1, 9))]
            else:
                bent[at:at] = bent[at : at + int(rng.integers(1, 9))]
        try:
            came = Message.decode(bytes(bent), schema)
        except RequestError:
            continue
        read += 1
        assert schema is None or came.schema == schema
        if came.numbers.kind == "sent":
            assert Sent.received(came).clients == (came.numbers.client,)
    assert 0 < read < 2000


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model/w": torch.zeros(2, 4)}, r"model/w is torch\.float32 \[2, 4\]\. Expected: torch\.float32 \[2, 3\]"),
        ({"model/w": torch.zeros(2, 3).double()}, r"model/w is torch\.float64 \[2, 3\]\. Expected: torch\.float32"),
        ({"model/w": None}, r"model/w is not there\. Expected: torch\.float32 \[2, 3\]"),
        ({"head": torch.zeros(1)}, r"head is torch\.float32 \[1\]\. Expected: not there"),
    ],
)
def test_a_message_that_does_not_fit_the_schema_is_refused_by_client_and_tensor(change: Any, said: str) -> None:
    tensors = {name: tensor for name, tensor in {**SENT.tensors, **change}.items() if tensor is not None}
    with pytest.raises(RequestError, match=f"^the sent message of client 1: {said}"):
        Message.decode(Message(NUMBERS, tensors).encode(), SENT.schema)


def test_a_message_for_somebody_else_is_refused() -> None:
    told = Message(MessageNumbers(kind="told", round=1, client=0), {})
    with pytest.raises(RequestError, match=r"the server was sent a 'told' message\. Expected: 'sent'"):
        Sent.received(told)
    with pytest.raises(RequestError, match=r"a client was sent a 'sent' message\. Expected: 'told'"):
        Told.heard(SENT, {})


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
    "fedamp": (4 * P, 4 * P),
    "fedloge": (4 * P, 4 * P),
    "gpfl": tuple(4 * (P_B + CLASSES * FEATURES + 2 * (FEATURES**2 + 3 * FEATURES)) for _ in range(2)),
    "fedthe": (4 * P + 4 * FEATURES, 4 * P + 4 * FEATURES),
    "fedfomo": (4 * P * 5, 4 * P + 4 * 5),
    "lp": (4 * ROW, 4 * ROW),
    "fedproto": (4 * ROW, 4 * ROW),
    "fedpac": (4 * (P + ROW), 4 * (P + ROW + CLASSES * FEATURES + 1)),
    "fedas": (4 * P_B, 4 * P_B + 4),
    "pfedfda": tuple(4 * (P_B + CLASSES * FEATURES + FEATURES**2) for _ in range(2)),
    "creff": (4 * (P + ROW), 4 * (P + CLASSES * ROW + CLASSES)),
    "feddbe": (4 * (P + FEATURES + 1), 4 * P),  # the mean feature went up in the first round
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

    def map(self, work: Any, clients: Sequence[int], store: Store | None = None) -> Iterator[Any]:
        if isinstance(work, ClassSums):
            return iter([{"total": torch.zeros(1, CLASSES, FEATURES), "count": torch.zeros(1, CLASSES)}] * len(clients))
        return (self._sent(work.told, client) for client in clients)

    def _sent(self, told: Told, client: int) -> Sent:
        model, offered = told.model, len(told.offers.get(client, ()))
        return Sent(
            round=told.round,
            clients=(client,),
            samples=(1,),
            model={name: model[name][None] for name in self.stage.travels},
            loss=torch.zeros(1),
            finite=torch.tensor([True]),
            drift={name: torch.zeros_like(model[name])[None] for name in self.stage.corrected}
            if self.stage.method.drift.sends
            else {},
            said={n: torch.zeros(1, *each.shape) for n, each in self.stage.declared(offered, told.round).items()},
            left={client: ClientState(kept={name: model[name] for name in self.stage.keeps})},
        )


@cache
def mobilenet_with(head: Head) -> Network:
    """Nobody trains it here: one for all methods with this head."""
    return build_net("mobilenet", CLASSES, (3, 32, 32), head)


def mobilenet(method: str) -> tuple[Stage, State]:
    config = Config(method=method, train={"fraction": 1.0})
    net = mobilenet_with(config.method.head)
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
    if method == "creff":  # what the server computes with what came does not change what travels
        idle = replace(stage.method.statistics, match_steps=0, train_steps=0)  # type: ignore[call-arg]
        stage = replace(stage, method=stage.method.but(statistics=idle))
    first, _ = play_round(stage, start, six_clients().roster, cast(Engine, Idle(stage)), seed=0)
    second, played = play_round(stage, first, six_clients().roster, cast(Engine, Idle(stage)), seed=0)
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
    first, _ = play_round(stage, start, six_clients().roster, cast(Engine, Idle(stage)), seed=0)
    assert each_way(Cost(), first.cost, 6) == (0, 4 * P)
    few = replace(stage, method=stage.method.but(personal=Fomo(models=2)))
    second, _ = play_round(few, first, six_clients().roster, cast(Engine, Idle(few)), seed=0)
    assert each_way(first.cost, second.cost, 6) == (4 * P * 2, 4 * P + 4 * 2)


def test_fedncm_sends_class_sums_and_counts_once() -> None:
    stage, start = mobilenet("fedncm")
    begun = state_after_start(
        stage, start.server, six_clients().roster, cast(Engine, Idle(stage)), batch_size=1, seed=0
    )
    assert each_way(Cost(), begun.cost, 6) == (0, 4 * ROW)
    assert stage.rounds == 0


@pytest.mark.parametrize("method", ["fedavg-meta", "fedrod-meta-bsm"])
def test_balanced_images_are_three_bytes_a_pixel_once(method: str) -> None:
    stage, start = mobilenet(method)
    first, _ = play_round(stage, start, six_clients().roster, cast(Engine, Idle(stage)), seed=0)
    assert each_way(Cost(), first.cost, 6) == (TABLE[method][0] + 2 * 32 * 32 * 3, TABLE[method][1])


def test_a_frozen_head_that_is_sent_once_goes_to_each_client_when_it_is_first_met() -> None:
    stage, start = mobilenet("fedbabu")
    stage = replace(stage, method=stage.method.but(share=replace(stage.method.share, frozen="once")))
    first, _ = play_round(stage, start, six_clients().roster, cast(Engine, Idle(stage)), seed=0)
    second, _ = play_round(stage, first, six_clients().roster, cast(Engine, Idle(stage)), seed=0)
    assert each_way(Cost(), first.cost, 6) == (4 * P, 4 * P_B)
    assert each_way(first.cost, second.cost, 6) == (4 * P_B, 4 * P_B)
