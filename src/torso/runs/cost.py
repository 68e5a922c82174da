"""The cost of a round: bytes that travel (spec 14.1), forward passes of one sample (spec 14.2), and FLOPs.

The bytes are those of the tensors in the round's messages (messages.py), so what is counted is what is sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from torso.data import Roster
from torso.learn.phases import LocalPhase
from torso.learn.teachers import teachers_of
from torso.nets import Tensors
from torso.nets.flops import step_flops
from torso.runs.messages import Schema, Told, sent_schema
from torso.runs.stage import Stage
from torso.server.state import Cost, ServerState, bytes_of


def download_of(told: Told, client: int) -> Tensors:
    """The tensors that the server sends to one participant."""
    return told.tensors(client)


def upload_schema(stage: Stage, told: Told, client: int) -> Schema:
    """The schema of the message that a participant sends back."""
    drift = stage.corrected if stage.method.drift.sends else ()
    declared = stage.declared(len(told.offers.get(client, ())), told.round)
    return sent_schema(told.model, sorted(stage.travels), drift, declared)


def schema_bytes(schema: Schema) -> int:
    """The bytes of the tensors of a message."""
    return sum(dtype.itemsize * math.prod(shape) for dtype, shape in schema.values())


@dataclass(frozen=True)
class Busy:
    """The clients that did each part of a round."""

    sent: Sequence[int]  # clients that were sent the model
    trained: Sequence[int]
    uploaded: Sequence[int]


def cost_of(stage: Stage, roster: Roster, before: ServerState, told: Told, busy: Busy) -> Cost:
    """The cost of one round, including data that travel once. `before`: the server's state before the round."""
    method, model = stage.method, before.model
    bytes_down = bytes_up = 0
    if busy.sent:
        client = busy.sent[0]  # all participants of a round get and send the same number of bytes
        bytes_down = bytes_of(download_of(told, client)) * len(busy.sent)
        bytes_up = schema_bytes(upload_schema(stage, told, client)) * len(busy.uploaded)
    frozen_once = method.share.frozen == "once" and bool(stage.travels)
    newly_met = len(set(busy.sent) - before.met) if frozen_once or stage.uses_meta else 0
    if frozen_once:
        bytes_down += bytes_of({name: model[name] for name in model.keys() - stage.moving}) * newly_met
    if stage.uses_meta:  # the balanced samples, once to each client (spec 5.7)
        bytes_down += roster.meta_samples * roster.input.bytes * newly_met
    if method.server_data != "none" and before.round + 1 == stage.first:  # the server's samples, once (spec 3.3)
        bytes_up += roster.server_samples * roster.input.bytes
    work = _work(stage, roster, busy.trained)
    passes = _sum(stage, roster, told, work, _passes(stage))
    flops = _sum(stage, roster, told, work, _flops(stage, roster))
    return Cost(bytes_up, bytes_down, passes, flops)


@dataclass(frozen=True)
class SampleCost:
    """The cost of one sample, in forward passes or in FLOPs."""

    learn: Callable[[LocalPhase], float]  # in an epoch of a local phase
    look: float  # in a forward pass alone


def body_of(stage: Stage) -> frozenset[str]:
    """The tensors of the body. A phase that trains none of them needs no backward pass through it (spec 14.2)."""
    return frozenset(stage.net.parts["body"])


def _flops(stage: Stage, roster: Roster) -> SampleCost:
    """FLOPs per sample: those of one step of a client, divided by the batch size."""
    batch = max(stage.train.batch_size, 2)  # BatchNorm cannot compute statistics of one sample
    count = partial(step_flops, stage.net, roster.input, batch)
    return SampleCost(lambda phase: count(phase.rates) / batch, count() / batch)


def _work(stage: Stage, roster: Roster, chosen: Sequence[int]) -> tuple[int, int]:
    """The number of samples that these clients train on, and the number that they hold out."""
    each = roster.sizes_of(chosen) + (roster.meta_samples if stage.method.meta_data else 0)
    share = stage.method.personal.holds_out
    held_out = int(np.floor(share * each + 1e-9).sum()) if share else 0
    return int(each.sum()) - held_out, held_out


def _sum(stage: Stage, roster: Roster, told: Told, work: tuple[int, int], unit: SampleCost) -> int:
    """The cost of the training of participants and server, in the unit of `unit`. `work`: as `_work` returns it."""
    method, personal = stage.method, stage.method.personal
    learned_from, held_out = work
    offered = max((len(others) for others in told.offers.values()), default=0)
    spent = learned_from * _epochs(stage.plan(told.round), unit) * (method.step.passes + personal.passes)
    teachers = len(teachers_of(method.objective))
    if teachers:  # a forward pass of each teacher, whenever the loss is computed
        epochs = sum(phase.epochs for phase in stage.plan(told.round))
        spent += learned_from * epochs * method.step.passes * teachers * unit.look
    spent += personal.opening_passes(offered) * (held_out if personal.holds_out else learned_from) * unit.look
    spent += method.statistics.passes * learned_from * unit.look * stage.gathers(told.round)
    if method.server_data != "none":
        spent += roster.server_samples * _epochs(stage.server_plan(stage.first), unit)
    return round(spent)


def _epochs(plan: Sequence[LocalPhase], unit: SampleCost) -> float:
    return sum(phase.epochs * unit.learn(phase) for phase in plan)


def _passes(stage: Stage) -> SampleCost:
    """Forward passes per sample. A backward pass through the body counts as two of them."""
    return SampleCost(lambda phase: 3 if phase.moving & body_of(stage) else 1, 1)
