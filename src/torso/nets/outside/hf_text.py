"""`hf/FOLDER-OR-ID`: text encoders of the transformers library, such as BERT, RoBERTa and DistilBERT."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from torso.data.inputs import Input, Tokens
from torso.data.tokenizers import FileTokenizer
from torso.data.wants import Wants
from torso.errors import RequestError
from torso.nets.body import Body
from torso.nets.outside.encoder import POOLINGS, EncoderBody, Pooled, Pooling
from torso.nets.outside.libraries import transformers_for
from torso.nets.outside.model_folder import CONFIG, found_folder, read_json, read_tensors
from torso.nets.torso_weights import FINE_TUNING_RATE
from torso.nets.weight_files import read_weights
from torso.reading import parse_json

PRETRAINED = "pretrained"
_TOKENIZER = "tokenizer.json"
_AFTER_PADDING = {"roberta", "xlm-roberta", "camembert", "mpnet", "longformer", "xlm-roberta-xl", "ibert"}
"""Architectures whose position ids begin after the id of padding, so that by this many fewer tokens fit."""
_HUGE = 1_000_000  # tokens: stands for no limit
_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


@dataclass(frozen=True)
class TextEncoder:
    """A text encoder in a folder, as a maker of bodies. `name`: the whole value of `model.body`."""

    name: str
    takes: ClassVar[tuple[type[Input], ...]] = (Tokens,)
    words: ClassVar[tuple[str, ...]] = (PRETRAINED,)

    @property
    def key(self) -> str:
        return f"model.body = {self.name!r}"

    @property
    def folder(self) -> Path:
        """The folder with the encoder's config, tokenizer and weights."""
        raise NotImplementedError

    @property
    def pooling(self) -> Pooling:
        """How one vector is made of the encoder's tokens."""
        raise NotImplementedError

    @property
    def normalize(self) -> bool:
        """Whether the pooled vector gets length 1."""
        return False

    @property
    def most_tokens(self) -> int:
        """The limit of tokens per text that the folder sets in addition to the encoder's config."""
        return _HUGE

    def __call__(self, input: Input) -> Body:
        """The body, with weights drawn from torch's generator.

        Dropout is off. So the clients of a stack can be computed together, and every engine gives the same results."""
        assert isinstance(input, Tokens)
        tokenizer = self.tokenizer
        if input.tokenizer and input.tokenizer != tokenizer.identity:
            raise RequestError(
                f"{self.key}: the data were tokenised by another tokenizer ({input.tokenizer}) than the one of this "
                f"body ({tokenizer.identity}). Expected: texts, or data that were made with this body"
            )
        if (input.vocabulary, input.pad) != (tokenizer.vocabulary, tokenizer.pad) or input.length > tokenizer.length:
            raise RequestError(
                f"{self.key} takes at most {tokenizer.length} tokens of {tokenizer.vocabulary} ids, padded with "
                f"{tokenizer.pad}, and the data are {input.words} of {input.vocabulary} ids, padded with {input.pad}"
            )
        encoder = _encoder(self.folder, self.key)
        return EncoderBody(Pooled(encoder, tokenizer.pad, self.pooling, self.normalize), _width(encoder, self.key))

    def wants(self, weights: str) -> Wants:
        """What the encoder expects of samples under `model.weights`."""
        return Wants(by=self.key, tokenizer=self.tokenizer, lr=FINE_TUNING_RATE if weights else 0.0)

    @property
    def tokenizer(self) -> FileTokenizer:
        """The tokenizer of the folder."""
        return _tokenizer(self.folder, self.key, self.most_tokens)

    def weights(self, word: str) -> dict[str, Tensor] | None:
        """A body's tensors, by their names in the body: those of the encoder's folder for the word `pretrained`, or of
        another file or folder of the library.

        None: it is a run folder, or a file of Torso."""
        tensors = self._tensors(word)
        if tensors is None or any(name.startswith("body.") for name in tensors):
            return None
        with torch.device("meta"):
            encoder = _encoder(self.folder, self.key)
        return _by_our_names(tensors, encoder)

    def _tensors(self, word: str) -> dict[str, Tensor] | None:
        """The tensors of a file or folder by their names there; None if it is neither of the two."""
        if word == PRETRAINED:
            return read_tensors(self.folder, self.key)
        path = Path(word).expanduser()
        where = f"model.weights = {word!r}"
        if path.is_file():
            return read_weights(path, where)
        return read_tensors(path, where) if (path / CONFIG).is_file() else None


class HfText(TextEncoder):
    """A text encoder by the name `hf/FOLDER-OR-ID`, or `hf/FOLDER-OR-ID:cls` for another pooling than the usual one."""

    @property
    def _named(self) -> tuple[str, str]:
        """The folder or id, and the pooling, that the name gives."""
        return without_pooling(self.name.partition("/")[2])

    @property
    def folder(self) -> Path:
        return found_folder(self._named[0], self.key, CONFIG)

    @property
    def pooling(self) -> Pooling:
        """The pooling that the name gives; else that of the architecture's classifier, if the config gives it; else
        mean."""
        usual = read_json(self.folder, CONFIG, self.key).get("classifier_pooling")
        return cast("Pooling", self._named[1] or (usual if usual in POOLINGS else "mean"))


