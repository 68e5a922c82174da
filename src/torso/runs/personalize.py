"""A model for a client that was not there: from its own files, at once or by tuning, judged on a part held out."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch.nn.modules.batchnorm import _BatchNorm

from torso.data.images import Ints
from torso.errors import RequestError
from torso.nets import Network
from torso.nets.calibrate import calibrated, goes_by_batch
from torso.nets.card import Card
from torso.nets.class_means import HEAD, with_class_means
from torso.nets.dual import DualHead, HyperLinear
from torso.nets.layers import track
from torso.randomness import numpy_generator
from torso.results.checkpoint import write_text
from torso.results.export import PAGE, check_empty, page
from torso.results.model_file import SUFFIX, save_model
from torso.results.result import Result
from torso.runs.load import load
from torso.runs.offered import LABEL, Offered, offered
from torso.runs.predict import card_of, in_batches, logits_of, network_of

How = Literal["auto", "hyper", "class-means", "calibrate", "tune"]
HOWS: tuple[str, ...] = get_args(How)
HELD_OUT = 0.2
_SPLITS = {"train", "test", "val"}  # folders that name no classes


@dataclass(frozen=True, eq=False)
class Personalized:
    """A client's model and what it is worth: accuracies in percent on samples held out, NaN where there are none."""

    network: Network  # to be used: the personal one, or the one before where that is better
    how: str  # never auto
    before: float
    after: float
    samples: int  # that the model was made from
    held_out: int
    is_personal: bool  # whether `network` is the personal one
    new_classes: tuple[str, ...] = ()  # that the federation never saw
    remarks: tuple[str, ...] = ()

    @property
    def worse(self) -> bool:
        return self.after < self.before

    def as_json(self) -> dict[str, Any]:
        known = {"before": self.before, "after": self.after} if self.held_out else {"before": None, "after": None}
        counts = {"samples": self.samples, "held_out": self.held_out}
        said = {"new_classes": list(self.new_classes), "remarks": list(self.remarks)}
        return {"how": self.how, **known, **counts, "personal": self.is_personal, **said}


@dataclass(frozen=True, eq=False)
class _Client:
    """What a client brings: samples [n, *] and classes [n] by their place in `names`, of which the first are known."""

    samples: Any
    labels: Ints
    names: tuple[str, ...]
    known: int  # classes of the model

    def take(self, rows: Ints) -> _Client:
        return replace(self, samples=self.samples[rows], labels=self.labels[rows])

    @property
    def familiar(self) -> _Client:
        """Without the samples of new classes."""
        return self.take(np.flatnonzero(self.labels < self.known))

    def __len__(self) -> int:
        return len(self.labels)


def personalize(
    model: Network | Result | str | Path,
    data: Any,
    *,
    how: How = "auto",
    epochs: int | None = None,
    held_out: float = HELD_OUT,
    seed: int = 0,
    keep: bool = False,
    label: str = LABEL,
    data_root: str | Path | None = None,
) -> Personalized:
    """A personal model for a client that the run has never heard of, from its labelled samples.

    `model`: a network, an exported file, a Result, or the folder of a finished run; tuning needs one of the last two.
    `data`: a folder CLASS/*.png, a .csv or .npz file with labels. `how`: "hyper" makes the head from the mix of classes
    (Fed-RoD's hypernetwork); "class-means" goes by the nearest class mean of the body's features; "calibrate" gives
    BatchNorm the statistics of the client; "tune" trains as the method's new clients do, for `epochs`; "auto" chooses.
    A share `held_out` of each class is not trained on and measures the model before and after. If the model was better
    before, that one is the result, unless `keep`."""
    _check(how, held_out, epochs)
    result = _result_of(model, data_root)
    generic = network_of(model if result is None else result)
    card = card_of(generic)
    found = offered(data, card, label)
    client = _client_of(found, card.names, label)
    train, test = (client.take(rows) for rows in stratified(client.labels, held_out, seed))
    chosen = _chosen(how, generic, result, client)
    personal, remarks = _made(chosen, generic, result, train, epochs)
    before, after = (_accuracy(net, test) for net in (generic, personal))
    new = client.names[client.known :]
    is_personal = keep or not after < before
    return Personalized(
        network=personal if is_personal else generic,
        how=chosen,
        before=before,
        after=after,
        samples=len(train),
        held_out=len(test),
        is_personal=is_personal,
        new_classes=new,
        remarks=(*found.remarks, *_told_of_classes(client, new, card), *remarks),
    )


