"""The sections `train`, `personalize` and `measure`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from torso.config.section import Counts, Names, Section, Severities
from torso.kinds import Count, CountOrZero, Fraction, NotNegative, Positive


class TrainConfig(Section):
    """The federated rounds and the local optimiser (spec 1.2 to 1.4)."""

    rounds: Count = Field(50, description="communication rounds")
    local_epochs: Count = Field(2, description="epochs of a participant in a round")
    fraction: Fraction = Field(0.2, description="share of the clients that take part in a round")
    min_clients: Count = Field(
        1, description="at least so many take part in a round and have to answer; it is repeated where fewer do"
    )
    batch_size: Count = Field(50, description="local batch; the last one of an epoch may be short")
    lr: Positive = Field(0.1, description="local learning rate of the first round")
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(0.9, description="of local SGD; begins anew in every round")
    weight_decay: NotNegative = Field(0.0, description="of local SGD")
    schedule: str = Field("step-half-3q", description="see Schedules")
    decay: Annotated[float, Field(gt=0, le=1)] = Field(0.99, description="factor per round of schedule = exp")
    head_lr_factor: NotNegative = Field(1.0, description="head lr / body lr (spec 3.2); 0 freezes the head")
    weighting: Literal["samples", "uniform"] = Field("samples", description="samples or uniform weights of the mean")


class PersonalizeConfig(Section):
    """How a client's copy is fine-tuned before it is measured (spec 9.2)."""

    part: str = Field("method", description="part that is fine-tuned; method: as method.personal says")
    epochs: CountOrZero = Field(5, description="epochs of fine-tuning")
    lr: NotNegative = Field(0.001, description="learning rate of fine-tuning; momentum is the run's")
    batch_size: CountOrZero = Field(0, description="batch of fine-tuning; 0: the run's")
    sweep: Counts = Field((), strict=False, description="further numbers of epochs, measured in the same pass")


class MeasureConfig(Section):
    """What is measured and when (spec 9)."""

    every: CountOrZero = Field(0, description="measure every so many rounds; 0: only at the end")
    during: Names = Field(("initial",), strict=False, description="what is measured while training goes on")
    names: Names = Field(
        ("initial", "personalized", "without_head", "generic"),
        strict=False,
        description="what is measured at the end; see Measures",
    )
    analyses: Names = Field((), strict=False, description="what analyses.json holds beside class counts; see Analyses")
    analyses_every: Count = Field(1, description="rounds between looks of the analyses that are taken of rounds")
    clients: CountOrZero = Field(0, description="at most this many clients, drawn once; 0: all of them")
    among: Literal["all", "last-round"] = Field(
        "all", description="whose models are measured: of all clients, or of those that took part in the last round"
    )
    batch_size: Count = Field(
        128, description="evaluation batch; matters where BatchNorm uses batch statistics (spec 9.9)"
    )
    templates: Literal["cosine", "l2"] = Field("cosine", description="nearest template of without_head (spec 9.3)")
    template_order: Literal["shuffled", "code"] = Field(
        "shuffled",
        description="order in which templates see samples; code: class by class, as FedBABU's; matters where BatchNorm "
        "uses batch statistics (spec 9.3)",
    )
    bins: Annotated[int, Field(ge=1, le=10_000)] = Field(
        15, description="bins of equal width of the measures ece_… (spec 9.10)"
    )
    shift: Annotated[float, Field(ge=0.01, le=1e6)] = Field(
        0.5,
        description="how even the shares of classes are that shifted_… draws; small: far from it (spec 9.11)",
    )
    corruptions: Names = Field(
        ("gaussian-noise", "shot-noise", "impulse-noise", "blur", "brightness", "contrast", "pixelate"),
        strict=False,
        min_length=1,
        description="how corrupted_… damages test images; see Corruptions (spec 9.12)",
    )
    severities: Severities = Field(
        (1, 2, 3, 4, 5), strict=False, description="how strongly corrupted_… damages them, each from 1 to 5"
    )
