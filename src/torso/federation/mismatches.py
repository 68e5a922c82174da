"""Finds the clients that do not fit into a federation, with the reasons."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from torso.data.images import floats_of_columns
from torso.data.inputs import Floats, Known, Pixels, Tokens
from torso.data.naming import in_natural_order
from torso.data.table_columns import Column, Columns, kinds_of
from torso.errors import RequestError
from torso.federation.description import TORCH, TORSO, Description
from torso.federation.fitting import Fitting
from torso.federation.site_data import MOMENTS
from torso.nets import Tensors

if TYPE_CHECKING:
    from torso.config import DataConfig

Told = Mapping[str, tuple[Description, Tensors]]
"""Client's name → its description and its sums (`SiteData.moments`), in the natural order of names."""


def without_doubles(descriptions: Sequence[tuple[Description, Tensors]]) -> tuple[Told, dict[str, str]]:
    """The descriptions whose name is unique; and the other names, with the reason why these clients are refused."""
    counts = Counter(description.name for description, _ in descriptions)
    unique = {pair[0].name: pair for pair in descriptions if counts[pair[0].name] == 1}
    doubles = {
        name: f"{count} clients call themselves {name!r}. Expected: a unique name for each"
        for name, count in counts.items()
        if count > 1
    }
    return {name: unique[name] for name in in_natural_order(unique)}, doubles


def next_misfits(told: Told, fitting: Fitting) -> dict[str, str]:
    """The clients that fail the first check that any client fails: name → reason.

    The caller removes them and calls again, since the checks compare a client with the majority of the others."""
    found = _wrong_alone(told) or _cannot_be_fitted(told, fitting) or _other_inputs(told, fitting)
    found = found or _other_classes(told)
    if not found and not fitting.brings_constants:
        found = _other_constants(told, fitting.options)
    return found


def _cannot_be_fitted(told: Told, fitting: Fitting) -> dict[str, str]:
    found = {name: fitting.misfit(description.input) for name, (description, _) in told.items()}
    return {name: reason for name, reason in found.items() if reason}


def _wrong_alone(told: Told) -> dict[str, str]:
    found = {name: misfit_alone(*pair) for name, pair in told.items()}
    return {name: reason for name, reason in found.items() if reason}


def misfit_alone(one: Description, tensors: Tensors) -> str:
    """What is wrong with a client, regardless of the others; "" if nothing is."""
    for what, have, want in (("Torso", one.torso, TORSO), ("torch", one.torch, TORCH)):
        if _version(have) != _version(want):
            return (
                f"it has {what} {have}, the server {want}: another version may compute other bits. "
                f"Expected: {what} {'.'.join(_version(want))}"
            )
    if not one.train_samples:
        return "it has no training samples. Expected: at least one"
    if len(set(one.classes)) < len(one.classes):
        return f"it names a class twice ({listed(one.classes)}). Expected: a unique name for each"
    if not one.input.shape:
        return f"it has {one.input.words}. Expected: samples with a size"
    try:
        if any(one.constants):
            one.input.check_constants()
    except RequestError as error:
        return str(error)
    return _wrong_columns(one) or _wrong_sums(one, tensors)


def _wrong_columns(one: Description) -> str:
    """What is wrong with the columns of a table; "" if they match its features."""
    if not one.columns:
        return ""
    ordered = all(list(column.categories) == sorted(set(column.categories)) for column in one.columns)
    names_are_unique = len(kinds_of(one.columns)) == len(one.columns)
    if ordered and names_are_unique and one.input == floats_of_columns(one.columns):
        return ""
    return "its columns do not make its features. Expected: those of its table"