def write(found: Personalized, out: str | Path) -> list[Path]:
    """The model and a page that says how to use it, in a folder that is empty or not there yet."""
    out = Path(out)
    check_empty(out)
    card = card_of(found.network)
    path = save_model(found.network, out / f"{card.kind}{SUFFIX}")
    write_text(out / PAGE, page(card, None, [path.name], story(found)))
    return [path]


def story(found: Personalized) -> str:
    """What was done, in a few sentences."""
    said = [f"Made by `torso personalize` ({found.how}) from {found.samples} samples of the client."]
    if found.held_out:
        said.append(
            f"Accuracy on {found.held_out} samples held out: {found.before:.1f} % before, {found.after:.1f} % after."
        )
    if not found.is_personal:
        said.append("Personalising made it worse, so this is the model as it was before.")
    if found.new_classes:
        said.append(f"Classes that the federation never saw: {', '.join(found.new_classes)}.")
    return "\n".join(said)


def stratified(labels: Ints, share: float, seed: int) -> tuple[Ints, Ints]:
    """Rows to learn from and rows held out, both sorted: of every class a share, at least one of two or more samples,
    and never all of them."""
    key = numpy_generator(seed, "personalize", "held out").random(len(labels))
    order = np.lexsort((key, labels))
    sizes = np.bincount(labels)
    place = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # within its class
    wanted = np.clip(np.rint(share * sizes), np.minimum(sizes - 1, 1), sizes - 1) if share else np.zeros(len(sizes))
    out = place < wanted[labels[order]]
    return np.sort(order[~out]), np.sort(order[out])


def _check(how: str, held_out: float, epochs: int | None) -> None:
    if how not in HOWS:
        raise RequestError(f"how = {how!r} is unknown. Accepted: {', '.join(HOWS)}")
    if not 0 <= held_out <= 0.9:
        raise RequestError(f"held_out = {held_out} is not accepted. Expected: 0 to 0.9")
    if epochs is not None and how not in ("auto", "tune"):
        raise RequestError(f"epochs = {epochs} is of how = tune, and how is {how}. Leave it out.")


def _result_of(model: Any, data_root: str | Path | None) -> Result | None:
    """The run, where one is given."""
    if isinstance(model, Result):
        return model
    is_folder = isinstance(model, str | Path) and Path(model).is_dir()
    return load(model, data_root=data_root) if is_folder else None


def _client_of(found: Offered, known: tuple[str, ...], label: str) -> _Client:
    """The client's samples with numbers of classes; classes that the model has not come behind those it has."""
    if not found.labels:
        raise RequestError(
            "the data do not say the class of each sample. Expected: a folder for each class with its images, an .npz "
            f"file with labels, or a .csv file with a column {label!r} (--label)"
        )
    splits = sorted(set(found.labels) & _SPLITS - set(known))
    if splits:
        raise RequestError(f"the data have a folder {splits[0]!r} where classes should be. Give that folder itself.")
    empty = next((name for name, of in zip(found.names, found.labels, strict=True) if not of.strip()), None)
    if empty is not None:
        raise RequestError(f"{empty} has no class. Expected: a class for each sample")
    names = (*known, *sorted(set(found.labels) - set(known)))
    place = {name: number for number, name in enumerate(names)}
    return _Client(found.samples, np.array([place[name] for name in found.labels], np.int64), names, len(known))


