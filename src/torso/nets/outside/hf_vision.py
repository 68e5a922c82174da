"""Image encoders of the transformers library."""

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
    """An image classifier of the transformers library without its last layer. `model.weights`: `pretrained`, those in
    the folder or of the id."""

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

    def bare(self) -> Wants:
        """The channels and the size that its config names: most have a place for each patch."""
        config = self._config
        size = getattr(config, "image_size", 0) or 0
        size = size if isinstance(size, int) else max(size)
        return Wants(self.key, size, int(getattr(config, "num_channels", 3)))

    def trained(self, word: str) -> Wants:
        bare, about = self.bare(), self._processor()
        mean, std = (tuple(map(float, about.get(key) or ())) for key in ("image_mean", "image_std"))
        usual = bare.size or _side(about.get("size")) or 224
        if not mean or len(mean) != len(std) or not about.get("do_normalize", True):
            mean = std = ()
        return Wants(self.key, usual, bare.channels, mean, std)

    def _processor(self) -> dict[str, Any]:
        """What the folder, or the hub, says of how images were prepared; nothing where it does not."""
        found = Path(self.own_name) / _PROCESSOR
        if not found.is_file():
            if Path(self.own_name).is_dir():
                return {}
            found = Path(
                self.library.utils.cached_file(self.own_name, _PROCESSOR, _raise_exceptions_for_missing_entries=False)
                or ""
            )
        try:
            tree = json.loads(found.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return tree if isinstance(tree, dict) else {}

    def fetched(self, word: str) -> dict[str, Tensor]:
        try:
            made, told = self.library.AutoModelForImageClassification.from_pretrained(
                self.own_name, config=self._config, output_loading_info=True, dtype=torch.float32
            )
        except (OSError, RuntimeError, ValueError) as error:
            raise self.no_download(
                word, error, f"Put model.safetensors into the folder {self.own_name}, or give a file itself"
            ) from None
        lacks = [name for name in told["missing_keys"] if not name.startswith(self.old_head)]
        if lacks:
            raise RequestError(
                f"model.weights = {word!r}: the files of {self.key} lack {', '.join(sorted(lacks)[:5])}"
                f"{' …' if len(lacks) > 5 else ''}. Expected: weights of the model that its config.json describes"
            )
        return dict(made.state_dict())


def _side(size: Any) -> int:
    """The side in pixels that a processor's `size` names: a number, height and width, or the shortest edge."""
    if isinstance(size, dict):
        size = size.get("height") or size.get("shortest_edge")
    return size if isinstance(size, int) else 0
