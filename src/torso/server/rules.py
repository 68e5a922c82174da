"""Server rules: how the server computes the next shared part from the current one and the mean of the uploads.

Δ = mean − old is the pseudo-gradient. A rule sees parameters only; running statistics are averaged (spec 3.9). A rule
may replace the mean by another function of the single uploads (robust.py). K participants.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from torso.kinds import Beta, NotNegative, Positive
from torso.nets import Tensors
from torso.registry import Registry
from torso.server.sums import add_weighted


class RuleStep(NamedTuple):
    """The result of a server rule."""

    state: Tensors  # state of the rule for the next round
    shared: Tensors  # the next shared part
    shown: Tensors = {}  # noqa: RUF012  tensors that accuracy is reported on, if not `shared`; never mutated


@dataclass(frozen=True)
class ServerRule(ABC):
    """The base class of server rules. A subclass implements `step`, and `combine` if it needs the single uploads."""

    uses_squares: ClassVar[bool] = False  # whether `step` uses `squares`
    keeps_uploads: ClassVar[bool] = False  # nothing is averaged: each client continues from its own last upload
    needs_each: ClassVar[bool] = False  # the server keeps all uploads of a round, and `combine` replaces the mean
    sees_only_mean: ClassVar[bool] = False  # the rule uses an upload only through the mean, so the mean may be private
    takes_statistics: ClassVar[bool] = False  # `combine` uses neither `state` nor `old`: it also works for statistics
    minimum_option: ClassVar[str] = ""  # the option that determines `least`, for error messages

    clip: NotNegative = field(default=0.0, kw_only=True)  # uploads are clipped to this distance from θ; 0: no clipping

    @property
    def least(self) -> int:
        """The number of uploads that a round needs so that the rule works as described."""
        return 0

    @property
    def is_unbounded(self) -> bool:
        """Whether a single upload can change the result without bound."""
        return not self.needs_each and not self.clip

    @property
    def uploads_per_step(self) -> int:
        """The number of uploads for one step in asynchronous rounds; 0: rounds are synchronous."""
        return 0

    def discount(self, staleness: int) -> float:
        """The factor on the weight of an upload in asynchronous rounds. `staleness`: server steps since its visit
        began."""
        return 1.0

    def combine(self, state: Tensors, old: Tensors, uploads: Tensors, weights: Tensor) -> Tensors:
        """The tensors [*] that replace the mean of the uploads. Called if the rule `needs_each`.

        `uploads` [K, *]: the models in the order of the participants; `weights` [K]: their weights, which sum to 1;
        `state` and `old`: as in `step`."""
        mean: Tensors = {}
        add_weighted(mean, uploads, weights)
        return mean

    @abstractmethod
    def step(self, state: Tensors, old: Tensors, mean: Tensors, squares: Tensor) -> RuleStep:
        """The rule's state and the shared part after a round.

        `state`: the rule's state, empty in the first round; `old` [*]: the shared part before the round; `mean` [*]:
        the weighted mean of the uploads; `squares`: Σ_k w_k ‖Δ_k‖² over the participants, if the rule
        `uses_squares`."""


servers: Registry[type[ServerRule]] = Registry("method.server")


@servers.register("mean")
@dataclass(frozen=True)
class Mean(ServerRule):
    """The weighted mean of the participants' models (spec 1.2, step 5)."""

    sees_only_mean: ClassVar[bool] = True

    def step(self, state: Tensors, old: Tensors, mean: Tensors, squares: Tensor) -> RuleStep:
        return RuleStep(state, mean)


@servers.register("apart")
@dataclass(frozen=True)
class NoMean(ServerRule):
    """No mean: the server keeps each client's last upload, and a client continues from its own (MTL, FedFomo).

    The generic model is the mean of all clients' models (spec 9.4)."""

    keeps_uploads: ClassVar[bool] = True

    def step(self, state: Tensors, old: Tensors, mean: Tensors, squares: Tensor) -> RuleStep:
        return RuleStep(state, old)


@servers.register("momentum")
@dataclass(frozen=True)
class Momentum(ServerRule):
    """Momentum on the server: m ← β m + Δ; θ ← θ + η m (FedAvgM, spec 3.9)."""

    sees_only_mean: ClassVar[bool] = True
    lr: Positive = 1.0
    beta: Beta = 0.9

    def step(self, state: Tensors, old: Tensors, mean: Tensors, squares: Tensor) -> RuleStep:
        m = {n: self.beta * state.get(f"m.{n}", torch.zeros_like(t)) + mean[n] - t for n, t in old.items()}
        new_state = {f"m.{n}": t for n, t in m.items()}
        shared = {n: t + self.lr * m[n] for n, t in old.items()}
        return RuleStep(new_state, shared)


