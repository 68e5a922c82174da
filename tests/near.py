"""When two runs are the same but for rounding."""

from __future__ import annotations

from torso import Result
from torso.methods import methods
from torso.nets import Tensors
from torso.personal.store import KINDS


def body_for(name: str) -> str:
    """The smallest body that a method can use: FedBN needs one with normalisation layers."""
    return "conv3" if "norm" in methods[name].share.part else "mlp"


def far(one: Tensors, other: Tensors) -> float:
    """The largest difference of a tensor, relative to its norm."""
    assert one.keys() == other.keys()
    return max(
        (float((one[n].double() - other[n].double()).norm() / one[n].double().norm().clamp(min=1e-3)) for n in one),
        default=0.0,
    )


def assert_states_near(one: Result, other: Result, model: float, kept: float) -> None:
    """The model, what clients keep, what the server knows of each, and what was spent.

    `model` and `kept` bound the differences."""
    assert one.status == other.status
    assert one.state is not None
    assert other.state is not None
    assert far(one.state.model, other.state.model) < model
    assert far(one.state.server.statistics, other.state.server.statistics) < kept
    kinds = [(one.state.clients.of_kind(kind), other.state.clients.of_kind(kind)) for kind in KINDS]
    kinds += [
        (getattr(one.state.server, kind), getattr(other.state.server, kind)) for kind in ("uploads", "of_clients")
    ]
    for mine, theirs in kinds:
        assert mine.keys() == theirs.keys()
        assert all(far(mine[client], theirs[client]) < kept for client in mine)
    assert one.cost == other.cost
