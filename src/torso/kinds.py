"""Numbers with their limits, as pydantic checks them wherever they come from a file or a flag."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Count = Annotated[int, Field(ge=1)]
OrNone = Annotated[int, Field(ge=0)]  # a count, where 0 means "none" or "the usual"
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, le=1)]
