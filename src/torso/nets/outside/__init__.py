"""Registers the bodies of other libraries: `torchvision/resnet18`, `timm/NAME`, `hf/FOLDER`, `sentence/FOLDER`.

A library is imported only if a body of it is asked for."""

from torso.data.inputs import Pixels, Tokens
from torso.nets.bodies import families
from torso.nets.outside.hf import hf_body
from torso.nets.outside.sentence import Sentence
from torso.nets.outside.timm import timm_body
from torso.nets.outside.torchvision import torchvision_body

families["torchvision"] = torchvision_body
families["timm"] = timm_body
families["hf"] = hf_body
hf_body.takes = (Pixels, Tokens)  # type: ignore[attr-defined]  # for the list of networks
families["sentence"] = Sentence
