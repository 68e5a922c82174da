"""What is summed: the answers to a round and class sums, as the numbers of a vector on a client's side, and what the
server makes of their sum.

r_k is a client's weight: its samples divided by a power of two that is not below anybody's (train.weighting =
"samples"), or 1. Δ_k is the change of what travels. Where models weigh by a statistic s_k (`Statistics.weighs`), r_k
stays the weight of losses and of other statistics.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torso.config import Config, SecureConfig
from torso.data import Roster
from torso.errors import RequestError
from torso.federation.secure.vector import Form, Slot
from torso.learn.drift import Local
from torso.learn.stacked import all_finite
from torso.methods.starts import class_sums_declared
from torso.nets import Tensors
from torso.runs.aggregate import MeanSent
from torso.runs.job import Job
from torso.runs.messages import Message, Told, by_part
from torso.runs.stage import Stage
from torso.server.statistics import Declared

_LOSS = 64.0  # the largest loss that is told
_LEAST = 64  # steps that a statistic by which models weigh counts at least: rounding moves it little, and no sum is 0
NOT_FINITE = "its loss or its weights are not finite"


def scale_of(roster: Roster) -> int:
    """What samples are divided by. A power of two: clients learn no more of the largest one's number than that."""
    return 1 << (int(roster.sizes_of(roster.training).max()) - 1).bit_length()


def weight_of(config: Config, samples: int, scale: int) -> float:
    """r_k."""
    if not 0 < samples <= scale:
        raise RequestError(f"{samples} samples are divided by {scale}. Expected: a divisor that is not smaller")
    return samples / scale if config.train.weighting == "samples" else 1.0


class StatisticsContents:
    """Of statistics: sums as they are, those over a client's samples divided by the scale; means times r_k; counts as
    whole numbers. One by which models weigh has two digits."""

    def __init__(self, declared: Declared, options: SecureConfig, weighs: str = "") -> None:
        self.declared, self.weighs, self.levels = declared, weighs, 1 << options.bits
        self.slots = {
            name: Slot(
                f"said/{name}",
                each.shape,
                0.0 if each.numbers == "count" else options.clip**each.power,
                digits=1 + (name == weighs),
            )
            for name, each in declared.items()
        }

    def values(self, said: Tensors, weight: float, scale: int) -> Tensors:
        return {f"said/{n}": t.double() * self._share(n, weight, scale) for n, t in said.items()}

    def sums(self, total: Tensors, whole: float, scale: int) -> Tensors:
        """Sums and means; `whole`: Σ r_k."""
        return {n: (total[f"said/{n}"] / self._share(n, whole, scale)).float() for n in self.declared}

    def weight(self, said: Tensors) -> Tensor:
        """s_k, as it is sent."""
        slot = self.slots[self.weighs]
        return said[self.weighs].double().clamp(_LEAST * slot.step(self.levels), slot.range)

    def _share(self, name: str, weight: float, scale: int) -> float:
        each = self.declared[name]
        return weight if each.rule == "mean" else 1 / scale if each.over_samples else 1.0


