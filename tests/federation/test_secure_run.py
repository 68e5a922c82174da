"""Runs over a federation whose server sees sums only: the same models up to rounding, and nothing in the open."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from tests.federation.absent import absent
from tests.federation.at_home import Wire, homes_of
from tests.federation.test_bits import checkpoint
from tests.runs.samples import tiny

pytest.importorskip("flwr", reason="the extra flower is not installed")

import torso
from torso import Config
from torso.data import Roster
from torso.errors import RequestError
from torso.federation.client_service import ClientService
from torso.federation.protocol import Reply, ReplyHeader, Request, RequestHeader
from torso.federation.run import for_federation, run_federation
from torso.federation.secure.contents import RoundContents, scale_of
from torso.federation.secure.sum_messages import SumReply
from torso.federation.transport import MissingAnswer
from torso.nets import Tensors
from torso.runs.job import Job, prepare, simulate
from torso.runs.messages import Message, MessageNumbers
from torso.runs.telling import tell
from torso.server.state import ServerState

SECURE = "run.flower.secure.kind=secagg+"
SETS = (
    *("data.clients=4", "data.partition=dirichlet-class", "data.alpha=0.5", "train.fraction=1.0", "train.rounds=1"),
    *("train.min_clients=3", "run.flower.clients=4", "run.flower.wait=2", "measure.names=[]", "run.engine=one-by-one"),
)
ROUNDING = 4 * 16 / 2**22 / 0.5
"""Four clients, each less than a step of 2·clip/2^bits off; their weights add up to more than 0.5."""


@dataclass
class Heard:
    """A run, with what its clients have said."""

    out: Path
    result: torso.Result
    replies: list[tuple[RequestHeader, Reply]]
    printed: list[str] = field(default_factory=list)


class Listening(Wire):
    """Keeps what the server hears."""

    def __init__(self, homes: Mapping[str, ClientService], **more: object) -> None:
        super().__init__(homes, **more)  # type: ignore[arg-type]
        self.replies: list[tuple[RequestHeader, Reply]] = []

    def exchange(self, messages: Mapping[int, bytes], seconds: float) -> Iterator[tuple[int, bytes | MissingAnswer]]:
        for node, answer in super().exchange(messages, seconds):
            if isinstance(answer, bytes):
                self.replies.append((Request.decode(messages[node]).header, Reply.decode(answer)))
            yield node, answer


class Notes(torso.runs.events.Listener):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def note(self, text: str) -> None:
        self.heard.append(text)


def secured(method: str, folder: Path, *sets: str) -> Heard:
    config = tiny(method, *SETS, *sets)
    wire = Listening(homes_of(config, folder / "homes"))
    printed: list[str] = []
    wire.homes["client-1"].say = printed.append
    result = run_federation(config.but(SECURE), wire, folder / "run", say=lambda _: None)
    return Heard(folder / "run", result, wire.replies, printed)


def assert_close(found: Tensors, wanted: Tensors, atol: float) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=atol, msg=name)


def moved(method: str, folder: Path) -> tuple[Tensors, Tensors]:
    """The model at the end of a run, and how far it has come."""
    end, start = checkpoint(folder, method, *SETS), simulate(tiny(method, *SETS)).model
    return end, {name: end[name] - start[name] for name in end}


@pytest.fixture(scope="module")
def babu(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Heard]:
    """A round of FedBABU, simulated and over secure sums."""
    folder = tmp_path_factory.mktemp("babu")
    torso.run(tiny("fedbabu", *SETS), folder / "simulated")
    return folder / "simulated", secured("fedbabu", folder)


def test_the_model_is_that_of_the_plain_mean_up_to_rounding(babu: tuple[Path, Heard]) -> None:
    simulated, heard = babu
    (plain, change), (secure, _) = (moved("fedbabu", folder) for folder in (simulated, heard.out))
    assert max(float(tensor.abs().max()) for tensor in change.values()) > 100 * ROUNDING
    assert_close(secure, plain, ROUNDING)
    lines = [json.loads((folder / "history.jsonl").read_text()) for folder in (simulated, heard.out)]
    assert lines[1]["loss"] == pytest.approx(lines[0]["loss"], abs=8 * ROUNDING)
    assert lines[1]["participants"] == lines[0]["participants"] == [0, 1, 2, 3]


def test_nothing_of_a_single_client_is_in_the_open(babu: tuple[Path, Heard]) -> None:
    """But its accuracies, which are asked for one by one in any federation."""
    _, heard = babu
    in_round = [reply for header, reply in heard.replies if header.sealing is not None]
    assert [reply.header.kind for reply in in_round] == ["keys"] * 4 + ["shares"] * 4 + ["masked"] * 4 + ["shares"] * 4
    assert not any(reply.header.kind in ("sent", "sums") for _, reply in heard.replies)
    for reply in in_round:
        assert reply.header.numbers is None, "no loss, no samples"
        assert reply.tensors.keys() <= {"vector"}
    for vector in (reply.tensors["vector"] for reply in in_round if reply.tensors):
        plain = ((vector >= 0) & (vector <= 1 << 22)).float().mean()  # what an unmasked number would be
        assert float(plain) == pytest.approx(2**22 / 2**32, abs=1e-3)


def test_what_leaves_is_told(babu: tuple[Path, Heard]) -> None:
    (told,) = (text for text in babu[1].printed if "What this machine sends" in text)
    assert "its mean loss, all masked: the server can open the sum over the participants, and no part of it" in told
    assert "its number of training samples (" not in told


def test_the_run_is_the_same_again(babu: tuple[Path, Heard], tmp_path: Path) -> None:
    """Masks are new, rounding is drawn from the seed, and sums of integers have no order."""
    assert_close(moved("fedbabu", secured("fedbabu", tmp_path).out)[0], moved("fedbabu", babu[1].out)[0], 0)


def test_fedncm_has_the_sums_and_nobodys_class_counts(tmp_path: Path) -> None:
    torso.run(tiny("fedncm", *SETS, "run.features=off"), tmp_path / "simulated")
    heard = secured("fedncm", tmp_path)
    assert_close(moved("fedncm", heard.out)[0], moved("fedncm", tmp_path / "simulated")[0], 1e-4)
    sums = [reply for header, reply in heard.replies if header.kind == "sums"]
    assert len(sums) == 4
    assert {(reply.header.kind, *reply.tensors) for reply in sums} == {("masked", "vector")}
    (told,) = (text for text in heard.printed if "What this machine sends" in text)
    assert "class sums, masked: the server can open the sum over all clients" in told


def test_a_client_may_leave_at_each_stage_of_a_round(tmp_path: Path) -> None:
    """Round 1: before it sends keys; 2: before it shares secrets; 3: before its vector comes; 4: before it unmasks."""
    leaves = {1: ("keys", 0), 2: ("shares", 1), 3: ("told", 2), 4: ("unmask", 3)}
    config = tiny("fedavg", *SETS, "train.rounds=4")
    played: list[int] = []

    def lost(name: str, header: RequestHeader) -> str:
        if header.kind == "keys" and name == "client-3":  # once in a round; replies come in reverse
            played.append(len(played) + 1)
        kind, client = leaves.get(len(played), ("", 0))
        return "back" if (header.kind, name) == (kind, f"client-{client}") else ""

    torso.run(config, tmp_path / "simulated", engine=absent({1: {0}, 2: {1}, 3: {2}}))
    wire = Wire(homes_of(config, tmp_path / "homes"), lost)
    assert run_federation(config.but(SECURE), wire, tmp_path / "real", say=lambda _: None).ok
    lines = [json.loads(line) for line in (tmp_path / "real" / "history.jsonl").read_text().splitlines()]
    assert [line.get("missing", []) for line in lines] == [[0], [1], [2], []]
    sets = (*SETS, "train.rounds=4")
    plain, secure = (checkpoint(tmp_path / name, "fedavg", *sets) for name in ("simulated", "real"))
    assert_close(secure, plain, 50 * ROUNDING)  # four rounds of training from models that differ by the rounding


def test_where_too_few_are_left_nothing_is_opened_and_the_round_is_repeated(tmp_path: Path) -> None:
    config = tiny("fedbabu", *SETS)
    first = {"client-0", "client-1"}

    def lost(name: str, header: RequestHeader) -> str:
        if header.kind == "told" and name in first:
            first.discard(name)
            return "back"
        return ""

    wire, notes = Listening(homes_of(config, tmp_path / "homes"), lost=lost), Notes()
    assert run_federation(config.but(SECURE), wire, tmp_path / "real", say=lambda _: None, listener=notes).ok
    assert "the secure sum was not opened: 2 clients sent a vector, too few" in notes.heard
    assert any("nobody answered, and train.min_clients = 3: once more" in note for note in notes.heard)
    asked = [header for _, header in wire.asked if header.kind in ("keys", "unmask")]
    assert [header.kind for header in asked] == ["keys"] * 8 + ["unmask"] * 4
    sessions = {header.sealing.session for header in asked if header.sealing}
    assert len(sessions) == 2, "another attempt, other keys"


def test_a_client_without_proper_keys_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    """Its keys are not handed on: the others could not read them, and nobody would know whose they are."""
    config, notes = tiny("fedbabu", *SETS), Notes()
    garbage = Reply(ReplyHeader(kind="keys", sealed=SumReply(keys=(b"no key", b"none")))).encode()

    class Careless(Wire):
        def exchange(
            self, messages: Mapping[int, bytes], seconds: float
        ) -> Iterator[tuple[int, bytes | MissingAnswer]]:
            for node, answer in super().exchange(messages, seconds):
                header = Request.decode(messages[node]).header
                yield node, garbage if (header.kind, header.client) == ("keys", 2) else answer

    wire = Careless(homes_of(config, tmp_path / "homes"))
    assert run_federation(config.but(SECURE), wire, tmp_path / "real", say=lambda _: None, listener=notes).ok
    assert any("what client-2 sent is not used: a key of the secure sum cannot be read" in n for n in notes.heard)
    (line,) = (tmp_path / "real" / "history.jsonl").read_text().splitlines()
    assert json.loads(line)["participants"] == [0, 1, 3]


def test_class_sums_are_asked_once_also_by_a_run_that_was_killed(tmp_path: Path) -> None:
    """Two sums over different clients would tell, by their difference, what single ones sent."""
    config = tiny("fedncm-ft", *SETS)
    homes = homes_of(config, tmp_path / "homes")

    def dies(name: str, header: RequestHeader) -> str:
        if header.kind == "told":
            raise KeyboardInterrupt
        return ""

    first, second = Wire(homes, dies), Wire(homes)
    with pytest.raises(KeyboardInterrupt):
        run_federation(config.but(SECURE), first, tmp_path / "real", say=lambda _: None)
    assert run_federation(config.but(SECURE), second, tmp_path / "real", resume=True, say=lambda _: None).ok
    asked = [[header.kind for _, header in wire.asked] for wire in (first, second)]
    assert [(kinds.count("sums"), kinds.count("told")) for kinds in asked] == [(4, 1), (0, 4)]


def test_a_client_does_not_answer_in_the_open(tmp_path: Path) -> None:
    """Whatever the server asks: the client has agreed to secure sums."""
    config = tiny("fedncm-ft", *SETS)
    homes = homes_of(config, tmp_path / "homes")
    refused: dict[str, Reply] = {}

    class Curious(Wire):
        def exchange(
            self, messages: Mapping[int, bytes], seconds: float
        ) -> Iterator[tuple[int, bytes | MissingAnswer]]:
            for data in messages.values():
                request = Request.decode(data)
                if request.header.sealing is not None and request.header.client == 2:
                    plain = replace(request, header=request.header.model_copy(update={"sealing": None}))
                    refused[request.header.kind] = Reply.decode(homes["client-2"].answer(plain.encode()))
            yield from super().exchange(messages, seconds)

    run_federation(config.but(SECURE), Curious(homes), tmp_path / "real", say=lambda _: None)
    assert refused.keys() == {"keys", "shares", "sums", "told", "unmask"}
    for kind, reply in refused.items():
        assert (reply.header.kind, reply.tensors) == ("failed", {}), kind
        assert "would have it answer in the open" in reply.header.reason


def test_a_client_that_wants_sums_only_takes_no_part_in_other_runs(tmp_path: Path) -> None:
    config, printed = tiny("fedbabu", *SETS), list[str]()
    wire = Wire(homes_of(config, tmp_path / "homes"))
    wire.homes["client-1"].sums_only = True
    assert run_federation(config, wire, tmp_path / "real", say=printed.append).ok
    assert any(
        "client-1 is refused: this client takes part in secure sums only (--sums-only)" in line for line in printed
    ), printed
    assert not any(name == "client-1" and header.kind == "told" for name, header in wire.asked)


def test_a_run_whose_clients_all_diverge_fails_by_name(tmp_path: Path) -> None:
    result = secured("fedbabu", tmp_path, "train.lr=1e30").result
    assert not result.ok
    assert "non-finite loss in round 1" in result.status


def worked_out(method: str, *sets: str) -> tuple[Job, RoundContents]:
    """Two clients with 1 and 3 samples."""
    config = tiny(method, *SETS, SECURE, "run.engine=flower", *sets)
    plain = simulate(config.but("run.flower.secure.kind=none", "run.engine=one-by-one")).roster
    job = prepare(config, replace(plain, sizes=torch.tensor([1, 3, 3, 3]).numpy()))
    told = tell(job.stage(1), ServerState(job.model), job.roster, (0, 1), 1, 0)
    return job, RoundContents(job, told)


def summed(contents: RoundContents, job: Job, sent: list[Message]) -> Tensors:
    scale = scale_of(job.roster)
    total: Tensors = {}
    for message in sent:
        for name, tensor in contents.values(message, scale).items():
            total[name] = total.get(name, torch.zeros(())) + tensor
    return total


def message(client: int, samples: int, loss: float, tensors: Tensors) -> Message:
    return Message(MessageNumbers(kind="sent", round=1, client=client, samples=samples, loss=loss), tensors)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("method", ["scaffold", "feddyn"])
def test_means_and_memories_by_hand(method: str, weighting: str) -> None:
    """Changes +1 and +2 of clients with 1 and 3 samples: mean 1.75, or 1.5 where all weigh the same. SCAFFOLD sends
    changes of −1 and 5, which add up to 4; FedDyn's are −α times those of the model: −3·0.01."""
    job, contents = worked_out(method, f"train.weighting={weighting}")
    assert scale_of(job.roster) == 4
    names, model = job.stage(1).corrected, contents.told.model
    sent = []
    for client, samples, change, memory in ((0, 1, 1.0, -1.0), (1, 3, 2.0, 5.0)):
        tensors = {f"model/{n}": model[n] + change for n in names}
        if method == "scaffold":
            tensors |= {f"drift/{n}": torch.full_like(model[n], memory) for n in names}
        sent.append(message(client, samples, float(samples), tensors))
    found = contents.mean(summed(contents, job, sent), (0, 1), job.roster, scale_of(job.roster))
    mean, loss = (1.75, 2.5) if weighting == "samples" else (1.5, 2.0)
    for name in names:
        torch.testing.assert_close(found.model[name], model[name] + mean)
        change = torch.full_like(model[name], 4.0 if method == "scaffold" else -0.03)
        torch.testing.assert_close(found.change[name], change, atol=1e-6, rtol=1e-4)
    assert found.loss == pytest.approx(loss)


