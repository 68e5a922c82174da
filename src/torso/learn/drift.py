"""Drift corrections: changes of the gradient, before momentum, that keep a client near the others.

G clients, * a parameter's shape. A correction sees only parameters that travel and learn. It may keep a memory on each
client, one tensor per parameter (`own`); the server keeps the mean of the memories over all N clients (`shared`).
SCAFFOLD calls them c_k and c, FedDyn λ_k and h.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from torso.kinds import Fraction, NotNegative, Positive
from torso.learn.stacked import per_client
from torso.nets import Tensors
from torso.registry import Registry


@dataclass(frozen=True)
class DriftState:
    """What a drift correction works with: the parameters of G clients now and at the start of the visit, and memories.

    A tensor that is the same for all clients may be [*] instead of [G, *]."""

    start: Tensors  # [*]: parameters as received
    params: Tensors  # [G, *]: parameters now
    own: Tensors = field(default_factory=dict)  # [G, *]: memories of the clients
    shared: Tensors = field(default_factory=dict)  # [*]: what the server sends for the correction
    participants: int | Tensor = 1  # clients in the round; [G] if the stack has clients of several runs

    def of_places(self, places: Tensor | slice, like: Tensors) -> DriftState:
        """The same for the clients at these places, for the names in `like` [G, *]. Tensors [*] stay as they are."""

        def some(held: Tensors) -> Tensors:
            return {n: t[places] if t.ndim == like[n].ndim else t for n, t in held.items() if n in like}

        count = self.participants if isinstance(self.participants, int) else self.participants[places]
        return DriftState(some(self.start), some(self.params), some(self.own), some(self.shared), count)


class Drift:
    """The base class of drift corrections; a subclass overrides the functions in which it differs."""

    remembers: ClassVar[bool] = False  # each client has a memory: one tensor per parameter, zero at first
    sends: ClassVar[bool] = False  # clients also send the change of their memory, and get the server's mean back
    gathers: ClassVar[bool] = False  # `shared` is what the other participants' models add to the mean of all of them
    follows: ClassVar[bool] = False  # `shared` is the mean gradient of the last round, estimated by the server; 0 first

    def gradient(self, grads: Tensors, at: DriftState) -> Tensors:
        """The corrected gradients [G, *], in new tensors or the same ones."""
        return grads

    def effective(self, steps: int, momentum: float) -> float:
        """The number of steps without momentum that move the parameters as far as `steps` steps with it."""
        return float(steps)

    def finish(self, at: DriftState, pace: Mapping[str, Tensor]) -> Tensors:
        """The clients' memories after the visit [G, *]. `pace` [G]: the sum of learning rate × effective steps."""
        return at.own

    def change(self, at: DriftState) -> Tensors:
        """The changes of the clients' memories in a visit [G, *], computed by the server from the clients' models. Used
        if clients do not send them; `at` has `start` and `params`."""
        return {}

    def settle(self, mean: Tensors, shared: Tensors) -> Tensors:
        """What is broadcast next, from the result of the server rule (`mean`) and the mean of memories (`shared`)."""
        return mean

    @property
    def shows_mean(self) -> bool:
        """Whether accuracy is reported on the result of the server rule instead of on what is broadcast."""
        return False


drifts: Registry[type[Drift]] = Registry("method.drift")


@drifts.register("none")
@dataclass(frozen=True)
class NoDrift(Drift):
    """No correction: the client minimises its own loss."""


@drifts.register("proximal")
@dataclass(frozen=True)
class Proximal(Drift):
    """A proximal term: (μ/2)·‖θ − θ_G‖² is added to the loss, with θ_G the received model (FedProx, spec 3.5)."""

    mu: NotNegative = 0.01

    def gradient(self, grads: Tensors, at: DriftState) -> Tensors:
        return {n: g + self.mu * (at.params[n] - at.start[n]) for n, g in grads.items()}


@drifts.register("head-decay")
@dataclass(frozen=True)
class HeadDecay(Drift):
    """Weight decay of the head: (μ/2)·‖θ‖² of the head's shared parameters is added to the loss (GPFL's code, spec
    19.24)."""

    mu: NotNegative = 0.1

    def gradient(self, grads: Tensors, at: DriftState) -> Tensors:
        return {n: g + self.mu * at.params[n] if n.startswith("head.") else g for n, g in grads.items()}


@drifts.register("scaffold")
@dataclass(frozen=True)
class Scaffold(Drift):
    """Control variates: g − c_k + c; c_k becomes the mean gradient met (SCAFFOLD, option II, spec 3.7).

    `divisor = "momentum"` counts the steps that momentum adds; with plain K and momentum 0.9 the variates are about
    nine times too large."""

    divisor: Literal["steps", "momentum"] = "steps"
    remembers: ClassVar[bool] = True
    sends: ClassVar[bool] = True

    def gradient(self, grads: Tensors, at: DriftState) -> Tensors:
        return {n: g - at.own[n] + at.shared[n] for n, g in grads.items()}

    def effective(self, steps: int, momentum: float) -> float:
        return float(steps) if self.divisor == "steps" else with_momentum(steps, momentum)

    def finish(self, at: DriftState, pace: Mapping[str, Tensor]) -> Tensors:
        return {n: at.own[n] - at.shared[n] + self._met(at, n, per_client(pace[n], p)) for n, p in at.params.items()}

    def _met(self, at: DriftState, name: str, pace: Tensor) -> Tensor:
        """The mean gradient of the visit [G, *]. For a client without a step it is c, so that its variate stays."""
        mean = (at.start[name] - at.params[name]) / pace.clamp(min=torch.finfo(pace.dtype).tiny)
        return torch.where(pace > 0, mean, at.shared[name])