def _wrong_sums(one: Description, tensors: Tensors) -> str:
    """What is wrong with a client's sums; "" if nothing is. Wrong sums would spoil mean and std for all clients."""
    wanted = () if isinstance(one.input, Tokens) else MOMENTS
    shapes = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
    if shapes != dict.fromkeys(wanted, (torch.float64, one.input.shape[:1])):
        return f"its sums are {shapes}. Expected: {', '.join(wanted) or 'none'}, float64 [{one.input.shape[0]}]"
    if not wanted:
        return ""
    count, total, squares = (tensors[name] for name in wanted)
    expected_count = one.train_samples * math.prod(one.input.shape[1:])
    finite = torch.isfinite(total).all() and torch.isfinite(squares).all()
    possible = bool(finite and (count == expected_count).all())
    # (Σx)² ≤ n·Σx² for all numbers (Cauchy-Schwarz)
    possible = possible and not bool((total.square() > count * squares * (1 + 1e-6)).any())
    if possible and isinstance(one.input, Pixels):  # whole numbers from 0 to 255
        whole = bool((total == total.floor()).all() and (squares == squares.floor()).all())
        possible = whole and not bool((total > 255 * count).any() or (squares > 255 * total).any())
    if possible:
        return ""
    return f"its sums are not those of {one.train_samples} {one.input.noun}. Expected: sums of its samples"


def _version(text: str) -> tuple[str, ...]:
    """The major and minor version."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return found.groups() if found else (text,)


def _other_inputs(told: Told, fitting: Fitting) -> dict[str, str]:
    """The clients whose kind of input differs from that of most clients."""
    descriptions = {name: description for name, (description, _) in told.items()}
    forms = {
        name: (form_of(fitting.of(one.input), one.columns), fitting.channels(one.input))
        for name, one in descriptions.items()
    }
    usual = most_common(list(forms.values()))
    example = next((descriptions[name] for name in told if forms[name] == usual), None)
    if example is None:
        return {}
    return {
        name: other_input(one.input, example.input, one.columns, example.columns)
        for name, one in descriptions.items()
        if forms[name] != usual
    }


def form_of(input: Known, columns: Columns = ()) -> Hashable:
    """The part of a kind of input that must be equal for all clients.

    Not included: mean and std; the length and vocabulary of texts, of which the largest are taken; the order and the
    categories of a table's columns, which are merged."""
    if columns:
        return "table", frozenset(kinds_of(columns).items())
    if isinstance(input, Tokens):
        return "tokens", input.pad, input.tokenizer
    return replace(input, mean=(), std=())


def has_room(agreed: Known, input: Known) -> bool:
    """Whether the agreed length and vocabulary are large enough for these texts; True for other kinds of input."""
    if not isinstance(agreed, Tokens) or not isinstance(input, Tokens):
        return True
    return input.length <= agreed.length and input.vocabulary <= agreed.vocabulary


def other_input(found: Known, wanted: Known, have: Columns = (), want: Columns = ()) -> str:
    """The reason why a kind of input is refused. `have` and `want`: the columns, if both are tables."""
    if have and want:
        return _other_columns(have, want)
    if isinstance(found, Tokens) and isinstance(wanted, Tokens) and found.tokenizer != wanted.tokenizer:
        mine, theirs = _tokenizer_words(found), _tokenizer_words(wanted)
        return (
            f"its token ids are of {mine}, those of others of {theirs}. Expected: the same; a client reads texts for "
            "the run's body with --set model.body=…"
        )
    found_words, wanted_words = _words(found), _words(wanted)
    if found_words == wanted_words and isinstance(found, Floats) and isinstance(wanted, Floats):
        pairs = zip((*found.names, *wanted.names[len(found.names) :]), wanted.names or found.names, strict=True)
        mine, theirs = next(((a, b) for a, b in pairs if a != b), ("", ""))
        return f"its features are named otherwise: {mine!r} where others have {theirs!r}. Expected: the same columns"
    return f"it has {found_words}, others have {wanted_words}. Expected: {wanted_words}"


def _tokenizer_words(input: Tokens) -> str:
    return f"tokenizer {input.tokenizer}" if input.tokenizer else "no tokenizer"


def _other_columns(mine: Columns, others: Columns) -> str:
    """The reason why the columns of a table differ: names that only one side has, or a column of the other type."""
    here = {column.name: column for column in mine}
    there = {column.name: column for column in others}
    differences = [
        ("lacks", [name for name in there if name not in here]),
        ("alone has", [name for name in here if name not in there]),
    ]
    parts = [f"{verb} column{'s' if len(names) > 1 else ''} {listed(names)}" for verb, names in differences if names]
    if parts:
        return (
            f"it {' and '.join(parts)}. Expected: the same columns at all clients, in any order "
            "(--set data.csv.drop=COLUMN leaves one out)"
        )
    name = next(name for name in here if here[name].holds != there[name].holds)
    return (
        f"its column {name!r} holds {_held(here[name])}, that of others {_held(there[name])}. Expected: numbers at all "
        f"clients; or categories at all, by --set data.csv.categorical={name}"
    )


