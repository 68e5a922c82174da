"""The section `model`: the network."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from torso.config.section import Names, Section
from torso.kinds import CountOrZero, Positive


class LoraConfig(Section):
    """Adapters (LoRA): the body is frozen, and layers W of it become W + (alpha / rank) · b·a."""

    rank: CountOrZero = Field(
        0, description="rank of the adapters; 0: none, or 8 if the method names lora, lora.a or lora.b as a part"
    )
    alpha: Positive = Field(16.0, description="the change of a layer is alpha / rank · b·a")
    targets: Names = Field(
        ("auto",),
        strict=False,
        description="layers that get an adapter: auto (attention layers that make queries and values; in a body "
        "without them, all), all (linear layers, convolutions without groups), or ends of names or regular expressions",
    )
    weights: str = Field(
        "", description="adapters to start from: a folder that peft or torso.results.peft_file.save_adapters wrote"
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="dropout on the input of the adapters; above 0, clients are computed one after the other"
    )
    base: Literal["eval", "train"] = Field(
        "eval",
        description="mode of the frozen body while adapters learn; eval: without its dropout, and clients share one "
        "forward pass; train: with its dropout, one client after the other",
    )


class ModelConfig(Section):
    """The network (spec 11) and the initial weights of its head (spec 12.1)."""

    body: str = Field("mlp", description="see Networks; or torchvision/NAME, timm/NAME, hf/FOLDER-OR-ID")
    encoder: str = Field(
        "",
        description="a body that never learns and makes features of every sample once; model.body is then the network "
        "on these features. Any name of a body; empty: none",
    )
    encoder_weights: str = Field(
        "auto",
        description="weights of the encoder, given as in model.weights; auto: the library's own trained weights; "
        "random: drawn from run.seed",
    )
    head_init: str = Field("default", description="see Head initialisations")
    head_bias: bool = Field(True, description="whether the head has a bias")
    weights: str = Field(
        "",
        description="trained weights of the body: a run folder, a file (.safetensors, .pth), or the library's own name "
        "for them, such as IMAGENET1K_V1 or pretrained",
    )
    norm: Literal["default", "batch", "running"] = Field(
        "default",
        description="statistics of BatchNorm in evaluation; default: as the network is built; batch: those of the "
        "batch; running: running averages",
    )
    lora: LoraConfig = LoraConfig()
