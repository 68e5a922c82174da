"""`hf/FOLDER-OR-ID`: image classifiers of the transformers library."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torso.data.inputs import Pixels
from torso.data.wants import Wants
from torso.errors import RequestError
from torso.nets.body import Body
from torso.nets.outside.base import Outside, head_name
from torso.nets.outside.libraries import transformers_for
from torso.nets.split import body_of

_WORD = "pretrained"
_PROCESSOR = "preprocessor_config.json"


@dataclass(frozen=True)
class HfVision(Outside):
    """An image classifier of the transformers library without its last layer. `model.weights = "pretrained"`: the
    weights in the folder or of the id."""

    @cached_property
    def library(self) -> Any:
        found = transformers_for(self.key)
        found.utils.logging.disable_progress_bar()
        return found

    @cached_property
    def _config(self) -> Any:
        return self.library.AutoConfig.from_pretrained(self.own_name)

    def _classifier(self) -> nn.Module:
        made: nn.Module = self.library.AutoModelForImageClassification.from_config(self._config)
        return made.train()

    def __call__(self, input: Pixels) -> Body:
        return body_of(self._classifier())

    @property
    def words(self) -> tuple[str, ...]:
        return (_WORD,)

    def find_old_head(self) -> tuple[str, ...]:
        return (f"{head_name(self._classifier)}.",)

    def untrained_wants(self) -> Wants:
        """The channels and the image size in the config: most of these networks have a position for each patch."""
        config = self._config
        size = getattr(config, "image_size", 0) or 0
        size = size if isinstance(size, int) else max(size)
        return Wants(self.key, size, int(getattr(config, "num_channels", 3)))

    def trained_wants(self, word: str) -> Wants:
        bare = self.untrained_wants()
        processor = self._processor()
        mean = tuple(map(float, processor.get("image_mean") or ()))
        std = tuple(map(float, processor.get("image_std") or ()))
        usual = bare.size or _side(processor.get("size")) or 224
        if not mean or len(mean) != len(std) or not processor.get("do_normalize", True):
            mean = std = ()
        return Wants(self.key, usual, bare.channels, mean, std)

    def _processor(self) -> dict[str, Any]:
        """How images were prepared for the pre-training, as the folder or the hub says; empty if they do not say it."""
        path = Path(self.own_name) / _PROCESSOR
        if not path.is_file():
            if Path(self.own_name).is_dir():
                return {}
            cached = self.library.utils.cached_file(
                self.own_name, _PROCESSOR, _raise_exceptions_for_missing_entries=False
            )
            path = Path(cached or "")
        try:
            tree = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return tree if isinstance(tree, dict) else {}

    def download(self, word: str) -> dict[str, Tensor]:
        try:
            made, loading_info = self.library.AutoModelForImageClassification.from_pretrained(
                self.own_name, config=self._config, output_loading_info=True, dtype=torch.float32
            )
        except (OSError, RuntimeError, ValueError) as error:
            raise self.no_download(
                word, error, f"Put model.safetensors into the folder {self.own_name}, or give a file itself"
            ) from None
        missing = [name for name in loading_info["missing_keys"] if not name.startswith(self.old_head)]
        if missing:
            raise RequestError(
                f"model.weights = {word!r}: the files of {self.key} lack {', '.join(sorted(missing)[:5])}"
                f"{' …' if len(missing) > 5 else ''}. Expected: weights of the model that its config.json describes"
            )
        return dict(made.state_dict())


def _side(size: Any) -> int:
    """The side in pixels in a processor's `size`: a number, height and width, or the shortest edge."""
    if isinstance(size, dict):
        size = size.get("height") or size.get("shortest_edge")
    return size if isinstance(size, int) else 0