def _held(column: Column) -> str:
    return f"{column.holds} ({listed(column.categories)})" if column.categories else column.holds


def _words(input: Known) -> str:
    if isinstance(input, Tokens):
        return f"{input.words} of {input.vocabulary} in all, padded with {input.pad}"
    return input.words


def _other_constants(told: Told, options: DataConfig) -> dict[str, str]:
    """If all clients give mean and std: those whose values differ from most clients'.

    If a client gives none, they are computed from sums of all clients, and no client is refused."""
    given = {name: description.constants for name, (description, _) in told.items()}
    if options.normalize == "statistics" or not all(mean for mean, _ in given.values()):
        return {}
    usual = most_common(list(given.values()))
    example = next((told[name][0].input for name in told if given[name] == usual), None)
    if example is None:
        return {}
    return {name: other_constants(told[name][0], example) for name in told if given[name] != usual}


def constants_of(input: Known) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std of a kind of input; empty if it has none."""
    return getattr(input, "mean", ()), getattr(input, "std", ())


def other_constants(one: Description, wanted: Known) -> str:
    """The reason why a client is refused for its mean and std."""
    (mean, std), (mean_of_all, std_of_all) = one.constants, constants_of(wanted)
    return (
        f"its files give mean = {list(mean)}, std = {list(std)}, those of others {list(mean_of_all)}, "
        f"{list(std_of_all)}. Expected: the same, or none"
    )


def _other_classes(told: Told) -> dict[str, str]:
    """The clients that spell a class otherwise than most clients (in a tie: than the first client by name).

    If one client has both spellings, they are two classes."""
    descriptions = [description for description, _ in told.values()]
    for spellings in _alike(descriptions):
        users = {each: [one.name for one in descriptions if each in one.classes] for each in spellings}
        usual = most_common([each for one in descriptions for each in spellings if each in one.classes])
        others = [each for each in spellings if each != usual]
        return {
            name: clash(each, users[each], usual, ", ".join(users[usual])) for each in others for name in users[each]
        }
    return {}


def _alike(descriptions: Sequence[Description]) -> list[list[str]]:
    """Groups of class names that differ only by case or surrounding spaces, unless one client has two of a group."""
    groups: dict[str, set[str]] = defaultdict(set)
    for name in {name for one in descriptions for name in one.classes}:
        groups[plain(name)].add(name)
    alike = []
    for key in sorted(groups):
        spellings = groups[key]
        on_purpose = any(len(spellings.intersection(one.classes)) > 1 for one in descriptions)
        if len(spellings) > 1 and not on_purpose:
            alike.append(sorted(spellings))
    return alike


def alike_on_purpose(descriptions: Sequence[Description]) -> list[str]:
    """A remark for each group of class names that differ only by case or spaces and that one client has together."""
    groups = set()
    for one in descriptions:
        by_plain: dict[str, list[str]] = defaultdict(list)
        for name in one.classes:
            by_plain[plain(name)].append(name)
        groups |= {tuple(sorted(names)) for names in by_plain.values() if len(names) > 1}
    return [f"classes {listed(names)} are taken for different ones: a client has both" for names in sorted(groups)]


def plain(name: str) -> str:
    """A name without case and surrounding spaces, for comparison."""
    return name.strip().casefold()


def clash(mine: str, whose: Sequence[str], usual: str, others: str) -> str:
    """The reason why clients are refused for the spelling of a class."""
    return (
        f"class {mine!r} (of {', '.join(whose)}) and class {usual!r} (of {others}) differ only by case or surrounding "
        f"spaces. Expected: one spelling, such as {usual!r}"
    )


def most_common(values: Sequence[Any]) -> Any:
    """The most frequent value; in a tie, the one that comes first. None if there are no values."""
    counts = Counter(values)
    return max(counts, key=lambda value: counts[value], default=None)  # max and Counter keep the order of `values`


def listed(names: Sequence[str]) -> str:
    """The names for a message, at most ten of them."""
    first = ", ".join(map(repr, names[:10]))
    return f"{first}, … ({len(names)} in all)" if len(names) > 10 else first