def without_pooling(where: str) -> tuple[str, str]:
    """A folder or id, and the pooling after it, or "": `FOLDER:cls` as ("FOLDER", "cls")."""
    rest, colon, pooling = where.rpartition(":")
    return (rest, pooling) if colon and pooling in POOLINGS else (where, "")


def _encoder(folder: Path, key: str) -> nn.Module:
    """The network that the folder's config describes, without a classification layer and without dropout."""
    config = _config(folder, key)
    transformers = transformers_for(key)
    try:
        encoder: nn.Module = transformers.AutoModel.from_config(config, attn_implementation="eager")
    except Exception as error:  # an architecture of another library may raise anything
        reason = " ".join(str(error).split())[:200]
        raise RequestError(f"{key}: transformers cannot make this network: {reason}") from None
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None  # type: ignore[assignment]  # only classifiers use the pooler
    return encoder.float()


def _config(folder: Path, key: str) -> Any:
    """The config of the folder's encoder, without dropout; refused if it is not the config of a text encoder."""
    transformers = transformers_for(key)
    settings = read_json(folder, CONFIG, key)
    try:
        config = transformers.AutoConfig.for_model(**_without_dropout(settings))
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise RequestError(f"{key}: {folder / CONFIG} is of no model that transformers knows: {reason}") from None
    if config.is_encoder_decoder or not getattr(config, "vocab_size", 0):
        raise RequestError(f"{key} is a {type(config).__name__}. Expected: a text encoder, such as BERT")
    return config


def _without_dropout(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a config with all rates of dropout 0. Their names differ, but all contain `drop`."""
    usual = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "dropout": 0.0, "attention_dropout": 0.0}
    zeros = {name: 0.0 for name, value in settings.items() if "drop" in name and isinstance(value, float)}
    return {**usual, **settings, **zeros}


def _width(encoder: nn.Module, key: str) -> int:
    """The number of an encoder's features."""
    config: Any = encoder.config
    width = getattr(config, "hidden_size", None) or getattr(config, "dim", None)
    if not isinstance(width, int):
        raise RequestError(f"{key}: the config of {type(encoder).__name__} has no hidden_size. Expected: an encoder")
    return width


@cache
def _tokenizer(folder: Path, key: str, most: int) -> FileTokenizer:
    """The tokenizer of a folder. `most`: the largest number of tokens, if that is less than the other limits."""
    path = folder / _TOKENIZER
    config = read_json(folder, CONFIG, key)
    about = read_json(folder, "tokenizer_config.json", key, optional=True)
    if not path.is_file():
        raise RequestError(
            f"{key}: {folder} has no {_TOKENIZER}, so texts cannot be turned into token ids. Expected: the file that "
            "AutoTokenizer.from_pretrained(…).save_pretrained(…) writes"
        )
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise RequestError(f"{key}: {path} cannot be read: {error}") from None
    vocabulary = config.get("vocab_size")
    pad = _pad(config, content, about)
    if not isinstance(vocabulary, int) or vocabulary < 1:
        raise RequestError(f"{key}: {folder / CONFIG} has vocab_size = {vocabulary!r}. Expected: the number of ids")
    if pad is None or not 0 <= pad < vocabulary:
        raise RequestError(f"{key}: neither {CONFIG} nor {_TOKENIZER} says which id is padding. Expected: pad_token_id")
    positions = config.get("max_position_embeddings") or config.get("max_seq_len") or _HUGE
    if config.get("model_type") in _AFTER_PADDING:
        positions -= pad + 1
    limits = [positions, most, about.get("model_max_length")]
    length = min(int(limit) for limit in limits if isinstance(limit, int | float) and limit >= 1)
    return FileTokenizer(content, vocabulary, pad, min(length, _HUGE), key)


def _pad(config: Mapping[str, Any], content: str, about: Mapping[str, Any]) -> int | None:
    """The id of padding: by the config, by the name of the token, or the usual one of the architecture.

    `content`: that of tokenizer.json; `about`: tokenizer_config.json."""
    given = config.get("pad_token_id")
    if isinstance(given, int):
        return given
    try:
        added = parse_json(content).get("added_tokens", [])
    except (ValueError, AttributeError):
        return None
    name = about.get("pad_token", "[PAD]")
    name = name.get("content") if isinstance(name, dict) else name
    found = next((token["id"] for token in added if token.get("content") == name), None)
    return found if isinstance(found, int) else _USUAL_PAD.get(str(config.get("model_type")))


_USUAL_PAD = {"bert": 0, "distilbert": 0, "electra": 0, "roberta": 1, "xlm-roberta": 1, "mpnet": 1}


def _by_our_names(tensors: Mapping[str, Tensor], encoder: nn.Module) -> dict[str, Tensor]:
    """The tensors of a checkpoint that the encoder has, by their names in the body. Others, as of heads, are left
    out."""
    wanted = encoder.state_dict().keys()
    prefix = f"{getattr(encoder, 'base_model_prefix', '')}."
    found = {}
    for name, tensor in tensors.items():
        plain = name.removeprefix(prefix) if prefix != "." else name
        for old, new in _OLD_NAMES.items():
            plain = plain.replace(old, new)
        if plain in wanted:
            found[f"module.encoder.{plain}"] = tensor.float() if tensor.is_floating_point() else tensor
    return found
