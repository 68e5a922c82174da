"""Read the user's texts for a trained model: lines of a .txt file, a column of a table, or a list of strings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torso.config import CsvConfig
from torso.data.inputs import Array, Tokens
from torso.data.sources.base import reading
from torso.data.sources.cells import Table
from torso.data.sources.jsonl import read_jsonl
from torso.data.sources.text_columns import texts_of
from torso.data.tokenise import padded
from torso.data.wants import Tokenizer
from torso.errors import RequestError, did_you_mean

LABEL = "label"
TEXT = "text"
TABLES = (".csv", ".tsv", ".jsonl")


@dataclass(frozen=True, eq=False)
class UserTexts:
    """Texts as token sequences for a model."""

    names: tuple[str, ...]
    samples: Array  # [n, length], token ids
    labels: tuple[str, ...]  # the names of their classes, if the data contain them
    remarks: tuple[str, ...]  # what was changed in the data


def of_texts(where: str, texts: Sequence[str], kind: Tokens, tokenizer: Tokenizer) -> UserTexts:
    """Texts from a list of strings. An empty string is refused. `where`: what messages call the list."""
    names = tuple(f"text {number}" for number in range(1, len(texts) + 1))
    return _made(where, names, texts, (), kind, tokenizer)


def from_lines(path: Path, kind: Tokens, tokenizer: Tokenizer) -> UserTexts:
    """Texts from a file with one on each line. Empty lines are left out."""
    with reading(path, "a text on each line"):
        found = enumerate(path.read_text(encoding="utf-8-sig").split("\n"), 1)
    lines = [(number, line.strip()) for number, line in found if line.strip()]
    names = tuple(f"line {number}" for number, _ in lines)
    made = _made(str(path), names, [line for _, line in lines], (), kind, tokenizer)
    left_out = lines[-1][0] - len(lines)  # empty lines at the end of the file are not counted
    if not left_out:
        return made
    return replace(made, remarks=(*made.remarks, f"empty lines are left out: {left_out}"))


def refuse_other_label(path: Path, label: str, names: Sequence[str]) -> None:
    """Refuse a label column that the user has named and the table does not have. A table needs no label column."""
    if label != LABEL and label not in names:
        raise RequestError(
            f"--label {label!r} is no column of {path}{did_you_mean(label, names)} Columns: {', '.join(names)}"
        )


def from_table(
    path: Path, delimiter: str, kind: Tokens, tokenizer: Tokenizer, label: str, text: Sequence[str]
) -> UserTexts:
    """Texts from a column of a table, or from several that are joined.

    If the table has only one column in addition to the label, its name does not matter."""
    table = read_jsonl(path) if path.suffix.lower() == ".jsonl" else Table.read(path, CsvConfig(delimiter=delimiter))
    refuse_other_label(path, label, table.names)
    others = [name for name in table.names if name != label]
    if list(text) == [TEXT] and TEXT not in table.names and len(others) == 1:
        text = others
    missing = [name for name in text if name not in table.names]
    if missing:
        raise RequestError(
            f"{path} has no column {missing[0]!r}, and the model needs a text. Columns: {', '.join(table.names)}. "
            "Name the column of the texts: --text COLUMN"
        )
    names = tuple(f"row {number}" for number in range(1, len(table) + 1))
    labels = tuple(table.column(label)) if label in table.names else ()
    return _made(str(path), names, texts_of(table, text).tolist(), labels, kind, tokenizer)


def _made(
    where: str,
    names: tuple[str, ...],
    texts: Sequence[str],
    labels: tuple[str, ...],
    kind: Tokens,
    tokenizer: Tokenizer,
) -> UserTexts:
    if not texts:
        raise RequestError(f"{where} has no texts. Expected: at least one")
    empty = next((name for name, text in zip(names, texts, strict=True) if not text.strip()), None)
    if empty is not None:
        raise RequestError(f"{where}, {empty}: the text is empty. Expected: at least one word")
    found = padded(texts, kind, tokenizer)
    cut = "1 text is" if found.cut == 1 else f"{found.cut} texts are"
    said = (f"{cut} longer than {kind.length} tokens, as long as the model takes, and cut there",) if found.cut else ()
    return UserTexts(names, kind.accept(where, found.ids), labels, said)
