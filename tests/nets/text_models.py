"""Tiny text encoders with random weights, saved exactly as their libraries save them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "mat", "market", "fell", "rose", "stock", "prices", "team"]
WORDS += ["won", "match", "goal", ".", ",", "!"]
TEXTS = ["The cat sat on the mat.", "Stock prices fell!", "a team won , a goal", "the dog ran"]
SIZES = {
    "bert": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64},
}
SIZES["roberta"] = SIZES["bert"]


def transformers() -> Any:
    """The library; if it is not installed, the test is skipped."""
    pytest.importorskip("tokenizers")
    pytest.importorskip("transformers")
    from torso.nets.outside.libraries import transformers_for

    return transformers_for("a test")


def tokenizer_json(pad: int = 0) -> str:
    """A WordPiece tokenizer like BERT's, with [CLS] and [SEP] around every text."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    special = ["[UNK]", "[CLS]", "[SEP]"]
    special.insert(pad, "[PAD]")
    vocabulary = {word: number for number, word in enumerate([*special, *WORDS, "##s"])}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [(word, vocabulary[word]) for word in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    made.add_special_tokens(["[PAD]", *special])
    made.enable_truncation(5)  # of no effect here: texts are cut when they are read
    return str(made.to_str())


def save_encoder(folder: Path, kind: str = "bert", *, seed: int = 0, prefix: str = "", **more: Any) -> Any:
    """Save a model of the transformers library in a folder, with its tokenizer, and return the model."""
    library, pad = transformers(), 1 if kind == "roberta" else 0
    sizes: dict[str, Any] = SIZES[kind]
    config = library.AutoConfig.for_model(
        kind, **sizes, vocab_size=40, max_position_embeddings=24, pad_token_id=pad, **more
    )
    torch.manual_seed(seed)
    model = library.AutoModel.from_config(config).eval()
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    save_file({f"{prefix}{n}": t.contiguous() for n, t in model.state_dict().items()}, folder / "model.safetensors")
    (folder / "tokenizer.json").write_text(tokenizer_json(pad), encoding="utf-8")
    return model


def save_sentence(folder: Path, pooling: str = "mean_tokens", *, normalize: bool = True, **more: Any) -> Any:
    """Save the same as sentence-transformers saves it."""
    model = save_encoder(folder, **more)
    names = [("Transformer", ""), ("Pooling", "1_Pooling"), *([("Normalize", "2_Normalize")] if normalize else [])]
    modules = [
        {"idx": i, "path": path, "type": f"sentence_transformers.models.{n}"} for i, (n, path) in enumerate(names)
    ]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {f"pooling_mode_{mode}": mode == pooling for mode in ("cls_token", "mean_tokens", "max_tokens")}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes), encoding="utf-8")
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 12}), encoding="utf-8")
    return model
