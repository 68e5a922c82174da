"""Converts uploads and class sums to the values of a vector that is summed securely, and the sums back to means.

r_k is the weight of a client. With train.weighting = "samples" it is its number of samples, divided by a power of two
that is not smaller than the largest number of samples (`scale`); otherwise it is 1. Δ_k is the change of the tensors
that travel. If models are weighted by a statistic s_k (`Statistics.weighs`), r_k is still the weight of losses and of
other statistics.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torso.config import Config, SecureConfig
from torso.data import Roster
from torso.errors import RequestError
from torso.federation.secure.vector import Slot, VectorLayout
from torso.learn.drift import DriftState
from torso.learn.stacked import all_finite
from torso.methods.starts import class_sums_declared
from torso.nets import Tensors
from torso.runs.aggregate import SecureAggregate
from torso.runs.job import Job
from torso.runs.messages import Message, Told, by_part
from torso.runs.stage import Stage
from torso.server.statistics import Declared

_LOSS = 64.0  # larger losses are clipped
_LEAST = 64  # smallest value of a weighting statistic, in rounding steps: the rounding error is small, no sum is 0
NOT_FINITE = "its loss or its weights are not finite"


def scale_of(roster: Roster) -> int:
    """The divisor of sample counts: a power of two, so that clients do not learn the largest count exactly."""
    return 1 << (int(roster.sizes_of(roster.training).max()) - 1).bit_length()


def weight_of(config: Config, samples: int, scale: int) -> float:
    """r_k, the weight of a client with this number of samples."""
    if not 0 < samples <= scale:
        raise RequestError(f"{samples} samples are divided by {scale}. Expected: a divisor that is not smaller")
    return samples / scale if config.train.weighting == "samples" else 1.0


class StatisticsContents:
    """The part of a vector that has statistics.

    A sum is sent as it is, or divided by the scale if it is over the client's samples. A mean is multiplied by r_k. A
    count is sent as a whole number. The statistic by which models are weighted (`weighs`) has two digits."""

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

    def values(self, statistics: Tensors, weight: float, scale: int) -> Tensors:
        """A client's values. `weight`: r_k."""
        return {f"said/{n}": t.double() * self._factor(n, weight, scale) for n, t in statistics.items()}

    def sums(self, total: Tensors, total_weight: float, scale: int) -> Tensors:
        """The sums and means of the statistics, from the opened sum. `total_weight`: Σ r_k."""
        return {n: (total[f"said/{n}"] / self._factor(n, total_weight, scale)).float() for n in self.declared}

    def weight(self, statistics: Tensors) -> Tensor:
        """s_k, clamped to the range in which it is sent."""
        slot = self.slots[self.weighs]
        return statistics[self.weighs].double().clamp(_LEAST * slot.step(self.levels), slot.range)

    def _factor(self, name: str, weight: float, scale: int) -> float:
        """The factor by which a statistic is multiplied before it is sent."""
        each = self.declared[name]
        if each.rule == "mean":
            return weight
        return 1 / scale if each.over_samples else 1.0


