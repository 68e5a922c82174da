"""The messages of attackers who have seen those of all honest participants of a round."""

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
    """Messages as they arrive. `hostile` and `honest`: the places of both in each; `received`: the parameters that
    attackers replace, as they were sent. A statistic is lied about as a change from zero, each by itself."""

    def of_honest(tensors: Sequence[Tensors], name: str) -> Tensor:
        return torch.cat([each[name][places] for each, places in zip(tensors, honest, strict=True)])

    models, statistics = [sent.model for sent in held], [sent.said for sent in held]
    attackers = sum(map(len, hostile))
    change = {name: of_honest(models, name) - start for name, start in received.items()}
    false = {name: received[name] + lie for name, lie in (attack.together(change, attackers) if change else {}).items()}
    lies = {
        name: plausible(lie, declared[name].numbers)
        for name in statistics[0]
        for lie in attack.together({name: of_honest(statistics, name)}, attackers).values()
    }
    return [
        replace(sent, model=_with(sent.model, places, false), said=_with(sent.said, places, lies))
        for sent, places in zip(held, hostile, strict=True)
    ]


def _with(stacked: Tensors, places: list[int], lies: Tensors) -> Tensors:
    """The tensors, with what liars say at their places."""
    return {**stacked, **{name: put(stacked[name], places, lie) for name, lie in lies.items()}}
