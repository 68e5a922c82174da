"""`torso.personalize`: a personal model for a client that was not part of the run, from its own labelled samples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from torso.errors import RequestError
from torso.nets import Network
from torso.nets.card import Card
from torso.nets.network import card_of
from torso.results.export import PLAIN, ExportOptions, write_models
from torso.results.result import Result
from torso.runs.load import load
from torso.runs.predict import logits_of, model_file, network_of
from torso.runs.user_data import SPLITS, UserData, read_user_data
from torso.runs.user_texts import LABEL, TEXT
from torso.runs.ways import NewClient, make_model, split_by_class, ways

How = Literal["auto", "hyper", "class-means", "calibrate", "tune"]
HOWS: tuple[str, ...] = get_args(How)
HELD_OUT = 0.2


@dataclass(frozen=True, eq=False)
class Personalized:
    """A client's model, and its accuracy on held-out samples."""

    network: Network  # the model to use: the personal one, or the one before if that is better
    how: str  # the way in which it was made; never "auto"
    before: float  # accuracy in percent; NaN if no samples are held out
    after: float
    samples: int  # number of samples from which the model was made
    held_out: int  # number of held-out samples
    is_personal: bool  # whether `network` is the personal one
    new_classes: tuple[str, ...] = ()  # classes that the federation never saw
    remarks: tuple[str, ...] = ()

    @property
    def worse(self) -> bool:
        return self.after < self.before

    def as_json(self) -> dict[str, Any]:
        return {
            "how": self.how,
            "before": self.before if self.held_out else None,
            "after": self.after if self.held_out else None,
            "samples": self.samples,
            "held_out": self.held_out,
            "personal": self.is_personal,
            "new_classes": list(self.new_classes),
            "remarks": list(self.remarks),
        }


@dataclass(frozen=True)
class _Plan:
    """The options with which a way is chosen and carried out."""

    held_out: float  # share of each class
    seed: int
    epochs: int | None


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
    text: str = TEXT,
    data_root: str | Path | None = None,
    accept_changed_data: bool = False,
) -> Personalized:
    """A personal model for a client that was not part of the run, from its labelled samples.

    `model`: a network, an exported file, a Result, or the folder of a finished run; tuning needs one of the last two.
    `data`: a folder CLASS/*.png, a .csv, .jsonl or .npz file with labels (`text`: its column of texts).
    `how`: "hyper" makes the head from the mix of classes (Fed-RoD's hypernetwork); "class-means" takes the nearest
    class mean of the body's features; "calibrate" gives BatchNorm the statistics of the client; "tune" trains as the
    method's new clients do, for `epochs`; "auto" takes the way that does best on a part of the training samples.

    A share `held_out` of each class is not trained on. The model is measured on it before and after. If the model was
    better before, that one is the result, unless `keep`. `data_root`, `accept_changed_data`: as in `torso.load`."""
    _check(how, held_out, epochs)
    result = _result_of(model, data_root, accept_changed_data)
    generic = network_of(model if result is None else result)
    card = card_of(generic)
    found = read_user_data(data, card, label, text)
    client = _client_of(found, card.names, label)
    train_rows, test_rows = split_by_class(client.labels, held_out, seed)
    train = client.take(train_rows)
    test = client.take(test_rows)
    chosen, why = _chosen(how, generic, result, train, _Plan(held_out, seed, epochs))
    personal, remarks = make_model(chosen, generic, result, train, epochs)
    before = _accuracy(generic, test)
    after = _accuracy(personal, test)
    is_personal = keep or not after < before  # NaN: nothing is held out, and the personal model is used
    return Personalized(
        network=personal if is_personal else generic,
        how=chosen,
        before=before,
        after=after,
        samples=len(train),
        held_out=len(test),
        is_personal=is_personal,
        new_classes=client.names[client.known :],
        remarks=(*found.remarks, *_remarks_on_classes(client, card), *why, *remarks),
    )


def write(found: Personalized, out: str | Path, form: ExportOptions = PLAIN) -> list[Path]:
    """Write the model, and a page that says how to use it, into a folder that is empty or does not exist."""
    return write_models(Path(out), [(card_of(found.network).kind, found.network)], form, more=story(found))


