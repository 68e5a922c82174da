"""A frozen body as a function from stored samples to features. n samples, d features."""

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
    """A frozen body with its weights. All networks on top of it share one copy."""

    net: Network  # its head is not used
    tensors: Tensors
    digest: str

    def __call__(self, stored: Tensor) -> Tensor:
        """Features [n, d] of samples [n, *] as the federation stores them, computed as in evaluation."""
        kind = self.net.input
        assert kind is not None
        held = {name: tensor.to(stored.device) for name, tensor in self.tensors.items()}
        return features_of(self.net, held, stored, kind.lens(stored.device), _BATCH)

    @property
    def features(self) -> int:
        """d, the size of a feature vector."""
        return self.net.body.features

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # a copy of a network shares the encoder


def check_features(found: Tensor, name: str) -> Tensor:
    """The features of an encoder; refuses them if they are not finite."""
    if not found.isfinite().all():
        raise RequestError(f"model.encoder = {name!r} makes features that are not finite (NaN). Give other weights")
    return found
