"""Types of numbers with their limits, for pydantic to check in configs, flags, files and messages."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import FailFast, Field

T = TypeVar("T")
FailFastTuple = Annotated[tuple[T, ...], FailFast()]
"""A tuple that may come from another machine. Validation stops at the first wrong entry, because the errors of a
million wrong entries would take gigabytes."""
LARGEST_COUNT = 10**9  # the largest count: more is a typing error, and numbers beyond 64 bits cannot be computed with
Count = Annotated[int, Field(ge=1, le=LARGEST_COUNT)]
CountOrZero = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]  # for keys whose 0 means "none" or "the usual"
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Beta = Annotated[float, Field(ge=0, lt=1)]  # the weight of the past in a moving average
Chance = Annotated[float, Field(ge=0, le=1)]
AtMostMillion = Annotated[float, Field(ge=0, le=1e6)]  # lengths and multiples: more is a typing error and may overflow
Fraction = Annotated[float, Field(gt=0, le=1)]
