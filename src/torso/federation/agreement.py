"""What the clients of a federation agree on before the first round, from what each of them has told. Pure functions.

N clients, C classes, F channels or features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from pydantic import Field, model_validator

from torso.data import Federation, Roster, Split, augmentations
from torso.data.build import check_augment
from torso.data.images import of_columns
from torso.data.inputs import Known, Moments, Pixels, Tokens
from torso.data.naming import by_name
from torso.data.table_columns import Column, Columns, arranged, features_of, together, unknown
from torso.data.wants import ANYTHING, Wants
from torso.errors import RequestError
from torso.federation.description import AnyInput, Description, Record, Word, by_class_name
from torso.federation.fitting import Fitting, as_agreed, can_become
from torso.federation.misfits import (
    Told,
    alike_on_purpose,
    clash,
    constants_of,
    form_of,
    has_room,
    listed,
    misfit_alone,
    most_common,
    next_misfits,
    other_constants,
    other_input,
    plain,
    without_doubles,
)
from torso.federation.site_data import MOMENTS, SiteData
from torso.kinds import CountOrZero, Many
from torso.nets import Tensors

if TYPE_CHECKING:
    from torso.config import DataConfig


class Agreement(Record):
    """The same for everybody; a client's number is its place in `names`. Who was refused is for the server only."""

    dataset: str
    classes: Many[Word]  # [C]
    input: AnyInput  # with mean and std
    columns: Many[Column] = ()  # of tables: with the categories of all clients
    constants_are_given: bool  # mean and std: by all clients, alike; otherwise they come from sums of all samples
    augment: Word
    names: Many[str] = Field(min_length=1)  # [N]; in the order of the clients
    sizes: Many[CountOrZero]  # [N], training samples
    test_sizes: Many[CountOrZero]  # [N]
    newcomers: Many[CountOrZero] = ()  # numbers of the clients that came later, sorted
    remarks: Many[str] = ()
    refused: Mapping[str, str] = Field(default_factory=dict)  # by the client's name, why
    fits: bool = False  # whether clients make images of this size and colour from what they have

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not len(self.names) == len(self.sizes) == len(self.test_sizes):
            raise ValueError(f"{len(self.names)} names, {len(self.sizes)} and {len(self.test_sizes)} sizes")
        if any(client >= len(self.names) for client in self.newcomers) or len(set(self.classes)) < len(self.classes):
            raise ValueError("newcomers that are no clients, or a class twice")
        self.input.check_constants()
        return self

    @property
    def clients(self) -> int:
        return len(self.names)

    @property
    def roster(self) -> Roster:
        """What the server knows; it has no test set unless somebody gives it one."""
        return Roster(
            name=self.dataset,
            classes=len(self.classes),
            input=self.input,
            sizes=np.array(self.sizes, dtype=np.int64),
            newcomers=np.array(self.newcomers, dtype=np.int64),
            names=self.names if all(self.names) else (),
            remarks=self.remarks,
            counts_are_known=False,
            class_names=self.classes,
        )

    def seen_by(self, client: int) -> Agreement:
        """What one client is sent: names and sizes of the others, and what is said of them, stay with the server."""
        names = tuple(name if k == client else "" for k, name in enumerate(self.names))
        sizes, test_sizes = (
            tuple(size if k == client else 0 for k, size in enumerate(those)) for those in (self.sizes, self.test_sizes)
        )
        return self.model_copy(
            update={"names": names, "sizes": sizes, "test_sizes": test_sizes, "remarks": (), "refused": {}}
        )


def agree(
    descriptions: Sequence[tuple[Description, Tensors]], options: DataConfig, wants: Wants = ANYTHING
) -> Agreement:
    """The same whatever the order in which the descriptions came. Who does not fit is refused by name, with a reason,
    and the others agree without it. `wants`: what the model's body expects of samples."""
    fitting = Fitting(options, wants)
    told, refused = without_doubles(descriptions)
    while found := next_misfits(told, fitting):  # who is refused has no say in what the others agree on
        refused |= found
        told = {name: pair for name, pair in told.items() if name not in found}
    if not told:
        said = "; ".join(f"{name}: {refused[name]}" for name in by_name(refused)) or "nobody has told anything"
        raise RequestError(f"no client is left to agree on anything: {said}")
    columns = together([description.columns for description, _ in told.values()])
    told = {name: _in_columns(*pair, columns) for name, pair in told.items()} if columns else told
    those = [description for description, _ in told.values()]
    input, given = _settled(told, fitting)
    augment = _augment(those, options)
    check_augment(augment, input, options.source)
    return Agreement(
        dataset=most_common([one.dataset for one in those]) or "federation",
        classes=tuple(by_class_name(name for one in those for name in one.classes)),
        input=input,
        columns=columns,
        constants_are_given=given,
        augment=augment,
        names=tuple(told),
        sizes=tuple(one.train_samples for one in those),
        test_sizes=tuple(one.test_samples for one in those),
        remarks=(
            *_ignored_constants(those, given or fitting.brings_constants),
            *alike_on_purpose(those),
            *_spelled_alike(columns),
            *filter(None, [fitting.sentence(those[0].input, input)]),
        ),
        refused={name: refused[name] for name in by_name(refused)},
        fits=fitting.changes_images,
    )


