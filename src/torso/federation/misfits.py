"""Who does not fit into a federation, and why: reasons by the client's name."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from torso.data.images import of_columns
from torso.data.inputs import Floats, Known, Pixels, Tokens
from torso.data.naming import by_name
from torso.data.table_columns import Column, Columns, kinds_of
from torso.errors import RequestError
from torso.federation.description import TORCH, TORSO, Description
from torso.federation.fitting import Fitting
from torso.federation.site_data import MOMENTS
from torso.nets import Tensors

if TYPE_CHECKING:
    from torso.config import DataConfig

Told = Mapping[str, tuple[Description, Tensors]]
"""What each client has told, by its name, in the natural order of names."""


def without_doubles(descriptions: Sequence[tuple[Description, Tensors]]) -> tuple[Told, dict[str, str]]:
    often = Counter(description.name for description, _ in descriptions)
    told = {pair[0].name: pair for pair in descriptions if often[pair[0].name] == 1}
    twice = {
        name: f"{count} clients call themselves {name!r}. Expected: a name of its own for each"
        for name, count in often.items()
        if count > 1
    }
    return {name: told[name] for name in by_name(told)}, twice


def next_misfits(told: Told, fitting: Fitting) -> dict[str, str]:
    """The first that are found; whoever is left is to be looked at again."""
    found = _alone(told) or _unfit(told, fitting) or _other_inputs(told, fitting) or _other_classes(told)
    return found or ({} if fitting.brings_constants else _other_constants(told, fitting.options))


def _unfit(told: Told, fitting: Fitting) -> dict[str, str]:
    found = {name: fitting.misfit(description.input) for name, (description, _) in told.items()}
    return {name: reason for name, reason in found.items() if reason}


def _alone(told: Told) -> dict[str, str]:
    found = {name: misfit_alone(*pair) for name, pair in told.items()}
    return {name: reason for name, reason in found.items() if reason}


def misfit_alone(one: Description, tensors: Tensors) -> str:
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
        return f"it names a class twice ({listed(one.classes)}). Expected: a name of its own for each"
    if not one.input.shape:
        return f"it has {one.input.words}. Expected: samples with a size"
    try:
        if any(one.constants):
            one.input.check_constants()
    except RequestError as error:
        return str(error)
    return _wrong_columns(one) or _wrong_sums(one, tensors)


def _wrong_columns(one: Description) -> str:
    """Columns that do not make the features that it names."""
    if not one.columns:
        return ""
    ordered = all(list(column.categories) == sorted(set(column.categories)) for column in one.columns)
    whole = len(kinds_of(one.columns)) == len(one.columns) and one.input == of_columns(one.columns)
    return "" if ordered and whole else "its columns do not make its features. Expected: those of its table"


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
        wrong = wrong or not whole or bool((total > 255 * count).any() or (squares > 255 * total).any())
    return f"its sums are not those of {one.train_samples} {one.input.noun}. Expected: sums of its samples" * wrong


def _version(text: str) -> tuple[str, ...]:
    found = re.match(r"(\d+)\.(\d+)", text)
    return found.groups() if found else (text,)


def _other_inputs(told: Told, fitting: Fitting) -> dict[str, str]:
    those = {name: description for name, (description, _) in told.items()}
    forms = {
        name: (form_of(fitting.of(one.input), one.columns), fitting.channels(one.input)) for name, one in those.items()
    }
    usual = most_common(list(forms.values()))
    like = next((those[name] for name in told if forms[name] == usual), None)
    return {
        name: other_input(one.input, like.input, one.columns, like.columns)
        for name, one in those.items()
        if like is not None and forms[name] != usual
    }


def form_of(input: Known, columns: Columns = ()) -> Hashable:
    """What must be the same for all clients: all but constants, the length and vocabulary of texts, which grow, and the
    order and categories of a table's columns, which are put together."""
    if columns:
        return "table", frozenset(kinds_of(columns).items())
    if isinstance(input, Tokens):
        return "tokens", input.pad, input.tokenizer
    return replace(input, mean=(), std=())


def has_room(agreed: Known, input: Known) -> bool:
    if not isinstance(agreed, Tokens) or not isinstance(input, Tokens):
        return True
    return input.length <= agreed.length and input.vocabulary <= agreed.vocabulary


