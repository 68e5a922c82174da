"""Parts that tests register with the driver alone: workers must learn of them, and some die of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from torso.engine import Workspace
from torso.errors import RunFailed
from torso.measure.base import Evaluation
from torso.nets import Tensors
from torso.personal import Personal, VisitStart


@dataclass(frozen=True)
class Mortal(Personal):
    """In round 2 the process that trains `client` is killed (SIGKILL) in mid-visit, as often as `folder` has files."""

    folder: str = ""
    client: int = 0

    def before(self, at: VisitStart) -> tuple[Tensors, Tensors]:
        lives = sorted(Path(self.folder).iterdir()) if self.folder else []
        if lives and at.task.shuffle.round == 2 and self.client in at.task.deck.clients:
            lives[0].unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().before(at)


@dataclass(frozen=True)
class Poison(Personal):
    """As often as `folder` has files, a process breaks its accelerator, which does nothing more until it ends."""

    folder: str = ""

    def before(self, at: VisitStart) -> tuple[Tensors, Tensors]:
        import torch

        def broken() -> None:
            raise RuntimeError("an illegal memory access was encountered")

        lives = sorted(Path(self.folder).iterdir()) if self.folder else []
        if lives:
            lives[0].unlink()
            torch.cuda.is_initialized = lambda: True
            torch.cuda.synchronize = broken  # type: ignore[assignment]
            broken()
        return super().before(at)


@dataclass(frozen=True)
class Hungry(Personal):
    """In round 2 the device has no memory left for client 0, as often as `folder` has files."""

    folder: str = ""

    def before(self, at: VisitStart) -> tuple[Tensors, Tensors]:
        import torch

        lives = sorted(Path(self.folder).iterdir()) if self.folder else []
        if lives and at.task.shuffle.round == 2 and 0 in at.task.deck.clients:
            lives[0].unlink()
            raise torch.OutOfMemoryError("made up")
        return super().before(at)


@dataclass(frozen=True)
class Weak(Personal):
    """Fails in its own words."""

    def before(self, at: VisitStart) -> tuple[Tensors, Tensors]:
        raise RunFailed("too weak to visit")


def number(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> dict[str, Tensor]:
    """The number of a client's training samples, as a measure that only the driver has registered."""
    import torch

    return {"number": torch.tensor([float(n) for n in workspace.federation.train.sizes_of(clients)])}
