"""The privacy of a run in words, for the terminal, the report page and `torso compare`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def epsilon_cell(privacy: Any) -> str:
    """ε for a table: "–" for a run that is not private, "∞" if there is no bound."""
    if not isinstance(privacy, Mapping) or "epsilon" not in privacy:
        return "–"
    try:
        return _plain(privacy["epsilon"])
    except TypeError:
        return "–"


def in_words(privacy: Any) -> str:
    """The privacy numbers of a run in one line; "" if it is not private or the numbers cannot be read."""
    if not isinstance(privacy, Mapping) or not privacy:
        return ""
    try:
        epsilon = _plain(privacy["epsilon"])
        fixed = privacy["sampling"] == "fixed"
        delta, noise, clip, rate = (_number(privacy[key]) for key in ("delta", "noise", "clip", "rate"))
        drawn = f"{'a fixed share of' if fixed else 'each with probability'} {rate:.3g} in a round"
        last = " at the end (adaptive)" if privacy.get("adaptive") else ""
        return (
            f"ε = {epsilon} at δ = {delta:.3g} for a client among {privacy['clients']}, {drawn}; noise {noise:.4g}, "
            f"clip {clip:.4g}{last}"
        )
    except (KeyError, TypeError, ValueError):
        return ""


def _plain(epsilon: Any) -> str:
    found = math.inf if epsilon is None else _number(epsilon)
    return "∞" if math.isinf(found) else f"{found:.3g}"


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return float(value)
