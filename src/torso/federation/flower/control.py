"""Admits and revokes the keys of clients, through the Control API of the running server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, UnregisterNodeRequest
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.constant import NodeStatus

from torso.errors import RequestError, did_you_mean
from torso.federation.flower.access_control import TRAFFIC, Traffic
from torso.federation.flower.calls import control_client, get_json, readable_errors
from torso.federation.folder import ServerFolder
from torso.federation.keys import check_name, fingerprint, public_key


@dataclass(frozen=True)
class Admitted:
    """A client whose key is admitted."""

    name: str
    node: int  # Flower's number of the client
    state: str  # registered (never connected yet), online, offline
    since: str  # time of the last change of state, as ISO 8601 in UTC
    fingerprint: str  # of its key


def admit(place: ServerFolder, public_key_file: str | Path, name: str) -> Admitted:
    """Admit a public key under a name: the owner of the private key may connect."""
    check_name(name)
    public = public_key(Path(public_key_file))
    _needs_authentication(place)
    for node in _nodes(place):
        if node.public_key == public:
            state = "revoked" if node.status == NodeStatus.UNREGISTERED else "admitted"
            hint = "A revoked key stays revoked: make a new one." if state == "revoked" else "Nothing is to be done."
            raise RequestError(f"{str(public_key_file)!r}: this key is {state} already, as {node.name!r}. {hint}")
        if node.name == name and node.status != NodeStatus.UNREGISTERED:
            raise RequestError(
                f"--name {name!r} is taken by the key {fingerprint(node.public_key)}. Give another name, or take that "
                f"key's admission back with `torso federation revoke {place.path} {name}`"
            )
    with readable_errors(place), control_client(place) as server:
        try:
            number = server.RegisterNode(RegisterNodeRequest(public_key=public, name=name)).node_id
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.PRECONDITION_FAILED:
                raise
            raise RequestError(f"{str(public_key_file)!r}: this key has been admitted in the meantime.") from None
    return next(found for found in admitted(place) if found.node == number)


def revoke(place: ServerFolder, name: str) -> None:
    """Revoke the key of a client. If the client is connected, its next request is refused."""
    _needs_authentication(place)
    known = {found.name: found.node for found in admitted(place)}
    if name not in known:
        listed = ", ".join(sorted(known)) or "nobody is admitted"
        raise RequestError(f"{name!r} is not admitted{did_you_mean(name, known)} Admitted: {listed}")
    with readable_errors(place), control_client(place) as server:
        server.UnregisterNode(UnregisterNodeRequest(node_id=known[name]))


def admitted(place: ServerFolder) -> list[Admitted]:
    """The admitted clients, sorted by name. In an insecure federation: all that have connected, without names."""
    found = [_admitted(node) for node in _nodes(place) if node.status != NodeStatus.UNREGISTERED]
    return sorted(found, key=lambda one: (one.name, one.node))


def traffic(place: ServerFolder) -> dict[str, Traffic]:
    """The traffic with clients since the server was started, by path of the request."""
    return {path: Traffic(**counts) for path, counts in get_json(place, TRAFFIC).items()}


def _nodes(place: ServerFolder) -> Sequence[NodeInfo]:
    with readable_errors(place), control_client(place) as server:
        return list(server.ListNodes(ListNodesRequest()).nodes_info)


def _admitted(node: NodeInfo) -> Admitted:
    since = {NodeStatus.ONLINE: node.last_activated_at, NodeStatus.OFFLINE: node.last_deactivated_at}
    return Admitted(
        node.name, node.node_id, node.status, since.get(node.status) or node.registered_at, fingerprint(node.public_key)
    )


def _needs_authentication(place: ServerFolder) -> None:
    if place.insecure:
        raise RequestError(
            f"{str(place.path)!r} was made with --insecure: every client may join, so none is admitted or revoked. "
            "Make a federation without it."
        )
