"""Server rules: from the shared part before the round and the weighted mean of what came back to the next shared part.

Δ = mean − old is the pseudo-gradient. Rules see parameters only; running statistics are averaged (spec 3.9). What
stands for the mean may be something else that a rule makes of the single uploads: see robust.py. K participants.
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
    """The rule's own state, the next shared part, and what accuracy is reported on where that is something else."""

    state: Tensors
    shared: Tensors
    shown: Tensors = {}  # noqa: RUF012  never mutated


@dataclass(frozen=True)
class ServerRule(ABC):
    """The base of server rules."""

    uses_squares: ClassVar[bool] = False
    keeps_uploads: ClassVar[bool] = False  # nothing is averaged: every client goes on from its own last upload
    needs_each: ClassVar[bool] = False  # the server holds all uploads of a round, and `combine` stands for the mean
    sees_only_mean: ClassVar[bool] = False  # nothing of an upload but its part in the mean, so the mean may be private
    takes_statistics: ClassVar[bool] = False  # `combine` needs neither state nor `old`, so statistics may go through it
    least_by: ClassVar[str] = ""  # the option that `least` follows from

    clip: NotNegative = field(default=0.0, kw_only=True)  # no upload counts as further than this from θ; 0: no bound

    @property
    def least(self) -> int:
        """How many uploads a round must have for the rule to do what it promises."""
        return 0

    @property
    def trusts(self) -> bool:
        """Whether one upload can move the result without bound."""
        return not self.needs_each and not self.clip

    @property
    def waits_for(self) -> int:
        """How many uploads make a step where rounds are asynchronous; 0: all participants of a round do."""
        return 0

    def discount(self, staleness: int) -> float:
        """What an upload counts whose client began so many steps ago, where rounds are asynchronous."""
        return 1.0

    def combine(self, state: Tensors, old: Tensors, uploads: Tensors, weights: Tensor) -> Tensors:
        """What stands for the mean [*] of `uploads` [K, *], the models in the order of the participants, with their
        shares `weights` [K], which sum to 1. Asked where the rule `needs_each`; `state` and `old` as in `step`."""
        mean: Tensors = {}
        add_weighted(mean, uploads, weights)
        return mean

    @abstractmethod
    def step(self, state: Tensors, old: Tensors, mean: Tensors, squares: Tensor) -> RuleStep:
        """`state` is empty in the first round; `squares` is Σ_k w_k ‖Δ_k‖² over the participants, for who uses it."""


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
class Apart(ServerRule):
    """No mean: the server keeps everybody's last upload, and a client goes on from its own (MTL, FedFomo).

    The generic model is the mean of all clients' models (spec 9.4)."""

    keeps_uploads: ClassVar[bool] = True

    def step(self, state: Tensors, old: Tensors, mean: Tensors, squares: Tensor) -> RuleStep:
        return RuleStep(state, old)


@servers.register("momentum")
@dataclass(frozen=True)
class Momentum(ServerRule):
    """m ← β m + Δ; θ ← θ + η m (FedAvgM, spec 3.9)."""

    sees_only_mean: ClassVar[bool] = True
    lr: Positive = 1.0
    beta: Beta = 0.9

    def step(self, state: Tensors, old: Tensors, mean: Tensors, squares: Tensor) -> RuleStep:
        m = {n: self.beta * state.get(f"m.{n}", torch.zeros_like(t)) + mean[n] - t for n, t in old.items()}
        return RuleStep({f"m.{n}": t for n, t in m.items()}, {n: t + self.lr * m[n] for n, t in old.items()})


@servers.register("adaptive")
@dataclass(frozen=True)
class Adaptive(ServerRule):
    """m ← β₁ m + (1 − β₁)Δ; θ ← θ + η m / (√v + τ); v by FedAdam, FedYogi or FedAdagrad (Reddi et al., spec 3.9)."""

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
        if self.second == "adagrad":
            return v + square
        if self.second == "yogi":
            return v - (1 - self.beta2) * square * torch.sign(v - square)
        return self.beta2 * v + (1 - self.beta2) * square


@servers.register("torch-adam")
@dataclass(frozen=True)
class TorchAdam(ServerRule):
    """torch.optim.Adam on −Δ: bias correction, weight decay 1e-5 (FedAdam as FedNCM's code has it, spec 3.9)."""

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
    """θ ← θ + η_g Δ̄ with η_g = max(1, Σ_k w_k‖Δ_k‖² / 2(‖Δ̄‖² + ε)), all tensors together (FedEXP, spec 3.10).

    `last_two` reports accuracy on the average of the last two iterates, as the authors' code does."""

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
