"""`torso.predict`: class names and probabilities for new samples. n samples, C classes."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torso.data.inputs import Array
from torso.errors import RequestError
from torso.nets import Network
from torso.nets.card import Card
from torso.nets.network import card_of
from torso.results.calibration import calibrate_client
from torso.results.encoder_file import is_encoder
from torso.results.files import replace_file
from torso.results.model_file import SUFFIX, load_model
from torso.results.result import Result
from torso.runs.load import load
from torso.runs.user_data import UserData, read_user_data
from torso.runs.user_texts import LABEL, TEXT

_MODEL = "an exported .safetensors file, or the folder of a finished run"
_AT_ONCE = 256  # samples in a batch


@dataclass(frozen=True, eq=False)
class Predictions:
    """The predictions of a model for n samples."""

    names: tuple[str, ...]  # of the samples
    classes: tuple[str, ...]  # names of the C classes
    probabilities: NDArray[np.float32]  # [n, C]
    labels: tuple[str, ...] = ()  # the true classes, if the data contain them and the model has all of them
    remarks: tuple[str, ...] = ()  # what was changed in the data, and what to know about the predictions

    def __len__(self) -> int:
        return len(self.names)

    def top(self, count: int = 3) -> list[list[tuple[str, float]]]:
        """For each sample its most probable classes with their probabilities, the most probable first."""
        order = np.argsort(-self.probabilities, axis=1, kind="stable")[:, :count]
        return [
            [(self.classes[place], float(row[place])) for place in best]
            for row, best in zip(self.probabilities, order.tolist(), strict=True)
        ]

    @property
    def right(self) -> int | None:
        """The number of samples whose most probable class is the true one; None if the true classes are unknown."""
        if not self.labels:
            return None
        return sum(best[0][0] == label for best, label in zip(self.top(1), self.labels, strict=True))

    def as_json(self, count: int = 3) -> dict[str, Any]:
        rows = [
            {"sample": name, "classes": [{"name": c, "probability": round(p, 6)} for c, p in best]}
            for name, best in zip(self.names, self.top(count), strict=True)
        ]
        known = {} if self.right is None else {"right": self.right}
        return {"predictions": rows, "classes": list(self.classes), **known, "remarks": list(self.remarks)}

    def write(self, path: str | Path, count: int = 3) -> Path:
        """Write a .csv file with a row for each sample: its name, and pairs of a class and its probability."""
        path = Path(path)
        if path.suffix.lower() != ".csv":
            raise RequestError(f"--out {str(path)!r} does not end in .csv. Example: {path.with_suffix('.csv')}")
        best = self.top(count)
        head = ["sample"]
        for place in range(1, len(best[0]) + 1):
            head += [f"class_{place}", f"probability_{place}"]

        def fill(temporary: Path) -> None:
            with temporary.open("w", encoding="utf-8", newline="") as file:
                rows = csv.writer(file)
                rows.writerow(head)
                for name, pairs in zip(self.names, best, strict=True):
                    rows.writerow([name, *(part for c, p in pairs for part in (c, f"{p:.6f}"))])

        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, fill)
        except OSError as error:
            raise RequestError(f"--out {str(path)!r} cannot be written: {error}") from None
        return path


def predict(
    model: Network | Result | str | Path,
    data: Any,
    *,
    client: int | str | None = None,
    label: str = LABEL,
    text: str = TEXT,
) -> Predictions:
    """Predict classes and their probabilities for new samples.

    `model`: a network of a run, an exported file, a Result, or the folder of a finished run. `client`: for the last
    two, the client whose model is used (None: the generic model). `data`: an image, a folder of images, a .csv, .jsonl,
    .npz or .txt file, or objects: Pillow images, arrays, a list of texts. `label`: the column of a table that names the
    class; it is not used as a feature. `text`: the column of the texts, or several separated by commas."""
    net = network_of(model, client)
    return answers(net, read_user_data(data, card_of(net), label, text))


def network_of(
    model: Network | Result | str | Path,
    client: int | str | None = None,
    data_root: str | Path | None = None,
    *,
    accept_changed_data: bool = False,
) -> Network:
    """The network that `model` and `client` stand for: the network itself, one in a file, or one of a run.

    `data_root` and `accept_changed_data` are as in `torso.load`."""
    if isinstance(model, str | Path):
        path = model_file(Path(model))
        if not path.exists():
            raise RequestError(f"{str(path)!r} does not exist. Expected: {_MODEL}")
        if not path.is_dir():
            if client is not None:
                raise RequestError(f"{str(path)!r} holds one model: leave out client = {client!r}.")
            return load_model(path)
        model = load(path, data_root=data_root, accept_changed_data=accept_changed_data)
    if isinstance(model, Result):
        return _of_run(model, _number(client, model.names))
    if client is not None:
        raise RequestError(f"client = {client!r} is of a run, and this is one network. Leave it out.")
    return model


def model_file(path: Path) -> Path:
    """The model file in a folder that `torso export` or `torso personalize` wrote. Any other path is returned as it is.

    Raises RequestError if the folder has several models."""
    if not path.is_dir() or (path / "config.toml").exists():
        return path
    found = sorted(file.name for file in path.glob(f"*{SUFFIX}") if not is_encoder(file))
    if len(found) > 1:
        some = ", ".join(found[:5]) + (" …" if len(found) > 5 else "")
        raise RequestError(f"{str(path)!r} holds {len(found)} models. Give one of them: {some}")
    return path / found[0] if found else path


def _of_run(result: Result, client: int | str | None) -> Network:
    """A model of a run. BatchNorm without running statistics gets statistics of training data, as at export."""
    net = result.network(client)
    if result.federation is None:
        return net
    number = result.names.index(client) if isinstance(client, str) else client
    return calibrate_client(result.federation, net, number) or net


def _number(client: int | str | None, names: tuple[str, ...]) -> int | str | None:
    """A client's name or number as a Result takes it. A text of digits is a number unless a client has that name."""
    if isinstance(client, str) and client not in names and client.isascii() and client.isdecimal():
        return int(client)
    return client


