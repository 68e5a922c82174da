"""PyTorch's SGD over stacked parameters: v ← μ v + (g + wd·w); w ← w − lr·v. No dampening, no Nesterov (spec 1.3)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor

from torso.fast import is_fast
from torso.learn.stacked import Rate, per_client, scaled
from torso.nets import Tensors


class Sgd:
    """SGD for the parameters of G clients, with the velocities of one visit (spec 1.2: they never survive a round)."""

    def __init__(self, momentum: float, weight_decay: float) -> None:
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.velocity: Tensors = {}

    @torch.no_grad()
    def step(
        self,
        params: Tensors,
        grads: Tensors,
        rates: Mapping[str, Rate],
        active: Tensor | None = None,
        lead: int | None = None,
    ) -> None:
        """Move the parameters [G, *] that have a rate, in place. Clients that are not `active` [G] keep their weights
        and velocities. With `lead` only the first `lead` clients move, and only they need gradients."""
        if self.momentum:
            self._begin({n: params[n] for n in grads if n not in self.velocity})
        if lead is not None:
            leading = Sgd(self.momentum, self.weight_decay)
            leading.velocity = {n: self.velocity[n][:lead] for n in grads if self.momentum}
            params = {n: params[n][:lead] for n in grads}
            grads = {n: g[:lead] for n, g in grads.items()}
            leading_rates = {n: r[:lead] if isinstance(r, Tensor) and r.ndim else r for n, r in rates.items()}
            leading.step(params, grads, leading_rates)
            return
        if all(is_fast(params[n]) and params[n].is_contiguous() for n in grads):
            self._fused_step(params, grads, rates, active)
            return
        names = list(grads)
        moves = [grads[n] for n in names]
        if self.weight_decay:
            moves = list(torch._foreach_add(moves, [params[n] for n in names], alpha=self.weight_decay))
        if self.momentum:
            moves = self._gather_speed(names, moves, active)
        if active is not None:
            moves = [move * per_client(active, move) for move in moves]
        by_rate: dict[float, list[int]] = defaultdict(list)
        for place, name in enumerate(names):
            rate = rates.get(name)
            if isinstance(rate, Tensor):
                params[name].sub_(scaled(moves[place], rate))
            elif rate is not None:
                by_rate[rate].append(place)
        for rate, places in by_rate.items():
            torch._foreach_add_([params[names[p]] for p in places], [moves[p] for p in places], alpha=-rate)

    def _begin(self, params: Tensors) -> None:
        """Make velocities of zero for these parameters, in one launch."""
        if params:
            begun = {name: torch.empty_like(param) for name, param in params.items()}
            torch._foreach_zero_(list(begun.values()))
            self.velocity |= begun

    def _fused_step(self, params: Tensors, grads: Tensors, rates: Mapping[str, Rate], active: Tensor | None) -> None:
        """As `step`, with fused kernels: one pass over each tensor. Small tensors with the same rate take one launch
        together if every client is active and the rate is the same for all clients."""
        from torso.learn import sgd_kernel
        from torso.learn.sgd_kernel import step, step_many

        grads = {name: grad.contiguous() for name, grad in grads.items()}
        by_rate: dict[object, list[str]] = defaultdict(list)
        for name, grad in grads.items():
            rate = rates.get(name)
            if rate is not None and active is None and grad.numel() < sgd_kernel.LARGE and not _is_each(rate):
                by_rate[rate.data_ptr() if isinstance(rate, Tensor) else rate].append(name)
                continue
            step(params[name], grad, self.velocity.get(name), active, rate, self.momentum, self.weight_decay)
        for names in by_rate.values():
            speeds = [self.velocity[n] for n in names] if self.momentum else []
            chosen = [params[n] for n in names], [grads[n] for n in names]
            step_many(*chosen, speeds, rates[names[0]], self.momentum, self.weight_decay)

    def _gather_speed(self, names: list[str], moves: list[Tensor], active: Tensor | None) -> list[Tensor]:
        """The velocities after v ← μ v + move, in place for the active clients."""
        speeds = [self.velocity[n] for n in names]
        if active is None:
            torch._foreach_mul_(speeds, self.momentum)
            torch._foreach_add_(speeds, moves)
        else:
            for speed, move in zip(speeds, moves, strict=True):
                speed.copy_(torch.where(per_client(active, speed), self.momentum * speed + move, speed))
        return speeds


def _is_each(rate: Rate) -> bool:
    """Whether the rate is a tensor [G] with one rate for each client."""
    return isinstance(rate, Tensor) and rate.ndim > 0
