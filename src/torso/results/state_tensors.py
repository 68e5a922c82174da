"""A run's state as tensors by name, as checkpoints hold them, and back.

What the server holds is `KIND/NAME`, or `KIND/CLIENT/NAME`; what a client holds is `client K/KIND/NAME`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch

from torso.errors import RequestError
from torso.many import ClientSet
from torso.nets import Tensors
from torso.personal.state import State
from torso.personal.store import KINDS, ClientState, Elsewhere, Store
from torso.results.pending import PENDING, read_pending, tensors_of
from torso.server.state import Cost, ServerState

_SERVER = ("model", "shown", "rule", "drift", "origin", "privacy", "statistics")  # of ServerState: tensors by name …
_BY_CLIENT = ("uploads", "of_clients")  # … and those by client and name
_RENAMED = {"scores": "of_clients"}  # in files of older versions
_FREE = ("rule", "statistics", "of_clients", "notes", "privacy", "")  # named and shaped as a strategy likes


def server_tensors(state: State) -> Tensors:
    """What the server holds, and uploads that are still to come."""
    return _for_file({**_of_server(state.server), **tensors_of(state.pending)})


def client_tensors(clients: Mapping[int, ClientState]) -> Tensors:
    """What some clients hold."""
    return _for_file(
        {
            f"client {client}/{kind}/{n}": t
            for client, state in clients.items()
            for kind in KINDS
            for n, t in getattr(state, kind).items()
        }
    )


def state_of(tensors: Tensors, note: Mapping[str, Any], model: Tensors, where: str) -> State:
    """The state again, on the device of `model`, which says what tensors there must be; `note`: its numbers."""
    server = _server_of(tensors, model, note, where)
    placed = partial(_placed, model=model, where=where)
    return State(server, _clients_of(tensors, model, where), read_pending(tensors, note.get("pending", ()), placed))


def _of_server(server: ServerState) -> Tensors:
    named = {f"{kind}/{n}": t for kind in _SERVER for n, t in getattr(server, kind).items()}
    for kind in _BY_CLIENT:
        held: Mapping[int, Tensors] = getattr(server, kind)
        named |= {f"{kind}/{client}/{n}": t for client, own in held.items() for n, t in own.items()}
    return named


def _for_file(named: Tensors) -> Tensors:
    """safetensors refuses two names for one piece of memory (a model that has not moved from where it began)."""
    met: set[int] = set()
    alone: Tensors = {}
    for name, tensor in named.items():
        plain = tensor.detach().cpu().contiguous()
        alone[name] = plain.clone() if plain.data_ptr() in met else plain
        met.add(plain.data_ptr())
    return alone


def as_named_now(tensors: Tensors, uploads: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of an older checkpoint by the names of today; `uploads`: whether the server kept those of clients."""
    for name, tensor in tensors.items():
        kind, _, rest = name.partition("/")
        client, _, leaf = rest.partition("/")
        if kind == "private":
            yield f"client {client}/kept/{leaf}", tensor
            if uploads:
                yield f"uploads/{client}/{leaf}", tensor
        elif kind == "notes" and leaf == "affinity":  # the server's now
            yield f"of_clients/{client}/{leaf}", tensor
        elif kind in KINDS:
            yield f"client {client}/{kind}/{leaf}", tensor
        else:
            yield name, tensor


def _server_of(tensors: Tensors, model: Tensors, note: Mapping[str, Any], where: str) -> ServerState:
    found: dict[str, Tensors] = {kind: {} for kind in _SERVER}
    held: dict[str, dict[int, Tensors]] = {kind: {} for kind in _BY_CLIENT}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition("/")
        if kind.startswith("client ") or kind == PENDING:
            continue
        kind = _RENAMED.get(kind, kind)
        client, _, rest = rest.partition("/") if kind in _BY_CLIENT else ("", "", rest)
        place = held[kind].setdefault(int(client), {}) if kind in _BY_CLIENT else found[kind]
        place[rest] = _placed(kind, rest, tensor, model, where)
    missing = model.keys() - found["model"].keys()
    if missing:
        raise RequestError(f"{where} lacks {', '.join(sorted(missing))}, which this network has.")
    found["model"] = {name: found["model"][name] for name in model}
    return ServerState(
        **found,  # type: ignore[arg-type]
        **held,  # type: ignore[arg-type]
        round=note["round"],
        met=ClientSet(note["met"]),
        cost=Cost(**note["cost"]),
    )


def _clients_of(tensors: Tensors, model: Tensors, where: str) -> Store:
    held: dict[int, dict[str, Tensors]] = {}
    for name, tensor in tensors.items():
        whose, _, rest = name.partition("/")
        if whose.startswith("client "):
            kind, _, leaf = rest.partition("/")
            mine = held.setdefault(int(whose.removeprefix("client ")), {each: {} for each in KINDS})
            mine[kind][leaf] = _placed(kind, leaf, tensor, model, where)
    entries: dict[int, ClientState | Elsewhere] = {client: ClientState(**kinds) for client, kinds in held.items()}
    return Store(entries)


def _placed(kind: str, name: str, tensor: torch.Tensor, model: Tensors, where: str) -> torch.Tensor:
    """A tensor of a file where the run's are; in aligned memory, since sums over a file's depend on where it lies."""
    if kind not in _FREE:
        check_fits(name, tensor, model, where)
    return tensor.to(next(iter(model.values())).device, copy=True)


def check_fits(name: str, tensor: torch.Tensor, model: Tensors, where: str, instead: str = "") -> None:
    """Refuse a tensor that the network has no place for; `instead` says what would do."""
    if name not in model:
        raise RequestError(f"{where} holds {name}, which this network does not have. {instead}".rstrip())
    if tensor.shape != model[name].shape or tensor.dtype != model[name].dtype:
        raise RequestError(
            f"{where}: {name} is {tensor.dtype} {list(tensor.shape)}, "
            f"this network's is {model[name].dtype} {list(model[name].shape)}. {instead}".rstrip()
        )
