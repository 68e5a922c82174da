"""The server rule of buffered asynchronous rounds (FedBuff, Nguyen et al. 2022).

M clients train at the same time, each from the model that it received. When K uploads have arrived, the server takes a
step. The staleness τ_i of an upload is the number of steps that the server took since it sent client i its model.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from torso.kinds import Beta, Count, NotNegative, Positive
from torso.nets import Tensors
from torso.server.rules import Momentum, RuleStep, ServerRule, servers


@servers.register("fedbuff")
@dataclass(frozen=True)
class FedBuff(ServerRule):
    """A step for every `buffer` uploads, so that the server does not wait for slow clients: m ← β m + Σ_i w_i (1 +
    τ_i)^−staleness Δ_i; θ ← θ + η m. Δ_i is θ_i minus the model that client i started from, τ_i server steps ago
    (Nguyen et al. 2022)."""

    lr: Positive = 1.0
    beta: Beta = 0.0
    buffer: Count = 10  # K: uploads per step
    staleness: NotNegative = 0.5  # 0.5: 1/√(1+τ); 0: old uploads count in full

    @property
    def uploads_per_step(self) -> int:
        return self.buffer

    def discount(self, staleness: int) -> float:
        return float((1 + staleness) ** -self.staleness)

    def step(self, state: Tensors, old: Tensors, mean: Tensors, squares: Tensor) -> RuleStep:
        if self.beta == 0 and self.lr == 1:
            return RuleStep(state, mean)
        if self.beta == 0:  # no memory of earlier steps
            return RuleStep(state, {n: t + self.lr * (mean[n] - t) for n, t in old.items()})
        return Momentum(self.lr, self.beta).step(state, old, mean, squares)
