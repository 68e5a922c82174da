"""A worker of the cluster: the data and the network once, an ordinary engine, the tensors it has been sent or made."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING

import torch
from ray import cloudpickle

from torso.data import Federation
from torso.engine.base import Sums, engines
from torso.engine.parcels import Cargo, Label, Numbered, Parcel, read, write
from torso.registry import welcome

if TYPE_CHECKING:
    from torso.config import RunConfig


def move_in(path: Sequence[str], things: bytes) -> None:
    """Make this process know the modules and the registered things that the driver knows."""
    sys.path += [folder for folder in path if folder not in sys.path]
    welcome(cloudpickle.loads(things))


class Worker:
    """`number` is its own: no other worker, nor the one that it replaces, makes the same labels."""

    def __init__(
        self, number: int, path: Sequence[str], things: bytes, net: bytes, data: Parcel, run: RunConfig, device: str
    ) -> None:
        move_in(path, things)
        where = torch.device(device)
        # on CPU the images stay in the object store: workers of one machine share them
        federation: Federation = read(data.text, {}, data.cargo.unload(where, copy=False))
        network = cloudpickle.loads(net)
        self.engine = engines["auto"](network, federation, run).__enter__()
        self.held = {"federation": federation, "net": network, "engine": self.engine}
        self.number, self.numbers, self.device = number, count(), where
        self.shelf: dict[Label, torch.Tensor] = {}

    def hello(self) -> tuple[int, str]:
        return os.getpid(), socket.gethostname()

    def do(self, parcel: Parcel, common: Cargo) -> Parcel:
        """The results of some clients, merged into one where the work can."""
        for label in parcel.gone:
            self.shelf.pop(label, None)
        for cargo in (common, parcel.cargo):
            self.shelf |= cargo.unload(self.device)
        work, clients = read(parcel.text, self.held, self.shelf)
        arriving = self.engine.map(work, clients)
        results = [work.merged(arriving)] if isinstance(work, Sums) else list(arriving)
        text, made = write(results, self.held, Numbered(self.number, self.numbers))
        self.shelf |= made
        return Parcel(text, Cargo.of(made))
