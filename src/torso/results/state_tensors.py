"""Converts a run's state to the named tensors of a checkpoint, and back.

Tensors of the server are named `KIND/NAME` or `KIND/CLIENT/NAME`, those of a client `client K/KIND/NAME`.
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
from torso.personal.store import KINDS, ClientState, StateHandle, Store
from torso.results.pending import PENDING, read_pending, tensors_of
from torso.server.state import Cost, ServerState

_SERVER = ("model", "shown", "rule", "drift", "origin", "privacy", "statistics")  # fields of ServerState: name → tensor
_BY_CLIENT = ("uploads", "of_clients")  # fields of ServerState: client → name → tensor
_RENAMED = {"scores": "of_clients"}  # kinds that had another name in older versions
_FREE = ("rule", "statistics", "of_clients", "notes", "privacy", "")  # kinds with any names and shapes: not checked


def server_tensors(state: State) -> Tensors:
    """The state of the server and the unfinished visits, as named tensors."""
    return _for_file({**_of_server(state.server), **tensors_of(state.pending)})


def client_tensors(clients: Mapping[int, ClientState]) -> Tensors:
    """The states of some clients, as named tensors."""
    named: Tensors = {}
    for client, state in clients.items():
        for kind in KINDS:
            named |= {f"client {client}/{kind}/{name}": tensor for name, tensor in getattr(state, kind).items()}
    return _for_file(named)


def state_of(tensors: Tensors, note: Mapping[str, Any], model: Tensors, where: str) -> State:
    """The state of a checkpoint, on the device of `model`, whose names and shapes it must have.

    `note` is the checkpoint's JSON; `where` is how messages call the checkpoint."""
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
    """The tensors on the CPU, none of which shares memory with another.

    safetensors refuses shared memory. It occurs, for example, if a model has not changed since its start."""
    seen: set[int] = set()
    separate: Tensors = {}
    for name, tensor in named.items():
        plain = tensor.detach().cpu().contiguous()
        separate[name] = plain.clone() if plain.data_ptr() in seen else plain
        seen.add(plain.data_ptr())
    return separate


def renamed_tensors(tensors: Tensors, uploads: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a checkpoint of format 1, by today's names. `uploads`: whether the server kept the uploads."""
    for name, tensor in tensors.items():
        kind, _, rest = name.partition("/")
        client, _, leaf = rest.partition("/")
        if kind == "private":
            yield f"client {client}/kept/{leaf}", tensor
            if uploads:
                yield f"uploads/{client}/{leaf}", tensor
        elif kind == "notes" and leaf == "affinity":  # the server keeps it now
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
        if kind in _BY_CLIENT:
            client, _, rest = rest.partition("/")
            target = held[kind].setdefault(int(client), {})
        else:
            target = found[kind]
        target[rest] = _placed(kind, rest, tensor, model, where)
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
        owner, _, rest = name.partition("/")
        if owner.startswith("client "):
            kind, _, leaf = rest.partition("/")
            state = held.setdefault(int(owner.removeprefix("client ")), {each: {} for each in KINDS})
            state[kind][leaf] = _placed(kind, leaf, tensor, model, where)
    entries: dict[int, ClientState | StateHandle] = {client: ClientState(**kinds) for client, kinds in held.items()}
    return Store(entries)


def _placed(kind: str, name: str, tensor: torch.Tensor, model: Tensors, where: str) -> torch.Tensor:
    """A tensor of a file, on the run's device, after a check that it fits.

    It is copied into aligned memory: the rounding of sums depends on the alignment, and a file's memory has none."""
    if kind not in _FREE:
        check_fits(name, tensor, model, where)
    return tensor.to(next(iter(model.values())).device, copy=True)


def check_fits(name: str, tensor: torch.Tensor, model: Tensors, where: str, instead: str = "") -> None:
    """Raise RequestError if the network has no tensor of this name, shape and dtype. `instead`: advice for the user."""
    if name not in model:
        raise RequestError(f"{where} holds {name}, which this network does not have. {instead}".rstrip())
    if tensor.shape != model[name].shape or tensor.dtype != model[name].dtype:
        raise RequestError(
            f"{where}: {name} is {tensor.dtype} {list(tensor.shape)}, "
            f"this network's is {model[name].dtype} {list(model[name].shape)}. {instead}".rstrip()
        )
