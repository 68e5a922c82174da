"""Neither side takes the other's word: what a server may ask of a client, and what a client's reply may do."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.federation.at_home import CPU, Wire, homes_of, site_data
from tests.runs.samples import tiny

import torso
from torso import Config
from torso.errors import RequestError, running_user_code
from torso.federation.client_service import ClientService
from torso.federation.protocol import Reply, ReplyHeader, Request, RequestHeader
from torso.federation.reasons import printable, reason_of
from torso.federation.run import run_federation
from torso.federation.versions import ClientStateFiles
from torso.measure import Accuracy
from torso.runs.events import Listener
from torso.runs.job import simulate
from torso.runs.rounds import Round

SETS = (
    "data.clients=4",
    "data.partition=dirichlet-class",
    "train.fraction=1.0",
    "train.rounds=2",
    "run.flower.clients=4",
    "run.flower.wait=2",
    "run.engine=one-by-one",
)


def config_of(method: str = "fedavg", *sets: str) -> Config:
    return tiny(method, *SETS, *sets)


class Notes(Listener):
    def __init__(self) -> None:
        self.printed: list[str] = []

    def note(self, text: str) -> None:
        self.printed.append(text)


class Recorded(Wire):
    """Keeps the last request of each kind that each client was sent."""

    def __init__(self, homes: Mapping[str, ClientService]) -> None:
        super().__init__(homes)
        self.requests: dict[tuple[str, str], Request] = {}

    def exchange(self, messages: Mapping[int, bytes], seconds: float) -> Any:
        for node, data in messages.items():
            request = Request.decode(data)
            self.requests[self.there()[node], request.header.kind] = request
        return super().exchange(messages, seconds)


def played(method: str, folder: Path, *sets: str) -> Recorded:
    config = config_of(method, *sets)
    wire = Recorded(homes_of(config, folder / "homes"))
    assert run_federation(config, wire, folder / "real", say=lambda _: None).ok
    return wire


def asked(home: ClientService, request: Request, **changes: Any) -> ReplyHeader:
    header = RequestHeader(**{**request.header.model_dump(), **changes})
    return Reply.decode(home.answer(Request(header, request.tensors).encode())).header


# a server that asks for more than a client was told


def test_class_sums_stay_where_the_method_needs_none(tmp_path: Path) -> None:
    wire = played("fedavg", tmp_path)
    pooled = wire.requests["client-1", "pooled"]
    header = asked(wire.homes["client-1"], pooled, kind="sums")
    assert (header.kind, header.reason) == ("failed", "fedavg asks for no class sums: they stay here")


@pytest.mark.parametrize("name", ["id_before", "generic_as_personal", "local_only", "nonsense"])
def test_a_client_measures_what_it_was_told_that_it_would(name: str, tmp_path: Path) -> None:
    wire = played("fedavg", tmp_path, 'measure.names=["initial"]')
    header = asked(wire.homes["client-1"], wire.requests["client-1", "exam"], names=(name,))
    assert (header.kind, header.reason) == ("failed", f"{name!r} is no measure of this run. Accepted: initial")
    header = asked(wire.homes["client-1"], wire.requests["client-1", "exam"], kind="pooled", names=())
    assert "'generic' is no measure of this run" in header.reason


def test_measures_on_the_way_are_told_too(tmp_path: Path) -> None:
    printed: list[str] = []
    config = config_of("fedbabu", "measure.every=1", 'measure.names=["personalized"]', 'measure.during=["initial"]')
    homes = homes_of(config, tmp_path / "homes")
    homes["client-1"].say = printed.append
    found = run_federation(config, Wire(homes), tmp_path / "real", say=lambda _: None)
    assert list(found.accuracy) == ["personalized"]
    assert "its accuracies (personalized, initial)" in printed[0]


def test_who_came_later_sends_nothing_more_whoever_asks(tmp_path: Path) -> None:
    config = config_of("fedavg")
    wire = Recorded(homes_of(config, tmp_path / "homes"))
    late = ClientService(
        "late", site_data(simulate(config.but("run.seed=7")), 2), tmp_path / "late", CPU, say=lambda _: None
    )

    class Come(Listener):
        def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
            wire.homes["late"] = late

    run_federation(config, wire, tmp_path / "real", say=lambda _: None, listener=Come())
    for kind in ("told", "exam", "pooled"):
        header = asked(late, wire.requests["client-1", kind])
        assert (header.kind, header.reason) == (
            "failed",
            f"it joined later and does not train: a request {kind!r} is not for it",
        )


def test_other_terms_of_a_run_are_told_again(tmp_path: Path) -> None:
    """A server could otherwise ask for class sums that nobody at the client has read of."""
    wire, printed = played("fedavg", tmp_path), list[str]()
    terms, home = wire.requests["client-1", "agree"], wire.homes["client-1"]
    home.say = printed.append
    assert asked(home, terms).kind == "agreed"
    assert printed == []
    config = config_of("fedncm").but("run.engine=flower").as_toml()
    assert asked(home, terms, config=config).kind == "agreed"
    assert "which tell how many samples of each class it has" in printed[0]


def test_another_number_in_the_same_run_is_refused(tmp_path: Path) -> None:
    wire = played("fedper", tmp_path)
    terms = wire.requests["client-1", "agree"].header
    tree = json.loads(terms.agreement)
    tree["names"] = ["", "", "client-1", ""]
    header = asked(wire.homes["client-1"], Request(terms), client=2, agreement=json.dumps(tree))
    assert header.reason == "it is client 1 of this run, and is called 2"


@pytest.mark.parametrize(
    "changes", [{"run": "../../x"}, {"run": "0" * 31 + "/"}, {"base": "../x"}, {"client": -1}, {"round": 10**30}]
)
def test_names_and_numbers_that_are_none(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        RequestHeader(**{"kind": "told", "run": "0" * 32, **changes})


# a client whose reply is not what it should be


def odd(config: Config, folder: Path, kind: str, change: Callable[[Reply], Reply]) -> tuple[torso.Result, list[str]]:
    """A run in which client 1 changes its replies to requests of one kind."""

    class Odd(ClientService):
        def answer(self, data: bytes) -> bytes:
            answer = super().answer(data)
            asked = Request.decode(data).header.kind == kind
            return change(Reply.decode(answer)).encode() if asked else answer

    wire, notes = Wire(homes_of(config, folder / "homes")), Notes()
    plain = wire.homes["client-1"]
    wire.homes["client-1"] = Odd("client-1", plain.data, plain.folder, CPU, say=lambda _: None)
    return run_federation(config, wire, folder / "real", say=notes.note, listener=notes), notes.printed


def refused(folder: Path) -> list[dict[str, list[int]]]:
    """Whose uploads were not used, by what was wrong with them, as the history of `odd` has it."""
    lines = map(json.loads, (folder / "real" / "history.jsonl").read_text().splitlines())
    return [{kind: clients for kind, clients in line["faults"].items() if clients} for line in lines]


def with_tensor(value: float) -> Callable[[Reply], Reply]:
    def change(reply: Reply) -> Reply:
        name = sorted(reply.tensors)[0]
        return replace(reply, tensors={**reply.tensors, name: torch.full_like(reply.tensors[name], value)})

    return change


def with_loss(value: float) -> Callable[[Reply], Reply]:
    def change(reply: Reply) -> Reply:
        assert reply.header.numbers is not None
        numbers = reply.header.numbers.model_copy(update={"loss": value})
        return replace(reply, header=reply.header.model_copy(update={"numbers": numbers}))

    return change


@pytest.mark.parametrize(
    "change", [with_tensor(math.nan), with_tensor(math.inf), with_loss(math.nan), with_loss(1e300)]
)
def test_one_client_that_diverges_does_not_end_the_run(change: Callable[[Reply], Reply], tmp_path: Path) -> None:
    found, printed = odd(config_of("scaffold"), tmp_path, "told", change)
    assert found.ok
    assert printed.count("what client-1 sent is not used: its loss or its weights are not finite") == 2
    assert refused(tmp_path) == [{"not finite": [1]}] * 2


def test_bytes_that_are_no_reply_are_an_upload_that_cannot_be_read(tmp_path: Path) -> None:
    class Mad(ClientService):
        def answer(self, data: bytes) -> bytes:
            answer = super().answer(data)
            return answer[:50] if Request.decode(data).header.kind == "told" else answer

    config = config_of()
    homes = homes_of(config, tmp_path / "homes")
    homes["client-1"] = Mad("client-1", homes["client-1"].data, homes["client-1"].folder, CPU, say=lambda _: None)
    assert run_federation(config, Wire(homes), tmp_path / "real", say=lambda _: None).ok
    assert refused(tmp_path) == [{"unreadable": [1]}] * 2


def test_all_clients_that_diverge_end_it_as_in_a_simulation(tmp_path: Path) -> None:
    config = config_of("fedavg", "train.lr=1e20")
    simulated = torso.run(config)
    real = run_federation(config, Wire(homes_of(config, tmp_path / "homes")), tmp_path / "real", say=lambda _: None)
    assert simulated.status.startswith("failed: non-finite loss in round")
    assert real.status == simulated.status


def test_class_sums_of_no_samples_are_not_used(tmp_path: Path) -> None:
    for number, value in enumerate((math.nan, -1.0, 1e6)):
        found, printed = odd(config_of("fedncm"), tmp_path / str(number), "sums", with_tensor(value))
        assert found.ok
        assert any("what client-1 sent is not used: its class sums are not those of" in text for text in printed)


def with_values(**values: tuple[float, ...]) -> Callable[[Reply], Reply]:
    def change(reply: Reply) -> Reply:
        return replace(reply, header=reply.header.model_copy(update={"values": {**reply.header.values, **values}}))

    return change


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("exam", {"initial": (50.0,) * 1000}),
        ("exam", {"initial": ()}),
        ("exam", {"initial": (1e9,)}),
        ("exam", {"initial": (-1.0,)}),
        ("exam", {"initial": (math.inf,)}),
        ("exam", {"another": (50.0,)}),
        ("exam", {"personalized@3": (50.0,)}),
        ("pooled", {"right": (1e9,)}),
        ("pooled", {"of": (1e9,)}),
        ("pooled", {"right": (math.nan,)}),
        ("pooled", {"right": (0.0, 0.0)}),
    ],
)
def test_accuracies_that_are_none_are_not_used(kind: str, values: dict[str, Any], tmp_path: Path) -> None:
    found, printed = odd(config_of("fedavg"), tmp_path, kind, with_values(**values))
    assert any("what client-1 sent is not used" in text for text in printed), printed
    accuracy = found.accuracy["initial"].clients
    assert len(accuracy) == 4
    assert (accuracy[1] is None) == (kind == "exam")
    assert 0 <= found.accuracy["generic"].mean <= 100


def test_words_of_a_client_are_fit_for_a_terminal(tmp_path: Path) -> None:
    """No escape sequences, and not megabytes: in a reason, or in the name of a tensor."""
    rude = "\x1b[2J\x07 rude\n" + "x" * 10**6
    _, printed = odd(config_of(), tmp_path / "a", "told", lambda _: Reply(ReplyHeader(kind="failed", reason=rude)))
    _, more = odd(
        config_of(), tmp_path / "b", "told", lambda _: Reply(ReplyHeader(kind="sent"), {rude: torch.zeros(1)})
    )

    def one_more(reply: Reply) -> Reply:
        return replace(reply, tensors={**reply.tensors, rude: torch.zeros(1)})

    _, most = odd(config_of(), tmp_path / "c", "told", one_more)
    assert refused(tmp_path / "b") == [{"wrong numbers": [1]}] * 2
    assert refused(tmp_path / "c") == [{"wrong form": [1]}] * 2
    for text in (*printed, *more, *most):
        assert text.isprintable()
        assert len(text) < 2200
    assert any("[2J rude xxx" in text for text in printed)
    assert printable(rude).startswith("[2J rude xxx")


# what a reason tells


def test_no_path_and_no_sample_is_in_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wire, printed = played("fedper", tmp_path), list[str]()
    home, request = wire.homes["client-1"], wire.requests["client-1", "told"]
    home.say = printed.append
    reason = asked(home, request, since=77).reason
    assert "what this client held after round 77 is not in '…/runs/" in reason
    assert str(tmp_path) in printed[-1]
    assert str(tmp_path) not in reason

    def broken(*_: Any) -> None:
        raise ValueError("sample [0.1, 0.2] of patient 7")

    monkeypatch.setattr(ClientStateFiles, "save", broken)
    reason = asked(home, request, since=0, back=()).reason
    assert reason.startswith("it failed with ValueError (test_validation.py, line ")
    assert "patient 7" in printed[-1]


def test_a_reason_of_a_plugin_is_not_handed_on() -> None:
    with pytest.raises(RequestError, match="patient 7") as found, running_user_code("model.body = 'mine'", "a body"):
        raise KeyError("patient 7")
    assert reason_of(found.value).startswith("it failed with KeyError (test_validation.py, line")
    assert "patient" not in reason_of(found.value)
