"""A worker of the cluster: the data and the network once, an ordinary engine, the tensors it has been sent or made."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import torch
from ray import cloudpickle

from torso.data import Federation
from torso.engine.base import Sums, engines
from torso.engine.parcels import Cargo, Label, Numbered, Parcel, read, write
from torso.registry import guests, welcome

if TYPE_CHECKING:
    from torso.config import RunConfig


@dataclass(frozen=True)
class Home:
    """What a process has to know of the driver's: where it stands, its modules, what others have registered."""

    folder: str
    path: tuple[str, ...]
    things: bytes

    @classmethod
    def here(cls) -> Home:
        return cls(os.getcwd(), tuple(sys.path), cloudpickle.dumps(guests()))

    def move_in(self) -> None:
        if os.path.isdir(self.folder):
            os.chdir(self.folder)
        sys.path += [folder for folder in self.path if folder not in sys.path]
        welcome(cloudpickle.loads(self.things))


class Worker:
    """`number` is its own: no other worker, nor the one that it replaces, makes the same labels."""

    def __init__(self, number: int, home: Home, net: bytes, data: Parcel, run: RunConfig, device: str) -> None:
        home.move_in()
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
