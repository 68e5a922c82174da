"""Fine-tuning: the client's copy learns from the client's data; nothing flows back (spec 9.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torso.learn.phases import Phase, phases
from torso.registry import Registry


class Personal(Protocol):
    @property
    def phases(self) -> tuple[Phase, ...]:
        """What the client's copy goes through before it is its own model."""
        ...


personals: Registry[type[Personal]] = Registry("method.personal")


@personals.register("fine-tune")
@dataclass(frozen=True)
class FineTune:
    """Train a part (or parts in turn) of a copy on the client's own data."""

    phases: tuple[Phase, ...] = (Phase("all"),)

    def __post_init__(self) -> None:
        object.__setattr__(self, "phases", phases(self.phases))
