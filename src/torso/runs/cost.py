"""What a round costs: bytes that travel (spec 14.1), forward passes of one sample (spec 14.2), operations.

`down` and `up` are the messages themselves, so that what is counted is what an engine over a network has to send.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from torso.data import Federation
from torso.learn.phases import Lesson
from torso.nets import Tensors
from torso.nets.flops import step_flops
from torso.runs.stages import Stage
from torso.runs.state import Cost, bytes_of
from torso.runs.visit import Visit


def down(stage: Stage, visit: Visit, client: int) -> Tensors:
    """What the server sends to one participant: the shared part, what its drift correction shares, others' models."""
    state, method = visit.state, stage.method
    message = {} if method.server.apart else {f"model/{name}": state.model[name] for name in sorted(stage.travels)}
    if method.drift.sends:
        mean = state.drift or {name: torch.zeros_like(state.model[name]) for name in stage.corrected}
        message |= {f"drift/{name}": tensor for name, tensor in mean.items()}
    message |= {f"mean/{name}": tensor for name, tensor in visit.gathered.items()}
    for other in visit.offers.get(client, ()):
        held = {**state.model, **state.private[other]}
        message |= {f"model {other}/{name}": held[name] for name in sorted(stage.travels)}
    return message


def up(stage: Stage, visit: Visit, client: int) -> Tensors:
    """What a participant sends back, in shape: the shared part, the change of what its correction remembers, scores."""
    model = visit.state.model
    message = {f"model/{name}": model[name] for name in sorted(stage.travels)}
    if stage.method.drift.sends:
        message |= {f"drift/{name}": model[name] for name in stage.corrected}
    offered = visit.offers.get(client, ())
    return {**message, "scores": torch.zeros(len(offered))} if offered else message


def cost_of(stage: Stage, federation: Federation, visit: Visit, chosen: Sequence[int]) -> Cost:
    """What one round has cost, data that travel once included. `visit.state` is the state before the round."""
    first = chosen[0] if chosen else None  # all participants of a round are sent as much
    each = (0, 0) if first is None else (bytes_of(down(stage, visit, first)), bytes_of(up(stage, visit, first)))
    sample, newly_met = federation.input.bytes, len(set(chosen) - visit.state.met)
    bytes_down, bytes_up = (size * len(chosen) for size in each)
    method, model = stage.method, visit.state.model
    if method.share.frozen == "once" and stage.travels:
        bytes_down += bytes_of({name: model[name] for name in model.keys() - stage.moving}) * newly_met
    if stage.uses_meta:  # the balanced samples, once to each client (spec 5.7)
        bytes_down += len(federation.meta_rows) * sample * newly_met
    if method.server_data != "none" and visit.state.round + 1 == stage.first:  # the server's samples, once (spec 3.3)
        bytes_up += len(federation.server_rows) * sample
    return Cost(
        bytes_up,
        bytes_down,
        _sum(stage, federation, visit, chosen, Unit(lambda lesson: 3 if lesson.moving & body_of(stage) else 1, 1)),
        _sum(stage, federation, visit, chosen, _flops(stage, federation)),
    )


@dataclass(frozen=True)
class Unit:
    """What one sample costs: in an epoch of a lesson, and in a forward pass alone."""

    learn: Callable[[Lesson], float]
    look: float


def body_of(stage: Stage) -> frozenset[str]:
    """A backward pass costs two forward ones, and head tuning needs none through the body (spec 14.2)."""
    return frozenset(stage.net.parts["body"])


def _flops(stage: Stage, federation: Federation) -> Unit:
    """One step of a client is counted; a sample has its share of it."""
    batch = max(stage.train.batch_size, 2)  # of one sample, BatchNorm has no statistics
    count = partial(step_flops, stage.net, federation.input, batch)
    return Unit(lambda lesson: count(lesson.rates) / batch, count() / batch)


def _sum(stage: Stage, federation: Federation, visit: Visit, chosen: Sequence[int], unit: Unit) -> int:
    """What the participants' and the server's learning costs, in some unit."""
    method, personal = stage.method, stage.method.personal
    each = federation.train.sizes_of(chosen) + (len(federation.meta_rows) if method.meta_data else 0)
    held_out = int(np.floor(personal.holds_out * each + 1e-9).sum())
    learned_from = int(each.sum()) - held_out
    offered = max((len(others) for others in visit.offers.values()), default=0)
    spent = learned_from * _epochs(visit.plan, unit) * (method.step.passes + personal.passes)
    spent += personal.opening_passes(offered) * (held_out if personal.holds_out else learned_from) * unit.look
    if method.server_data != "none":
        spent += len(federation.server_rows) * _epochs(stage.server_plan(stage.first), unit)
    return round(spent)


def _epochs(plan: Sequence[Lesson], unit: Unit) -> float:
    return sum(lesson.epochs * unit.learn(lesson) for lesson in plan)
