"""Clients that do not fit are refused by name, with a reason, on both sides, and the run goes on; bad replies are not
used; what cannot be run over a federation is refused by key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.federation.at_home import CPU, Wire, homes_of, site_data
from tests.federation.test_bits import checkpoint, sha256
from tests.runs.samples import tiny

import torso
from torso import Config, RequestError
from torso.data.images import Images
from torso.data.inputs import Pixels
from torso.federation.client_service import ClientService
from torso.federation.description import Description
from torso.federation.protocol import Reply, ReplyHeader, Request, RequestHeader
from torso.federation.run import for_federation, run_federation
from torso.federation.site_data import SiteData
from torso.federation.transport import MissingAnswer
from torso.runs.events import Listener
from torso.runs.job import simulate

SETS = (
    "data.clients=4",
    "data.partition=dirichlet-class",
    "train.fraction=1.0",
    "train.rounds=2",
    "run.flower.clients=5",
    "run.flower.wait=5",
)


def config_of(method: str = "fedavg", *sets: str) -> Config:
    return tiny(method, *SETS, "run.engine=one-by-one", *sets)


def extra(folder: Path, data: SiteData, printed: list[str], name: str = "other") -> ClientService:
    return ClientService(name, data, folder / name, CPU, printed.append)


def other_shape(data: SiteData) -> SiteData:
    train, test = (Images(np.repeat(part.samples, 2, axis=1), part.labels) for part in (data.train, data.test))
    return replace(data, train=train, test=test, input=Pixels(1, 16, 8))


def one_sample(data: SiteData) -> SiteData:
    return replace(data, train=data.train.take(np.arange(1)))


class OldHome(ClientService):
    def _describe(self, request: Request) -> Reply:
        reply = super()._describe(request)
        told = Description.model_validate_json(reply.header.description)
        return Reply(
            ReplyHeader(kind="described", description=told.model_copy(update={"torso": "0.0.1"}).model_dump_json())
        )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (other_shape, "it has images of 16×8 with 1 channel, others have images of 8×8 with 1 channel"),
        (lambda data: replace(data, classes=(*data.classes[:9], " 9")), "differ only by case or surrounding"),
    ],
)
def test_who_does_not_fit_is_refused_and_the_run_goes_on(
    change: Callable[[SiteData], SiteData], reason: str, tmp_path: Path
) -> None:
    config = config_of()
    torso.run(config, tmp_path / "simulated")
    here: list[str] = []
    there: list[str] = []
    wire = Wire(homes_of(config, tmp_path / "homes"))
    wire.homes["other"] = extra(tmp_path / "homes", change(site_data(simulate(config), 0)), here)
    run_federation(config, wire, tmp_path / "real", say=there.append)
    assert any(text.startswith("other is refused: ") and reason in text for text in there)
    assert any(text.startswith("refused: ") and reason in text for text in here)
    assert sha256(checkpoint(tmp_path / "real", "fedavg", *SETS)) == sha256(
        checkpoint(tmp_path / "simulated", "fedavg", *SETS)
    )


def test_an_older_torso_is_refused(tmp_path: Path) -> None:
    config, printed = config_of(), list[str]()
    wire = Wire(homes_of(config, tmp_path / "homes"))
    old = OldHome("other", site_data(simulate(config), 0), tmp_path / "homes" / "other", CPU, printed.append)
    wire.homes["other"] = old
    run_federation(config, wire, tmp_path / "real", say=printed.append)
    assert any("other is refused: it has Torso 0.0.1, the server" in text for text in printed)


def test_another_clients_name_is_refused(tmp_path: Path) -> None:
    config, printed = config_of(), list[str]()
    wire = Wire(homes_of(config, tmp_path / "homes"))
    wire.homes["other"] = extra(tmp_path / "homes", site_data(simulate(config), 0), printed, name="client-2")
    run_federation(config, wire, tmp_path / "real", say=printed.append)
    assert "other is refused: it calls itself 'client-2', and its key was admitted as 'other'" in printed


def test_one_sample_is_served(tmp_path: Path) -> None:
    config, printed = config_of("fedper", "train.batch_size=10"), list[str]()
    wire = Wire(homes_of(config, tmp_path / "homes"))
    wire.homes["other"] = extra(tmp_path / "homes", one_sample(site_data(simulate(config), 0)), printed)
    found = run_federation(config, wire, tmp_path / "real", say=printed.append)
    assert found.ok
    assert len(found.names) == 5
    assert any("your model is" in text for text in printed)


def wrong_shape(reply: Reply) -> Reply:
    name = sorted(reply.tensors)[0]
    return replace(reply, tensors={**reply.tensors, name: reply.tensors[name][..., :-1]})


def one_more(reply: Reply) -> Reply:
    return replace(reply, tensors={**reply.tensors, "model/extra": torch.zeros(3)})


def another_client(reply: Reply) -> Reply:
    assert reply.header.numbers is not None
    numbers = reply.header.numbers.model_copy(update={"client": 3})
    return replace(reply, header=reply.header.model_copy(update={"numbers": numbers}))


def more_samples(reply: Reply) -> Reply:
    assert reply.header.numbers is not None
    numbers = reply.header.numbers.model_copy(update={"samples": 10**9})
    return replace(reply, header=reply.header.model_copy(update={"numbers": numbers}))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (wrong_shape, "Expected: torch.float32"),
        (one_more, "model/extra is torch.float32 [3]. Expected: not there"),
        (another_client, "client 3"),
        (more_samples, "1000000000 samples. Expected: round 1, client 1"),
        (lambda reply: Reply(ReplyHeader(kind="sums")), "it said 'sums'"),
        (None, "cannot be read"),
    ],
)
def test_a_reply_that_does_not_fit_is_not_used(
    change: Callable[[Reply], Reply] | None, reason: str, tmp_path: Path
) -> None:
    class Odd(ClientService):
        def answer(self, data: bytes) -> bytes:
            answer = super().answer(data)
            if Request.decode(data).header.kind != "told":
                return answer
            return answer[: len(answer) // 2] if change is None else change(Reply.decode(answer)).encode()

    class Notes(Listener):
        def note(self, text: str) -> None:
            printed.append(text)

    config, printed = config_of("fedavg", "run.flower.clients=4"), list[str]()
    wire = Wire(homes_of(config, tmp_path / "homes"))
    wire.homes["client-1"] = Odd("client-1", site_data(simulate(config), 1), tmp_path / "homes" / "client-1", CPU)
    found = run_federation(config, wire, tmp_path / "real", say=printed.append, listener=Notes())
    assert found.ok
    assert any("client-1" in text and reason in text for text in printed), printed


@pytest.mark.parametrize("data", [b"", b"x", b"\xff" * 100, Request(RequestHeader(kind="told", run="0" * 32)).encode()])
def test_a_letter_that_cannot_be_read_ends_no_client(data: bytes, tmp_path: Path) -> None:
    (home, *_) = homes_of(config_of(), tmp_path).values()
    assert Reply.decode(home.answer(data)).header.kind == "failed"


@pytest.mark.parametrize(
    ("method", "sets", "words"),
    [
        ("fedavg", ["attack.kind=label-poisoning", "attack.fraction=0.5"], "attack.kind = .* is for simulations"),
        ("fedavg", ["data.server_fraction=0.1"], "data.server_fraction = 0.1"),
        ("fedavg", ["data.new_clients=1"], "data.new_clients = 1"),
        ("fedavg-data-sharing", [], "method.server_data"),
        ("fedavg-meta", [], "method 'fedavg-meta'"),
        ("fedavg", ['measure.analyses=["class-accuracy"]'], "measure.analyses"),
    ],
)
def test_what_cannot_be_run_over_a_federation_is_refused_by_key(method: str, sets: list[str], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        for_federation(config_of(method, *sets))


def test_measures_that_would_take_more_than_clients_give_are_left_out(tmp_path: Path) -> None:
    config, printed = config_of("fedper", 'measure.names=["initial","generic","generic_as_personal"]'), list[str]()
    found = run_federation(
        config.but("run.flower.clients=4"),
        Wire(homes_of(config, tmp_path / "homes")),
        tmp_path / "real",
        say=printed.append,
    )
    assert list(found.accuracy) == ["initial"]
    assert "generic is not measured: fedper keeps parts of the model at its clients, and they stay there" in printed
    assert "generic_as_personal is not measured: it would take the class counts of clients" in printed


@pytest.mark.parametrize("method", ["fedavg", "fedbabu", "scaffold", "mtl", "ditto"])
def test_bytes_that_travel_are_those_that_are_counted(method: str, tmp_path: Path) -> None:
    """Within 5 % and 3 kB a message: the header, with names and shapes of tensors."""
    config = config_of(method, "run.flower.clients=4")
    wire = Wire(homes_of(config, tmp_path / "homes"))
    told = {"down": 0, "up": 0, "messages": 0}
    exchange = wire.exchange

    def counted(messages: Any, seconds: float) -> Any:
        sizes = {node: len(data) for node, data in messages.items() if Request.decode(data).header.kind == "told"}
        for node, answer in exchange(messages, seconds):
            if node in sizes:
                told["down"] += sizes[node]
                told["up"] += len(answer) if isinstance(answer, bytes) else 0
                told["messages"] += 2
            yield node, answer

    wire.exchange = counted  # type: ignore[method-assign]
    found = run_federation(config, wire, tmp_path / "real", say=lambda _: None)
    cost = found.cost.bytes_down + found.cost.bytes_up
    assert cost <= told["down"] + told["up"] <= 1.05 * cost + 3000 * told["messages"]


def test_nothing_that_a_client_keeps_is_sent(tmp_path: Path) -> None:
    """Of FedPer: neither its head nor a sample, a label or a count of classes is in what leaves its machine."""
    config = config_of("fedper", "run.flower.clients=4", 'measure.names=["initial","personalized"]')
    left: list[Reply] = []

    class Watched(Wire):
        def exchange(
            self, messages: Mapping[int, bytes], seconds: float
        ) -> Iterator[tuple[int, bytes | MissingAnswer]]:
            for node, answer in super().exchange(messages, seconds):
                assert isinstance(answer, bytes)
                left.append(Reply.decode(answer))
                yield node, answer

    run_federation(config, Watched(homes_of(config, tmp_path / "homes")), tmp_path / "real", say=lambda _: None)
    (stage,) = simulate(config).plan
    body = {f"model/{name}" for name in stage.net.parts["body"]}
    assert {name for reply in left for name in reply.tensors} == {"count", "total", "squares"} | body
    assert {name for reply in left for name in reply.header.values} == {"initial", "personalized"}
