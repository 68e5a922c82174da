"""Calibration of BatchNorm at export: running statistics for models that were trained with batch statistics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torso.data import Federation, Split
from torso.nets import Network
from torso.nets.calibrate import MIN_SAMPLES, calibrated, calibrated_on, goes_by_batch
from torso.nets.network import card_of
from torso.results.result import Result

MOST = 4096  # samples that statistics are computed from; of more samples, this many are taken, evenly spread
_AT_ONCE = 256  # samples of a forward pass, if the batch size does not change the answers


@dataclass(frozen=True)
class Calibration:
    """A report about the calibration of one model: its accuracy on test samples before and after."""

    model: str
    samples: int  # training samples that the statistics were computed from
    batch: int = 0  # largest batch size in which `before` was measured
    before: float | None = None  # percent, with batch statistics; None if there are no test samples
    after: float | None = None  # percent, with the calibrated statistics; independent of the batch

    @property
    def line(self) -> str:
        said = f"{self.model}: BatchNorm calibrated on {self.samples} training samples"
        if self.before is None or self.after is None:
            return f"{said}."
        return (
            f"{said}. Test accuracy {self.before:.1f} % before (in batches of up to {self.batch}), "
            f"{self.after:.1f} % after (any batch)."
        )


def calibrate_own(result: Result, name: str, client: int | None, net: Network) -> tuple[Network, Calibration | None]:
    """Calibrate a client's model, or the generic model (client None), of a run whose data are in this process.

    Returns the network unchanged and None if it needs no calibration or has too few samples for it."""
    data = result.federation
    assert data is not None
    made = calibrate_client(data, net, client)
    if made is None or made.card is None:
        return net, None
    batch = result.job.config.measure.batch_size
    rows = data.test_order if client is None else data.test.rows(client)
    before, after = accuracy(net, data.test, rows, batch), accuracy(made, data.test, rows)
    return made, Calibration(name, made.card.calibrated, batch, before, after)


def calibrate_client(data: Federation, net: Network, client: int | None) -> Network | None:
    """The model with statistics of the client's training samples, or of all training clients (client None).

    None if the model does not use batch statistics, or if there are too few samples."""
    rows = training_rows(data, client)
    if not goes_by_batch(net) or len(rows) < MIN_SAMPLES:
        return None
    return calibrated_on(net, card_of(net).look(data.train.samples[rows].cpu()))


def calibrate_newcomer(name: str, net: Network, samples: Any) -> tuple[Network, Calibration | None]:
    """Calibrate the model of a new client on the samples that were given for it."""
    chosen = samples[spread(len(samples))]
    if not goes_by_batch(net) or len(chosen) < MIN_SAMPLES:
        return net, None
    return calibrated(net, chosen), Calibration(name, len(chosen))


def calibrated_path(model: Path) -> Path:
    """The path of the calibrated copy of a client's model file."""
    return model.parent / "calibrated" / model.name


def training_rows(data: Federation, client: int | None) -> Tensor:
    """The rows of a client's training samples, or of all training clients (None); at most MOST, evenly spread."""
    if client is not None:
        rows = data.train.rows(client)
    else:
        newcomers = set(data.newcomers.tolist())
        rows = torch.cat([data.train.rows(k) for k in range(data.clients) if k not in newcomers])
    return rows[torch.from_numpy(spread(len(rows))).to(rows.device)]


def spread(count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """At most MOST indices of `count` samples, evenly spread."""
    if count <= MOST:
        return np.arange(count)
    return np.arange(MOST) * count // MOST


@torch.no_grad()
def accuracy(net: Network, test: Split, rows: Tensor, batch: int = _AT_ONCE) -> float | None:
    """The percentage of these test samples that the network classifies correctly; None if there are none."""
    if not len(rows):
        return None
    parts: tuple[Tensor, ...] = torch.split(rows, batch)
    correct = sum(_correct(net, test, part) for part in parts)
    return 100 * correct / len(rows)


def _correct(net: Network, test: Split, rows: Tensor) -> int:
    predicted = net(card_of(net).look(test.samples[rows].cpu())).argmax(dim=1)
    return int((predicted == test.labels[rows].cpu()).sum())


def lines(done: list[Calibration], most: int = 10) -> Iterator[str]:
    """A line for each of the first `most` models; if there are more, a last line with the mean of all."""
    yield from (one.line for one in done[:most])
    pairs = [(one.before, one.after) for one in done if one.before is not None and one.after is not None]
    if len(done) > most and pairs:
        before, after = np.mean(pairs, axis=0)
        others = len(done) - most
        yield f"… and {others} more. The mean of all {len(pairs)}: {before:.1f} % before, {after:.1f} % after."
