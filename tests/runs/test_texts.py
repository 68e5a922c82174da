"""Runs on texts, from the table to a model that takes raw text: own bodies, an encoder of another library, sites."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from tests.nets.text_models import save_sentence
from typer.testing import CliRunner

import torso
from torso import Config, load_model, predict, run
from torso.cli import app
from torso.config import DataConfig
from torso.data.inputs import Tokens
from torso.errors import RequestError
from torso.federation.agreement import agree, site_federation
from torso.federation.site_data import read_site
from torso.nets import wants_of
from torso.report.try_command import chosen
from torso.report.try_page import TryModels
from torso.results.result import Result
from torso.runs.job import data_of, prepare

TOPICS = {"pets": ["cat", "dog", "mat", "sat"], "money": ["stock", "prices", "market", "fell"]}


def rows(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Sentences of two topics, four to nine words long."""
    rng = np.random.default_rng(seed)
    labels = [list(TOPICS)[n % 2] for n in range(count)]
    return [(label, "the " + " ".join(rng.choice(TOPICS[label], rng.integers(3, 9)))) for label in labels]


def table(path: Path, count: int = 80, seed: int = 0) -> Path:
    path.write_text("label,text\n" + "".join(f"{a},{b}\n" for a, b in rows(count, seed)), encoding="utf-8")
    return path


def config(root: Path, *sets: str) -> Config:
    usual = ["data.source=csv", f"data.root={root}", "data.csv.text=text", "data.partition=iid", "data.clients=4"]
    usual += [
        "run.device=cpu",
        "run.workers=1",
        "train.rounds=2",
        "train.fraction=1.0",
        "measure.names=initial,generic",
    ]
    return Config.load(None, [*usual, *sets])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table, a tiny sentence encoder, and a finished run of each kind of body."""
    place = tmp_path_factory.mktemp("texts")
    table(place / "rows.csv")
    save_sentence(place / "encoder", normalize=False)
    own = config(place / "rows.csv", "model.body=embedding-mean", "data.text.vocabulary=100", "method.name=fedbabu")
    run(own, place / "own")
    theirs = [f"model.body=sentence/{place / 'encoder'}", "model.weights=pretrained", "method.name=fedncm"]
    run(config(place / "rows.csv", *theirs), place / "theirs")
    return place


@pytest.mark.parametrize("which", ["own", "theirs"])
def test_a_run_learns_from_texts(folder: Path, which: str) -> None:
    result = Result.read(folder / which)
    assert result.ok
    assert result.accuracy["generic"].mean > 90
    data = json.loads((folder / which / "data.json").read_text())
    assert data  # the fingerprint of ids


@pytest.mark.parametrize("which", ["own", "theirs"])
def test_a_model_file_takes_raw_text(folder: Path, which: str, tmp_path: Path) -> None:
    """The answers are those of the run's own network; the file holds the tokenizer where the body brings one."""
    net = torso.load(folder / which).network()
    saved = torso.save_model(net, tmp_path / "model.safetensors")
    with safe_open(saved, "pt") as file:
        held = "tokenizer_file" in file.metadata()
    assert held == (which == "theirs")
    texts = ["the dog sat on the mat", "Stock prices fell"]
    found = predict(load_model(saved), texts)
    assert [best[0][0] for best in found.top(1)] == ["pets", "money"]
    np.testing.assert_allclose(found.probabilities, predict(net, texts).probabilities, atol=1e-6)
    assert net(net.prepare(texts)).argmax(1).tolist() == [1, 0]
    with pytest.raises(RequestError, match="text 2: the text is empty"):
        predict(net, ["a", " "])
    long = predict(net, ["the cat " * 40])
    assert "1 text is longer than" in long.remarks[0]


