"""Flower's runtime under the two interfaces: a real server and SuperNodes on this machine, over TLS and with keys."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, MetricRecord, RecordDict
from flwr.app.message import make_message
from flwr.proto.control_pb2 import ListRunsRequest, RegisterNodeRequest, StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from tests.federation.wire import PATIENCE, Joined, free_port, joined, until

from torso import RequestError
from torso.errors import InUse, NoWorkerLeft
from torso.federation import certificates
from torso.federation.flower import admission, children, client, payload
from torso.federation.flower.access_control import (
    FLEET,
    LARGEST,
    SECRET_HEADER,
    TRAFFIC,
    AccessControl,
    KeyStatus,
    operator_token,
)
from torso.federation.flower.calls import control_client
from torso.federation.flower.client import FlowerClientLink
from torso.federation.flower.control import admit, admitted, revoke, traffic
from torso.federation.flower.nodes import read
from torso.federation.flower.payload import NotOurs, pack, unpack
from torso.federation.flower.serve import serving
from torso.federation.flower.server import FlowerServerLink, _bundle
from torso.federation.folder import ClientFolder, ServerFolder, init
from torso.federation.keys import fingerprint, make_key, own_key, public_key
from torso.federation.transport import MissingAnswer

pytestmark = [pytest.mark.usefixtures("forks"), pytest.mark.xdist_group("federation")]
NAMES = ["client-0", "client-1", "client-2"]


@dataclass
class Running:
    """A server with clients, and the lines that its operator has seen."""

    place: ServerFolder
    printed: list[str] = field(default_factory=list)
    joined: dict[str, Joined] = field(default_factory=dict)

    @property
    def client(self) -> ClientFolder:
        return ClientFolder.open(self.place.path)

    def admit(self, name: str) -> None:
        admit(self.place, make_key(self.client, name), name)

    def told(self, text: str) -> None:
        until(lambda: any(text in line for line in self.printed), f"{text!r} in {self.printed}")


@pytest.fixture(scope="module")
def running(forks: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    place = init(tmp_path_factory.mktemp("wire") / "fed", "127.0.0.1", free_port())
    found = Running(place)
    with serving(place, found.printed.append), ExitStack() as clients:
        for name in NAMES:
            found.admit(name)
            found.joined[name] = clients.enter_context(joined(found.client, name))
        yield found


@pytest.fixture
def link(running: Running) -> Iterator[FlowerServerLink]:
    with FlowerServerLink(running.place) as opened:
        until(lambda: set(NAMES) <= set(opened.there().values()), "all clients")
        yield opened


def numbers(link: FlowerServerLink) -> dict[str, int]:
    return {name: node for node, name in link.there().items()}


def ask(link: FlowerServerLink, name: str, message: bytes, seconds: float = PATIENCE) -> bytes | MissingAnswer:
    found = list(link.exchange({numbers(link)[name]: message}, seconds))
    assert len(found) == 1
    return found[0][1]


def test_messages_go_and_answers_come(link: FlowerServerLink) -> None:
    sent = {node: f"to {name}".encode() for node, name in link.there().items()}
    answers = list(link.exchange(sent, PATIENCE))
    assert len(answers) == len(sent)
    assert dict(answers) == {node: message[::-1] for node, message in sent.items()}
    assert link.sent == link.received == sum(map(len, sent.values()))


def test_an_empty_message_and_a_large_one(link: FlowerServerLink) -> None:
    assert ask(link, "client-0", b"") == b""
    large = os.urandom(20_000_000)
    nodes = {node for node, name in link.there().items() if name in NAMES[:2]}
    answers = dict(link.exchange(dict.fromkeys(nodes, large), PATIENCE))
    assert answers == dict.fromkeys(nodes, large[::-1])


def test_a_run_that_dies_before_all_of_its_message_is_there(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has been announced, the client has the task, and the parts never come: the next run is answered."""
    with FlowerServerLink(running.place) as link:
        until(lambda: set(NAMES) <= set(link.there().values()), "all clients")
        with monkeypatch.context() as patch:
            patch.setattr("flwr.superlink.grid.http_grid.push_objects", lambda *args, **kwargs: None)
            link._push(list(link.there()), dict.fromkeys(link.there(), b"x" * 300_000), PATIENCE)
        until(lambda: all(one.link._token.token for one in running.joined.values()), "all clients have the task")
    with FlowerServerLink(running.place) as link:
        until(
            lambda: (
                [answer for _, answer in link.exchange(dict.fromkeys(link.there(), b"abc"), 20)]
                == [b"cba"] * len(NAMES)
            ),
            "all clients answer the next run",
        )