@drifts.register("dynamic")
@dataclass(frozen=True)
class Dynamic(Drift):
    """A dynamic regulariser: −⟨λ_k, θ⟩ + (α/2)·‖θ − θ_G‖² is added to the loss; λ_k follows the local gradient (FedDyn,
    spec 3.8).

    `clip` bounds the norm of a client's gradient (0: no bound). `report = "mean"` measures accuracy on the
    participants' mean, as the authors' code does; `"cloud"` measures it on the broadcast model."""

    alpha: Positive = 0.01
    clip: NotNegative = 10.0
    report: Literal["mean", "cloud"] = "mean"
    remembers: ClassVar[bool] = True

    def gradient(self, grads: Tensors, at: DriftState) -> Tensors:
        pulled = {n: g - at.own[n] + self.alpha * (at.params[n] - at.start[n]) for n, g in grads.items()}
        return clip_norm(pulled, self.clip) if self.clip else pulled

    def finish(self, at: DriftState, pace: Mapping[str, Tensor]) -> Tensors:
        return {n: at.own[n] + change for n, change in self.change(at).items()}

    def change(self, at: DriftState) -> Tensors:
        return {n: -self.alpha * (p - at.start[n]) for n, p in at.params.items()}

    def settle(self, mean: Tensors, shared: Tensors) -> Tensors:
        return {n: t - shared[n] / self.alpha if n in shared else t for n, t in mean.items()}

    @property
    def shows_mean(self) -> bool:
        return self.report == "mean"


@drifts.register("multi-task")
@dataclass(frozen=True)
class MultiTask(Drift):
    """A multi-task regulariser: λ₁·Σ_k‖w_k − w̄‖² + λ₂·Σ_k‖w_k‖² is added to the sum of losses, with w̄ the mean of the
    participants' models (spec 5.5).

    That is λ₁·tr(WΩWᵀ) with Ω the centring projector I − 11ᵀ/m. During a visit the other columns of W do not change and
    w̄ moves with w_k, so a single participant has no penalty. `auto`: 10^−(digits of the parameter count + 1)."""

    lam1: NotNegative | Literal["auto"] = "auto"
    lam2: NotNegative | Literal["auto"] = "auto"
    gathers: ClassVar[bool] = True

    def gradient(self, grads: Tensors, at: DriftState) -> Tensors:
        size = sum(tensor[0].numel() for tensor in at.params.values())
        usual = 10.0 ** -(len(str(size)) + 1)
        pull, shrink = (usual if lam == "auto" else lam for lam in (self.lam1, self.lam2))
        count = at.participants
        shares = {n: p / (count if isinstance(count, int) else per_client(count, p)) for n, p in at.params.items()}
        mean = {n: at.shared[n] + shares[n] for n in grads}
        return {n: g + 2 * pull * (at.params[n] - mean[n]) + 2 * shrink * at.params[n] for n, g in grads.items()}


@drifts.register("client-momentum")
@dataclass(frozen=True)
class ClientMomentum(Drift):
    """The server's momentum in each client's gradient: β·g + (1 − β)·Δ, with Δ the mean gradient of the last round, 0
    at first (MoFedSAM, spec 19.7; alone it is FedCM).

    The server computes Δ from the distance that the participants moved, divided by lr × steps, and sends it with the
    model."""

    beta: Fraction = 0.1
    follows: ClassVar[bool] = True

    def gradient(self, grads: Tensors, at: DriftState) -> Tensors:
        return {n: self.beta * g + (1 - self.beta) * at.shared[n] for n, g in grads.items()}

    def effective(self, steps: int, momentum: float) -> float:
        return with_momentum(steps, momentum)


def with_momentum(steps: int, momentum: float) -> float:
    """The number of plain SGD steps that move as far as `steps` steps with momentum, for a constant gradient (spec
    3.7)."""
    if momentum == 0:
        return float(steps)
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


def clip_norm(grads: Tensors, limit: float) -> Tensors:
    """Each client's gradient [G, *], scaled so that its norm over all tensors is at most `limit`."""
    if not grads:
        return grads
    squares = torch.stack([g.flatten(1).square().sum(dim=1) for g in grads.values()])
    scale = (limit / (squares.sum(dim=0).sqrt() + 1e-6)).clamp(max=1.0)  # [G]; as torch's clip_grad_norm_
    return {n: g * per_client(scale, g) for n, g in grads.items()}
