"""What Torso changes inside Flower: each change is still where Flower has what it changes, and does what it is for."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra flower is not installed")

from flwr.app import Message
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supernode import start_client_internal
from flwr.supernode.nodestate import NodeStateFactory

from torso.federation.flower import patches
from torso.federation.flower.client import RetryingRuntime
from torso.federation.flower.payload import KIND, pack

PATIENCE = 120.0


def test_flower_waits_where_we_think_it_does() -> None:
    """Fails when Flower has changed there: look at `patches`, measure, and change the list."""
    code = "from torso.federation.flower.patches import *; assert quicken() == [], quicken()\n"
    code += "assert give_up_what_has_ended()\n"
    code += "import flwr.supernode.start_client_internal as loop; assert isinstance(loop.time, ShorterSleeps)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)


def test_naps(monkeypatch: pytest.MonkeyPatch) -> None:
    """They grow with the time that nothing has come, up to what Flower sleeps, and are short again after a message."""
    clock, slept = [100.0], []

    class Time:
        monotonic = staticmethod(lambda: clock[0])
        strftime = staticmethod(lambda: "as before")

        @staticmethod
        def sleep(seconds: float) -> None:
            slept.append(seconds)
            clock[0] += seconds

    monkeypatch.setattr(patches, "time", Time)
    sleeps = patches.ShorterSleeps()
    assert sleeps.strftime() == "as before"
    for _ in range(300):
        sleeps.sleep(3)
    assert slept[0] == patches.SHORTEST_AWAY
    assert slept == sorted(slept)
    assert slept[-1] == 3
    sleeps.sleep(0.5)
    sleeps.sleep(3)
    assert slept[-2:] == [patches.SHORTEST, patches.SHORTEST_AWAY]


def _message(run: int) -> Message:
    found = make_message(
        Metadata(
            run_id=run,
            message_id="",
            src_node_id=1,
            dst_node_id=2,
            reply_to_message_id="",
            group_id="",
            created_at=0.0,
            ttl=60.0,
            message_type=KIND,
        ),
        pack(b"abc"),
    )
    found.metadata.__dict__["_message_id"] = found.object_id
    return found


@pytest.mark.parametrize("ends", ["while a part is asked for", "before the last word", "never"])
def test_a_message_of_a_run_that_ends_is_given_up(ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is left, and its task is over, although the client may have answered already."""
    name = "_pull_and_store_message"
    monkeypatch.setattr(start_client_internal, name, getattr(start_client_internal, name))  # undone at the end
    assert patches.give_up_what_has_ended()
    stores = ObjectStoreFactory()
    state, store = NodeStateFactory(stores).state(), stores.store()
    state.set_node_id(2)
    state.store_run(Run.create_empty(7))
    message = _message(7)
    parts = {number: part.deflate() for number, part in get_all_nested_objects(message).items()}

    def pull_object(run: int, number: str) -> bytes:
        if ends == "while a part is asked for":
            raise RunNotRunningException
        return parts[number]

    def confirm(run: int, number: str) -> None:
        answer = Message(pack(b"cba"), reply_to=message)
        answer.metadata.__dict__["_message_id"] = answer.object_id
        state.store_message(answer)
        if ends == "before the last word":
            raise RunNotRunningException

    others: dict[str, Any] = {"node_config": {}, "trusted_entities": None, "get_run": None, "get_fab": None}
    found = start_client_internal._pull_and_store_message(
        state=state,
        object_store=store,
        receive=lambda: (message, get_object_tree(message)),
        pull_object=pull_object,
        confirm_message_received=confirm,
        **others,
    )
    answers = state.get_messages_legacy(is_reply=True)
    (task,) = state.get_tasks(run_ids=[7])
    if ends == "never":
        assert found == 7
        assert len(answers) == 1
        assert task.status.status != "finished"
    else:
        assert found is None
        assert not answers
        assert len(store) == 0
        assert task.status.status == "finished"


@pytest.mark.parametrize("late", [0, 3, None])
def test_a_message_that_is_stored_a_moment_after_its_task_is_waited_for(late: int | None) -> None:
    """`None`: it never comes, and Flower says so."""
    asked: list[str] = []

    class Api:
        other = "as before"

        def PullMessages(self, request: str) -> PullAppMessagesResponse:
            asked.append(request)
            there = late is not None and len(asked) > late
            return PullAppMessagesResponse(messages_list=[ProtoMessage()] if there else [])

    found = RetryingRuntime(Api(), seconds=0.2 if late is None else PATIENCE).PullMessages("the request")
    assert len(found.messages_list) == (late is not None)
    assert asked == ["the request"] * (len(asked) if late is None else late + 1)
    assert RetryingRuntime(Api()).other == "as before"
