"""`SparseSimplexHead`: a fixed, sparse classifier that trains the body, and two heads that learn from the body's
features (FedLoGe, spec 19.23).

G clients, B samples, d features, C classes.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from torso.nets.dual import DualHead
from torso.nets.layers import Linear
from torso.nets.simplex import CLASSIFIER, simplex

AUXILIARY = "head.auxiliary"  # name of a part of the network
_STEPS, _RATE = 500, 0.01  # of the gradient descent that spreads the rows


class SparseSimplexHead(DualHead):
    """A fixed classifier V, whose logits V·f train the body, and two heads whose loss does not reach the body: a shared
    auxiliary one and the client's personal one."""

    def __init__(self, features: int, classes: int) -> None:
        nn.Module.__init__(self)
        self.adds, self.through, self.prior = False, False, None
        self.classifier = Linear(features, classes)
        self.auxiliary = Linear(features, classes)
        self.personal = Linear(features, classes)

    def extra_repr(self) -> str:
        return "generic model: classifier(x), of which the auxiliary head takes the place; a client's: personal(x)"

    @property
    def parts(self) -> dict[str, tuple[str, ...]]:
        """Parts of the network that a method can name."""
        return {
            part: tuple(f"{part}.{name}" for name in module.state_dict())
            for part, module in ((CLASSIFIER, self.classifier), (AUXILIARY, self.auxiliary))
        }

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(x)  # type: ignore[no-any-return]

    def auxiliary_logits(self, features: Tensor) -> Tensor:
        """The logits of the auxiliary head; its loss does not reach the body."""
        return self.auxiliary(features.detach())  # type: ignore[no-any-return]


def sparse_simplex(orthonormal: Tensor, sparsity: float, length: float, generator: Generator) -> Tensor:
    """The weight of the fixed classifier: C rows [C, d] of length `length`, with a share `sparsity` of zeros, as far
    apart as gradient steps can bring them.

    The steps start at the corners of a simplex with some entries set to 0. They maximise the mean over classes of the
    angle to the nearest other class. At least one entry of every row is not set to 0."""
    classes, features = orthonormal.shape
    order = torch.rand(classes, features, generator=generator).argsort(dim=1)
    zeros = min(int(sparsity * features), features - 1)
    mask = (order >= zeros).to(orthonormal.dtype)
    start = simplex(orthonormal) * mask
    rows = _spread(start.dtype, start.shape, start.numpy().tobytes(), mask.numpy().tobytes())
    return length * F.normalize(rows * mask, dim=1)


@lru_cache(maxsize=16)
def _spread(dtype: torch.dtype, shape: tuple[int, int], start: bytes, masked: bytes) -> Tensor:
    """The rows [C, d] after the gradient steps. `start`, `masked`: the bytes of the first rows and of the mask.

    The result is cached for the next run, since it depends on the seed and the sizes alone."""
    rows, mask = (torch.frombuffer(bytearray(held), dtype=dtype).view(shape) for held in (start, masked))
    own = torch.eye(len(rows), dtype=torch.bool)
    with torch.enable_grad():
        adam = Adam(rows.requires_grad_())
        for _ in range(_STEPS if len(rows) > 1 else 0):
            unit = F.normalize(rows * mask, dim=1)
            nearest = (unit @ unit.T).masked_fill(own, -1.0).amax(dim=1)
            angle = torch.acos(nearest.clamp(-0.99999, 0.99999)).mean()
            (grad,) = torch.autograd.grad(-angle, [rows])
            adam.step(grad)
    return rows.detach()


class Adam:
    """`torch.optim.Adam` for one tensor, with the same bits. torch's own loads the compiler, which takes a second."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self.mean = torch.zeros_like(rows)
        self.square = torch.zeros_like(rows)
        self.steps = 0

    @torch.no_grad()
    def step(self, grad: Tensor, first: float = 0.9, second: float = 0.999, eps: float = 1e-8) -> None:
        self.steps += 1
        self.mean.lerp_(grad, 1 - first)
        self.square.mul_(second).addcmul_(grad, grad, value=1 - second)
        denominator = (self.square.sqrt() / (1 - second**self.steps) ** 0.5).add_(eps)
        self.rows.addcdiv_(self.mean, denominator, value=-(_RATE / (1 - first**self.steps)))