def test_predict_reads_lines_and_tables(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("the cat sat\n\nprices fell, the market fell\n", encoding="utf-8")
    (tmp_path / "rows.jsonl").write_text('{"label": "pets", "words": "the dog sat on the mat"}\n', encoding="utf-8")
    said = CliRunner().invoke(app, ["predict", str(folder / "theirs"), "--data", str(tmp_path / "lines.txt"), "--json"])
    tree = json.loads(said.stdout)
    assert [row["sample"] for row in tree["predictions"]] == ["line 1", "line 3"]
    assert "empty lines are left out: 1" in tree["remarks"]
    assert [row["classes"][0]["name"] for row in tree["predictions"]] == ["pets", "money"]
    found = predict(folder / "theirs", tmp_path / "rows.jsonl")  # one column beside the label
    assert (found.right, found.names) == (1, ("row 1",))
    (tmp_path / "two.csv").write_text("title,body,label\nx,the dog sat,pets\n", encoding="utf-8")
    assert predict(folder / "own", tmp_path / "two.csv", text="title,body").right == 1
    with pytest.raises(RequestError, match=r"has no column 'text'.* Columns: title, body, label. .*--text COLUMN"):
        predict(folder / "own", tmp_path / "two.csv")


def test_personalize_takes_texts(folder: Path, tmp_path: Path) -> None:
    found = torso.personalize(folder / "theirs", table(tmp_path / "mine.csv", 20, 1), how="class-means")
    assert found.after > 90


def test_the_page_asks_about_texts(folder: Path) -> None:
    """The models behind `torso try`, and the words of the page."""
    models = chosen(folder / "theirs", None, "1", None)
    tried = TryModels(models)
    said = tried.ask(b"Stock prices fell")
    assert [model["classes"][0]["name"] for model in said["models"]] == ["money", "money"]
    with pytest.raises(RequestError, match="is empty"):
        tried.ask(b" ")
    with pytest.raises(RequestError, match="Expected: UTF-8"):
        tried.ask(b"\xff")


def test_a_changed_tokenizer_is_noticed(folder: Path, tmp_path: Path) -> None:
    """A file whose tokenizer is not the one that the model was trained with."""
    net = torso.load(folder / "theirs").network()
    assert net.card is not None
    other = net.card.tokenizer_file.replace('"cat"', '"cow"')
    net.card = replace(net.card, tokenizer_file=other)
    with pytest.raises(RequestError, match="its tokenizer has the checksum"):
        predict(net, ["a cat"])


def test_sites_agree_about_the_tokenizer(folder: Path, tmp_path: Path) -> None:
    """Lengths grow to the longest; a client that reads its texts for another body is refused by name."""
    options = DataConfig(source="csv", csv={"text": ("text",)})
    wants = wants_of(f"sentence/{folder / 'encoder'}", "pretrained")
    sites = {
        name: read_site(table(tmp_path / f"{name}.csv", 12, n), options, name, wants) for n, name in enumerate("ab")
    }
    sites["c"] = read_site(tmp_path / "a.csv", options, "c")
    agreement = agree([(site.description(name), site.moments) for name, site in sites.items()], options)
    assert wants.tokenizer is not None
    length = max(sites[name].input.shape[0] for name in "ab")
    assert agreement.input == Tokens(length, 40, 0, wants.tokenizer.identity)
    assert "its token ids are of tokenizer words-10000, those of others of tokenizer" in agreement.refused["c"]
    body = f"model.body=sentence/{folder / 'encoder'}"
    assert prepare(config(tmp_path / "a.csv", body), agreement.roster).net.input == agreement.input
    mine = site_federation(sites["a"], agreement, 0, torch.device("cpu"))
    assert mine.train.samples.shape[1] == length
    words = agreement.model_copy(update={"input": sites["c"].input})
    with pytest.raises(RequestError, match="tokenised by another tokenizer"):
        prepare(config(tmp_path / "a.csv", body), words.roster)


def test_threads_change_no_bit(folder: Path) -> None:
    """An encoder of another library that is fine-tuned: two threads as one."""
    sets = [f"model.body=sentence/{folder / 'encoder'}", "model.weights=pretrained", "train.rounds=1", "train.lr=0.01"]
    first, second = (run(config(folder / "rows.csv", *sets, f"run.workers={n}")) for n in (1, 2))
    mine, other = (result.network().state_dict() for result in (first, second))
    assert all(torch.equal(mine[name], other[name]) for name in mine)


def test_data_are_tokenised_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torso.data import DataCache
    from torso.data.tokenizers import WordTokenizer

    calls = []
    usual = WordTokenizer.encode
    monkeypatch.setattr(WordTokenizer, "encode", lambda self, texts: calls.append(len(texts)) or usual(self, texts))
    data_cache = DataCache()
    for seed in (0, 1):
        data_of(config(folder / "rows.csv", "model.body=transformer", f"run.seed={seed}"), data_cache)
    assert sum(calls) == 80


def test_bad_requests_end_in_one_line(folder: Path, tmp_path: Path) -> None:
    def ask(*sets: str) -> str:
        usual = [
            "run",
            "--out",
            str(tmp_path / "out"),
            "--set",
            "data.source=csv",
            "--set",
            f"data.root={folder}/rows.csv",
        ]
        said = CliRunner().invoke(app, [*usual, *(part for each in sets for part in ("--set", each))])
        assert said.exit_code != 0
        assert not (tmp_path / "out").exists()
        return str(said.exception)

    assert "takes images or arrays of numbers" in ask("data.csv.text=text", "model.body=mlp", "data.clients=4")
    assert "data.csv.text = 'txt' is no column" in ask("data.csv.text=txt", "model.body=transformer")
    (tmp_path / "empty").mkdir()
    assert "has no modules.json" in ask("data.csv.text=text", f"model.body=sentence/{tmp_path / 'empty'}")
