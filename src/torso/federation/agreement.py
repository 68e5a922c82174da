"""Computes what the clients of a federation agree on before the first round, from their descriptions. Pure functions.

Shapes: N clients, C classes, F channels or features.
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
from torso.data.images import floats_of_columns
from torso.data.inputs import Known, Moments, Pixels, Tokens
from torso.data.naming import in_natural_order
from torso.data.table_columns import Column, Columns, features_of, merged_columns, rearranged_features, unknown_features
from torso.data.wants import ANYTHING, Wants
from torso.errors import RequestError
from torso.federation.description import AnyInput, Description, PrintableText, Record, by_class_name
from torso.federation.fitting import Fitting, as_agreed, can_become
from torso.federation.mismatches import (
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
from torso.kinds import CountOrZero, FailFastTuple
from torso.nets import Tensors

if TYPE_CHECKING:
    from torso.config import DataConfig


class Agreement(Record):
    """What server and clients have agreed on: classes, kind of input, clients.

    The number of a client is its index in `names`. The server sends each client only a part of it (`seen_by`)."""

    dataset: str
    classes: FailFastTuple[PrintableText]  # [C]; a label is an index into it
    input: AnyInput  # with mean and std
    columns: FailFastTuple[Column] = ()  # of tables: with the categories of all clients
    constants_are_given: bool  # whether mean and std come from the clients' files; otherwise from sums of all samples
    augment: PrintableText  # the augmentation of images
    names: FailFastTuple[str] = Field(min_length=1)  # [N]; in the order of the clients
    sizes: FailFastTuple[CountOrZero]  # [N], training samples
    test_sizes: FailFastTuple[CountOrZero]  # [N], test samples
    newcomers: FailFastTuple[CountOrZero] = ()  # numbers of the clients that joined after the start, sorted
    remarks: FailFastTuple[str] = ()  # for the operator of the server
    refused: Mapping[str, str] = Field(default_factory=dict)  # client's name → reason
    fits: bool = False  # whether clients convert their images to the size and colour of `input`

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
        """The roster of the clients. It has no test set of the server: the caller adds one."""
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
        """The agreement as one client gets it: names, sizes and remarks of the others are removed."""
        names = tuple(name if k == client else "" for k, name in enumerate(self.names))
        sizes = tuple(size if k == client else 0 for k, size in enumerate(self.sizes))
        test_sizes = tuple(size if k == client else 0 for k, size in enumerate(self.test_sizes))
        return self.model_copy(
            update={"names": names, "sizes": sizes, "test_sizes": test_sizes, "remarks": (), "refused": {}}
        )


def agree(
    descriptions: Sequence[tuple[Description, Tensors]], options: DataConfig, wants: Wants = ANYTHING
) -> Agreement:
    """The agreement of all clients that fit; it does not depend on the order of the descriptions.

    A client that does not fit is refused with a reason, and the others agree without it. `wants`: what the model's body
    expects of samples."""
    fitting = Fitting(options, wants)
    told, refused = without_doubles(descriptions)
    while found := next_misfits(told, fitting):  # a client that is refused must not influence the agreement
        refused |= found
        told = {name: pair for name, pair in told.items() if name not in found}
    if not told:
        reasons = (
            "; ".join(f"{name}: {refused[name]}" for name in in_natural_order(refused))
            or "no client has described itself"
        )
        raise RequestError(f"no client is left to agree on anything: {reasons}")
    columns = merged_columns([description.columns for description, _ in told.values()])
    if columns:
        told = {name: _in_columns(*pair, columns) for name, pair in told.items()}
    accepted = [description for description, _ in told.values()]
    input, given = _settled(told, fitting)
    augment = _augment(accepted, options)
    check_augment(augment, input, options.source)
    return Agreement(
        dataset=most_common([one.dataset for one in accepted]) or "federation",
        classes=tuple(by_class_name(name for one in accepted for name in one.classes)),
        input=input,
        columns=columns,
        constants_are_given=given,
        augment=augment,
        names=tuple(told),
        sizes=tuple(one.train_samples for one in accepted),
        test_sizes=tuple(one.test_samples for one in accepted),
        remarks=(
            *_ignored_constants(accepted, given or fitting.brings_constants),
            *alike_on_purpose(accepted),
            *_spelled_alike(columns),
            *filter(None, [fitting.sentence(accepted[0].input, input)]),
        ),
        refused={name: refused[name] for name in in_natural_order(refused)},
        fits=fitting.changes_images,
    )


def joined_later(agreement: Agreement, description: Description, tensors: Tensors) -> Agreement | str:
    """The agreement with one more client, a newcomer; or the reason why that client is refused.

    Classes, input and columns of the agreement do not change."""
    name, input = description.name, description.input
    reason = misfit_alone(description, tensors) or _no_class_of(agreement, description)
    if name in agreement.names:
        reason = f"there is a client {name!r} already. Expected: a unique name"
    if reason:
        return reason
    if not _is_accepted(input, agreement, description.columns):
        return other_input(input, agreement.input, description.columns, agreement.columns)
    mean, std = description.constants
    if agreement.constants_are_given and mean and (mean, std) != constants_of(agreement.input):
        return other_constants(description, agreement.input)
    remarks = []
    if strange := _unknown_classes(agreement, description):
        remarks.append(
            f"{name} joined later, and no other client has its classes {listed(strange)}: their samples are left out"
        )
    if unmet := unknown_features(description.columns, agreement.columns):
        remarks.append(f"{name} joined later, and the model does not know its {listed(unmet)}")
    return agreement.model_copy(
        update={
            "names": (*agreement.names, name),
            "sizes": (*agreement.sizes, description.train_samples),
            "test_sizes": (*agreement.test_sizes, description.test_samples),
            "newcomers": (*agreement.newcomers, agreement.clients),
            "remarks": (*agreement.remarks, *remarks),
        }
    )


def _is_accepted(input: Known, agreement: Agreement, columns: Columns) -> bool:
    """Whether samples of this kind are of the agreed kind, or can be converted to it."""
    if agreement.fits and can_become(input, agreement.input):
        return True
    alike = form_of(input, columns) == form_of(agreement.input, agreement.columns)
    return alike and has_room(agreement.input, input)


def _in_columns(one: Description, tensors: Tensors, columns: Columns) -> tuple[Description, Tensors]:
    """A description and its sums, as if the client knew the categories of all clients.

    The client has no row of the added categories, so their sums are 0."""
    arranged_sums = {
        name: torch.from_numpy(rearranged_features(of.numpy()[None], one.columns, columns)[0])
        for name, of in tensors.items()
    }
    count = {"count": tensors["count"][:1].expand(len(features_of(columns)))}
    description = one.model_copy(update={"columns": tuple(columns), "input": floats_of_columns(columns)})
    return description, {**arranged_sums, **count}


def _spelled_alike(columns: Columns) -> list[str]:
    """A remark for each group of categories that differ only by case or spaces."""
    remarks = []
    for column in columns:
        spellings: dict[str, list[str]] = {}
        for category in column.categories or ():
            spellings.setdefault(plain(category), []).append(category)
        remarks += [
            f"column {column.name!r}: {listed(names)} are taken for different. Spell them alike if they are one"
            for names in spellings.values()
            if len(names) > 1
        ]
    return remarks


def _unknown_classes(agreement: Agreement, one: Description) -> list[str]:
    """The classes of a client that the agreement does not have."""
    known = set(agreement.classes)
    return [name for name in one.classes if name not in known]


def _no_class_of(agreement: Agreement, one: Description) -> str:
    """Why a client that joins later is refused for its classes; "" if it is not."""
    spelled = {plain(name): name for name in agreement.classes}
    strange = _unknown_classes(agreement, one)
    for name in strange:
        if plain(name) in spelled:
            return clash(name, [one.name], spelled[plain(name)], "the others")
    if len(strange) == len(one.classes):
        return f"its classes are {listed(strange)}. Expected: one of {listed(agreement.classes)}"
    return ""


def site_federation(data: SiteData, agreement: Agreement, client: int, device: torch.device) -> Federation:
    """A Federation of N clients with this client's samples and none of the others', with the agreed labels.

    Samples of classes that are not in the agreement are left out: a client that joins later may have some."""
    federation = _one_client(data, agreement, client, device)
    if not len(federation.train.labels):
        raise RequestError(
            f"all {len(data.train)} training samples are of classes that this federation does not have. "
            f"Expected: samples of {listed(agreement.classes)}"
        )
    return federation


def _one_client(data: SiteData, agreement: Agreement, client: int, device: torch.device) -> Federation:
    data, _ = data.in_columns(agreement.columns).within(agreement.classes)
    train_labels, test_labels = data.labels_among(agreement.classes)
    train = _split(agreement, client, data.train.samples, train_labels, device)
    test = _split(agreement, client, data.test.samples, test_labels, device)
    no_rows = torch.zeros(0, dtype=torch.int64, device=device)
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
        server_rows=no_rows,
        meta_rows=no_rows,
        names=roster.names,
    )


def server_federation(test: SiteData, agreement: Agreement, device: torch.device) -> Federation:
    """A Federation with the server's test set and no sample of a client.

    Samples of classes that are not in the agreement are left out."""
    if not _is_accepted(test.input, agreement, test.columns):
        reason = other_input(test.input, agreement.input, test.columns, agreement.columns)
        raise RequestError(f"the test set of the server: {reason}")
    federation = _one_client(test, agreement, 0, device)
    split = federation.test
    without_clients = replace(split, order=split.order[:0], offsets=np.zeros_like(split.offsets))
    return replace(federation, test=without_clients)


def _split(agreement: Agreement, client: int, samples: Any, labels: Any, device: torch.device) -> Split:
    """The samples of one client as a Split of N clients; the others have none."""
    offsets = np.zeros(agreement.clients + 1, dtype=np.int64)
    offsets[client + 1 :] = len(labels)
    if isinstance(agreement.input, Tokens) and len(samples):
        samples = agreement.input.accept("sequences", samples)  # padded to the agreed length
    if agreement.fits:
        samples = as_agreed(samples, agreement.input)
    # clone: memory of torch is aligned, memory of NumPy may not be, and the rounding of sums depends on the alignment
    on_device, classes = (
        torch.from_numpy(np.ascontiguousarray(array)).clone().to(device) for array in (samples, labels)
    )
    return Split(on_device, classes, torch.arange(len(labels), device=device), offsets)


def _settled(told: Told, fitting: Fitting) -> tuple[Known, bool]:
    """The agreed kind of input with mean and std, and whether these come from the clients' files."""
    if fitting.brings_constants and isinstance(first := next(iter(told.values()))[0].input, Pixels):
        return fitting.of(first), False
    input, given = _constants(told, fitting.options)
    return fitting.of(input), given


