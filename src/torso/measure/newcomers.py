"""Measures of newcomers, clients that join after training (spec 9.7): at once, and after training on their own data."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torso.engine import Workspace
from torso.learn.local import learn_by_epoch
from torso.learn.stacked import per_client
from torso.learn.task import LocalTask
from torso.measure.accuracy import percent_correct
from torso.measure.base import Evaluation, measure
from torso.measure.mixes import percent_by_mix
from torso.nets import Tensors

_HELD_OUT = 0.1  # share of a newcomer's samples on which the best epoch is chosen


@measure("new_before", of="newcomers", whole_test=True)
def new_before(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> dict[str, Tensor]:
    """P-FL of clients that never took part, with the model that they get (spec 9.7).

    If a hypernetwork generates the personal head, theirs is generated from their class proportions alone."""
    return {"new_before": percent_by_mix(workspace, clients, tensors, how.batch_size)}


@measure("new_after", of="newcomers", whole_test=True, trains_body=True)
def new_after(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> dict[str, Tensor]:
    """As new_before, after they have trained the model on their own data; a tenth of it is held out to choose the best
    epoch (spec 9.7).

    If a hypernetwork generated the personal head, this head trains like any other layer: "φ can be further updated"."""
    return {"new_after": percent_by_mix(workspace, clients, settled(workspace, clients, tensors, how), how.batch_size)}


def settled(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> Tensors:
    """The models [G, *] of newcomers after training, each from its best epoch. `tensors` [G, *]: the models they
    got."""
    if workspace.context.net.generated_head:
        tensors = {**tensors, workspace.context.net.generated_head: torch.zeros_like(tensors["head.generic.weight"])}
    deck, held_out = workspace.train_deck(clients).split_off(_HELD_OUT, how.shuffle.seed)
    task = LocalTask(workspace.context, deck, how.arrival, how.arrival_settings, how.shuffle)
    best = tensors
    highest = torch.full((len(clients),), -1.0, device=deck.index.device)
    for learned in learn_by_epoch(task, tensors):
        score = percent_correct(workspace.context, held_out, learned.tensors, how.batch_size).nan_to_num(0.0)
        better = score > highest if learned.epochs else torch.zeros_like(score, dtype=torch.bool)
        best = {n: torch.where(per_client(better, t), t, best[n]) for n, t in learned.tensors.items()}
        highest = torch.where(better, score, highest)
    return best
