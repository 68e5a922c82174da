"""Texts as token sequences, made once, when the data are read. n texts, L tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from torso.data.images import Dataset, Labelled, Samples
from torso.data.inputs import Array, Tokens
from torso.data.tokenizers import Words
from torso.data.wants import Tokenizer, Wants
from torso.errors import RequestError

if TYPE_CHECKING:
    from torso.config import DataConfig, TextConfig


def tokenised(dataset: Dataset, options: DataConfig, wants: Wants) -> Dataset:
    """A data set of texts as one of Tokens, padded to the longest text or to what the body takes."""
    tokenizer = wants.tokenizer or Words(options.text.vocabulary)
    limit = limit_of(options.text, tokenizer, wants)
    parts = [tokenizer.encode(part.samples.tolist()) for part in (dataset.train, dataset.test)]
    length = min(limit, max(len(ids) for part in parts for ids in part))
    train, test = (_padded(ids, length, tokenizer) for ids in parts)
    kind = Tokens(length, tokenizer.vocabulary, tokenizer.pad, tokenizer.identity)
    return replace(
        dataset,
        train=_with(dataset.train, kind.accept("texts", train.ids)),
        test=_with(dataset.test, kind.accept("texts", test.ids)),
        input=kind,
        remarks=(*dataset.remarks, *_told(options.source, [train, test], limit, wants)),
    )


def limit_of(text: TextConfig, tokenizer: Tokenizer, wants: Wants) -> int:
    """The most tokens of a text: what data.text.length says, or what the body takes."""
    least, most = len(tokenizer.ending) + 2, tokenizer.length
    if not text.length:
        return most
    if wants.tokenizer is not None and text.length > most:
        raise RequestError(f"data.text.length = {text.length}: {wants.by} takes at most {most} tokens. Accepted: less")
    if text.length < least:
        raise RequestError(f"data.text.length = {text.length} leaves no room for a word. Accepted: {least} or more")
    return text.length


@dataclass(frozen=True, eq=False)
class Padded:
    """Sequences [n, L], how many of them were cut, and the longest text in tokens."""

    ids: Array
    cut: int
    longest: int


def padded(texts: Sequence[str], kind: Tokens, tokenizer: Tokenizer) -> Padded:
    """Texts as sequences of a known kind: for a model that is trained already."""
    return _padded(tokenizer.encode(texts), kind.length, tokenizer)


def are_texts(data: Any) -> bool:
    """Whether an object of a program is a list of texts."""
    return isinstance(data, list | tuple) and bool(data) and all(isinstance(text, str) for text in data)


def _padded(every: Sequence[Sequence[int]], length: int, tokenizer: Tokenizer) -> Padded:
    """Sequences of one length. A longer one loses its end, but keeps the special tokens there."""
    made = np.full((len(every), length), tokenizer.pad, dtype=np.int32)
    ending = tokenizer.ending
    for row, ids in enumerate(every):
        kept = ids if len(ids) <= length else [*ids[: length - len(ending)], *ending]
        made[row, : len(kept)] = kept
    return Padded(made, sum(len(ids) > length for ids in every), max(map(len, every), default=0))


def _with(part: Labelled, ids: Array) -> Samples:
    return Samples(ids, part.labels, part.writers)


def _told(source: str, parts: Sequence[Padded], limit: int, wants: Wants) -> tuple[str, ...]:
    cut, every = sum(part.cut for part in parts), sum(len(part.ids) for part in parts)
    if not cut:
        return ()
    longest, by = max(part.longest for part in parts), f" ({wants.by})" if wants.tokenizer is not None else ""
    return (
        f"data.source = {source!r}: {cut} of {every} texts are longer than {limit} tokens{by} and were cut there; the "
        f"longest has {longest}",
    )