def answers(net: Network, data: UserData) -> Predictions:
    """The predictions of a network for samples of its kind of input."""
    card = card_of(net)
    probabilities = torch.softmax(logits_of(net, data.samples), dim=1).numpy()
    unknown = sorted(set(data.labels) - set(card.names))
    which_head = (f"an answer is {card.answers}",) if card.answers else ()
    said = (*data.remarks, *_remarks_on_labels(data.labels, unknown), *which_head, *_caution(card, len(data)))
    return Predictions(data.names, card.names, probabilities, () if unknown else data.labels, said)


def _remarks_on_labels(labels: tuple[str, ...], unknown: list[str]) -> tuple[str, ...]:
    """A remark if the model does not have some classes of the data, so that right answers are not counted.

    If it has none of them, the folders of the data are no classes at all, and there is no remark."""
    if not unknown or set(labels) == set(unknown):
        return ()
    some = ", ".join(unknown[:5]) + (" …" if len(unknown) > 5 else "")
    return (f"right answers are not counted: the data name classes that the model has not ({some})",)


def logits_of(net: Network, samples: Array) -> Tensor:
    """The logits [n, C] of samples, on the CPU. Raises RequestError if they are not finite."""
    logits = in_batches(samples, lambda part: net(net.prepare(part)))
    if not logits.isfinite().all():
        raise RequestError("the model answers with numbers that are not finite (NaN): its training has failed.")
    return logits


@torch.no_grad()
def in_batches(samples: Array, call: Callable[[Array], Tensor]) -> Tensor:
    """The outputs of `call` for samples [n, *], on the CPU, computed in batches.

    A batch takes every k-th sample: data are often sorted by class, and BatchNorm that uses the statistics of the batch
    needs all classes in it."""
    stride = -(-len(samples) // _AT_ONCE)
    parts = [call(samples[first::stride]).float().cpu() for first in range(stride)]
    every = torch.empty(len(samples), *parts[0].shape[1:])
    for first, part in enumerate(parts):
        every[first::stride] = part
    return every


def _caution(card: Card, samples: int) -> tuple[str, ...]:
    """A remark about a network whose BatchNorm uses, or used before calibration, the statistics of the batch."""
    if card.calibrated:
        return (
            f"BatchNorm has the statistics of {card.calibrated} samples, so a single sample is answered as in a batch",
        )
    if not card.batch_statistics:
        return ()
    if samples == 1:
        return (
            "BatchNorm of this network uses the statistics of the batch, so a single sample is answered badly. "
            "Predict many samples together, or use a calibrated model",
        )
    return (
        "BatchNorm of this network uses the statistics of the batch: each answer depends on the other samples of its "
        f"batch (here up to {_AT_ONCE})",
    )