def test_nobody_to_ask(link: FlowerServerLink) -> None:
    assert list(link.exchange({}, 1.0)) == []


def test_a_number_that_nobody_has(link: FlowerServerLink) -> None:
    ((node, found),) = link.exchange({12345: b"x"}, 5.0)
    assert node == 12345
    assert found == MissingAnswer("it is not admitted, or not any more")


def test_an_answer_that_fails_is_told_without_what_is_private(link: FlowerServerLink) -> None:
    found = ask(link, "client-0", b"fail")
    assert isinstance(found, MissingAnswer)
    assert "it failed with ValueError (wire.py, line " in found.reason
    assert "patient" not in found.reason
    assert ask(link, "client-0", b"refuse") == MissingAnswer("data.size = 3 is not accepted. Accepted: 8")
    assert ask(link, "client-0", b"abc") == b"cba", "it goes on"


def test_who_is_too_late_is_silent_and_heard_again(link: FlowerServerLink) -> None:
    assert ask(link, "client-1", b"sleep 3", seconds=0.5) == MissingAnswer("it has not answered within 0.5 s")
    assert ask(link, "client-1", b"abc") == b"cba"


def test_a_message_that_came_too_late_is_not_delivered(running: Running, link: FlowerServerLink) -> None:
    """Its client was busy with another message; when it is free, this one has been withdrawn."""
    node, got = numbers(link)["client-2"], running.joined["client-2"].got
    link._push([node], {node: b"sleep 4"}, PATIENCE)
    until(lambda: b"sleep 4" in got, "the client is busy")
    assert isinstance(ask(link, "client-2", b"withdrawn", seconds=0.5), MissingAnswer)
    assert ask(link, "client-2", b"abc") == b"cba"
    assert b"withdrawn" not in got


def test_answers_come_as_they_are_ready(link: FlowerServerLink) -> None:
    known = numbers(link)
    messages = {known["client-0"]: b"sleep 5", known["client-1"]: b"abc"}
    assert [node for node, _ in link.exchange(messages, PATIENCE)] == [known["client-1"], known["client-0"]]


def test_what_torso_has_not_written_is_refused(link: FlowerServerLink) -> None:
    """By a client, in words; the same checks stand on the server's side."""
    node = numbers(link)["client-2"]
    strange = make_message(link._metadata(node, 60), RecordDict({"torso": ConfigRecord({"x": 1})}))
    (number,) = link._grid.push_messages([strange])
    replies: dict[str, Any] = {}
    until(lambda: link._pull({number: node}, replies) or not replies.get(number, strange_reply()).missing, "an answer")
    found = link._answer(replies[number])
    assert isinstance(found, MissingAnswer)
    assert "it was sent something else than a message of Torso's" in found.reason
    assert ask(link, "client-2", b"abc") == b"cba"


@dataclass
class strange_reply:
    missing: tuple[str, ...] = ("all",)


def test_only_bytes_are_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def message(content: RecordDict) -> Any:
        return type("Message", (), {"content": content})()

    assert unpack(message(pack(b"abc"))) == b"abc"
    for other in ({}, {"bytes": 3}, {"bytes": b"", "more": b""}, {"other": b""}, {"bytes": bytes(2**22 + 1)}):
        with pytest.raises(NotOurs, match="does not hold one value named 'bytes'"):
            unpack(message(RecordDict({"torso": ConfigRecord(other)})))
    monkeypatch.setattr(payload, "_SMALL", 2)
    assert unpack(message(pack(b"abc"))) == b"abc"
    for change in (
        {"stype": "numpy.ndarray"},
        {"dtype": "int8"},
        {"shape": (4,)},
        {"shape": (3, 1)},
        {"data": b"abcd"},
    ):
        content = pack(b"abc")
        for name, value in change.items():
            setattr(content["torso"]["bytes"], name, value)  # type: ignore[index]
        with pytest.raises(NotOurs, match="not bytes as Torso sends them"):
            unpack(message(content))
    with pytest.raises(NotOurs, match=r"holds the records \[\]"):
        unpack(message(RecordDict()))
    with pytest.raises(NotOurs, match="does not hold one array"):
        unpack(message(RecordDict({"torso": MetricRecord({})})))