def story(found: Personalized) -> str:
    """A few sentences about how the model was made."""
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


def _check(how: str, held_out: float, epochs: int | None) -> None:
    if how not in HOWS:
        raise RequestError(f"how = {how!r} is unknown. Accepted: {', '.join(HOWS)}")
    if not 0 <= held_out <= 0.9:
        raise RequestError(f"held_out = {held_out} is not accepted. Expected: 0 to 0.9")
    if epochs is not None and how not in ("auto", "tune"):
        raise RequestError(f"epochs = {epochs} is of how = tune, and how is {how}. Leave it out.")


def _result_of(model: Any, data_root: str | Path | None, accept_changed_data: bool) -> Result | None:
    """The run, if `model` is one or the folder of one. None for a network or a model file."""
    if isinstance(model, Result):
        return model
    if isinstance(model, str | Path) and model_file(Path(model)).is_dir():
        return load(model, data_root=data_root, accept_changed_data=accept_changed_data)
    return None


def _client_of(found: UserData, known: tuple[str, ...], label: str) -> NewClient:
    """The client's samples with class numbers. Classes that are new to the model come after those that it has."""
    if not found.labels:
        raise RequestError(
            "the data do not say the class of each sample. Expected: a folder for each class with its images, an .npz "
            f"file with labels, or a .csv file with a column {label!r} (--label)"
        )
    splits = sorted(set(found.labels) & SPLITS - set(known))
    if splits:
        raise RequestError(f"the data have a folder {splits[0]!r} where classes should be. Give that folder itself.")
    empty = next((name for name, of in zip(found.names, found.labels, strict=True) if not of.strip()), None)
    if empty is not None:
        raise RequestError(f"{empty} has no class. Expected: a class for each sample")
    names = (*known, *sorted(set(found.labels) - set(known)))
    number_of = {name: number for number, name in enumerate(names)}
    return NewClient(found.samples, np.array([number_of[name] for name in found.labels], np.int64), names, len(known))


def _chosen(how: str, generic: Network, result: Result | None, train: NewClient, plan: _Plan) -> tuple[str, list[str]]:
    """The way to make the model, and remarks. Raises RequestError if the model does not allow the way asked for.

    "auto" is the way that does best on a held-out part of the training samples. If nothing can be held out, it is
    "hyper" if the model allows it, else "class-means"."""
    reasons = ways(generic, result, train.new)
    allowed = [way for way, reason in reasons.items() if not reason]
    if how != "auto":
        if reasons[how]:
            raise RequestError(f"--how {how}: {reasons[how]}. Accepted here: auto, {', '.join(allowed)}")
        return how, []
    train_rows, validation_rows = split_by_class(train.labels, plan.held_out or HELD_OUT, plan.seed + 1)
    inner = train.take(train_rows)
    validation = train.take(validation_rows)
    if not len(validation) or len(allowed) == 1:
        return "hyper" if "hyper" in allowed else "class-means", []
    scores = {way: _accuracy(make_model(way, generic, result, inner, plan.epochs)[0], validation) for way in allowed}
    best = max(scores, key=lambda way: scores[way])
    said = ", ".join(f"{way} {score:.1f} %" for way, score in scores.items())
    return best, [f"auto: on {len(validation)} of the training samples {said}"]


def _accuracy(net: Network, test: NewClient) -> float:
    """The accuracy in percent; NaN if there are no samples."""
    if not len(test):
        return float("nan")
    predicted = logits_of(net, test.samples).argmax(dim=1).numpy()
    return float(100 * (predicted == test.labels).mean())


def _remarks_on_classes(client: NewClient, card: Card) -> tuple[str, ...]:
    new = client.names[client.known :]
    if not new:
        return ()
    some = ", ".join(new[:10]) + (" …" if len(new) > 10 else "")
    known = "" if card.class_names else "; the model has no class names, only numbers from 0"
    count = "1 class" if len(new) == 1 else f"{len(new)} classes"
    return (f"the federation never saw {count} of the data, served by class means: {some}{known}",)