@servers.register("adaptive")
@dataclass(frozen=True)
class Adaptive(ServerRule):
    """An adaptive server step: m ← β₁ m + (1 − β₁)Δ; θ ← θ + η m / (√v + τ), with v by FedAdam, FedYogi or FedAdagrad
    (Reddi et al., spec 3.9)."""

    sees_only_mean: ClassVar[bool] = True
    second: Literal["adam", "yogi", "adagrad"] = "adam"
    lr: Positive = 0.01
    beta1: Beta = 0.9
    beta2: Beta = 0.99
    tau: Positive = 1e-3

    def step(self, state: Tensors, old: Tensors, mean: Tensors, squares: Tensor) -> RuleStep:
        new_state: Tensors = {}
        shared: Tensors = {}
        for name, tensor in old.items():
            delta = mean[name] - tensor
            m = self.beta1 * state.get(f"m.{name}", torch.zeros_like(tensor)) + (1 - self.beta1) * delta
            v = self._second(state.get(f"v.{name}", torch.full_like(tensor, self.tau**2)), delta.square())
            new_state |= {f"m.{name}": m, f"v.{name}": v}
            shared[name] = tensor + self.lr * m / (v.sqrt() + self.tau)
        return RuleStep(new_state, shared)

    def _second(self, v: Tensor, square: Tensor) -> Tensor:
        """The next second moment, from the last one and Δ²."""
        if self.second == "adagrad":
            return v + square
        if self.second == "yogi":
            return v - (1 - self.beta2) * square * torch.sign(v - square)
        return self.beta2 * v + (1 - self.beta2) * square


@servers.register("torch-adam")
@dataclass(frozen=True)
class TorchAdam(ServerRule):
    """torch.optim.Adam on −Δ, with bias correction and weight decay 1e-5 (FedAdam as in FedNCM's code, spec 3.9)."""

    sees_only_mean: ClassVar[bool] = True
    lr: Positive = 0.01
    beta1: Beta = 0.9
    beta2: Beta = 0.999
    eps: Positive = 1e-8
    weight_decay: NotNegative = 1e-5

    def step(self, state: Tensors, old: Tensors, mean: Tensors, squares: Tensor) -> RuleStep:
        count = state.get("count", torch.zeros((), dtype=torch.int64)) + 1
        steps = int(count)
        new_state: Tensors = {"count": count}
        shared: Tensors = {}
        for name, tensor in old.items():
            grad = tensor - mean[name] + self.weight_decay * tensor
            m = self.beta1 * state.get(f"m.{name}", torch.zeros_like(tensor)) + (1 - self.beta1) * grad
            v = self.beta2 * state.get(f"v.{name}", torch.zeros_like(tensor)) + (1 - self.beta2) * grad.square()
            new_state |= {f"m.{name}": m, f"v.{name}": v}
            root = v.sqrt() / (1 - self.beta2**steps) ** 0.5 + self.eps
            shared[name] = tensor - self.lr / (1 - self.beta1**steps) * m / root
        return RuleStep(new_state, shared)


@servers.register("fedexp")
@dataclass(frozen=True)
class FedExp(ServerRule):
    """Extrapolation: θ ← θ + η_g Δ̄ with η_g = max(1, Σ_k w_k‖Δ_k‖² / 2(‖Δ̄‖² + ε)), all tensors together (FedEXP, spec
    3.10).

    `last_two` reports accuracy on the mean of the last two shared models, as the authors' code does."""

    eps: NotNegative = 1e-3
    last_two: bool = False
    uses_squares: ClassVar[bool] = True

    def step(self, state: Tensors, old: Tensors, mean: Tensors, squares: Tensor) -> RuleStep:
        delta = {n: mean[n] - t for n, t in old.items()}
        norm = torch.stack([d.square().sum() for d in delta.values()]).sum()
        pace = (0.5 * squares / (norm + self.eps)).clamp(min=1.0)
        shared = {n: t + pace * delta[n] for n, t in old.items()}
        shown = {n: (t + shared[n]) / 2 for n, t in old.items()} if self.last_two else {}
        return RuleStep(state, shared, shown)
