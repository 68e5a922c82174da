"""Numbers with their limits, as pydantic checks them wherever they come from a file or a flag."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import FailFast, Field

T = TypeVar("T")
Many = Annotated[tuple[T, ...], FailFast()]
"""A list that may come from another machine: one wrong entry is enough. A million errors would take gigabytes."""
MOST = 10**9  # of anything that is counted: more is a slip, and beyond 64 bits nothing can compute with it
Count = Annotated[int, Field(ge=1, le=MOST)]
CountOrZero = Annotated[int, Field(ge=0, le=MOST)]  # where 0 means "none" or "the usual"
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Beta = Annotated[float, Field(ge=0, lt=1)]  # the weight of the past in a moving average
Chance = Annotated[float, Field(ge=0, le=1)]
AtMostMillion = Annotated[float, Field(ge=0, le=1e6)]  # lengths and multiples: more is a slip, and may overflow
Fraction = Annotated[float, Field(gt=0, le=1)]
