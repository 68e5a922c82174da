"""Numbers with their limits, as pydantic checks them wherever they come from a file or a flag."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]  # where 0 means "none" or "the usual"
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Beta = Annotated[float, Field(ge=0, lt=1)]  # the weight of the past in a moving average
Fraction = Annotated[float, Field(gt=0, le=1)]
