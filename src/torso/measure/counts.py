"""Class counts: those of clients, which the engine asks for, and those of the server's test set."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torso.engine import SERVER, Engine, Workspace


class ClassCounts:
    """Work: the numbers of training samples of each class, for G clients [G, C]."""

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> Tensor:
        return workspace.train_deck(clients).class_counts(workspace.context.classes).cpu()


class TestCounts:
    """Work: the numbers of samples of each class in the server's test set [C]."""

    __test__ = False  # tells pytest that this is no test

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> Tensor:
        return torch.bincount(workspace.federation.test.labels, minlength=workspace.context.classes).cpu()


def class_counts_of(engine: Engine, clients: Sequence[int]) -> Tensor:
    """Training samples of n clients by class, int64 [n, C]."""
    return torch.cat(list(engine.map(ClassCounts(), clients)))


def test_counts_of(engine: Engine) -> Tensor:
    """Samples in the server's test set by class, int64 [C]."""
    (counts,) = engine.map(TestCounts(), [SERVER])
    return counts


test_counts_of.__test__ = False  # type: ignore[attr-defined]
