"""What is summed: the answers to a round and class sums, as the numbers of a vector on a client's side, and what the
server makes of their sum.

r_k is a client's weight: its samples divided by a power of two that is not below anybody's (train.weighting =
"samples"), or 1. Δ_k is the change of what travels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

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
from torso.runs.stages import Stage

_LOSS = 64.0  # the largest loss that is told
NOT_FINITE = "its loss or its weights are not finite"


def scale_of(roster: Roster) -> int:
    """What samples are divided by. A power of two: clients learn no more of the largest one's number than that."""
    return 1 << (int(roster.sizes_of(roster.training).max()) - 1).bit_length()


def weight_of(config: Config, samples: int, scale: int) -> float:
    """r_k."""
    if not 0 < samples <= scale:
        raise RequestError(f"{samples} samples are divided by {scale}. Expected: a divisor that is not smaller")
    return samples / scale if config.train.weighting == "samples" else 1.0


class RoundContents:
    """Of a round: r_k·Δ_k, the changes of counters and of memories, r_k·loss."""

    def __init__(self, job: Job, told: Told) -> None:
        self.config, self.told = job.config, told
        self.stage: Stage = job.stage(told.round)
        options: SecureConfig = self.config.run.flower.secure
        shapes = {name: tuple(tensor.shape) for name, tensor in told.model.items()}
        self.averaged = [n for n in sorted(self.stage.travels) if told.model[n].is_floating_point()]
        self.counters = [n for n in sorted(self.stage.travels) if n not in self.averaged]
        self.memories = self.stage.corrected if self.stage.method.drift.remembers else ()
        slots = [Slot(f"model/{name}", shapes[name], options.clip) for name in self.averaged]
        slots += [Slot(f"count/{name}", shapes[name], 0.0) for name in self.counters]
        slots += [Slot(f"drift/{name}", shapes[name], options.clip) for name in self.memories]
        self.form = Form((*slots, Slot("loss", (), _LOSS)), options.bits)

    def values(self, sent: Message, scale: int) -> Tensors:
        """A client's numbers, from what it would send in the open."""
        numbers, received = sent.numbers, self.told.model
        weight, model = weight_of(self.config, numbers.samples, scale), by_part(sent.tensors).get("model", {})
        if not numbers.finite or not bool(all_finite([torch.tensor(numbers.loss), *sent.tensors.values()])):
            raise NotFinite(NOT_FINITE)
        found = {f"model/{n}": weight * (model[n].double() - received[n].double()) for n in self.averaged}
        found |= {f"count/{n}": model[n] - received[n] for n in self.counters}
        found |= {f"drift/{n}": tensor for n, tensor in self._changes(sent, model).items()}
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
        received = self.told.model
        model = {n: (received[n].double() + total[f"model/{n}"] / whole).to(received[n]) for n in self.averaged}
        steps = {n: (total[f"count/{n}"] / len(clients)).round() for n in self.counters}  # nothing depends on them
        model |= {n: received[n] + step.to(received[n]) for n, step in steps.items()}
        change = {n: total[f"drift/{n}"].to(received[n]) for n in self.memories}
        return MeanSent(tuple(clients), model, change, float(total["loss"]) / whole)


class NotFinite(RequestError):
    """A client has nothing to add to a sum."""


class ClassSumContents:
    """Of class sums: features summed by class, divided by the scale, and how many there are."""

    def __init__(self, job: Job) -> None:
        options = job.config.run.flower.secure
        ranges, declared = {"total": options.clip, "count": 0.0}, class_sums_declared(job.net, job.roster.classes)
        self.form = Form(tuple(Slot(n, each.shape, ranges[n]) for n, each in declared.items()), options.bits)

    def values(self, sums: Tensors, scale: int) -> Tensors:
        if not bool(all_finite(sums.values())):
            raise NotFinite("its features are not finite")
        return {"total": sums["total"].double() / scale, "count": sums["count"]}

    def sums(self, total: Tensors, scale: int) -> Tensors:
        return {"total": (total["total"] * scale).float(), "count": total["count"].float()}
