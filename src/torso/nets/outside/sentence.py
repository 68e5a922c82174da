"""`sentence/FOLDER-OR-PACKAGE`: sentence encoders as sentence-transformers saves them; the library is not needed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from torso.data.tokenizers import FileTokenizer
from torso.errors import RequestError
from torso.nets.outside.encoder import POOLINGS, Pooling
from torso.nets.outside.hf_text import TextEncoder
from torso.nets.outside.model_folder import found_folder, read_any_json, read_json

_MODULES = "modules.json"
_ABOUT = "sentence_bert_config.json"
_OLD_WORDS = {  # older keys of a pooling config → today's words
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


class Sentence(TextEncoder):
    """A text encoder as sentence-transformers saves it: its folder, an installed package that ships one, or an id of
    the hub. `model.weights`: a file, or `pretrained`. Needs the extra `text`.

    modules.json lists the steps of the encoder: a transformer, a pooling and perhaps a normalisation."""

    @property
    def _root(self) -> Path:
        """The folder with modules.json."""
        return found_folder(self.name.partition("/")[2], self.key, _MODULES, packages=True)

    @property
    def _modules(self) -> dict[str, Path]:
        """The folder of each module by its kind: Transformer, Pooling, Normalize."""
        listed = read_any_json(self._root, _MODULES, self.key)
        try:
            kinds = {str(entry["type"]).rpartition(".")[2]: self._root / str(entry["path"]) for entry in listed}
        except (TypeError, KeyError):
            raise RequestError(f"{self.key}: {self._root / _MODULES} is no list of modules") from None
        unknown = sorted(kinds.keys() - {"Transformer", "Pooling", "Normalize"})
        if unknown:
            raise RequestError(
                f"{self.key} has a module {unknown[0]!r}, which Torso does not compute. Expected: a transformer, "
                "pooling and a normalisation"
            )
        if "Transformer" not in kinds or "Pooling" not in kinds:
            missing = "Pooling" if "Transformer" in kinds else "Transformer"
            hint = " To take the mean of the tokens, use hf/FOLDER" if missing == "Pooling" else ""
            raise RequestError(f"{self.key}: {self._root / _MODULES} has no {missing} module.{hint}")
        return kinds

    @property
    def folder(self) -> Path:
        return self._modules["Transformer"]

    @property
    def pooling(self) -> Pooling:
        folder = self._modules["Pooling"]
        chosen = _chosen(read_json(folder, "config.json", self.key))
        if len(chosen) != 1 or chosen[0] not in POOLINGS:
            found = " and ".join(chosen) or "nothing"
            raise RequestError(
                f"{self.key}: {folder / 'config.json'} pools {found}. Expected: one of {', '.join(POOLINGS)}"
            )
        return cast("Pooling", chosen[0])

    @property
    def normalize(self) -> bool:
        return "Normalize" in self._modules

    @property
    def tokenizer(self) -> FileTokenizer:
        found = super().tokenizer
        lower = read_json(self._root, _ABOUT, self.key, optional=True).get("do_lower_case")
        if lower and found.encode(["AB"]) != found.encode(["ab"]):
            raise RequestError(f"{self.key}: {_ABOUT} wants lower case, and its tokenizer.json keeps upper case")
        return found

    @property
    def most_tokens(self) -> int:
        limit = read_json(self._root, _ABOUT, self.key, optional=True).get("max_seq_length")
        return limit if isinstance(limit, int) and limit > 0 else super().most_tokens


def _chosen(config: Mapping[str, Any]) -> list[str]:
    """The poolings that a pooling config asks for, by its newer or its older keys."""
    if "pooling_mode" in config:
        named = config["pooling_mode"]
        return [str(word) for word in named] if isinstance(named, list) else [str(named)]
    return [word for key, word in _OLD_WORDS.items() if config.get(key) is True]
