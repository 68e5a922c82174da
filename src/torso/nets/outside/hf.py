"""`hf/FOLDER-OR-ID`: encoders of the transformers library, for images or texts, as their config says.

The folder is one that `save_pretrained` wrote. An id is looked up in the hub's cache, then in the hub.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from torso.errors import RequestError
from torso.nets.bodies import BodyMaker
from torso.nets.outside.hf_text import HfText, without_pooling
from torso.nets.outside.hf_vision import HfVision
from torso.nets.outside.libraries import transformers_for
from torso.nets.outside.model_folder import CONFIG, found_folder

kinds: dict[str, Callable[[str], BodyMaker]] = {"images": HfVision, "texts": HfText}
"""Makers of `hf/…` bodies by what the encoder takes. They are called with the whole name."""


@cache
def hf_body(name: str) -> BodyMaker:
    """An encoder of the transformers library, from its folder or the hub. `model.weights`: a file, or `pretrained`.
    Needs the extra `text`."""
    config = config_of(name)
    kind = kind_of(config)
    if kind not in kinds:
        raise RequestError(
            f"model.body = {name!r} is a {type(config).__name__.removesuffix('Config')} model, which takes "
            f"{kind or 'neither images nor texts'}. Expected: an encoder of {' or '.join(kinds)}"
        )
    return kinds[kind](name)


@cache
def config_of(name: str) -> Any:
    """The config of a model of the transformers library, from its folder or the hub."""
    key = f"model.body = {name!r}"
    transformers = transformers_for(key)
    folder = found_folder(without_pooling(name.partition("/")[2])[0], key, CONFIG)
    try:
        return transformers.AutoConfig.from_pretrained(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:160].rstrip(".")
        raise RequestError(f"{key}: {folder / CONFIG} cannot be used ({reason}). Expected: a model's config") from None


def kind_of(config: Any) -> str:
    """What the encoder of a config takes: "images", "texts", or "" for anything else."""
    import transformers

    if type(config) in transformers.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING:
        return "images"
    return "texts" if getattr(config, "vocab_size", 0) else ""
