"""How many samples of each class there are: at clients, which have to be asked, and in the server's test set."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torso.engine import SERVER, Engine, Workspace


class ClassCounts:
    """Work: training samples of each class, of G clients [G, C]."""

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> Tensor:
        return workspace.train_deck(clients).class_counts(workspace.context.classes).cpu()


class TestCounts:
    """Work: samples of each class in the whole test set [C]; the server's, whoever looks."""

    __test__ = False  # no test, whatever pytest thinks of the name

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> Tensor:
        return torch.bincount(workspace.federation.test.labels, minlength=workspace.context.classes).cpu()


def class_counts_of(engine: Engine, clients: Sequence[int]) -> Tensor:
    """Training samples per client and class, int64 [n, C]."""
    return torch.cat(list(engine.map(ClassCounts(), clients)))


def test_counts_of(engine: Engine) -> Tensor:
    """Samples of each class in the server's test set, int64 [C]."""
    (counts,) = engine.map(TestCounts(), [SERVER])
    return counts


test_counts_of.__test__ = False  # type: ignore[attr-defined]
