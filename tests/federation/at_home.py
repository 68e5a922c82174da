"""A federation without a network: every client is a `ClientService`, and only bytes go to it and come back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Self

import torch

from torso.config import Config
from torso.data.images import Images
from torso.data.inputs import known
from torso.federation.client_service import ClientService
from torso.federation.protocol import Request, RequestHeader
from torso.federation.site_data import SiteData
from torso.federation.transport import MissingAnswer
from torso.runs.job import Simulation, simulate

CPU = torch.device("cpu")
Lost = Callable[[str, RequestHeader], str]
"""(client, what it is asked) → "" or where the request is lost: on the way there, or the reply on its way back."""


class Wire:
    """`lost` says which requests and replies do not arrive, `absent` who is not there at the moment."""

    def __init__(self, homes: Mapping[str, ClientService], lost: Lost = lambda *_: "") -> None:
        self.homes, self.lost = dict(homes), lost
        self.absent: set[str] = set()
        self.asked: list[tuple[str, RequestHeader]] = []
        self.sent = self.received = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None: ...

    def there(self) -> dict[int, str]:
        return {node: name for node, name in enumerate(self.homes, start=100) if name not in self.absent}

    def exchange(self, messages: Mapping[int, bytes], seconds: float) -> Iterator[tuple[int, bytes | MissingAnswer]]:
        there = self.there()
        for node, data in reversed(messages.items()):  # replies come in any order
            name, header = there[node], Request.decode(data).header
            self.asked.append((name, header))
            where = self.lost(name, header)
            if where != "there":
                self.sent += len(data)
                answer = self.homes[name].answer(data)
                self.received += len(answer)
            yield node, MissingAnswer(f"lost {where}") if where else answer


def site_data(task: Simulation, client: int) -> SiteData:
    """What one client of a simulation has."""
    parts = []
    for split in (task.federation.train, task.federation.test):
        rows = split.rows(client)
        parts.append(Images(split.samples[rows].numpy(), split.labels[rows].numpy()))
    classes = tuple(map(str, range(task.federation.classes)))
    return SiteData(*parts, classes, known(task.federation.input), task.federation.augment, task.federation.name)


def homes_of(config: Config, folder: Path) -> dict[str, ClientService]:
    """The clients of a simulated run, each at home."""
    task = simulate(config)
    return {
        name: ClientService(name, site_data(task, client), folder / name, CPU, say=lambda _: None)
        for client, name in ((k, f"client-{k}") for k in range(task.roster.clients))
    }