def _chosen(how: How, net: Network, result: Result | None, client: _Client) -> str:
    """The way that is asked for, refused where the model has none; `auto`: class means for new classes and without a
    run, a made head where the network makes one, else tuning."""
    makes = isinstance(net.head, DualHead) and isinstance(net.head.personal, HyperLinear)
    norms = any(isinstance(module, _BatchNorm) for module in net.modules())
    new = len(client.names) > client.known
    if how == "auto":
        at_once = "hyper" if makes else "class-means"
        return "class-means" if new else at_once if makes or result is None else "tune"
    reasons = {
        "hyper": (makes, "this network makes no heads; only those of Fed-RoD's hypernetwork do (fedrod-hyper)")
        if not new
        else (False, f"a head can be made for known classes only, and {client.names[client.known]!r} is new"),
        "calibrate": (norms, "this network has no BatchNorm whose statistics could be those of the client"),
        "tune": (result is not None, "a model file does not say how new clients train. Give the folder of the run"),
    }
    fits, reason = reasons.get(how, (True, ""))
    if not fits:
        raise RequestError(f"--how {how}: {reason}, or choose another: auto, class-means")
    return how


def _made(
    how: str, generic: Network, result: Result | None, train: _Client, epochs: int | None
) -> tuple[Network, tuple[str, ...]]:
    """The personal network. New classes are served by class means, over the body that the chosen way has left."""
    familiar, new = train.familiar, len(train.names) > train.known
    said = []
    net = generic
    if how == "tune" and len(familiar):
        assert result is not None
        net = result.newcomer(familiar.samples, familiar.labels, epochs=epochs)
    elif how == "calibrate":
        net = _without_statistics(generic)
    elif how == "hyper":
        net = _with_made_head(generic, train)
    if goes_by_batch(net):
        net = calibrated(net, train.samples)
        said.append(f"BatchNorm has the statistics of {len(train)} samples of the client now")
    if how == "class-means" or new:
        net = _by_class_means(net, train)
        missing = train.known - len(np.unique(familiar.labels))
        if missing:
            said.append(
                f"it answers only with the classes of the data, which lack {missing} of {train.known} known ones"
            )
    net.card = replace(card_of(net), kind="newcomer", client=None)
    return net, tuple(said)


def _with_made_head(net: Network, train: _Client) -> Network:
    """The head that the hypernetwork makes from the client's mix of classes (spec 6.3)."""
    made = copy.deepcopy(net)
    counts = torch.from_numpy(np.bincount(train.labels, minlength=train.known)).float()
    facts = {name: tensor[0] for name, tensor in made.facts(counts[None]).items()}
    made.fill({**made.state_dict(), **facts}, personal=True)
    return made


def _without_statistics(net: Network) -> Network:
    """A copy whose BatchNorm goes by the batch, so that it can be calibrated."""
    made = copy.deepcopy(net)
    for module in made.modules():
        if isinstance(module, _BatchNorm):
            track(module, False)
    return made


def _by_class_means(net: Network, train: _Client) -> Network:
    """The network with a head of the client's class means, in which new classes have rows, too."""
    features = in_batches(train.samples, lambda part: net.features(net.prepare(part)))
    classes = len(train.names)
    made = with_class_means(net, features, torch.from_numpy(train.labels), classes)
    card = card_of(net)
    names = train.names if classes > train.known else card.class_names
    made.card = replace(card, head=HEAD, classes=classes, class_names=names)
    return made


def _accuracy(net: Network, test: _Client) -> float:
    if not len(test):
        return float("nan")
    said = logits_of(net, test.samples).argmax(dim=1).numpy()
    return float(100 * (said == test.labels).mean())


def _told_of_classes(client: _Client, new: tuple[str, ...], card: Card) -> tuple[str, ...]:
    if not new:
        return ()
    some = ", ".join(new[:10]) + (" …" if len(new) > 10 else "")
    known = "" if card.class_names else "; the model has no class names, only numbers from 0"
    count = "1 class" if len(new) == 1 else f"{len(new)} classes"
    return (f"the federation never saw {count} of the data, served by class means: {some}{known}",)