class RoundContents:
    """Of a round: r_k·Δ_k (s_k·Δ_k), the changes of counters and of memories, statistics, r_k·loss."""

    def __init__(self, job: Job, told: Told) -> None:
        self.config, self.told = job.config, told
        self.stage: Stage = job.stage(told.round)
        options: SecureConfig = self.config.run.flower.secure
        shapes = {name: tuple(tensor.shape) for name, tensor in told.model.items()}
        self.averaged = [n for n in sorted(self.stage.travels) if told.model[n].is_floating_point()]
        self.counters = [n for n in sorted(self.stage.travels) if n not in self.averaged]
        self.memories = self.stage.corrected if self.stage.method.drift.remembers else ()
        self.statistics = StatisticsContents(self.stage.declared(0, told.round), options, self._weighs)
        said, clip, digits = self.statistics.slots, options.clip, 1
        if self._weighs:
            clip, digits = said[self._weighs].range * options.clip, 2
        slots = [Slot(f"model/{name}", shapes[name], clip, digits) for name in self.averaged]
        slots += [Slot(f"count/{name}", shapes[name], 0.0) for name in self.counters]
        slots += [Slot(f"drift/{name}", shapes[name], options.clip) for name in self.memories]
        self.form = Form((*slots, *said.values(), Slot("loss", (), _LOSS)), options.bits)

    @property
    def _weighs(self) -> str:
        statistics = self.stage.method.statistics
        return statistics.weighs if self.stage.gathers(self.told.round) else ""

    def values(self, sent: Message, scale: int) -> Tensors:
        """A client's numbers, from what it would send in the open."""
        numbers, received = sent.numbers, self.told.model
        weight, model = weight_of(self.config, numbers.samples, scale), by_part(sent.tensors).get("model", {})
        if not numbers.finite or not bool(all_finite([torch.tensor(numbers.loss), *sent.tensors.values()])):
            raise NotFinite(NOT_FINITE)
        said = by_part(sent.tensors).get("said", {})
        share: float | Tensor = weight
        if self._weighs:
            said = {**said, self._weighs: (share := self.statistics.weight(said))}
        found = {f"model/{n}": share * (model[n].double() - received[n].double()) for n in self.averaged}
        found |= {f"count/{n}": model[n] - received[n] for n in self.counters}
        found |= {f"drift/{n}": tensor for n, tensor in self._changes(sent, model).items()}
        found |= self.statistics.values(said, weight, scale)
        return {**found, "loss": torch.tensor(weight * numbers.loss, dtype=torch.float64)}

    def _changes(self, sent: Message, model: Tensors) -> Tensors:
        """Of what the client's drift correction remembers: as it would send it, or as the server would work it out."""
        drift = self.stage.method.drift
        if drift.sends or not self.memories:
            return by_part(sent.tensors).get("drift", {})
        start = {name: self.told.model[name] for name in self.memories}
        changes = drift.change(Local(start, {name: model[name][None] for name in self.memories}))
        return {name: tensor[0] for name, tensor in changes.items()}

    def mean(self, total: Tensors, clients: Sequence[int], roster: Roster, scale: int) -> MeanSent:
        """What the server has of a round."""
        whole = sum(weight_of(self.config, int(samples), scale) for samples in roster.sizes_of(clients))
        received, share = self.told.model, torch.tensor(whole, dtype=torch.float64)
        if self._weighs:
            share = total[f"said/{self._weighs}"]
        model = {n: (received[n].double() + total[f"model/{n}"] / share).to(received[n]) for n in self.averaged}
        steps = {n: (total[f"count/{n}"] / len(clients)).round() for n in self.counters}  # nothing depends on them
        model |= {n: received[n] + step.to(received[n]) for n, step in steps.items()}
        change = {n: total[f"drift/{n}"].to(received[n]) for n in self.memories}
        said = self.statistics.sums(total, whole, scale)
        return MeanSent(tuple(clients), model, change, float(total["loss"]) / whole, said)


class NotFinite(RequestError):
    """A client has nothing to add to a sum."""


class ClassSumContents:
    """Of class sums: features summed by class, divided by the scale, and how many there are."""

    def __init__(self, job: Job) -> None:
        options = job.config.run.flower.secure
        self.inner = StatisticsContents(class_sums_declared(job.net, job.roster.classes), options)
        self.form = Form(tuple(self.inner.slots.values()), options.bits)

    def values(self, sums: Tensors, scale: int) -> Tensors:
        if not bool(all_finite(sums.values())):
            raise NotFinite("its features are not finite")
        return self.inner.values(sums, 1.0, scale)

    def sums(self, total: Tensors, scale: int) -> Tensors:
        return self.inner.sums(total, 1.0, scale)
