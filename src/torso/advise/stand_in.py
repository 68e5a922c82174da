"""A stand-in for data of which only class counts are known: samples of another data set, dealt with these counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from torso.advise.counts import Table
from torso.advise.traits import Counts
from torso.config import Config
from torso.data import Federation, Split
from torso.data.partitions import assign
from torso.errors import RequestError
from torso.randomness import numpy_generator
from torso.runs.job import data_of


def dealt(config: Config, table: Table) -> tuple[Federation, float]:
    """The stand-in's training samples, dealt with these counts, and the factor by which counts were scaled to fit."""
    one = config.data.model_copy(update={"partition": "iid", "clients": 1, "new_clients": 0, "validation": 0.0})
    whole = data_of(config.model_copy(update={"data": one}))
    clients, classes = table.counts.shape
    if classes > whole.classes:
        raise RequestError(
            f"--counts has {classes} classes, and the stand-in {config.data.source!r} has {whole.classes}. "
            f"Accepted: a stand-in with {classes} classes or more"
        )
    labels = whole.train.labels.cpu().numpy()
    counts, scale = scaled(table.counts, np.bincount(labels, minlength=classes)[:classes])
    empty = np.flatnonzero(counts.sum(axis=1) == 0)
    if len(empty):
        raise RequestError(
            f"--counts: the stand-in {config.data.source!r} has only {scale:.2g} of these samples, which leaves client "
            f"{empty[0]} without samples. Accepted: a larger stand-in"
        )
    wanted = np.zeros((whole.classes, clients), np.int64)  # further classes of the stand-in are not used
    wanted[:classes] = counts.T
    rows = assign(labels, wanted, numpy_generator(config.run.seed, "partition", "counts"))
    device = whole.device
    no_rows = torch.zeros(0, dtype=torch.int64, device=device)
    train = replace(whole.train, order=torch.from_numpy(rows.order).to(device), offsets=rows.offsets)
    test = Split(whole.test.samples, whole.test.labels, no_rows, np.zeros(clients + 1, dtype=np.int64))
    made = replace(whole, train=train, test=test, classes=classes, clients=clients, names=table.clients, remarks=())
    return replace(made, class_names=(), superclasses=(), server_rows=no_rows, meta_rows=no_rows), scale


def scaled(counts: Counts, there: Counts) -> tuple[Counts, float]:
    """(counts, factor): the counts times one factor, rounded down, so that the stand-in has enough samples (`there`, by
    class)."""
    wanted = counts.sum(axis=0)
    used = wanted > 0
    scale = min(1.0, float((there[used] / wanted[used]).min()))
    return np.floor(counts * scale + 1e-9).astype(np.int64), scale
