"""A survey of data before training: counts, duplicates, and findings that the user should know. Pure functions.

n samples, N clients, C classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torso.data.image_files import Broken
from torso.data.images import Ints

EXAMPLES = 5  # of duplicates, and of names in a sentence


@dataclass(frozen=True, eq=False)
class Inventory:
    """All readable samples of some data: their clients, classes, splits and checksums."""

    labels: Ints  # [n]
    clients: Ints  # [n], numbers of clients; all 0 if the data name no clients
    test: NDArray[np.bool_]  # [n], whether the sample is in the test part
    digests: Sequence[bytes]  # [n], checksums; equal for equal content
    names: Sequence[str]  # [n], names of samples for messages
    class_names: tuple[str, ...]
    client_names: tuple[str, ...] = ()
    parted: bool = True  # whether the data have a test part
    sizes: Sequence[tuple[int, int]] = ()  # [n], (height, width) of images
    grey: NDArray[np.bool_] | None = None  # [n], of images
    broken: tuple[Broken, ...] = ()
    noun: str = "samples"


@dataclass(frozen=True)
class Duplicates:
    """Samples with the same content."""

    groups: int  # number of groups of equal samples
    samples: int  # in all groups
    examples: tuple[tuple[str, ...], ...]  # names of the samples of the first groups


@dataclass(frozen=True)
class Survey:
    """The result of `torso data look`."""

    samples: int
    noun: str  # "images", for messages
    clients: tuple[str, ...]  # names
    classes: tuple[str, ...]  # names
    train: tuple[tuple[int, ...], ...]  # [N][C], number of samples
    test: tuple[tuple[int, ...], ...]  # [N][C], number of samples
    parted: bool  # whether the data have a test part
    sizes: tuple[tuple[int, int, int], ...]  # (height, width, images), the most frequent first
    grey: int  # number of grey images
    colour: int  # number of colour images
    broken: tuple[Broken, ...]
    duplicates: dict[str, Duplicates]  # by kind: between_clients, between_train_and_test, between_classes, in_all
    findings: tuple[str, ...] = field(default=())  # sentences for the user

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def survey(found: Inventory) -> Survey:
    """The survey of all samples of an inventory."""
    train, test = (_counts(found, part) for part in (~found.test, found.test))
    made = Survey(
        samples=len(found.labels),
        noun=found.noun,
        clients=found.client_names,
        classes=found.class_names,
        train=tuple(map(tuple, train.tolist())),
        test=tuple(map(tuple, test.tolist())),
        parted=found.parted,
        sizes=tuple((*size, count) for size, count in Counter(found.sizes).most_common()),
        grey=0 if found.grey is None else int(found.grey.sum()),
        colour=0 if found.grey is None else int((~found.grey).sum()),
        broken=found.broken,
        duplicates=duplicates(found),
    )
    return Survey(**{**vars(made), "findings": tuple(findings(made))})


def _counts(found: Inventory, part: NDArray[np.bool_]) -> Ints:
    """Number of samples of each client and class [N, C] in a part."""
    clients, classes = max(1, len(found.client_names)), len(found.class_names)
    cells = np.bincount(found.clients[part] * classes + found.labels[part], minlength=clients * classes)
    return cells.reshape(clients, classes)


def duplicates(found: Inventory) -> dict[str, Duplicates]:
    """Groups of samples with equal content: between clients, between train and test, between classes, and all."""
    groups: dict[bytes, list[int]] = {}
    for row, digest in enumerate(found.digests):
        groups.setdefault(digest, []).append(row)
    in_all = [rows for rows in groups.values() if len(rows) > 1]
    kinds = {
        "between_clients": found.clients,
        "between_train_and_test": found.test,
        "between_classes": found.labels,
    }
    by_kind = {
        kind: _named([rows for rows in in_all if len(set(values[rows].tolist())) > 1], found.names)
        for kind, values in kinds.items()
    }
    return {**by_kind, "in_all": _named(in_all, found.names)}


def _named(groups: Sequence[Sequence[int]], names: Sequence[str]) -> Duplicates:
    examples = tuple(tuple(names[row] for row in rows[:EXAMPLES]) for rows in groups[:EXAMPLES])
    return Duplicates(len(groups), sum(map(len, groups)), examples)


def findings(found: Survey) -> list[str]:
    """Sentences on what the user should know, the most serious first."""
    sentences = [*_on_files(found), *_on_duplicates(found), *_on_classes(found), *_on_clients(found)]
    if not found.parted:
        can_spare = bool(np.max(np.add(found.train, found.test), initial=0) > 1)
        held = "A part of each client is held out to test on."
        if not can_spare:
            held = "No class has a sample to spare: add some."
        sentences.append(f"There is no test part. {held}")
    return sentences


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - EXAMPLES} more" if len(names) > EXAMPLES else ""
    return f"{', '.join(names[:EXAMPLES])}{more}"


def _on_files(found: Survey) -> list[str]:
    sentences = []
    if found.broken:
        named = _some([f"{file.name} ({file.reason})" for file in found.broken])
        sentences.append(f"Files that cannot be read: {len(found.broken)}. A run leaves them out: {named}.")
    if found.grey and found.colour:
        sentences.append(
            f"Grey and colour are mixed: {found.grey} grey, {found.colour} colour. All are read as colour."
        )
    if len(found.sizes) > 1:
        height, width, count = found.sizes[0]
        least = min(found.sizes)[:2]
        most = max(found.sizes)[:2]
        sentences.append(
            f"Images have {len(found.sizes)} sizes, from {least[1]}×{least[0]} to {most[1]}×{most[0]}; "
            f"{count} are {width}×{height}. They need data.size."
        )
    return sentences


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


_WORDS = {
    "between_classes": "The same content has two classes",
    "between_train_and_test": "The same content is in train and test, so accuracy is too high",
    "between_clients": "The same content is at several clients",
}


def _on_duplicates(found: Survey) -> list[str]:
    sentences = []
    for kind, words in _WORDS.items():
        groups = found.duplicates[kind]
        if groups.groups:
            example = " = ".join(groups.examples[0])
            sentences.append(f"{words} ({_times(groups.groups)}, {groups.samples} {found.noun}), such as {example}.")
    in_all = found.duplicates["in_all"]
    if in_all.groups and not sentences:
        warning = " One copy may be trained on and another be tested." if not found.parted else ""
        example = " = ".join(in_all.examples[0])
        times = f"{_times(in_all.groups)}, {in_all.samples} {found.noun}"
        sentences.append(f"The same content is there several times ({times}), such as {example}.{warning}")
    return sentences


def _on_classes(found: Survey) -> list[str]:
    train, test = (np.array(counts).sum(0) for counts in (found.train, found.test))
    names = np.array(found.classes, dtype=object)
    sentences = []
    empty = names[train + test == 0].tolist()
    only_test = names[(train == 0) & (test > 0)].tolist()
    only_train = names[(train > 0) & (test == 0)].tolist()
    single = names[train + test == 1].tolist()
    if empty:
        sentences.append(f"Classes without a sample: {_some(empty)}. Classes count from 0.")
    if only_test and found.parted:
        sentences.append(
            f"Classes in test only: {_some(only_test)}. A run refuses them: add some to train, or remove them."
        )
    if only_train and found.parted:
        sentences.append(f"Classes without a test sample: {_some(only_train)}. Nothing says how well they are learned.")
    if single:
        sentences.append(f"Classes with one sample: {_some(single)}. It is trained on, and never tested.")
    if len(found.classes) == 1:
        sentences.append(f"There is one class, {found.classes[0]}. There is nothing to tell apart.")
    return sentences


def _on_clients(found: Survey) -> list[str]:
    if not found.clients:
        return ["The data name no clients. A run deals them out (data.partition)."]
    train, test = np.array(found.train), np.array(found.test)
    names = np.array(found.clients, dtype=object)
    sentences = []
    one_class = names[((train + test) > 0).sum(1) == 1].tolist()
    only_test = names[train.sum(1) == 0].tolist()
    only_train = names[(test.sum(1) == 0) & (train.sum(1) > 0)].tolist()
    if one_class:
        sentences.append(
            f"Clients with one class: {_some(one_class)}. Such a client's model may always give that class."
        )
    if only_test:
        sentences.append(f"Clients without a training sample: {_some(only_test)}. A run leaves them out.")
    if found.parted and only_train:
        sentences.append(f"Clients without a test sample: {_some(only_train)}. They train and are not measured.")
    if len(names) == 1:
        sentences.append(f"There is one client, {names[0]}. A federation needs two or more to learn from each other.")
    return sentences