def test_statistics_are_averaged_and_counters_go_on() -> None:
    """BatchNorm's counter has no weight: 3 and 5 steps are 4."""
    job, contents = worked_out("fedavg", "model.body=conv4", "model.norm=running", "data.size=16")
    (counter, *_), received = contents.counters, contents.told.model
    sent = []
    for client, samples, steps in ((0, 1, 3), (1, 3, 5)):
        tensors = {f"model/{n}": received[n] + (steps if n in contents.counters else 1) for n in job.stage(1).travels}
        sent.append(message(client, samples, 0.0, tensors))
    found = contents.mean(summed(contents, job, sent), (0, 1), job.roster, scale_of(job.roster))
    assert int(found.model[counter]) == int(received[counter]) + 4
    assert found.model[counter].dtype == received[counter].dtype
    assert found.model.keys() == job.stage(1).travels


@pytest.mark.parametrize(
    ("method", "sets", "reason"),
    [
        ("fedbabu", ["run.engine=one-by-one"], r"run.engine = 'one-by-one' is a simulation. Accepted: none"),
        ("fedbabu", ["train.min_clients=2"], r"Accepted: train.min_clients = 3 or more"),
        ("fedbabu", ["method.server=median"], r"method.server = 'median' needs single uploads"),
        ("fedbabu", ["method.server.clip=1.0"], r"method.server.clip = 1.0 bounds single uploads"),
        ("fedbabu", ["privacy.noise=1"], r"privacy has it clip single uploads. Accepted: one of the two"),
        ("fedbabu", ["privacy.noise=1", "train.min_clients=1"], r"Accepted: one of the two"),
        ("fedexp", [], r"needs the norm of single uploads. Accepted: plain and weighted means"),
        ("fedfomo", [], r"method.server = 'apart' needs single uploads"),
        ("mtl", [], r"method.server = 'apart' needs single uploads"),
    ],
)
def test_what_needs_more_than_sums_is_refused_by_name(method: str, sets: list[str], reason: str) -> None:
    config = tiny(method, *SETS, SECURE, "run.engine=flower", *sets)
    with pytest.raises(RequestError, match=reason):
        prepare(config, roster_of(4))


