"""The models of a run with statistics of their own for BatchNorm, taken from training samples at export."""

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
from torso.nets.calibrate import LEAST, calibrated, calibrated_on, goes_by_batch
from torso.nets.network import card_of
from torso.results.result import Result

MOST = 4096  # samples that statistics are taken from: of more, as many, evenly spread
_AT_ONCE = 256  # samples of a forward pass where the batch does not matter


@dataclass(frozen=True)
class Calibration:
    """What was done to one model. Accuracies are percentages on test samples, None where there are none: before, in
    batches of up to `batch` samples, and after, sample by sample."""

    model: str
    samples: int
    batch: int = 0
    before: float | None = None
    after: float | None = None

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
    """A client's model, or the generic one (client None), of a run whose data are here."""
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
    """A client's model with the statistics of its training samples; the generic model (client None) with those of all
    clients that train. None: the model does not go by the batch, or there are too few samples."""
    rows = training_rows(data, client)
    if not goes_by_batch(net) or len(rows) < LEAST:
        return None
    return calibrated_on(net, card_of(net).look(data.train.samples[rows].cpu()))


def calibrate_newcomer(name: str, net: Network, samples: Any) -> tuple[Network, Calibration | None]:
    """The model of a client that came with samples of its own."""
    some = samples[spread(len(samples))]
    if not goes_by_batch(net) or len(some) < LEAST:
        return net, None
    return calibrated(net, some), Calibration(name, len(some))


def calibrated_path(model: Path) -> Path:
    """Where a client keeps its model with calibrated BatchNorm, beside the one whose BatchNorm goes by the batch."""
    return model.parent / "calibrated" / model.name


def training_rows(data: Federation, client: int | None) -> Tensor:
    """A client's training samples, or those of all that train; at most MOST, evenly spread over them."""
    if client is not None:
        rows = data.train.rows(client)
    else:
        late = set(data.newcomers.tolist())
        rows = torch.cat([data.train.rows(k) for k in range(data.clients) if k not in late])
    return rows[torch.from_numpy(spread(len(rows))).to(rows.device)]


def spread(count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Places of at most MOST of so many samples, evenly spread."""
    return np.arange(count) if count <= MOST else np.arange(MOST) * count // MOST


@torch.no_grad()
def accuracy(net: Network, test: Split, rows: Tensor, batch: int = _AT_ONCE) -> float | None:
    """Percent of these test samples that a network has right, in batches of a size."""
    if not len(rows):
        return None
    parts: tuple[Tensor, ...] = torch.split(rows, batch)
    right = sum(_right(net, test, part) for part in parts)
    return 100 * right / len(rows)


def _right(net: Network, test: Split, rows: Tensor) -> int:
    said = net(card_of(net).look(test.samples[rows].cpu())).argmax(dim=1)
    return int((said == test.labels[rows].cpu()).sum())


def lines(done: list[Calibration], most: int = 10) -> Iterator[str]:
    """A line for each model, or for the first ones and the mean where there are many."""
    yield from (one.line for one in done[:most])
    pairs = [(one.before, one.after) for one in done if one.before is not None and one.after is not None]
    if len(done) > most and pairs:
        before, after = np.mean(pairs, axis=0)
        others, all_of_them = len(done) - most, len(pairs)
        yield f"… and {others} more. The mean of all {all_of_them}: {before:.1f} % before, {after:.1f} % after."