def other_input(found: Known, wanted: Known, have: Columns = (), want: Columns = ()) -> str:
    """Why samples of a kind are not what is wanted; of tables, with their columns."""
    if have and want:
        return _other_columns(have, want)
    if isinstance(found, Tokens) and isinstance(wanted, Tokens) and found.tokenizer != wanted.tokenizer:
        mine, theirs = (f"tokenizer {each.tokenizer}" if each.tokenizer else "no tokenizer" for each in (found, wanted))
        return (
            f"its token ids are of {mine}, those of others of {theirs}. Expected: the same; a client reads texts for "
            "the run's body with --set model.body=…"
        )
    said, other = ([_words(each)] for each in (found, wanted))
    if said == other and isinstance(found, Floats) and isinstance(wanted, Floats):
        pairs = zip((*found.names, *wanted.names[len(found.names) :]), wanted.names or found.names, strict=True)
        mine, theirs = next(((a, b) for a, b in pairs if a != b), ("", ""))
        return f"its features are named otherwise: {mine!r} where others have {theirs!r}. Expected: the same columns"
    return f"it has {said[0]}, others have {other[0]}. Expected: {other[0]}"


def _other_columns(mine: Columns, others: Columns) -> str:
    """Columns that only one side has, or that hold numbers here and categories there."""
    here, there = ({column.name: column for column in columns} for columns in (mine, others))
    apart = ("lacks", [name for name in there if name not in here]), ("alone has", [n for n in here if n not in there])
    said = [f"{verb} column{'s' * (len(names) > 1)} {listed(names)}" for verb, names in apart if names]
    if said:
        return (
            f"it {' and '.join(said)}. Expected: the same columns at all clients, in any order "
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
    """Where all give mean and std, those of the most hold. Where somebody gives none, they are computed for all."""
    given = {name: description.constants for name, (description, _) in told.items()}
    if options.normalize == "statistics" or not all(mean for mean, _ in given.values()):
        return {}
    usual = most_common(list(given.values()))
    like = next((told[name][0].input for name in told if given[name] == usual), None)
    return {name: other_constants(told[name][0], like) for name in told if like is not None and given[name] != usual}


def constants_of(input: Known) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return getattr(input, "mean", ()), getattr(input, "std", ())


def other_constants(one: Description, wanted: Known) -> str:
    (mean, std), (mean_of_all, std_of_all) = one.constants, constants_of(wanted)
    return (
        f"its files give mean = {list(mean)}, std = {list(std)}, those of others {list(mean_of_all)}, "
        f"{list(std_of_all)}. Expected: the same, or none"
    )


def _other_classes(told: Told) -> dict[str, str]:
    """Of two spellings of a class that of more clients holds, or that of the first client by name.

    Where one client has both, they are two classes."""
    those = [description for description, _ in told.values()]
    for spellings in _alike(those):
        users = {each: [one.name for one in those if each in one.classes] for each in spellings}
        usual = most_common([each for one in those for each in spellings if each in one.classes])
        others = [each for each in spellings if each != usual]
        return {
            name: clash(each, users[each], usual, ", ".join(users[usual])) for each in others for name in users[each]
        }
    return {}


def _alike(those: Sequence[Description]) -> list[list[str]]:
    """Names of classes that differ only by case or surrounding spaces, and that no client has side by side."""
    found: dict[str, set[str]] = defaultdict(set)
    for name in {name for one in those for name in one.classes}:
        found[plain(name)].add(name)
    return [
        sorted(found[plain])
        for plain in sorted(found)
        if len(found[plain]) > 1 and not any(len(found[plain].intersection(one.classes)) > 1 for one in those)
    ]


def alike_on_purpose(those: Sequence[Description]) -> list[str]:
    """A word where a client has two classes side by side that others would take for one."""
    said = set()
    for one in those:
        by_plain: dict[str, list[str]] = defaultdict(list)
        for name in one.classes:
            by_plain[plain(name)].append(name)
        said |= {tuple(sorted(names)) for names in by_plain.values() if len(names) > 1}
    return [f"classes {listed(names)} are taken for different ones: a client has both" for names in sorted(said)]


def plain(name: str) -> str:
    return name.strip().casefold()


def clash(mine: str, whose: Sequence[str], usual: str, others: str) -> str:
    return (
        f"class {mine!r} (of {', '.join(whose)}) and class {usual!r} (of {others}) differ only by case or surrounding "
        f"spaces. Expected: one spelling, such as {usual!r}"
    )


def most_common(values: Sequence[Any]) -> Any:
    """The value that is there most often; of several, the one that comes first. None where there are none."""
    often = Counter(values)
    return max(often, key=lambda value: often[value], default=None)  # max and Counter keep the order of arrival


def listed(names: Sequence[str]) -> str:
    some = ", ".join(map(repr, names[:10]))
    return f"{some}, … ({len(names)} in all)" if len(names) > 10 else some