def test_who_is_admitted(running: Running, link: FlowerServerLink) -> None:
    found = {one.name: one for one in admitted(running.place)}
    for name, node in numbers(link).items():
        assert (found[name].node, found[name].state) == (node, "online")
        assert found[name].fingerprint == fingerprint(public_key(running.client.key(f"{name}.pub")))
    assert {one.name: one.node for one in read(running.place.nodes)}.items() >= numbers(link).items()


def test_admitting_twice(running: Running) -> None:
    with pytest.raises(RequestError, match=r"this key is admitted already, as 'client-0'"):
        admit(running.place, running.client.key("client-0.pub"), "other")
    with pytest.raises(RequestError, match=r"--name 'client-0' is taken by the key SHA256:"):
        admit(running.place, make_key(running.client, "other"), "client-0")
    with pytest.raises(RequestError, match=r"'client-9' is not admitted; did you mean 'client-"):
        revoke(running.place, "client-9")


def test_a_key_that_is_not_admitted(running: Running) -> None:
    make_key(running.client, "stranger")
    with (
        pytest.raises(RequestError, match=r"the key SHA256:\S+ is not admitted\. Send .*stranger\.pub"),
        FlowerClientLink(running.client, "stranger"),
    ):
        pass
    running.told(f"the key {fingerprint(public_key(running.client.key('stranger.pub')))} is not admitted")


def test_flower_itself_refuses_a_key_that_is_not_admitted(running: Running) -> None:
    """Who skips Torso's question."""
    make_key(running.client, "rude")
    response = post(running, "rude")
    assert response.status_code == 412
    running.told(f"127.0.0.1, {FLEET}activate-node: the key")


def post(running: Running, name: str, **changed: str) -> httpx.Response:
    """A SuperNode's first request."""
    admission_client = admission.AdmissionClient(running.client, own_key(running.client, name))
    public = public_key(running.client.key(f"{name}.pub"))
    body = ActivateNodeRequest(public_key=public, heartbeat_interval=30).SerializeToString()
    headers = {**admission_client._signed(), **changed, "content-type": PROTOBUF_MEDIA_TYPE, **versions()}
    try:
        return admission_client._client.post(
            f"https://{running.place.own_address}{FLEET}activate-node", content=body, headers=headers
        )
    finally:
        admission_client.close()


def versions() -> dict[str, str]:
    from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata

    return dict(RuntimeVersionMetadata.from_local_component("SuperNode").as_metadata())


