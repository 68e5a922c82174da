"""Colluding attackers: they see the messages of all honest participants of a round before they send their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from torso.learn.attacks import Attack
from torso.learn.tamper import plausible, put
from torso.nets import Tensors
from torso.runs.messages import Sent
from torso.server.statistics import Declared


def colluded(
    attack: Attack,
    held: Sequence[Sent],
    hostile: Sequence[list[int]],
    honest: Sequence[list[int]],
    received: Tensors,
    declared: Declared,
) -> list[Sent]:
    """The messages `held`, with the attackers' rows replaced by false ones.

    `hostile` and `honest`: the rows of both in each message. `received`: the parameters that attackers replace, as the
    server broadcast them. A statistic is attacked as a change from zero, each statistic separately."""

    def of_honest(tensors: Sequence[Tensors], name: str) -> Tensor:
        return torch.cat([each[name][places] for each, places in zip(tensors, honest, strict=True)])

    models = [sent.model for sent in held]
    statistics = [sent.said for sent in held]
    attackers = sum(map(len, hostile))
    change = {name: of_honest(models, name) - start for name, start in received.items()}
    false_change = attack.together(change, attackers) if change else {}
    false_model = {name: received[name] + lie for name, lie in false_change.items()}
    false_statistics = {}
    for name in statistics[0]:
        for lie in attack.together({name: of_honest(statistics, name)}, attackers).values():
            false_statistics[name] = plausible(lie, declared[name].numbers)
    return [
        replace(sent, model=_with(sent.model, places, false_model), said=_with(sent.said, places, false_statistics))
        for sent, places in zip(held, hostile, strict=True)
    ]


def _with(stacked: Tensors, places: list[int], lies: Tensors) -> Tensors:
    """The stacked tensors with the rows of the attackers replaced."""
    return {**stacked, **{name: put(stacked[name], places, lie) for name, lie in lies.items()}}
