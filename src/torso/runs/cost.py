"""What a round costs: bytes that travel (spec 14.1), forward passes of one sample (spec 14.2), operations.

Bytes are those of the tensors of the round's messages (messages.py): what is counted is what is sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from torso.data import Roster
from torso.learn.phases import LocalPhase
from torso.learn.taught import models_of
from torso.nets import Tensors
from torso.nets.flops import step_flops
from torso.runs.messages import Schema, Told, sent_schema
from torso.runs.stage import Stage
from torso.server.state import Cost, ServerState, bytes_of


def down(told: Told, client: int) -> Tensors:
    """What the server sends to one participant."""
    return told.tensors(client)


def up(stage: Stage, told: Told, client: int) -> Schema:
    """What a participant sends back: which tensors there will be."""
    drift = stage.corrected if stage.method.drift.sends else ()
    declared = stage.declared(len(told.offers.get(client, ())), told.round)
    return sent_schema(told.model, sorted(stage.travels), drift, declared)


def schema_bytes(schema: Schema) -> int:
    return sum(dtype.itemsize * math.prod(shape) for dtype, shape in schema.values())


@dataclass(frozen=True)
class Busy:
    """Who did how much of a round: was sent what the server says, trained, uploaded."""

    sent: Sequence[int]
    trained: Sequence[int]
    uploaded: Sequence[int]


def cost_of(stage: Stage, roster: Roster, before: ServerState, told: Told, busy: Busy) -> Cost:
    """What one round has cost, data that travel once included; `before`: the server's state before it."""
    first = busy.sent[0] if busy.sent else None  # all participants of a round are sent as much
    each = (0, 0) if first is None else (bytes_of(down(told, first)), schema_bytes(up(stage, told, first)))
    bytes_down, bytes_up = each[0] * len(busy.sent), each[1] * len(busy.uploaded)
    method, model = stage.method, before.model
    once = method.share.frozen == "once" and bool(stage.travels)
    newly_met = len(set(busy.sent) - before.met) if once or stage.uses_meta else 0
    if once:
        bytes_down += bytes_of({name: model[name] for name in model.keys() - stage.moving}) * newly_met
    if stage.uses_meta:  # the balanced samples, once to each client (spec 5.7)
        bytes_down += roster.meta_samples * roster.input.bytes * newly_met
    if method.server_data != "none" and before.round + 1 == stage.first:  # the server's samples, once (spec 3.3)
        bytes_up += roster.server_samples * roster.input.bytes
    work = _work(stage, roster, busy.trained)
    passes, flops = (_sum(stage, roster, told, work, unit) for unit in (_passes(stage), _flops(stage, roster)))
    return Cost(bytes_up, bytes_down, passes, flops)


@dataclass(frozen=True)
class SampleCost:
    """What one sample costs: in an epoch of a phase, and in a forward pass alone."""

    learn: Callable[[LocalPhase], float]
    look: float


def body_of(stage: Stage) -> frozenset[str]:
    """A backward pass costs two forward ones, and head tuning needs none through the body (spec 14.2)."""
    return frozenset(stage.net.parts["body"])


def _flops(stage: Stage, roster: Roster) -> SampleCost:
    """One step of a client is counted; a sample has its share of it."""
    batch = max(stage.train.batch_size, 2)  # of one sample, BatchNorm has no statistics
    count = partial(step_flops, stage.net, roster.input, batch)
    return SampleCost(lambda phase: count(phase.rates) / batch, count() / batch)


def _work(stage: Stage, roster: Roster, chosen: Sequence[int]) -> tuple[int, int]:
    """How many samples these clients learn from, and how many they hold out."""
    each = roster.sizes_of(chosen) + (roster.meta_samples if stage.method.meta_data else 0)
    share = stage.method.personal.holds_out
    held_out = int(np.floor(share * each + 1e-9).sum()) if share else 0
    return int(each.sum()) - held_out, held_out


def _sum(stage: Stage, roster: Roster, told: Told, work: tuple[int, int], unit: SampleCost) -> int:
    """What the participants' and the server's learning costs, in some unit."""
    method, personal = stage.method, stage.method.personal
    learned_from, held_out = work
    offered = max((len(others) for others in told.offers.values()), default=0)
    spent = learned_from * _epochs(stage.plan(told.round), unit) * (method.step.passes + personal.passes)
    if teachers := len(models_of(method.objective)):  # a forward pass of each, whenever the loss is asked for
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
    """Forward passes; a backward pass costs two of them."""
    return SampleCost(lambda phase: 3 if phase.moving & body_of(stage) else 1, 1)
