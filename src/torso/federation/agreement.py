"""What the clients of a federation agree on before the first round, from what each of them has told. Pure functions.

N clients, C classes, F channels or features.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from pydantic import Field, model_validator

from torso.data import Federation, Roster, Split, augmentations
from torso.data.federation import check_augment
from torso.data.inputs import Floats, Known, Moments, Pixels, Tokens
from torso.errors import RequestError
from torso.federation.description import TORCH, TORSO, AnyInput, Description, Record, Word, by_class_name, by_name
from torso.federation.site_data import MOMENTS, SiteData
from torso.kinds import CountOrZero
from torso.nets import Tensors

if TYPE_CHECKING:
    from torso.config import DataConfig

Told = Mapping[str, tuple[Description, Tensors]]
"""What each client has told, by its name, in the natural order of names."""


class Agreement(Record):
    """The same for everybody; a client's number is its place in `names`. Who was refused is for the server only."""

    dataset: str
    classes: tuple[Word, ...]  # [C]
    input: AnyInput  # with mean and std
    constants_are_given: bool  # mean and std: by all clients, alike; otherwise they come from sums of all samples
    augment: Word
    names: tuple[str, ...] = Field(min_length=1)  # [N]; in the order of the clients
    sizes: tuple[CountOrZero, ...]  # [N], training samples
    test_sizes: tuple[CountOrZero, ...]  # [N]
    newcomers: tuple[CountOrZero, ...] = ()  # numbers of the clients that came later, sorted
    remarks: tuple[str, ...] = ()
    refused: Mapping[str, str] = Field(default_factory=dict)  # by the client's name, why

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
        )

    def seen_by(self, client: int) -> Agreement:
        """What one client is sent: the names of the others, and what is said of them, stay with the server."""
        names = tuple(name if k == client else "" for k, name in enumerate(self.names))
        return self.model_copy(update={"names": names, "remarks": (), "refused": {}})


def agree(descriptions: Sequence[tuple[Description, Tensors]], options: DataConfig) -> Agreement:
    """The same whatever the order in which the descriptions came. Who does not fit is refused by name, with a reason,
    and the others agree without it."""
    told, refused = _by_name(descriptions)
    for misfits in (_misfit_alone, _misfit_inputs, lambda those: _misfit_constants(those, options), _misfit_classes):
        found: Mapping[str, str] = misfits(told)
        refused |= found
        told = {name: pair for name, pair in told.items() if name not in found}
    if not told:
        said = "; ".join(f"{name}: {refused[name]}" for name in by_name(refused)) or "nobody has told anything"
        raise RequestError(f"no client is left to agree on anything: {said}")
    those = [description for description, _ in told.values()]
    input, given = _settled(told, options)
    augment = _augment(those, options)
    check_augment(augment, input, options.source)
    return Agreement(
        dataset=_most([one.dataset for one in those]) or "federation",
        classes=tuple(by_class_name(name for one in those for name in one.classes)),
        input=input,
        constants_are_given=given,
        augment=augment,
        names=tuple(told),
        sizes=tuple(one.train_samples for one in those),
        test_sizes=tuple(one.test_samples for one in those),
        remarks=(*_ignored_constants(those, given), *_alike_on_purpose(those)),
        refused={name: refused[name] for name in by_name(refused)},
    )


def joined_later(agreement: Agreement, description: Description, tensors: Tensors) -> Agreement | str:
    """With one more client, a newcomer; or why it is refused. What was agreed on before stays as it is."""
    name, input = description.name, description.input
    reason = _alone(description, tensors) or _no_class_of(agreement, description)
    if name in agreement.names:
        reason = f"there is a client {name!r} already. Expected: a name of its own"
    if reason:
        return reason
    if _form(input) != _form(agreement.input) or not _has_room(agreement.input, input):
        return _other_input(input, agreement.input)
    mean, std = description.constants
    if agreement.constants_are_given and mean and (mean, std) != _constants(agreement.input):
        return _other_constants(description, agreement.input)
    strange = _strange(agreement, description)
    said = f"{name} came later, and nobody had its classes {_listed(strange)}: its samples of them are left out"
    return agreement.model_copy(
        update={
            "names": (*agreement.names, name),
            "sizes": (*agreement.sizes, description.train_samples),
            "test_sizes": (*agreement.test_sizes, description.test_samples),
            "newcomers": (*agreement.newcomers, agreement.clients),
            "remarks": (*agreement.remarks, said) if strange else agreement.remarks,
        }
    )


def _strange(agreement: Agreement, one: Description) -> list[str]:
    """Classes of a client that were not agreed on."""
    known = set(agreement.classes)
    return [name for name in one.classes if name not in known]


def _no_class_of(agreement: Agreement, one: Description) -> str:
    """Why the classes of a client that comes later do not do; "": they do."""
    spelled = {_plain(name): name for name in agreement.classes}
    strange = _strange(agreement, one)
    for name in strange:
        if _plain(name) in spelled:
            return _clash(name, [one.name], spelled[_plain(name)], "the others")
    if len(strange) == len(one.classes):
        return f"its classes are {_listed(strange)}. Expected: one of {_listed(agreement.classes)}"
    return ""