def joined_later(agreement: Agreement, description: Description, tensors: Tensors) -> Agreement | str:
    """With one more client, a newcomer; or why it is refused. What was agreed on before stays as it is."""
    name, input = description.name, description.input
    reason = misfit_alone(description, tensors) or _no_class_of(agreement, description)
    if name in agreement.names:
        reason = f"there is a client {name!r} already. Expected: a name of its own"
    if reason:
        return reason
    if not _is_fine(input, agreement, description.columns):
        return other_input(input, agreement.input, description.columns, agreement.columns)
    mean, std = description.constants
    if agreement.constants_are_given and mean and (mean, std) != constants_of(agreement.input):
        return other_constants(description, agreement.input)
    strange = _strange(agreement, description)
    said = [f"{name} came later, and nobody had its classes {listed(strange)}: its samples of them are left out"]
    said = said if strange else []
    if unmet := unknown(description.columns, agreement.columns):
        said.append(f"{name} came later, and the model knows nothing of its {listed(unmet)}")
    return agreement.model_copy(
        update={
            "names": (*agreement.names, name),
            "sizes": (*agreement.sizes, description.train_samples),
            "test_sizes": (*agreement.test_sizes, description.test_samples),
            "newcomers": (*agreement.newcomers, agreement.clients),
            "remarks": (*agreement.remarks, *said),
        }
    )


def _is_fine(input: Known, agreement: Agreement, columns: Columns) -> bool:
    """Whether samples of a kind are what was agreed on, or can be made so."""
    if agreement.fits and can_become(input, agreement.input):
        return True
    alike = form_of(input, columns) == form_of(agreement.input, agreement.columns)
    return alike and has_room(agreement.input, input)


def _in_columns(one: Description, tensors: Tensors, columns: Columns) -> tuple[Description, Tensors]:
    """What a client would have told if it knew the categories of all: it has no row of those that it did not tell."""
    moved = {
        name: torch.from_numpy(arranged(of.numpy()[None], one.columns, columns)[0]) for name, of in tensors.items()
    }
    count = {"count": tensors["count"][:1].expand(len(features_of(columns)))}
    return one.model_copy(update={"columns": tuple(columns), "input": of_columns(columns)}), {**moved, **count}


def _spelled_alike(columns: Columns) -> list[str]:
    """A word where categories look like one that is spelled in two ways."""
    said = []
    for column in columns:
        spellings: dict[str, list[str]] = {}
        for category in column.categories or ():
            spellings.setdefault(plain(category), []).append(category)
        said += [
            f"column {column.name!r}: {listed(names)} are taken for different. Spell them alike if they are one"
            for names in spellings.values()
            if len(names) > 1
        ]
    return said


def _strange(agreement: Agreement, one: Description) -> list[str]:
    """Classes of a client that were not agreed on."""
    known = set(agreement.classes)
    return [name for name in one.classes if name not in known]


def _no_class_of(agreement: Agreement, one: Description) -> str:
    """Why the classes of a client that comes later do not do; "": they do."""
    spelled = {plain(name): name for name in agreement.classes}
    strange = _strange(agreement, one)
    for name in strange:
        if plain(name) in spelled:
            return clash(name, [one.name], spelled[plain(name)], "the others")
    if len(strange) == len(one.classes):
        return f"its classes are {listed(strange)}. Expected: one of {listed(agreement.classes)}"
    return ""


def site_federation(data: SiteData, agreement: Agreement, client: int, device: torch.device) -> Federation:
    """This client's samples at its place among N clients of which the others have nothing, with the agreed labels.

    Samples of classes that were not agreed on (of a client that came later) are left out."""
    mine = _at_place(data, agreement, client, device)
    if not len(mine.train.labels):
        raise RequestError(
            f"all {len(data.train)} training samples are of classes that this federation does not have. "
            f"Expected: samples of {listed(agreement.classes)}"
        )
    return mine


