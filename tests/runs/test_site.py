"""Clients that hold their own data: the server sees a roster and bytes, and the run is the simulated one to the bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Self, cast

import pytest
from tests.runs.samples import assert_same_state, tiny

from torso import RequestError
from torso.engine import Engine, OneByOne
from torso.personal.state import State
from torso.personal.store import EMPTY_STATE, Store
from torso.runs.cost import upload_schema
from torso.runs.job import prepare, simulate
from torso.runs.messages import Message, Sent
from torso.runs.rounds import play_round
from torso.runs.site import Site
from torso.runs.visit import Visit

METHODS = (
    *("fedavg", "fedbabu", "fedper", "fedrep", "scaffold", "feddyn", "ditto", "pfedme", "fedfomo", "mtl", "fedexp"),
    *("fedamp", "fedthe", "fedloge", "gpfl"),
    *("fedrod-linear", "fedrod-hyper", "fedavg-meta", "fedrod-meta-bsm", "fedfn", "per-fedavg"),
    *("moon", "mofedsam", "fedala", "fedproto", "fedpac", "fedas", "feddbe", "pfedfda", "creff"),
)
SETS = ("data.partition=dirichlet-class", "data.alpha=0.5", "data.meta_per_class=2", "train.fraction=0.5")


class ByBytes:
    """An engine whose clients are elsewhere: it knows their numbers, and sends and receives bytes."""

    def __init__(self, sites: dict[int, Site]) -> None:
        self.sites = sites
        self.held = dict.fromkeys(sites, EMPTY_STATE)  # at the sites
        self.up = self.down = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None: ...

    def map(self, work: Any, clients: Sequence[int], store: Store | None = None) -> Iterator[Any]:
        assert isinstance(work, Visit)
        for client in clients:
            message = work.told.message(client)
            site = self.sites[client]
            sent, self.held[client] = site.visit(site.hear(Message.decode(message.encode())), self.held[client])
            answer = Message.decode(sent.encode())
            self.down += sum(t.numel() * t.element_size() for t in message.tensors.values())
            self.up += sum(t.numel() * t.element_size() for t in answer.tensors.values())
            yield Sent.received(answer)


@pytest.mark.parametrize("method", METHODS)
def test_a_federation_of_sites_is_the_simulation_to_the_bit(method: str) -> None:
    task = simulate(tiny(method, *SETS))
    job = prepare(task.config, task.federation.roster)  # what the server knows
    sites = {k: Site(job, task.federation.at_site(k), k) for k in range(job.roster.clients)}
    apart = ByBytes(sites)
    simulated = real = State.begin(task.model)
    with OneByOne(task.net, task.federation, workers=1) as engine:
        for _ in range(3):
            simulated, _ = play_round(task.plan[0], simulated, task.roster, engine, 0)
            real, _ = play_round(job.plan[0], real, job.roster, cast(Engine, apart), 0)
    assert not real.clients.entries  # the server holds nothing of what clients keep
    assert_same_state(replace(real, clients=Store(apart.held)), simulated)


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedfomo", "feddyn"])
def test_what_is_counted_is_what_is_sent(method: str) -> None:
    task = simulate(tiny(method, *SETS))
    sites = {k: Site(task, task.federation.at_site(k), k) for k in range(task.roster.clients)}
    apart, state = ByBytes(sites), State.begin(task.model)
    for _ in range(3):
        state, _ = play_round(task.plan[0], state, task.roster, cast(Engine, apart), 0)
    assert (state.cost.bytes_down, state.cost.bytes_up) == (apart.down, apart.up)


def test_an_answer_that_lacks_a_tensor_is_refused_by_name() -> None:
    task = simulate(tiny("fedper", *SETS))
    from torso.runs.telling import tell

    stage, state = task.plan[0], State.begin(task.model)
    told = tell(stage, state.server, task.roster, [3], 1, 0)
    site = Site(task, task.federation.at_site(3), 3)
    answer, _ = site.visit(site.hear(told.message(3)))
    schema = upload_schema(stage, told, 3)
    assert Message.decode(answer.encode(), schema).numbers.client == 3
    name = sorted(answer.tensors)[0]
    less = Message(answer.numbers, {n: t for n, t in answer.tensors.items() if n != name})
    with pytest.raises(RequestError, match=rf"the sent message of client 3: {name} is not there\. Expected: torch"):
        Message.decode(less.encode(), schema)
    other = Message(answer.numbers, {**answer.tensors, name: answer.tensors[name][..., :-1]})
    with pytest.raises(RequestError, match=rf"{name} is torch\.float32 \[.*\]\. Expected: torch\.float32"):
        Message.decode(other.encode(), schema)
    with pytest.raises(RequestError, match="cannot be read"):
        Message.decode(answer.encode()[:-3], schema)