def roster_of(clients: int) -> Roster:
    few = simulate(tiny("fedavg", *SETS)).roster
    return replace(few, sizes=torch.full((clients,), 5).numpy(), names=())


def test_more_clients_than_a_sum_has_room_for_are_refused() -> None:
    config = tiny("fedavg", *SETS, SECURE, "run.engine=flower", "run.flower.secure.bits=28")
    assert prepare(config, roster_of(15))
    with pytest.raises(RequestError, match=r"a sum of 16 clients does not fit into 32 bits. Accepted: 27 or less"):
        prepare(config, roster_of(16))


@pytest.mark.parametrize(
    "key", ["shares=4", "shares=1", "threshold=0.4", "threshold=1.0", "bits=30", "clip=0", "kind=x"]
)
def test_keys_that_make_no_sense_are_refused(key: str) -> None:
    with pytest.raises(RequestError, match=r"run\.flower\.secure"):
        Config.load(None, [f"run.flower.secure.{key}"])


def test_a_secure_run_never_goes_back_over_rounds() -> None:
    """A round that was played again with other participants would tell by the difference what single ones sent."""
    config = tiny("fedavg", "run.checkpoint_every=10")
    assert for_federation(config).run.checkpoint_every == 10
    assert for_federation(config.but(SECURE)).run.checkpoint_every == 1
