"""Tokenizers: that of a body which was trained elsewhere, and a small one for bodies that bring none."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any
from zlib import crc32

from torso.data.wants import Tokenizer
from torso.errors import RequestError

_WORD = re.compile(r"\w+|[^\w\s]")
_NO_WORD, _FIRST = 1, 2  # 0 is padding; ids of words begin at 2
_WORDS = "words-"  # so begins the identity of the built-in tokenizer; its vocabulary follows
LONGEST = 512  # tokens, where no body says how many it takes


@dataclass(frozen=True)
class Words:
    """Lower-cased words and punctuation marks; the id of each is a hash of it. It learns nothing from data, so the
    clients of a federation have the same one without talking about it."""

    vocabulary: int
    length: int = LONGEST
    pad: int = 0
    ending: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.vocabulary <= _FIRST:
            raise RequestError(f"data.text.vocabulary = {self.vocabulary}. Expected: {_FIRST + 1} or more")

    @property
    def identity(self) -> str:
        return f"{_WORDS}{self.vocabulary}"

    @property
    def words(self) -> str:
        return f"the built-in word tokenizer ({self.vocabulary} ids)"

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """A text without a word is one token of its own."""
        return [[self._id(word) for word in _words_of(text)] or [_NO_WORD] for text in texts]

    def _id(self, word: str) -> int:
        return _FIRST + crc32(word.encode("utf-8", "surrogatepass")) % (self.vocabulary - _FIRST)


def _words_of(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFC", text).lower())


@dataclass(frozen=True)
class FromFile:
    """The content of a tokenizer.json, which the library `tokenizers` runs: no pickle and no code from outside."""

    content: str = field(repr=False)
    vocabulary: int  # rows of the body's table of embeddings
    pad: int
    length: int
    whose: str = field(default="", compare=False)  # for messages

    def __post_init__(self) -> None:
        size = _opened(self.content, self.whose).get_vocab_size()
        if size > self.vocabulary:
            raise RequestError(
                f"{self.whose}: its tokenizer has {size} ids and its table of embeddings {self.vocabulary}. "
                "Expected: the tokenizer that the body was trained with"
            )

    @cached_property
    def identity(self) -> str:
        return hashlib.blake2b(f"{self.pad} {self.content}".encode(), digest_size=8).hexdigest()

    @property
    def words(self) -> str:
        return f"the tokenizer of {self.whose}"

    @cached_property
    def ending(self) -> tuple[int, ...]:
        """Special tokens at the end of every text, which stay when it is cut."""
        empty, word = (self._ids([text])[0] for text in ("", "a"))
        same = next((i for i, (a, b) in enumerate(zip(empty, word, strict=False)) if a != b), len(empty))
        return tuple(empty[same:]) if len(word) > len(empty) else ()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return self._ids(texts)

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        """A text that spells the padding token out has it left out: no token may have its id."""
        found = _opened(self.content, self.whose).encode_batch(list(texts))
        return [[number for number in one.ids if number != self.pad] for one in found]


@cache
def _opened(content: str, whose: str) -> Any:
    """The tokenizer itself, without cutting or padding of its own."""
    try:
        import tokenizers
    except ImportError:
        raise RequestError(f"{whose} needs tokenizers. Install it: pip install 'torso[text]'") from None
    try:
        found = tokenizers.Tokenizer.from_str(content)
    except Exception as error:  # the library raises a plain Exception
        raise RequestError(f"{whose}: its tokenizer.json cannot be read: {error}") from None
    found.no_truncation()
    found.no_padding()
    return found


def stored(tokenizer: Tokenizer | None) -> str:
    """What a model file holds of a tokenizer, beside its identity: the content of its file, if it has any."""
    return tokenizer.content if isinstance(tokenizer, FromFile) else ""


def tokenizer_of(identity: str, content: str, vocabulary: int, pad: int, length: int, whose: str) -> Tokenizer | None:
    """The tokenizer that a model file names and holds; None where it names none."""
    if not identity:
        return None
    size = identity.removeprefix(_WORDS)
    if identity.startswith(_WORDS) and size.isdecimal() and len(size) < 10:
        return Words(int(size), length)
    if not content:
        return None
    found = FromFile(content, vocabulary, pad, length, whose)
    if found.identity != identity:
        raise RequestError(f"{whose}: its tokenizer has the checksum {found.identity}, and {identity} is expected")
    return found