def site_federation(data: SiteData, agreement: Agreement, client: int, device: torch.device) -> Federation:
    """This client's samples at its place among N clients of which the others have nothing, with the agreed labels.

    Samples of classes that were not agreed on (of a client that came later) are left out."""
    data, lost = data.within(agreement.classes)
    if not len(data.train):
        raise RequestError(
            f"all {lost} training samples are of classes that this federation does not have. "
            f"Expected: samples of {_listed(agreement.classes)}"
        )
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


def _placed(agreement: Agreement, client: int, samples: Any, labels: Any, device: torch.device) -> Split:
    offsets = np.zeros(agreement.clients + 1, dtype=np.int64)
    offsets[client + 1 :] = len(labels)
    if isinstance(agreement.input, Tokens) and len(samples):
        samples = agreement.input.accept("sequences", samples)  # padded to the length of all
    # torch's own memory is aligned, NumPy's need not be, and sums over a tensor may depend on where it lies
    mine, classes = (torch.from_numpy(np.ascontiguousarray(array)).clone().to(device) for array in (samples, labels))
    return Split(mine, classes, torch.arange(len(labels), device=device), offsets)


# Who does not fit, by name, with the reason. Each function looks at those whom the ones before it have left.


def _by_name(descriptions: Sequence[tuple[Description, Tensors]]) -> tuple[Told, dict[str, str]]:
    often = Counter(description.name for description, _ in descriptions)
    told = {pair[0].name: pair for pair in descriptions if often[pair[0].name] == 1}
    twice = {
        name: f"{count} clients call themselves {name!r}. Expected: a name of its own for each"
        for name, count in often.items()
        if count > 1
    }
    return {name: told[name] for name in by_name(told)}, twice


def _misfit_alone(told: Told) -> dict[str, str]:
    found = {name: _alone(*pair) for name, pair in told.items()}
    return {name: reason for name, reason in found.items() if reason}


def _alone(one: Description, tensors: Tensors) -> str:
    """What is wrong with a client whoever the others are; "": nothing."""
    for what, have, want in (("Torso", one.torso, TORSO), ("torch", one.torch, TORCH)):
        if _version(have) != _version(want):
            return (
                f"it has {what} {have}, the server {want}: another version may compute other bits. "
                f"Expected: {what} {'.'.join(_version(want))}"
            )
    if not one.train_samples:
        return "it has no training samples. Expected: at least one"
    if len(set(one.classes)) < len(one.classes):
        return f"it names a class twice ({_listed(one.classes)}). Expected: a name of its own for each"
    try:
        if any(one.constants):
            one.input.check_constants()
    except RequestError as error:
        return str(error)
    return _wrong_sums(one, tensors)


def _wrong_sums(one: Description, tensors: Tensors) -> str:
    """Sums that no samples have would spoil mean and std for everybody."""
    wanted = () if isinstance(one.input, Tokens) else MOMENTS
    shapes = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
    if shapes != dict.fromkeys(wanted, (torch.float64, one.input.shape[:1])):
        return f"its sums are {shapes}. Expected: {', '.join(wanted) or 'none'}, float64 [{one.input.shape[0]}]"
    if not wanted:
        return ""
    count, total, squares = (tensors[name] for name in wanted)
    due = one.train_samples * math.prod(one.input.shape[1:])
    wrong = not bool(torch.isfinite(total).all() and torch.isfinite(squares).all() and (count == due).all())
    wrong = wrong or bool((total.square() > count * squares * (1 + 1e-6)).any())  # of no numbers can that be so
    if isinstance(one.input, Pixels):
        whole = bool((total == total.floor()).all() and (squares == squares.floor()).all())
        wrong = wrong or not whole or bool((total < 0).any() or (total > 255 * count).any())
    return f"its sums are not those of {one.train_samples} {one.input.noun}. Expected: sums of its samples" * wrong


def _version(text: str) -> tuple[str, ...]:
    found = re.match(r"(\d+)\.(\d+)", text)
    return found.groups() if found else (text,)


def _misfit_inputs(told: Told) -> dict[str, str]:
    forms = {name: _form(description.input) for name, (description, _) in told.items()}
    usual = _most(list(forms.values()))
    like = next((told[name][0].input for name in told if forms[name] == usual), None)
    return {
        name: _other_input(description.input, like)
        for name, (description, _) in told.items()
        if like is not None and forms[name] != usual
    }


def _form(input: Known) -> Hashable:
    """What must be the same for all clients: all but constants, and the length and vocabulary of texts, which grow."""
    if isinstance(input, Tokens):
        return "tokens", input.pad
    return replace(input, mean=(), std=())


