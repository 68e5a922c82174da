"""Tokenizers: `FileTokenizer` for a body trained elsewhere, `WordTokenizer` for bodies that bring no tokenizer."""

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
_NO_WORD = 1  # the token of a text without words; 0 is padding
_FIRST = 2  # the first id of a word
_WORDS = "words-"  # the identity of the built-in tokenizer is this prefix and its vocabulary
LONGEST = 512  # most tokens of a text, if the body has no limit


@dataclass(frozen=True)
class WordTokenizer:
    """The built-in tokenizer: splits a text into lower-cased words and punctuation marks, whose ids are hashes of them.

    It learns nothing from data, so all clients of a federation have the same one without communication."""

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
        """The ids of each text; a text without words is one special token."""
        return [[self._id(word) for word in _words_of(text)] or [_NO_WORD] for text in texts]

    def _id(self, word: str) -> int:
        return _FIRST + crc32(word.encode("utf-8", "surrogatepass")) % (self.vocabulary - _FIRST)


def _words_of(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFC", text).lower())


@dataclass(frozen=True)
class FileTokenizer:
    """The tokenizer of a tokenizer.json, run by the library `tokenizers`: no pickle and no foreign code."""

    content: str = field(repr=False)  # of the file
    vocabulary: int  # number of rows of the body's embedding table
    pad: int  # id of padding
    length: int  # most tokens that the body takes
    whose: str = field(default="", compare=False)  # the body that it belongs to, for messages

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
        """Special tokens at the end of every text, which stay when it is cut. They are found by comparing the ids of an
        empty text with those of one word."""
        empty, word = (self._ids([text])[0] for text in ("", "a"))
        if len(word) <= len(empty):
            return ()
        common = next((place for place, (a, b) in enumerate(zip(empty, word, strict=False)) if a != b), len(empty))
        return tuple(empty[common:])

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return self._ids(texts)

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text. The padding token is removed if a text spells it out, because no token may have its
        id."""
        encodings = _opened(self.content, self.whose).encode_batch(list(texts))
        return [[number for number in encoding.ids if number != self.pad] for encoding in encodings]


@cache
def _opened(content: str, whose: str) -> Any:
    """The library's tokenizer with its own truncation and padding switched off."""
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
    """The content of a tokenizer's file, which a model file stores besides the identity; "" for the built-in one."""
    return tokenizer.content if isinstance(tokenizer, FileTokenizer) else ""


def tokenizer_of(identity: str, content: str, vocabulary: int, pad: int, length: int, whose: str) -> Tokenizer | None:
    """The tokenizer of a model file, by the stored identity and content; None if it stores none."""
    if not identity:
        return None
    size = identity.removeprefix(_WORDS)
    if identity.startswith(_WORDS) and size.isdecimal() and len(size) < 10:
        return WordTokenizer(int(size), length)
    if not content:
        return None
    found = FileTokenizer(content, vocabulary, pad, length, whose)
    if found.identity != identity:
        raise RequestError(f"{whose}: its tokenizer has the checksum {found.identity}, and {identity} is expected")
    return found
