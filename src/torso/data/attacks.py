"""Clients that attack: who they are, and poisoned labels (spec 9.6). What they do to uploads: runs/tamper.py."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from torso.data.federation import Federation, Split
from torso.errors import RequestError
from torso.randomness import numpy_generator

if TYPE_CHECKING:
    from torso.config import AttackConfig


def attacked(federation: Federation, attack: AttackConfig, seed: int) -> Federation:
    """The federation with its malicious clients: ⌊fraction · N⌋ of those that train, drawn once."""
    if attack.kind == "none":
        return federation
    training = np.setdiff1d(np.arange(federation.clients), federation.newcomers, assume_unique=True)
    count = math.floor(len(training) * attack.fraction + 1e-9)
    if not count:
        raise RequestError(
            f"attack.fraction = {attack.fraction} of {len(training)} training clients is nobody, and attack.kind = "
            f"{attack.kind!r}. Accepted: {1 / len(training):.3g} or more, or attack.kind = none"
        )
    drawn = numpy_generator(seed, "attack", "clients").choice(training, count, replace=False)
    known = replace(federation, malicious=frozenset(drawn.tolist()))
    return _poisoned(known, seed) if attack.kind == "label-poisoning" else known


def _poisoned(federation: Federation, seed: int) -> Federation:
    """Labels of malicious clients drawn anew, uniformly, once.

    What the server has of the same samples (spec 3.3, 5.7) keeps its labels: copies behind the others, nobody's own."""
    split = federation.train
    hostile = torch.cat([split.rows(client) for client in sorted(federation.malicious)])
    drawn = numpy_generator(seed, "attack", "labels").integers(federation.classes, size=len(hostile))
    labels = split.labels.clone()
    labels[hostile] = torch.from_numpy(drawn).to(labels.device)
    servers = torch.cat([federation.server_rows, federation.meta_rows])
    both = torch.unique(servers[torch.isin(servers, hostile)])
    place = torch.arange(len(labels), device=labels.device)
    place[both] = len(labels) + torch.arange(len(both), device=labels.device)
    samples = torch.cat([split.samples, split.samples[both]]) if len(both) else split.samples
    return replace(
        federation,
        train=Split(samples, torch.cat([labels, split.labels[both]]), split.order, split.offsets),
        server_rows=place[federation.server_rows],
        meta_rows=place[federation.meta_rows],
    )