def _at_place(data: SiteData, agreement: Agreement, client: int, device: torch.device) -> Federation:
    data, _ = data.in_columns(agreement.columns).within(agreement.classes)
    mine = data.labels_among(agreement.classes)
    train, test = (
        _placed(agreement, client, part.samples, labels, device)
        for part, labels in zip((data.train, data.test), mine, strict=True)
    )
    nobody = torch.zeros(0, dtype=torch.int64, device=device)
    roster = agreement.roster
    return Federation(
        name=roster.name,
        train=train,
        test=test,
        classes=roster.classes,
        input=roster.input,
        augment=agreement.augment,
        clients=roster.clients,
        newcomers=roster.newcomers,
        server_rows=nobody,
        meta_rows=nobody,
        names=roster.names,
    )


def server_federation(test: SiteData, agreement: Agreement, device: torch.device) -> Federation:
    """What a server with a test set of its own has: that, and no sample of a client.

    Samples of classes that were not agreed on are left out."""
    if not _is_fine(test.input, agreement, test.columns):
        reason = other_input(test.input, agreement.input, test.columns, agreement.columns)
        raise RequestError(f"the test set of the server: {reason}")
    mine = _at_place(test, agreement, 0, device)
    nobodys = replace(mine.test, order=mine.test.order[:0], offsets=np.zeros_like(mine.test.offsets))
    return replace(mine, test=nobodys)


def _placed(agreement: Agreement, client: int, samples: Any, labels: Any, device: torch.device) -> Split:
    offsets = np.zeros(agreement.clients + 1, dtype=np.int64)
    offsets[client + 1 :] = len(labels)
    if isinstance(agreement.input, Tokens) and len(samples):
        samples = agreement.input.accept("sequences", samples)  # padded to the length of all
    if agreement.fits:
        samples = as_agreed(samples, agreement.input)
    # torch's own memory is aligned, NumPy's need not be, and sums over a tensor may depend on where it lies
    mine, classes = (torch.from_numpy(np.ascontiguousarray(array)).clone().to(device) for array in (samples, labels))
    return Split(mine, classes, torch.arange(len(labels), device=device), offsets)


def _settled(told: Told, fitting: Fitting) -> tuple[Known, bool]:
    """The kind of input with mean and std, and whether the clients' files gave these."""
    if fitting.brings_constants and isinstance(first := next(iter(told.values()))[0].input, Pixels):
        return fitting.of(first), False
    input, given = _constants(told, fitting.options)
    return fitting.of(input), given


def _constants(told: Told, options: DataConfig) -> tuple[Known, bool]:
    """The kind of input before images are fitted, and whether the clients' files gave its mean and std."""
    inputs = [description.input for description, _ in told.values()]
    first = inputs[0]
    if isinstance(first, Tokens):
        texts = [input for input in inputs if isinstance(input, Tokens)]
        length, vocabulary = (max(getattr(each, of) for each in texts) for of in ("length", "vocabulary"))
        return replace(first, length=length, vocabulary=vocabulary), False
    if options.normalize == "source" and all(map(any, map(constants_of, inputs))):
        return first, True
    sums = [tensors for _, tensors in told.values()]
    mean, std = (_of_bytes if isinstance(first, Pixels) else _of_numbers)(sums)
    return replace(first, mean=mean, std=std), False


def _of_bytes(sums: Sequence[Tensors]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std per channel on the 0..1 scale, of whole numbers: exact until the last step."""
    count, total, squares = ([sum(map(int, column)) for column in _columns(sums, name)] for name in MOMENTS)
    spread = [n * two - one * one for n, one, two in zip(count, total, squares, strict=True)]
    mean = tuple(one / (255 * n) for n, one in zip(count, total, strict=True))
    return mean, tuple(math.sqrt(d / (n * n)) / 255 if d > 0 else 1.0 for n, d in zip(count, spread, strict=True))


def _columns(sums: Sequence[Tensors], name: str) -> list[tuple[float, ...]]:
    """For each channel, one number of each client."""
    return list(zip(*(one[name].tolist() for one in sums), strict=True))


def _of_numbers(sums: Sequence[Tensors]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std per feature, added up client by client as a simulation does."""
    each = (Moments(int(one["count"][0]), one["total"].numpy(), one["squares"].numpy()) for one in sums)
    return reduce(Moments.__add__, each).mean_and_std()


def _ignored_constants(those: Sequence[Description], given: bool) -> list[str]:
    who = [one.name for one in those if any(one.constants)]
    if given or not who:
        return []
    return [f"mean and std in the files of {', '.join(who)} are not used: they are computed from sums of all samples"]


def _augment(those: Sequence[Description], options: DataConfig) -> str:
    """What the config says; with "auto", what the sources of all clients suggest, or nothing."""
    if options.augment != "auto":
        return options.augment
    suggested = {one.augment for one in those}
    only = suggested.pop()
    return only if not suggested and only in augmentations and only != "auto" else "none"
