"""`timm/NAME`: the networks of timm."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import Tensor, nn

from torso.data.inputs import Pixels
from torso.data.wants import Wants
from torso.nets.body import Body
from torso.nets.outside.base import Outside, import_library, unknown
from torso.nets.split import body_of

_WORD = "pretrained"


@cache
def timm_body(name: str) -> Timm:
    """The networks of timm, `NAME` or `NAME.TAG`. `model.weights`: a file, or `pretrained`. Needs the
    extra `vision`."""
    found = Timm(name)
    timm = found.library
    network, _, tag = found.own_name.partition(".")
    if not timm.is_model(network):
        raise unknown(found.key, network, timm.list_models(), "timm")
    with_tags = timm.list_pretrained(f"{network}.*")
    if tag and found.own_name not in with_tags:
        raise unknown(found.key, found.own_name, with_tags, f"of {network}, timm")
    return found


@dataclass(frozen=True)
class Timm(Outside):
    """A network of timm without its last layer. `model.weights = "pretrained"`: the weights of the name's tag."""

    @property
    def library(self) -> Any:
        return import_library("timm", self.key, "vision")

    def __call__(self, input: Pixels) -> Body:
        size = {"img_size": (input.height, input.width)} if self._fixed else {}
        made: Any = self.library.create_model(
            self.own_name, pretrained=False, num_classes=0, in_chans=input.channels, **size
        )
        return body_of(made, features=int(getattr(made, "head_hidden_size", made.num_features)))

    @property
    def _about(self) -> Any:
        """timm's description of the network and its weights; None: timm has none."""
        return self.library.get_pretrained_cfg(self.own_name)

    @property
    def _fixed(self) -> bool:
        """Whether the network is made for images of one size."""
        return bool(self._about and self._about.fixed_input_size)

    @property
    def words(self) -> tuple[str, ...]:
        return (_WORD,) if self._about and self._about.has_weights else ()

    def find_old_head(self) -> tuple[str, ...]:
        named = self._about.classifier if self._about else ()
        names = (named,) if isinstance(named, str) else tuple(named or ())
        # in some networks this module has a norm before the linear layer, and both belong to the old head
        return tuple(f"{name.removesuffix('.linear').removesuffix('.l')}." for name in names)

    def untrained_wants(self) -> Wants:
        """The image size for which some networks are made."""
        usual = self._about.input_size[-1] if self._about else 0
        return Wants(self.key, usual if self._fixed else 0, usual=usual)

    def trained_wants(self, word: str) -> Wants:
        about = self._about
        if about is None:
            return self.untrained_wants()
        channels, _, size = about.input_size
        return Wants(self.key, size, channels, tuple(about.mean), tuple(about.std))

    def download(self, word: str) -> dict[str, Tensor]:
        try:
            made: nn.Module = self.library.create_model(self.own_name, pretrained=True, num_classes=0)
        except (OSError, RuntimeError, ValueError) as error:  # the hub's own errors are OSErrors
            where = self._about.hf_hub_id or self._about.url
            raise self.no_download(
                word, error, f"Download {where} on another machine and give its .safetensors or .pth file"
            ) from None
        return dict(made.state_dict())
