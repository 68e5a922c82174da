"""The sections `attack` (malicious clients) and `privacy` (differential privacy of clients)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, model_validator

from torso.config.section import Section
from torso.kinds import AtMostMillion, NotNegative
from torso.learn.attacks import Attack, NoAttack, attacks
from torso.methods.parse import axis_from_config, axis_to_config


def _attack(value: Any) -> str | dict[str, Any]:
    """An attack as the config stores it: its registered name, or a table of name and options if it has options."""
    chosen = value if isinstance(value, Attack) else axis_from_config("attack.kind", attacks, value, NoAttack())
    table = axis_to_config(attacks, chosen)
    return table if len(table) > 1 else str(table["name"])


class AttackConfig(Section):
    """Malicious clients that attack the training of the others (spec 9.6)."""

    kind: Annotated[str | dict[str, Any], PlainValidator(_attack)] = Field("none", description="see Attacks")
    fraction: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.5, description="share of the training clients that attack, drawn once; unused if kind = none"
    )

    @property
    def chosen(self) -> Attack:
        chosen: Attack = axis_from_config("attack.kind", attacks, self.kind, NoAttack())
        return chosen


class PrivacyConfig(Section):
    """Client-level differential privacy of the uploads (docs/privacy.md). It is on if noise, epsilon or clip is set."""

    noise: AtMostMillion = Field(0.0, description="noise multiplier z: the noise of a round is N(0, z²·clip²)")
    epsilon: NotNegative = Field(0.0, description="budget ε of the whole run, from which noise is computed; 0: none")
    delta: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="δ of the budget; 0: N^−1.1 for N clients")
    clip: AtMostMillion = Field(
        0.0,
        description="largest L2 norm of a client's update, all tensors together; 0: 1.0 if noise or epsilon is set",
    )
    sampling: Literal["poisson", "fixed"] = Field(
        "poisson",
        description="participants of a round; poisson: each client independently with probability train.fraction; "
        "fixed: the same number in every round, without replacement, which costs more of the budget",
    )
    quantile: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="> 0: clip adapts to this quantile of the updates' L2 norms, and begins at privacy.clip"
    )
    clip_rate: Annotated[float, Field(gt=0, le=10)] = Field(
        0.2, description="how fast clip adapts: clip · exp(−clip_rate · (share of updates within it − quantile))"
    )
    count_noise: AtMostMillion = Field(
        0.0,
        description="std of the noise on the number of updates within clip, by which clip adapts; 0: a twentieth of "
        "the participants, or privacy.noise if that is more",
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> PrivacyConfig:
        if self.noise and self.epsilon:
            raise ValueError(
                f"noise = {self.noise:g} and epsilon = {self.epsilon:g} are both set; epsilon finds the noise, so "
                "expected: one of the two"
            )
        return self

    @property
    def on(self) -> bool:
        return bool(self.noise or self.epsilon or self.clip)
