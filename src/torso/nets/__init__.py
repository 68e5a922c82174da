"""Networks: a body that is shared and a head that is personal (spec 11 and 12)."""

from torso.nets import outside  # registers the bodies of other libraries: torchvision/…, timm/…, hf/…, sentence/…
from torso.nets.bodies import bodies, wants_of
from torso.nets.body import Body
from torso.nets.build import build
from torso.nets.compute import apply, check_stacking, smallest_map
from torso.nets.heads import Head, LinearHead, head_inits, heads
from torso.nets.mobile import efficientnet_lite0
from torso.nets.network import Network, Output, Tensors, learnable, part_names, set_modes
from torso.nets.split import OfTokens, body_of, split
from torso.nets.squeezenet import squeezenet
from torso.nets.tensor_slots import skeleton

__all__ = [
    "Body",
    "Head",
    "LinearHead",
    "Network",
    "OfTokens",
    "Output",
    "Tensors",
    "apply",
    "bodies",
    "body_of",
    "build",
    "check_stacking",
    "efficientnet_lite0",
    "head_inits",
    "heads",
    "learnable",
    "outside",
    "part_names",
    "set_modes",
    "skeleton",
    "smallest_map",
    "split",
    "squeezenet",
    "wants_of",
]