def _constants(told: Told, options: DataConfig) -> tuple[Known, bool]:
    """The kind of input before images are resized, and whether its mean and std come from the clients' files."""
    inputs = [description.input for description, _ in told.values()]
    first = inputs[0]
    if isinstance(first, Tokens):
        texts = [input for input in inputs if isinstance(input, Tokens)]
        length = max(each.length for each in texts)
        vocabulary = max(each.vocabulary for each in texts)
        return replace(first, length=length, vocabulary=vocabulary), False
    if options.normalize == "source" and all(map(any, map(constants_of, inputs))):
        return first, True
    sums = [tensors for _, tensors in told.values()]
    mean, std = _of_bytes(sums) if isinstance(first, Pixels) else _of_numbers(sums)
    return replace(first, mean=mean, std=std), False


def _of_bytes(sums: Sequence[Tensors]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std per channel on the scale 0..1. Sums of bytes are whole numbers, so all but the division is exact."""
    count, total, squares = ([sum(map(int, values)) for values in _by_channel(sums, name)] for name in MOMENTS)
    mean, std = [], []
    for n, one, two in zip(count, total, squares, strict=True):
        spread = n * two - one * one
        mean.append(one / (255 * n))
        std.append(math.sqrt(spread / (n * n)) / 255 if spread > 0 else 1.0)
    return tuple(mean), tuple(std)


def _by_channel(sums: Sequence[Tensors], name: str) -> list[tuple[float, ...]]:
    """For each channel, the values of all clients."""
    return list(zip(*(one[name].tolist() for one in sums), strict=True))


def _of_numbers(sums: Sequence[Tensors]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std per feature, added up client by client in the same order as in a simulation."""
    each = (Moments(int(one["count"][0]), one["total"].numpy(), one["squares"].numpy()) for one in sums)
    return reduce(Moments.__add__, each).mean_and_std()


def _ignored_constants(descriptions: Sequence[Description], given: bool) -> list[str]:
    """A remark if clients' files have mean and std that are not used."""
    names = [one.name for one in descriptions if any(one.constants)]
    if given or not names:
        return []
    return [f"mean and std in the files of {', '.join(names)} are not used: they are computed from sums of all samples"]


def _augment(descriptions: Sequence[Description], options: DataConfig) -> str:
    """The augmentation of the config. With "auto": the one that all clients' sources suggest, or "none"."""
    if options.augment != "auto":
        return options.augment
    suggested = {one.augment for one in descriptions}
    if len(suggested) > 1:
        return "none"
    only = suggested.pop()
    return only if only in augmentations and only != "auto" else "none"