def _has_room(agreed: Known, input: Known) -> bool:
    if not isinstance(agreed, Tokens) or not isinstance(input, Tokens):
        return True
    return input.length <= agreed.length and input.vocabulary <= agreed.vocabulary


def _other_input(found: Known, wanted: Known) -> str:
    said, other = ([_words(each)] for each in (found, wanted))
    if said == other and isinstance(found, Floats) and isinstance(wanted, Floats):
        pairs = zip((*found.names, *wanted.names[len(found.names) :]), wanted.names or found.names, strict=True)
        mine, theirs = next(((a, b) for a, b in pairs if a != b), ("", ""))
        return f"its features are named otherwise: {mine!r} where others have {theirs!r}. Expected: the same columns"
    return f"it has {said[0]}, others have {other[0]}. Expected: {other[0]}"


def _words(input: Known) -> str:
    if isinstance(input, Tokens):
        return f"{input.words} of {input.vocabulary} in all, padded with {input.pad}"
    return input.words


def _misfit_constants(told: Told, options: DataConfig) -> dict[str, str]:
    """Where all give mean and std, those of the most hold. Where somebody gives none, they are computed for all."""
    given = {name: description.constants for name, (description, _) in told.items()}
    if options.normalize == "statistics" or not all(mean for mean, _ in given.values()):
        return {}
    usual = _most(list(given.values()))
    like = next((told[name][0].input for name in told if given[name] == usual), None)
    return {name: _other_constants(told[name][0], like) for name in told if like is not None and given[name] != usual}


def _constants(input: Known) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return getattr(input, "mean", ()), getattr(input, "std", ())


def _other_constants(one: Description, wanted: Known) -> str:
    (mean, std), (mean_of_all, std_of_all) = one.constants, _constants(wanted)
    return (
        f"its files give mean = {list(mean)}, std = {list(std)}, those of others {list(mean_of_all)}, "
        f"{list(std_of_all)}. Expected: the same, or none"
    )


def _misfit_classes(told: Told) -> dict[str, str]:
    """Of two spellings of a class that of more clients holds, or that of the first client by name.

    Where one client has both, they are two classes."""
    refused: dict[str, str] = {}
    left = [description for description, _ in told.values()]
    while clashes := _alike(left):  # one after the other: who is refused for one has no say in the next
        users = {each: [one.name for one in left if each in one.classes] for each in clashes[0]}
        usual = _most([each for one in left for each in clashes[0] if each in one.classes])
        for other in users.keys() - {usual}:
            refused |= {name: _clash(other, users[other], usual, ", ".join(users[usual])) for name in users[other]}
        left = [one for one in left if one.name not in refused]
    return refused


def _alike(those: Sequence[Description]) -> list[list[str]]:
    """Names of classes that differ only by case or surrounding spaces, and that no client has side by side."""
    found: dict[str, set[str]] = defaultdict(set)
    for name in {name for one in those for name in one.classes}:
        found[_plain(name)].add(name)
    return [
        sorted(found[plain])
        for plain in sorted(found)
        if len(found[plain]) > 1 and not any(len(found[plain].intersection(one.classes)) > 1 for one in those)
    ]


def _alike_on_purpose(those: Sequence[Description]) -> list[str]:
    """A word where a client has two classes side by side that others would take for one."""
    said = set()
    for one in those:
        by_plain: dict[str, list[str]] = defaultdict(list)
        for name in one.classes:
            by_plain[_plain(name)].append(name)
        said |= {tuple(sorted(names)) for names in by_plain.values() if len(names) > 1}
    return [f"classes {_listed(names)} are taken for different ones: a client has both" for names in sorted(said)]


def _plain(name: str) -> str:
    return name.strip().casefold()


def _clash(mine: str, whose: Sequence[str], usual: str, others: str) -> str:
    return (
        f"class {mine!r} (of {', '.join(whose)}) and class {usual!r} (of {others}) differ only by case or surrounding "
        f"spaces. Expected: one spelling, such as {usual!r}"
    )


# What holds for all that are left.


def _settled(told: Told, options: DataConfig) -> tuple[Known, bool]:
    """The kind of input with mean and std, and whether the clients' files gave these."""
    inputs = [description.input for description, _ in told.values()]
    first = inputs[0]
    if isinstance(first, Tokens):
        texts = [input for input in inputs if isinstance(input, Tokens)]
        return Tokens(max(i.length for i in texts), max(i.vocabulary for i in texts), first.pad), False
    if options.normalize == "source" and all(map(any, map(_constants, inputs))):
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
    """By channel, a number for each client."""
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


def _most(values: Sequence[Any]) -> Any:
    """The value that is there most often; of several, the one that comes first. None where there are none."""
    often = Counter(values)
    return max(often, key=lambda value: often[value], default=None)  # max and Counter keep the order of arrival


def _listed(names: Sequence[str]) -> str:
    some = ", ".join(map(repr, names[:10]))
    return f"{some}, … ({len(names)} in all)" if len(names) > 10 else some
