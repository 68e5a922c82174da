"""Texts: the column of a table or a key of JSON lines, tokenised once, cut where they are long; what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from torso.config import DataConfig
from torso.data import Federation, build, load
from torso.data.batches import Deck, Shuffle
from torso.data.images import Dataset, Samples
from torso.data.inputs import Tokens
from torso.data.texts import Texts
from torso.data.token_lens import TokenLens, lengths_of
from torso.data.tokenizers import FileTokenizer, WordTokenizer, tokenizer_of
from torso.data.wants import Wants
from torso.errors import RequestError
from torso.learn.features import features_of
from torso.nets import LinearHead
from torso.nets import build as build_network

from .samples import options

CPU = torch.device("cpu")
ROWS = [
    ("sport", "Goal!", "The team won"),
    ("money", "Prices", "stock fell"),
    ("sport", "", "a match"),
    ("money", "Rates", ""),
]
CSV = "label,title,text\n" + "".join(f"{a},{b},{c}\n" for a, b, c in ROWS)
JOINED = ["Goal! The team won", "Prices stock fell", "a match", "Rates"]


def written(tmp_path: Path, content: str, name: str = "rows.csv") -> Path:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    return path


def read(path: Path, source: str = "csv", **csv: Any) -> Dataset:
    return load(options(source=source, root=str(path), csv={"text": ("title", "text"), **csv}), 0)


def texts(found: Dataset) -> list[str]:
    return sorted([*found.train.samples.tolist(), *found.test.samples.tolist()])


def federation(path: Path, wants: Wants | None = None, **more: Any) -> Federation:
    chosen = DataConfig(source="csv", root=str(path), partition="iid", clients=1, **more)
    return build(chosen, 0, CPU, wants=wants or Wants())


def test_columns_are_joined(tmp_path: Path) -> None:
    found = read(written(tmp_path, CSV))
    assert isinstance(found.input, Texts)
    assert (texts(found), found.class_names) == (sorted(JOINED), ("money", "sport"))


def test_a_file_without_a_line_of_names(tmp_path: Path) -> None:
    """As AG News has it: labels from 1, everything in quotes."""
    lines = "".join(f'"{1 + (a == "sport")}","{b}","{c}"\n' for a, b, c in ROWS)
    found = read(written(tmp_path, lines), names=("label", "title", "text"))
    assert (texts(found), found.class_names) == (sorted(JOINED), ("1", "2"))
    with pytest.raises(RequestError, match=r"is line 1 of .* leave the key out"):
        read(written(tmp_path, CSV), names=("label", "title", "text"))
    with pytest.raises(RequestError, match=r"line 1 has 3 fields and data.csv.names names 2 columns"):
        read(written(tmp_path, lines), names=("label", "text"))


def test_json_lines(tmp_path: Path) -> None:
    """Texts, and rows of numbers and categories as a table has them; a missing key is an empty cell."""
    lines = '{"label": "b", "text": "one\\ntwo"}\n\n{"label": "a", "text": "three", "id": 7}\n'
    lines += '{"label": "b", "text": "four"}'
    both = {name: written(tmp_path, lines, f"{name}.jsonl") for name in ("train", "test")}
    found = read(tmp_path, "jsonl", text=("text",))
    assert (found.train.samples.tolist(), found.train.labels.tolist()) == (["one\ntwo", "three", "four"], [1, 0, 1])
    both["train"].write_text(
        '{"label": 1, "x": 0.5, "c": true}\n{"label": 0, "x": null, "c": false}\n' + '{"label": 0, "x": 0.5}'
    )
    both["test"].write_text('{"label": 0, "x": 2, "c": false}\n')
    found = read(tmp_path, "jsonl", text=())
    assert found.train.samples.tolist() == [[0.5, 0, 0, 1], [0.5, 0, 1, 0], [0.5, 1, 0, 0]]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", r"line 1 is no JSON"),
        ("[1]", r"line 1 is list. Expected: an object"),
        ('{"label": "a", "text": ["x"]}', r"line 1: text = \['x'\]. Expected: a text"),
        ('{"label": "a", "text": "x"}', r"data.csv.text = 'title' is no column"),
    ],
)
def test_bad_json_lines_are_refused(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        read(written(tmp_path, line, "rows.jsonl"), "jsonl")


def test_a_parquet_table_of_texts(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = arrow.table({"label": [a for a, *_ in ROWS], "text": JOINED, "tags": [["x"]] * 4})
    parquet.write_table(table, tmp_path / "rows.parquet")
    assert texts(read(tmp_path / "rows.parquet", "parquet", text=("text",))) == sorted(JOINED)


def test_an_empty_text_is_refused_by_its_line(tmp_path: Path) -> None:
    path = written(tmp_path, CSV)
    with pytest.raises(RequestError, match=r"rows.csv, line 5: the text is empty \(text\), 1 in all.*data.text.empty"):
        read(path, text=("text",))
    found = load(options(source="csv", root=str(path), csv={"text": ("text",)}, text={"empty": "skip"}), 0)
    assert len(texts(found)) == 3
    assert found.remarks == ("data.source = 'csv': 1 row without a text was left out (data.text.empty = skip)",)


def test_words_by_hand() -> None:
    """Case and the way an accent is written make no difference; the ids of a text do not depend on other texts."""
    words = WordTokenizer(50)
    first, second, third = words.encode(["Caf\u00e9, CAT!", "cafe\u0301 , cat !", "  "])
    assert first == second
    assert (len(first), third) == (4, [1])
    assert all(2 <= number < 50 for number in first)
    assert words.encode(["cat"]) == [[2 + 0x9E5E43A8 % 48]]  # the CRC-32 of "cat"
    assert tokenizer_of(words.identity, "", 50, 0, 512, "") == words


def test_texts_become_padded_sequences(tmp_path: Path) -> None:
    found = federation(written(tmp_path, CSV), csv={"text": ("title", "text")}, text={"vocabulary": 100})
    assert found.input == Tokens(5, 100, 0, "words-100")
    assert sorted(lengths_of(torch.cat([found.train.samples, found.test.samples]), 0).tolist()) == [1, 2, 3, 5]


def test_long_texts_are_cut_and_told(tmp_path: Path) -> None:
    found = federation(written(tmp_path, CSV), csv={"text": ("title", "text")}, text={"length": 2})
    assert found.input.shape == (2,)
    assert "2 of 4 texts are longer than 2 tokens and were cut there; the longest has 5" in found.remarks[0]
    with pytest.raises(RequestError, match=r"data.text.length = 1 leaves no room for a word. Accepted: 2 or more"):
        federation(tmp_path / "rows.csv", csv={"text": ("title", "text")}, text={"length": 1})


def test_a_bodys_tokenizer_keeps_its_last_token(tmp_path: Path) -> None:
    """[CLS] is 2, [SEP] is 3 and comes last, also where a text is cut; one that spells [PAD] has no padding in it."""
    pytest.importorskip("tokenizers")
    from tests.nets.text_models import tokenizer_json

    mine = FileTokenizer(tokenizer_json(), 40, 0, 6, "the body")
    assert mine.ending == (3,)
    assert 0 not in mine.encode(["the [PAD] cat"])[0]
    path = written(tmp_path, "label,text\na,the cat sat on the mat .\nb,the dog\na,a cat\nb,a dog\n")
    found = federation(path, Wants(by="the body", tokenizer=mine), csv={"text": ("text",)})
    rows = torch.cat([found.train.samples, found.test.samples]).tolist()
    assert all(row[0] == 2 and [n for n in row if n][-1] == 3 for row in rows)
    assert "1 of 4 texts are longer than 6 tokens (the body)" in found.remarks[0]
    with pytest.raises(RequestError, match=r"data.text.length = 7: the body takes at most 6 tokens"):
        federation(path, Wants(by="the body", tokenizer=mine), csv={"text": ("text",)}, text={"length": 7})
    other = tokenizer_of(mine.identity, mine.content, 40, 0, 6, "x")
    assert other == mine
    with pytest.raises(RequestError, match="has the checksum"):
        tokenizer_of("0" * 16, mine.content, 40, 0, 6, "x")


def test_so_many_samples_of_each_class() -> None:
    """Of any source; another seed draws others, the test set stays, and more than there are is refused."""
    base = DataConfig(source="synthetic", partition="iid", clients=2, per_class=3)
    first, second, again = (build(base, seed, CPU) for seed in (0, 1, 0))
    assert torch.bincount(first.train.labels).tolist() == [3] * 10
    assert torch.equal(first.train.samples, again.train.samples)
    assert not torch.equal(first.train.samples, second.train.samples)
    assert len(first.test.labels) == 1000
    with pytest.raises(RequestError, match=r"data.per_class = 9999: class . has \d+ training samples. Accepted: 0"):
        build(base.model_copy(update={"per_class": 9999}), 0, CPU)


def sequences() -> tuple[torch.Tensor, torch.Tensor]:
    """64 sequences of 1 to 40 tokens, padded to 70 with the id 9."""
    rng = np.random.default_rng(0)
    ids = np.full((64, 70), 9)
    for row, length in enumerate(rng.integers(1, 41, 64)):
        ids[row, :length] = rng.integers(0, 9, length)
    ids[0, 2] = 9  # a hole: what counts is the last token
    return torch.from_numpy(ids).int(), torch.from_numpy(rng.integers(0, 3, 64))


@pytest.mark.parametrize("body", ["embedding-mean", "transformer"])
def test_trimmed_batches_give_the_same(body: str) -> None:
    ids, labels = sequences()
    net = build_network(body, 3, Tokens(70, 10, 9), LinearHead()).eval()
    deck = Deck.of(ids, labels, [torch.arange(30), torch.arange(30, 64)], [0, 1])
    lens = Tokens(70, 10, 9).lens(CPU)
    plain, cut = (list(deck.in_order(8, lens.for_body(trims))) for trims in (False, True))
    widths = {batch.inputs.shape[2] for batch in cut}
    assert widths <= {16, 32, 48}
    assert {batch.inputs.shape[2] for batch in plain} == {70}
    with torch.no_grad():
        for one, other in zip(plain, cut, strict=True):
            torch.testing.assert_close(net.features(one.inputs[0]), net.features(other.inputs[0]), atol=1e-5, rtol=1e-5)


def test_features_in_the_order_of_length_are_the_same() -> None:
    """A pass over all samples goes by length, and gives the features in the order of the samples."""
    ids, _ = sequences()
    kind = Tokens(70, 10, 9)
    net = build_network("transformer", 3, kind, LinearHead()).eval()
    body = {name: tensor.detach() for name, tensor in net.state_dict().items()}
    plain, cut = (features_of(net, body, ids, kind.lens(CPU).for_body(trims), 10) for trims in (False, True))
    torch.testing.assert_close(plain, cut, atol=1e-5, rtol=1e-5)
    assert len(cut) == 64


def test_a_trimmed_batch_loses_no_token() -> None:
    ids, labels = sequences()
    deck = Deck.of(ids, labels, [torch.arange(64)], [0])
    lens = TokenLens(pad=9).for_body(True)
    batches = list(deck.shuffled(7, lens, Shuffle(0, "train", 1), 0, None))
    assert sum(int((batch.inputs != 9).sum()) for batch in batches) == int((ids != 9).sum())
    assert all(batch.inputs.shape[2] % 16 == 0 for batch in batches)


def test_batches_of_different_lengths_are_filled() -> None:
    """Per-FedAvg meets two batches at once; a client without a second one meets the first again."""
    ids, labels = sequences()
    order = lengths_of(ids, 9).argsort()
    deck = Deck.of(ids, labels, [order, order[:40]], [0, 1])
    *_, before, last = deck.in_order(32, TokenLens(pad=9).for_body(True))
    assert before.inputs.shape != last.inputs.shape
    *_, first, second = deck.in_order(40, TokenLens(pad=9).for_body(True))
    assert second.active is not None
    both = second.filled_from(first)
    assert both.inputs.shape[2] == max(first.inputs.shape[2], second.inputs.shape[2])
    assert torch.equal(both.inputs[1, :, : first.inputs.shape[2]], first.inputs[1])


def test_the_whole_test_set_goes_by_length(tmp_path: Path) -> None:
    lines = [f"{'ab'[n % 2]},{'word ' * (1 + n % 7)}" for n in range(60)]
    found = federation(written(tmp_path, "label,text\n" + "\n".join(lines)), csv={"text": ("text",)})
    lengths = lengths_of(found.test.samples, 0)[found.test_order]
    assert (lengths.diff() <= 0).all()
    assert sorted(found.test_order.tolist()) == list(range(len(found.test.labels)))


def test_a_source_of_texts_in_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    from torso.data.sources.base import sources

    part = Samples(np.array(["a b", ""], dtype=object), np.array([0, 1]))
    monkeypatch.setitem(sources, "mine", lambda o, s: Dataset("mine", part, part, 2, input=Texts()))
    with pytest.raises(RequestError, match="train: text 2 is empty"):
        load(options(source="mine"), 0)