class RoundContents:
    """The vector of a round: r_k·Δ_k (or s_k·Δ_k), changes of counters and of memories, statistics, r_k·loss.

    Counters are the integer tensors of a model (of BatchNorm). Memories are those of a drift correction."""

    def __init__(self, job: Job, told: Told) -> None:
        self.config, self.told = job.config, told
        self.stage: Stage = job.stage(told.round)
        options: SecureConfig = self.config.run.flower.secure
        shapes = {name: tuple(tensor.shape) for name, tensor in told.model.items()}
        self.averaged = [n for n in sorted(self.stage.travels) if told.model[n].is_floating_point()]
        self.counters = [n for n in sorted(self.stage.travels) if n not in self.averaged]
        self.memories = self.stage.corrected if self.stage.method.drift.remembers else ()
        self.statistics = StatisticsContents(self.stage.declared(0, told.round), options, self._weighs)
        statistics_slots = self.statistics.slots
        clip, digits = options.clip, 1
        if self._weighs:
            clip, digits = statistics_slots[self._weighs].range * options.clip, 2
        slots = [Slot(f"model/{name}", shapes[name], clip, digits) for name in self.averaged]
        slots += [Slot(f"count/{name}", shapes[name], 0.0) for name in self.counters]
        slots += [Slot(f"drift/{name}", shapes[name], options.clip) for name in self.memories]
        self.form = VectorLayout((*slots, *statistics_slots.values(), Slot("loss", (), _LOSS)), options.bits)

    @property
    def _weighs(self) -> str:
        """The name of the statistic by which models are weighted in this round; "" if they are weighted by r_k."""
        statistics = self.stage.method.statistics
        return statistics.weighs if self.stage.gathers(self.told.round) else ""

    def values(self, sent: Message, scale: int) -> Tensors:
        """A client's values, from the upload that it would send without secure sums."""
        numbers, received = sent.numbers, self.told.model
        weight = weight_of(self.config, numbers.samples, scale)
        model = by_part(sent.tensors).get("model", {})
        if not numbers.finite or not bool(all_finite([torch.tensor(numbers.loss), *sent.tensors.values()])):
            raise NotFinite(NOT_FINITE)
        statistics = by_part(sent.tensors).get("said", {})
        model_weight: float | Tensor = weight
        if self._weighs:
            model_weight = self.statistics.weight(statistics)
            statistics = {**statistics, self._weighs: model_weight}
        found = {f"model/{n}": model_weight * (model[n].double() - received[n].double()) for n in self.averaged}
        found |= {f"count/{n}": model[n] - received[n] for n in self.counters}
        found |= {f"drift/{n}": tensor for n, tensor in self._changes(sent, model).items()}
        found |= self.statistics.values(statistics, weight, scale)
        return {**found, "loss": torch.tensor(weight * numbers.loss, dtype=torch.float64)}

    def _changes(self, sent: Message, model: Tensors) -> Tensors:
        """The changes of the drift correction's memories.

        Without secure sums, the client sends them or the server computes them; here the client computes them."""
        drift = self.stage.method.drift
        if drift.sends or not self.memories:
            return by_part(sent.tensors).get("drift", {})
        start = {name: self.told.model[name] for name in self.memories}
        changes = drift.change(DriftState(start, {name: model[name][None] for name in self.memories}))
        return {name: tensor[0] for name, tensor in changes.items()}

    def mean(self, total: Tensors, clients: Sequence[int], roster: Roster, scale: int) -> SecureAggregate:
        """The mean of the uploads of these clients, from the opened sum."""
        total_weight = sum(weight_of(self.config, int(samples), scale) for samples in roster.sizes_of(clients))
        received = self.told.model
        model_weight = torch.tensor(total_weight, dtype=torch.float64)
        if self._weighs:
            model_weight = total[f"said/{self._weighs}"]
        model = {n: (received[n].double() + total[f"model/{n}"] / model_weight).to(received[n]) for n in self.averaged}
        steps = {n: (total[f"count/{n}"] / len(clients)).round() for n in self.counters}  # no result depends on them
        model |= {n: received[n] + step.to(received[n]) for n, step in steps.items()}
        change = {n: total[f"drift/{n}"].to(received[n]) for n in self.memories}
        statistics = self.statistics.sums(total, total_weight, scale)
        return SecureAggregate(tuple(clients), model, change, float(total["loss"]) / total_weight, statistics)


class NotFinite(RequestError):
    """Raised if a client's upload has NaN or infinite values: it cannot be a part of a sum."""


class ClassSumContents:
    """The vector of class sums: the sums of features by class, divided by the scale, and the counts of samples."""

    def __init__(self, job: Job) -> None:
        options = job.config.run.flower.secure
        self.inner = StatisticsContents(class_sums_declared(job.net, job.roster.classes), options)
        self.form = VectorLayout(tuple(self.inner.slots.values()), options.bits)

    def values(self, sums: Tensors, scale: int) -> Tensors:
        if not bool(all_finite(sums.values())):
            raise NotFinite("its features are not finite")
        return self.inner.values(sums, 1.0, scale)

    def sums(self, total: Tensors, scale: int) -> Tensors:
        return self.inner.sums(total, 1.0, scale)
