"""A body that never learns, as a function of stored samples. n samples, d features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from torso.errors import RequestError
from torso.learn.features import features_of
from torso.nets import Network, Tensors

_BATCH = 64


@dataclass(frozen=True, eq=False)
class Encoder:
    """It is held once, however many networks stand on it."""

    net: Network  # whose body it is; nobody asks the head
    tensors: Tensors
    digest: str

    def __call__(self, stored: Tensor) -> Tensor:
        """Features [n, d] of samples [n, *] as their kind stores them, as evaluation computes them."""
        kind = self.net.input
        assert kind is not None
        held = {name: tensor.to(stored.device) for name, tensor in self.tensors.items()}
        return features_of(self.net, held, stored, kind.lens(stored.device), _BATCH)

    @property
    def features(self) -> int:
        return self.net.body.features

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


def check_features(found: Tensor, name: str) -> Tensor:
    """Features of an encoder, which are numbers."""
    if not found.isfinite().all():
        raise RequestError(f"model.encoder = {name!r} makes features that are not finite (NaN). Give other weights")
    return found
