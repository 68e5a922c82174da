"""Personal heads that scale each class of the common head by the client's share of it (FedGELA, spec 19.10)."""

from __future__ import annotations

from dataclasses import dataclass

from torso.learn.objectives import class_shares
from torso.nets import Tensors
from torso.personal.base import OwnModelStart, Personal, personals


@personals.register("scaled-head")
@dataclass(frozen=True)
class ScaledHead(Personal):
    """The model that a client holds, with row c of its last layer multiplied by N_c divided by its mean over all
    classes. A class that the client lacks has logit 0 (FedGELA, spec 19.10)."""

    def begin(self, at: OwnModelStart) -> Tensors:
        shares = class_shares(at.counts())  # [G, C]
        last = last_layer(at.held, shares.shape[1])
        scaled = {last: at.held[last] * shares.unsqueeze(-1)}
        if (bias := last.removesuffix("weight") + "bias") in at.held:
            scaled[bias] = at.held[bias] * shares
        return {**at.held, **scaled}


def last_layer(held: Tensors, classes: int) -> str:
    """The name of the weight [G, C, d] that gives the generic logits, not that of a personal head."""
    heads = (name for name in held if name.startswith("head.") and not name.startswith("head.personal."))
    *_, last = (name for name in heads if held[name].ndim == 3 and held[name].shape[1] == classes)
    return last
