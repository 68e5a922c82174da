"""The sections `train`, `personalize` and `measure`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from torso.config.section import Counts, Names, Section, Severities
from torso.kinds import Count, CountOrZero, Fraction, NotNegative, Positive


class TrainConfig(Section):
    """The federated rounds and the local optimiser (spec 1.2 to 1.4)."""

    rounds: Count = Field(50, description="communication rounds")
    local_epochs: Count = Field(2, description="local epochs of a participant in a round")
    fraction: Fraction = Field(0.2, description="share of the clients that take part in a round")
    min_clients: Count = Field(
        1,
        description="least participants of a round, and least clients that must answer; if fewer answer, the round is "
        "repeated",
    )
    batch_size: Count = Field(50, description="local batch size; the last batch of an epoch may be smaller")
    lr: Positive = Field(0.1, description="local learning rate of the first round")
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.9, description="momentum of local SGD; starts from zero in every round"
    )
    weight_decay: NotNegative = Field(0.0, description="weight decay of local SGD")
    schedule: str = Field("step-half-3q", description="see Schedules")
    decay: Annotated[float, Field(gt=0, le=1)] = Field(0.99, description="factor per round of schedule = exp")
    head_lr_factor: NotNegative = Field(1.0, description="head lr / body lr (spec 3.2); 0 freezes the head")
    weighting: Literal["samples", "uniform"] = Field(
        "samples",
        description="weights of clients in the server's mean; samples: in proportion to their training samples; "
        "uniform: equal",
    )


class PersonalizeConfig(Section):
    """Fine-tuning of a client's copy of the model before it is measured (spec 9.2)."""

    part: str = Field("method", description="part that is fine-tuned; method: as method.personal says")
    epochs: CountOrZero = Field(5, description="epochs of fine-tuning")
    lr: NotNegative = Field(0.001, description="learning rate of fine-tuning; momentum is train.momentum")
    batch_size: CountOrZero = Field(0, description="batch size of fine-tuning; 0: train.batch_size")
    sweep: Counts = Field((), strict=False, description="further numbers of epochs, measured in the same pass")


class MeasureConfig(Section):
    """What is measured and when (spec 9)."""

    every: CountOrZero = Field(0, description="rounds between measurements during training; 0: only at the end")
    during: Names = Field(("initial",), strict=False, description="what is measured during training; see Measures")
    names: Names = Field(
        ("initial", "personalized", "without_head", "generic"),
        strict=False,
        description="what is measured at the end; see Measures",
    )
    analyses: Names = Field(
        (), strict=False, description="analyses whose results analyses.json holds besides class counts; see Analyses"
    )
    analyses_every: Count = Field(1, description="rounds between two evaluations of the analyses of rounds")
    clients: CountOrZero = Field(0, description="measure at most this many clients, drawn once; 0: all of them")
    among: Literal["all", "last-round"] = Field(
        "all", description="clients whose models are measured: all, or those that took part in the last round"
    )
    batch_size: Count = Field(
        128, description="evaluation batch size; it matters if BatchNorm uses batch statistics (spec 9.9)"
    )
    templates: Literal["cosine", "l2"] = Field(
        "cosine", description="how without_head finds the nearest template: cosine similarity or L2 distance (spec 9.3)"
    )
    template_order: Literal["shuffled", "code"] = Field(
        "shuffled",
        description="order in which samples enter the templates; code: class by class, as in FedBABU's code; it "
        "matters if BatchNorm uses batch statistics (spec 9.3)",
    )
    bins: Annotated[int, Field(ge=1, le=10_000)] = Field(
        15, description="number of bins of equal width in the measures ece_… (spec 9.10)"
    )
    shift: Annotated[float, Field(ge=0.01, le=1e6)] = Field(
        0.5,
        description="Dirichlet concentration of the class shares that shifted_… draws; small: uneven (spec 9.11)",
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
