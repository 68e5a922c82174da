"""What a client's machine is said to send is what its replies hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.federation.at_home import CPU, Wire, homes_of, site_data
from tests.runs.samples import tiny

from torso import Config
from torso.federation.client_service import ClientService
from torso.federation.protocol import Reply
from torso.federation.run import run_federation
from torso.measure import Accuracy
from torso.runs.events import Listener
from torso.runs.job import simulate
from torso.runs.rounds import Round

SETS = ("data.clients=5", "run.flower.clients=5", "train.fraction=1.0", "train.rounds=1")


class Listening(ClientService):
    """Keeps what it says to the person at its machine, and what it sends."""

    printed: list[str]
    sent: dict[str, Reply]

    def answer(self, data: bytes) -> bytes:
        reply = super().answer(data)
        self.sent[Reply.decode(reply).header.kind] = Reply.decode(reply)
        return reply


def heard(config: Config, folder: Path) -> Listening:
    """One client of a run, when the run is over."""
    homes = homes_of(config, folder / "homes")
    plain = homes["client-1"]
    printed: list[str] = []
    one = Listening(plain.name, plain.data, plain.folder, plain.device, printed.append)
    one.printed, one.sent = printed, {}
    run_federation(config, Wire({**homes, "client-1": one}), folder / "run", say=lambda _: None)
    return one


@pytest.mark.parametrize(
    ("method", "sends", "stays"),
    [
        ("fedavg", "its body and head (", "class counts, its personal model"),
        ("fedbabu", "its body (", "class counts, its personal model"),
        ("fedper", "its body (", "class counts, its own head, its personal model"),
        ("scaffold", "the change of its correction (", "what its correction remembers, its personal model"),
        ("fedncm", "which tell how many samples of each class it has", "samples, labels, its personal model"),
        ("fedfomo", "how well the models of others do on its samples", "samples, labels, class counts."),
    ],
)
def test_what_leaves_is_told_once(method: str, sends: str, stays: str, tmp_path: Path) -> None:
    client = heard(tiny(method, *SETS), tmp_path)
    (told,) = (text for text in client.printed if "What this machine sends" in text)
    assert sends in told
    assert stays in told
    sizes = [len(client.data.train), len(client.data.test)]
    assert f"training samples ({sizes[0]})" in told or method == "fedncm"
    assert "sums of their values and squares by channel" in told
    assert client.sent["described"].tensors.keys() == {"count", "total", "squares"}
    parts = {name.partition("/")[0] for name in client.sent["sent"].tensors} if "sent" in client.sent else set()
    assert ("the change of its correction" in told) == ("drift" in parts), parts
    assert ("class counts" not in told.rpartition("stays here")[2]) == ("sums" in client.sent)


def test_who_comes_later_is_told_that_it_sends_nothing_more(tmp_path: Path) -> None:
    config = tiny("fedbabu", *SETS)
    wire, printed = Wire(homes_of(config, tmp_path / "homes")), list[str]()
    data = site_data(simulate(config.but("run.seed=7")), 2)

    class Come(Listener):
        def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
            wire.homes["late"] = ClientService("late", data, tmp_path / "homes" / "late", CPU, printed.append)

    run_federation(config, wire, tmp_path / "run", say=lambda _: None, listener=Come())
    assert printed[0].startswith("late comes to a run of fedbabu that has begun: it gets a model at the end.")
    assert "- nothing more\nWhat stays here: samples, labels, class counts, its personal model." in printed[0]
