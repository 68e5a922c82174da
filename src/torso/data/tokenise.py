"""Tokenising a data set of texts, once, when the data are read. n texts, L tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from torso.data.images import Dataset, Labelled, Samples
from torso.data.inputs import Array, Tokens
from torso.data.tokenizers import WordTokenizer
from torso.data.wants import Tokenizer, Wants
from torso.errors import RequestError

if TYPE_CHECKING:
    from torso.config import DataConfig, TextConfig


def tokenised(dataset: Dataset, options: DataConfig, wants: Wants) -> Dataset:
    """The data set of texts as one of Tokens, padded to the longest text, or cut to what the body takes."""
    tokenizer = wants.tokenizer or WordTokenizer(options.text.vocabulary)
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
        remarks=(*dataset.remarks, *_remark_on_cuts(options.source, [train, test], limit, wants)),
    )


def limit_of(text: TextConfig, tokenizer: Tokenizer, wants: Wants) -> int:
    """The most tokens of a text: `data.text.length`, or if that is 0 what the tokenizer's body takes."""
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
    """Texts as sequences of token ids, all of one length."""

    ids: Array  # int32 [n, L]
    cut: int  # number of texts that were cut
    longest: int  # tokens of the longest text before cutting


def padded(texts: Sequence[str], kind: Tokens, tokenizer: Tokenizer) -> Padded:
    """Texts as sequences of a known kind, for a model that has been trained."""
    return _padded(tokenizer.encode(texts), kind.length, tokenizer)


def are_texts(data: Any) -> bool:
    """Whether an object is a list or tuple of texts, and not empty."""
    return isinstance(data, list | tuple) and bool(data) and all(isinstance(text, str) for text in data)


def _padded(sequences: Sequence[Sequence[int]], length: int, tokenizer: Tokenizer) -> Padded:
    """Sequences padded or cut to one length. A sequence that is cut keeps the special tokens at its end."""
    padded_ids = np.full((len(sequences), length), tokenizer.pad, dtype=np.int32)
    ending = tokenizer.ending
    for row, ids in enumerate(sequences):
        kept = ids if len(ids) <= length else [*ids[: length - len(ending)], *ending]
        padded_ids[row, : len(kept)] = kept
    cut = sum(len(ids) > length for ids in sequences)
    return Padded(padded_ids, cut, longest=max(map(len, sequences), default=0))


def _with(part: Labelled, ids: Array) -> Samples:
    return Samples(ids, part.labels, part.writers)


def _remark_on_cuts(source: str, parts: Sequence[Padded], limit: int, wants: Wants) -> tuple[str, ...]:
    cut = sum(part.cut for part in parts)
    if not cut:
        return ()
    texts = sum(len(part.ids) for part in parts)
    longest = max(part.longest for part in parts)
    by = f" ({wants.by})" if wants.tokenizer is not None else ""
    return (
        f"data.source = {source!r}: {cut} of {texts} texts are longer than {limit} tokens{by} and were cut there; the "
        f"longest has {longest}",
    )
