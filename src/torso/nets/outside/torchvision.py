"""`torchvision/NAME`: the classifiers of torchvision.models."""

from __future__ import annotations

import os
import sys
import warnings
from collections import OrderedDict
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from torso.data.inputs import Pixels
from torso.data.wants import Wants
from torso.nets.body import Body
from torso.nets.outside.base import Outside, head_name, import_library, unknown
from torso.nets.split import body_of

_FIXED = ("vit_", "maxvit_")  # prefixes of networks that are made for images of one size
_PATCH = {"vit_b_16": 16, "vit_b_32": 32, "vit_l_16": 16, "vit_l_32": 32, "vit_h_14": 14}  # side of a patch in pixels
_OPTIONS: dict[str, dict[str, Any]] = {
    "googlenet": {"aux_logits": False, "init_weights": True},
    "inception_v3": {"aux_logits": False, "init_weights": True},
}
_AUXILIARY = {"googlenet": ("aux1.", "aux2."), "inception_v3": ("AuxLogits.",)}  # prefixes of heads for training only
_RENORMALISING = ("googlenet", "inception_v3")  # with weights, these normalise their input again (`transform_input`)
_SQUEEZED = 512  # features of SqueezeNet, whose head is a convolution


@cache
def torchvision_body(name: str) -> Torchvision:
    """The classifiers of torchvision. `model.weights`: a file, or torchvision's word, such as `IMAGENET1K_V1`. Needs
    the extra `vision`."""
    found = Torchvision(name)
    known = found.models.list_models(module=found.models)
    if found.own_name not in known:
        raise unknown(found.key, found.own_name, known, "torchvision")
    return found


@dataclass(frozen=True)
class Torchvision(Outside):
    """A classifier of torchvision.models without its last layer. `model.weights`: torchvision's word for weights, such
    as `IMAGENET1K_V1` or `DEFAULT`."""

    @property
    def models(self) -> Any:
        """The module `torchvision.models`."""
        return import_library("torchvision", self.key, "vision").models

    def _classifier(self, **options: Any) -> nn.Module:
        """The whole classifier, with drawn weights."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some warn that it takes long to draw their weights
            made: nn.Module = self.models.get_model(
                self.own_name, weights=None, **_OPTIONS.get(self.own_name, {}), **options
            )
        return made

    def __call__(self, input: Pixels) -> Body:
        made = self._classifier(**self._sized(input))
        if self.own_name.startswith("squeezenet"):  # spec 7: features, the mean over the map, a linear head
            parts: dict[str, nn.Module] = {"features": made.get_submodule("features"), "pool": nn.AdaptiveAvgPool2d(1)}
            return body_of(nn.Sequential(OrderedDict(parts | {"flatten": nn.Flatten()})), features=_SQUEEZED)
        return body_of(made)

    def _sized(self, input: Pixels) -> dict[str, Any]:
        """Options that make a network of a fixed image size for the size of the data, if its patches allow it."""
        if self.own_name in _PATCH and input.height == input.width and input.height % _PATCH[self.own_name] == 0:
            return {"image_size": input.height}
        return {"input_size": (input.height, input.width)} if self.own_name.startswith("maxvit") else {}

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(self.models.get_model_weights(self.own_name).__members__)

    def find_old_head(self) -> tuple[str, ...]:
        if self.own_name.startswith("squeezenet"):
            return ("classifier.",)
        return (f"{head_name(self._classifier)}.", *_AUXILIARY.get(self.own_name, ()))

    def untrained_wants(self) -> Wants:
        """Three channels, and the image size for which some networks are made."""
        usual = self.trained_wants("").size
        return Wants(self.key, usual if self.own_name.startswith(_FIXED) else 0, channels=3, usual=usual)

    def trained_wants(self, word: str) -> Wants:
        known = self.models.get_model_weights(self.own_name)
        preset = known[word or "DEFAULT"].transforms()
        mean, std = tuple(preset.mean), tuple(preset.std)
        if self.own_name in _RENORMALISING:
            mean = std = (0.5, 0.5, 0.5)
        return Wants(self.key, preset.crop_size[0], 3, mean, std)

    def download(self, word: str) -> dict[str, Tensor]:
        chosen = self.models.get_model_weights(self.own_name)[word]
        try:
            with redirect_stdout(sys.stderr):  # it prints what it downloads
                found: dict[str, Tensor] = dict(chosen.get_state_dict(progress=False, check_hash=True))
        except (OSError, RuntimeError) as error:  # URLError is an OSError; RuntimeError: the checksum does not fit
            path = os.path.join(torch.hub.get_dir(), "checkpoints", os.path.basename(chosen.url))
            raise self.no_download(word, error, f"Put {chosen.url} at {path}, or give the file itself") from None
        return found