def test_a_recorded_request_is_worth_nothing_later(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    now = admission.now
    running.admit("recorded")
    monkeypatch.setattr(admission, "now", lambda: now() - timedelta(seconds=400))
    assert post(running, "recorded").status_code == 401
    running.told("s old: a wrong clock, or a request that was recorded and sent again (status 401)")
    with pytest.raises(RequestError, match=r"this machine's differs by 40\d s"), joined(running.client, "recorded"):
        pass
    monkeypatch.undo()
    assert post(running, "recorded", **{"flwr-signature": "AAAA"}).status_code == 401
    running.told("the request carries no signature, or a wrong one (status 401)")


def test_another_clients_name(running: Running, link: FlowerServerLink) -> None:
    """A name goes with a key: another key under the same name is another, and nobody."""
    other = elsewhere(running)
    make_key(other, "client-0")
    with pytest.raises(RequestError, match="is not admitted"), joined(other, "client-0"):
        pass
    assert ask(link, "client-0", b"abc") == b"cba"


def test_two_processes_with_one_key(running: Running, link: FlowerServerLink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_GONE", 0.5)
    monkeypatch.setattr(client, "_AGAIN", 0.1)
    with pytest.raises(RequestError, match=r"of 'client-0' is in use.*one process for each key"):
        FlowerClientLink(running.client, "client-0").__enter__()
    running.told("of 'client-0' is in use")
    assert ask(link, "client-0", b"abc") == b"cba"


def elsewhere(running: Running) -> ClientFolder:
    """The folder `client` on another machine, without keys."""
    copy = running.place.path.parent / f"copy-{time.monotonic_ns()}"
    copy.mkdir()
    for name in ("federation.toml", "ca.crt"):
        shutil.copy(running.client.path / name, copy)
    return ClientFolder.open(copy)


def test_another_authority(running: Running) -> None:
    other = elsewhere(running)
    other.ca.write_bytes(certificates.make(["127.0.0.1"]).authority)
    make_key(other, "a")
    with pytest.raises(RequestError, match=r"does not show a certificate of the authority in .*ca\.crt"):
        FlowerClientLink(other, "a").__enter__()
    running.told("no TLS connection came about")


def test_no_tls_at_all(running: Running) -> None:
    other = elsewhere(running)
    bare = replace(other, settings=other.settings.model_copy(update={"insecure": True}))
    with pytest.raises(RequestError, match="no server answers at 127"):
        FlowerClientLink(bare, "a").__enter__()
    running.told("no TLS connection came about (HTTP_REQUEST)")


def test_no_server(tmp_path: Path) -> None:
    place = init(tmp_path / "fed", "127.0.0.1", free_port())
    mine = ClientFolder.open(place.path)
    public = make_key(mine, "a")
    with pytest.raises(RequestError, match=r"no server answers at 127\.0\.0\.1:\d+ .*Is it running"):
        FlowerClientLink(mine, "a").__enter__()
    for command in (
        lambda: admit(place, public, "a"),
        lambda: revoke(place, "a"),
        lambda: admitted(place),
        lambda: FlowerServerLink(place).__enter__(),
    ):
        with pytest.raises(RequestError, match=r"no server answers at .*Start it with `torso federation serve"):
            command()  # type: ignore[no-untyped-call]


def test_a_revoked_key_is_cut_off(running: Running, link: FlowerServerLink) -> None:
    running.admit("leaver")
    with joined(running.client, "leaver") as leaver:
        assert ask(link, "leaver", b"abc") == b"cba"
        revoke(running.place, "leaver")
        leaver.join(PATIENCE)
        assert isinstance(leaver.error, RequestError)
        assert "of 'leaver' is revoked" in str(leaver.error)
    assert "leaver" not in link.there().values()
    running.told("of 'leaver' is revoked")
    with pytest.raises(RequestError, match=r"is revoked\..*stays revoked"):
        FlowerClientLink(running.client, "leaver").__enter__()
    with pytest.raises(RequestError, match="this key is revoked already"):
        admit(running.place, running.client.key("leaver.pub"), "leaver")


def test_a_client_that_is_killed_in_the_middle(running: Running, link: FlowerServerLink) -> None:
    running.admit("mortal")
    words = [sys.executable, "-m", "tests.federation.wire", str(running.client.path), "mortal"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "connected\n"
        exchange = link.exchange({numbers(link)["mortal"]: b"sleep 300"}, 300)
        threading.Timer(1.0, process.kill).start()
        ((_, found),) = exchange
        assert found == MissingAnswer("its connection is gone")
    finally:
        process.kill()
        process.wait()
    assert "mortal" not in link.there().values()
    with joined(running.client, "mortal"):  # comes back at once
        assert ask(link, "mortal", b"abc") == b"cba"


def test_only_the_operator_commands(running: Running) -> None:
    """From this machine, but without the secret; with the secret everything is open."""
    verify = admission.ssl.create_default_context(cafile=str(running.place.ca))
    with httpx.Client(verify=verify, trust_env=False) as stranger:
        for path in ("/v1/control/list-nodes", "/v1/runtime/acquire-task", "/docs", "/openapi.json", TRAFFIC, "/"):
            for headers in ({}, {SECRET_HEADER: "x" * 64}, {SECRET_HEADER: b"\xff"}):
                response = stranger.post(f"https://{running.place.own_address}{path}", headers=headers)
                assert response.status_code == 403
    running.told("/v1/control/list-nodes: the request does not carry the operator's secret")
    without = ControlHttpClient.from_server_address(running.place.own_address, False, running.place.ca.read_bytes(), [])
    public = public_key(make_key(running.client, "burglar"))
    with without, pytest.raises(httpx.HTTPStatusError, match="403"):
        without.RegisterNode(RegisterNodeRequest(public_key=public, name="burglar"))
    assert "burglar" not in {one.name for one in admitted(running.place)}


def through_gate(path: str, peer: str, **headers: str) -> tuple[int, list[str], list[str]]:
    """Status, lines for the operator, and what reached Flower."""
    printed: list[str] = []
    reached: list[str] = []
    sent: list[dict[str, Any]] = []

    async def flower(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"x"}

    async def send(event: Any) -> None:
        sent.append(event)

    gate = AccessControl(flower, "secret", lambda headers: KeyStatus("unsigned", "no signature"), printed.append)
    given = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "path": path, "client": (peer, 1), "headers": given}
    asyncio.run(gate(scope, receive, send))
    return sent[0]["status"], printed, reached


@pytest.mark.parametrize("peer", ["192.0.2.9", "10.0.0.1", "2001:db8::1", "::ffff:192.0.2.9", "testclient", ""])
def test_nobody_commands_from_elsewhere_even_with_the_secret(peer: str) -> None:
    token = {SECRET_HEADER: operator_token("secret"), "x-forwarded-for": "127.0.0.1", "forwarded": "for=127.0.0.1"}
    for path in ("/v1/control/start-run", "/v1/runtime/acquire-task", TRAFFIC, "/v1/Fleet/x", "/v1/fleet"):
        status, printed, reached = through_gate(path, peer, **token)
        assert (status, reached) == (403, [])
        assert printed == [f"refused: {peer}, {path}: only the server's own machine may command it"]


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.0.0.2", "::1", "::ffff:127.0.0.1"])
def test_the_operator_commands_from_here(peer: str) -> None:
    status, printed, reached = through_gate("/v1/control/start-run", peer, **{SECRET_HEADER: operator_token("secret")})
    assert (status, printed, reached) == (200, [], ["/v1/control/start-run"])


def test_the_fleet_is_open_to_all_but_not_to_any_size() -> None:
    assert through_gate(f"{FLEET}pull-messages", "192.0.2.9")[0] == 200
    for length in (str(LARGEST + 1), "-1", "many"):
        status, printed, reached = through_gate(f"{FLEET}push-object", "192.0.2.9", **{"content-length": length})
        assert (status, reached) == (413, [])
        assert "more than" in printed[0]


def test_a_run_that_was_left_over_is_not_taken_for_ours(running: Running) -> None:
    with control_client(running.place) as server:
        left = server.StartRun(StartRunRequest(fab=Fab(content=_bundle()))).run_id
        with FlowerServerLink(running.place) as link:
            assert link._run != left
            assert ask(link, "client-0", b"abc") == b"cba"
        runs = server.ListRuns(ListRunsRequest()).run_dict
    assert runs[left].status.status == "finished"
    assert (runs[link._run].status.status, runs[link._run].status.sub_status) == ("finished", "completed")


def test_a_run_that_fails_says_so(running: Running) -> None:
    with pytest.raises(ZeroDivisionError), FlowerServerLink(running.place) as link:
        _ = 1 / 0
    with control_client(running.place) as server:
        status = server.ListRuns(ListRunsRequest()).run_dict[link._run].status
    assert (status.sub_status, status.details) == ("failed", "the run ended with ZeroDivisionError")


def test_one_run_at_a_time(running: Running, link: FlowerServerLink) -> None:
    with pytest.raises(InUse, match="another process trains with the clients"):
        FlowerServerLink(running.place).__enter__()


def test_bytes_on_the_wire(running: Running, link: FlowerServerLink) -> None:
    """What Flower adds: below 1 % and 40 kB a client, besides looks while nothing comes."""

    def crossed() -> int:
        return sum(counts.received + counts.sent for path, counts in traffic(running.place).items() if "object" in path)

    data, before = os.urandom(5_000_000), crossed()
    assert ask(link, "client-0", data) == data[::-1]
    assert 10_000_000 < crossed() - before < 10_000_000 * 1.01 + 40_000


def test_no_message_is_written_to_the_servers_disk(running: Running, link: FlowerServerLink) -> None:
    marked = b"a model that must not lie about " * 1000
    assert ask(link, "client-0", marked) == marked[::-1]
    for path in running.place.private.rglob("*"):
        if path.is_file():
            found = path.read_bytes()
            assert marked[:32] not in found
            assert marked[::-1][:32] not in found


def test_a_server_that_is_killed_and_comes_back(tmp_path: Path) -> None:
    found = Running(init(tmp_path / "fed", "127.0.0.1", free_port()))
    printed: list[str] = []
    with ExitStack() as stack:
        with serving(found.place, found.printed.append) as server:
            found.admit("a")
            stack.enter_context(joined(found.client, "a", printed))
            with FlowerServerLink(found.place) as link:
                before = numbers(link)
                assert ask(link, "a", b"abc") == b"cba"
                os.killpg(server.pid, signal.SIGKILL)
                server.wait()
                link._client._retry_invoker.max_time = 1
                with pytest.raises(NoWorkerLeft, match=r"is gone .*torso federation serve"):
                    link.there()
        with serving(found.place, found.printed.append), FlowerServerLink(found.place) as link:
            until(lambda: numbers(link) == before, "the client, with the number that it had")
            # known is not connected: until it has noticed that the server was away, its old connection is gone
            until(lambda: ask(link, "a", b"abc") == b"cba", "its answer")


def test_the_server_ends_with_its_parent(tmp_path: Path) -> None:
    place = init(tmp_path / "fed", "127.0.0.1", free_port())
    code = "import sys; from torso.federation.folder import ServerFolder\n"
    code += "from torso.federation.flower.serve import serve\n"
    code += "serve(ServerFolder.open(sys.argv[1]), lambda line: print(line, flush=True))"
    for number in (signal.SIGKILL, signal.SIGTERM):
        words = [sys.executable, "-c", code, str(place.path)]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
        try:
            assert process.stdout is not None
            assert "TLS and authentication of clients are on" in process.stdout.readline()
            process.send_signal(number)
            process.wait(PATIENCE)
        finally:
            process.kill()
            process.wait()
        until(lambda: not listening(place), "the port is free")


def listening(place: ServerFolder) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", place.settings.port)) == 0


def test_a_port_that_is_taken(running: Running) -> None:
    with pytest.raises(
        RequestError, match=r"port = \d+ in .*server\.toml' cannot be listened on: Address already in use"
    ):
        serving(running.place, print).__enter__()


def test_a_file_of_keys_that_is_broken(tmp_path: Path) -> None:
    place = init(tmp_path / "fed", "127.0.0.1", free_port())
    place.nodes.write_text('[{"name": "a", "node": "x"}]')
    with pytest.raises(RequestError, match=r"admitted\.json': 0\.node is not what the server has written"):
        serving(place, print).__enter__()


def test_insecure_is_said_in_red_and_works(tmp_path: Path) -> None:
    found = Running(init(tmp_path / "fed", "127.0.0.1", free_port(), insecure=True))
    with serving(found.place, found.printed.append):
        assert "[bold red]INSECURE: no TLS, no authentication" in found.printed[0]
        with joined(found.client, "a"), FlowerServerLink(found.place) as link:
            until(link.there, "the client")
            ((node, name),) = link.there().items()
            assert name == ""
            assert list(link.exchange({node: b"abc"}, PATIENCE)) == [(node, b"cba")]
            with pytest.raises(RequestError, match="made with --insecure"):
                admit(found.place, make_key(found.client, "a"), "a")
        with FlowerServerLink(found.place) as link:
            assert link.there() == {}, "who leaves in order is gone at once"


def test_a_child_takes_nobody_along() -> None:
    """`stop` of one that has ended already, or has never been a leader, does no harm."""
    process = subprocess.Popen([sys.executable, "-c", ""], text=True, start_new_session=True)
    process.wait()
    children.stop(process)
