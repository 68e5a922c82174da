"""Keeps the admitted keys in a file, so that they survive a restart of the server.

All other state of Flower is in memory. With Flower's database a message takes three times as long, and models that pass
through would be written to the disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from flwr.common.constant import HEARTBEAT_PATIENCE
from flwr.proto.node_pb2 import NodeInfo
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState
from flwr.supercore.constant import NodeStatus
from flwr.supercore.date import now
from flwr.supercore.object_store import ObjectStoreFactory
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from torso.errors import RequestError


class Known(BaseModel):
    """A key in the file. Keys are never removed, so that a revoked one stays revoked."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    node: int  # Flower's number of the client
    owner: str
    public_key: str
    registered_at: str  # this and the next two: ISO 8601, "" if it has not happened
    last_deactivated_at: str = ""
    revoked_at: str = ""


_FILE = TypeAdapter(list[Known])


def read(path: Path) -> list[Known]:
    """The keys in the file; none if there is no file."""
    try:
        return _FILE.validate_json(path.read_bytes()) if path.exists() else []
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"]) or "the file"
        raise RequestError(f"{str(path)!r}: {where} is not what the server has written: {first['msg']}") from None
    except OSError as error:
        raise RequestError(f"{str(path)!r} cannot be read: {error}") from None


def write(path: Path, known: list[Known]) -> None:
    """Replace the file atomically; only its owner can read it."""
    temporary = path.with_suffix(".new")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(_FILE.dump_json(known, indent=1))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


class PersistentNodes(InMemoryLinkState):
    """Flower's in-memory state, with nodes that are read from a file and written to it after every change."""

    def __init__(self, path: Path, manager: Any, objects: Any) -> None:
        super().__init__(manager, objects)
        self._path = path
        for one in read(path):
            self._restore(one)

    def create_node(self, *args: Any, **kwargs: Any) -> int:
        with self.lock:
            number = super().create_node(*args, **kwargs)
            self._write()
            return number

    def delete_node(self, *args: Any, **kwargs: Any) -> None:
        with self.lock:
            super().delete_node(*args, **kwargs)
            self._write()

    def get_node_id_by_public_key(self, public_key: bytes) -> int | None:
        """As Flower's. It is called at every signed request, so it also counts as a heartbeat of the node.

        On a busy machine the heartbeats themselves may be late."""
        with self.lock:
            number = super().get_node_id_by_public_key(public_key)
            node = self.nodes.get(number) if number is not None else None
            if node is not None and node.status == NodeStatus.ONLINE:
                until = now().timestamp() + HEARTBEAT_PATIENCE * node.heartbeat_interval
                node.online_until = max(node.online_until, until)
            return number

    def _restore(self, one: Known) -> None:
        """Add a node of the file as offline: if it is still connected, its next heartbeat comes within seconds."""
        status = NodeStatus.OFFLINE if one.last_deactivated_at else NodeStatus.REGISTERED
        self.nodes[one.node] = NodeInfo(
            node_id=one.node,
            owner_aid=one.owner,
            owner_name=one.owner,
            status=NodeStatus.UNREGISTERED if one.revoked_at else status,
            registered_at=one.registered_at,
            last_deactivated_at=one.last_deactivated_at,
            unregistered_at=one.revoked_at,
            public_key=one.public_key.encode("ascii"),
            name=one.name,
        )
        self.node_public_key_to_node_id[one.public_key.encode("ascii")] = one.node
        self.owner_to_node_ids.setdefault(one.owner, set()).add(one.node)

    def _write(self) -> None:
        write(self._path, [_known(node) for node in self.nodes.values() if node.name])


def _known(node: NodeInfo) -> Known:
    return Known(
        name=node.name,
        node=node.node_id,
        owner=node.owner_aid,
        public_key=node.public_key.decode("ascii"),
        registered_at=node.registered_at,
        last_deactivated_at=node.last_deactivated_at or node.last_activated_at,
        revoked_at=node.unregistered_at,
    )


def persist_nodes_in(path: Path) -> None:
    """Make Flower's server use `PersistentNodes` with this file; call it before the server is created."""
    import flwr.superlink.main as app

    if not hasattr(app, "get_objectstore_linkstate_factories"):
        raise SystemExit("this version of Flower makes its state elsewhere: Torso does not know it yet")

    def stores(database: str, manager: Any) -> tuple[ObjectStoreFactory, LinkStateFactory]:
        objects = ObjectStoreFactory()
        factory = LinkStateFactory(database, manager, objects)
        factory.state_instance = PersistentNodes(path, manager, objects.store())
        return objects, factory

    app.get_objectstore_linkstate_factories = stores
