"""What there is in some data before anything trains, and what a person should know of it. Pure functions.

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
    """Every sample that can be read: whose it is, of which class, in which part, and what it contains."""

    labels: Ints  # [n]
    clients: Ints  # [n]; all 0 where the data name nobody
    test: NDArray[np.bool_]  # [n]
    digests: Sequence[bytes]  # [n]; equal for equal content
    names: Sequence[str]  # [n], for people
    class_names: tuple[str, ...]
    client_names: tuple[str, ...] = ()
    parted: bool = True  # whether the data say what is for testing
    sizes: Sequence[tuple[int, int]] = ()  # [n], (height, width) of images
    grey: NDArray[np.bool_] | None = None  # [n], of images
    broken: tuple[Broken, ...] = ()
    noun: str = "samples"


@dataclass(frozen=True)
class Duplicates:
    """Samples of the same content: in how many groups, how many of them, and the first groups by name."""

    groups: int
    samples: int
    examples: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Survey:
    """The answer to `torso data look`; `train` and `test` are counts per client and class [N][C]."""

    samples: int
    noun: str
    clients: tuple[str, ...]
    classes: tuple[str, ...]
    train: tuple[tuple[int, ...], ...]
    test: tuple[tuple[int, ...], ...]
    parted: bool
    sizes: tuple[tuple[int, int, int], ...]  # (height, width, images), the most frequent first
    grey: int
    colour: int
    broken: tuple[Broken, ...]
    duplicates: dict[str, Duplicates]
    findings: tuple[str, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def survey(found: Inventory) -> Survey:
    """Count, compare, and say what is odd."""
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
    clients, classes = max(1, len(found.client_names)), len(found.class_names)
    cells = np.bincount(found.clients[part] * classes + found.labels[part], minlength=clients * classes)
    return cells.reshape(clients, classes)


def duplicates(found: Inventory) -> dict[str, Duplicates]:
    """Groups of equal content: between clients, between train and test, between classes, and any at all."""
    groups: dict[bytes, list[int]] = {}
    for row, digest in enumerate(found.digests):
        groups.setdefault(digest, []).append(row)
    several = [rows for rows in groups.values() if len(rows) > 1]
    kinds = {
        "between_clients": found.clients,
        "between_train_and_test": found.test,
        "between_classes": found.labels,
    }
    apart = {kind: [rows for rows in several if len(set(by[rows].tolist())) > 1] for kind, by in kinds.items()}
    return {kind: _told(rows, found.names) for kind, rows in {**apart, "in_all": several}.items()}


def _told(groups: Sequence[Sequence[int]], names: Sequence[str]) -> Duplicates:
    some = tuple(tuple(names[row] for row in rows[:EXAMPLES]) for rows in groups[:EXAMPLES])
    return Duplicates(len(groups), sum(map(len, groups)), some)


def findings(found: Survey) -> list[str]:
    """Sentences on what a person should know, the gravest first."""
    said = [*_on_files(found), *_on_duplicates(found), *_on_classes(found), *_on_clients(found)]
    if not found.parted:
        some = bool(np.max(np.add(found.train, found.test), initial=0) > 1)
        held = "A part of each client is held out to test on." if some else "No class has a sample to spare: add some."
        said.append(f"There is no test part. {held}")
    return said


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - EXAMPLES} more" if len(names) > EXAMPLES else ""
    return f"{', '.join(names[:EXAMPLES])}{more}"


def _on_files(found: Survey) -> list[str]:
    said = []
    if found.broken:
        named = _some([f"{file.name} ({file.reason})" for file in found.broken])
        said.append(f"Files that cannot be read: {len(found.broken)}. A run leaves them out: {named}.")
    if found.grey and found.colour:
        said.append(f"Grey and colour are mixed: {found.grey} grey, {found.colour} colour. All are read as colour.")
    if len(found.sizes) > 1:
        (height, width, count), least, most = found.sizes[0], min(found.sizes)[:2], max(found.sizes)[:2]
        said.append(
            f"Images have {len(found.sizes)} sizes, from {least[1]}×{least[0]} to {most[1]}×{most[0]}; "
            f"{count} are {width}×{height}. They need data.size."
        )
    return said


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


_WORDS = {
    "between_classes": "The same content has two classes",
    "between_train_and_test": "The same content is in train and test, so accuracy is too high",
    "between_clients": "The same content is at several clients",
}


def _on_duplicates(found: Survey) -> list[str]:
    said = []
    for kind, words in _WORDS.items():
        those = found.duplicates[kind]
        if those.groups:
            example = " = ".join(those.examples[0])
            said.append(f"{words} ({_times(those.groups)}, {those.samples} {found.noun}), such as {example}.")
    every = found.duplicates["in_all"]
    if every.groups and not said:
        where = " One copy may be trained on and another be tested." if not found.parted else ""
        example = " = ".join(every.examples[0])
        times = f"{_times(every.groups)}, {every.samples} {found.noun}"
        said.append(f"The same content is there several times ({times}), such as {example}.{where}")
    return said


def _on_classes(found: Survey) -> list[str]:
    train, test = (np.array(counts).sum(0) for counts in (found.train, found.test))
    names = np.array(found.classes, dtype=object)
    said = []
    if nobody := names[train + test == 0].tolist():
        said.append(f"Classes without a sample: {_some(nobody)}. Classes count from 0.")
    if (strange := names[(train == 0) & (test > 0)].tolist()) and found.parted:
        said.append(f"Classes in test only: {_some(strange)}. A run refuses them: add some to train, or remove them.")
    if (unseen := names[(train > 0) & (test == 0)].tolist()) and found.parted:
        said.append(f"Classes without a test sample: {_some(unseen)}. Nothing says how well they are learned.")
    if single := names[train + test == 1].tolist():
        said.append(f"Classes with one sample: {_some(single)}. It is trained on, and never tested.")
    if len(found.classes) == 1:
        said.append(f"There is one class, {found.classes[0]}. There is nothing to tell apart.")
    return said


def _on_clients(found: Survey) -> list[str]:
    if not found.clients:
        return ["The data name no clients. A run deals them out (data.partition)."]
    train, test = np.array(found.train), np.array(found.test)
    names = np.array(found.clients, dtype=object)
    said = []
    if one := names[((train + test) > 0).sum(1) == 1].tolist():
        said.append(f"Clients with one class: {_some(one)}. Such a client's model may always give that class.")
    if late := names[train.sum(1) == 0].tolist():
        said.append(f"Clients without a training sample: {_some(late)}. A run leaves them out.")
    if found.parted and (blind := names[(test.sum(1) == 0) & (train.sum(1) > 0)].tolist()):
        said.append(f"Clients without a test sample: {_some(blind)}. They train and are not measured.")
    if len(names) == 1:
        said.append(f"There is one client, {names[0]}. A federation needs two or more to learn from each other.")
    return said
