"""Colours by role, for light and dark pages.

Series have the eight colours of Okabe and Ito, which people with any colour vision can tell apart. They are darkened or
lightened until each stands out from the background. After eight series, colours repeat with dashed lines. No chart has
to be read by colour alone.
"""

from __future__ import annotations

from collections.abc import Mapping

Palette = Mapping[str, str]
"""Role → colour. Roles: ground, ink, muted, faint, grid; s0 to s7 for series; q0 to q8 (sequential) and d0 to d8
(diverging) for the steps of a ramp."""
SERIES, LEVELS = 8, 9


def _made(neutral: dict[str, str], series: str, sequential: str, diverging: str) -> Palette:
    return {
        **neutral,
        **{f"s{i}": colour for i, colour in enumerate(series.split())},
        **{f"q{i}": colour for i, colour in enumerate(sequential.split())},
        **{f"d{i}": colour for i, colour in enumerate(diverging.split())},
    }


LIGHT = _made(
    {"ground": "#ffffff", "ink": "#1b1f24", "muted": "#5c6570", "faint": "#b6bdc5", "grid": "#e6e9ec"},
    "#0072b2 #d55e00 #00805d #b3548a #b07500 #3a8fc7 #4a4f55 #8a7a00",
    "#eaf2f9 #d3e4f2 #b5d1e9 #8fb9dd #679fcf #4484bf #2a68a8 #174d8a #0a3266",
    "#a34f05 #d0771a #eda45c #f8d5ad #f1f2f3 #c9dff0 #8fbfdf #4a90c4 #1f62a3",
)
DARK = _made(
    {"ground": "#15181c", "ink": "#e6e9ec", "muted": "#9aa4ae", "faint": "#59626b", "grid": "#2a3036"},
    "#4ba3db #f0803f #2cc295 #dd93bf #edb13a #8ccbf2 #c3c8ce #ded45c",
    "#1c2833 #20364a #254867 #2b5c86 #3573a8 #4a8cc6 #6da8dc #97c5ec #c8e2f8",
    "#ffb25e #d9822b #9c5a1a #5e3c1d #262b30 #1f3f58 #2a648f #4294cc #8fcbf5",
)


def series_role(place: int) -> str:
    """The role of a series by its place."""
    return f"s{place % SERIES}"


def series_dash(place: int) -> tuple[float, ...]:
    """The dashes of a series by its place; () for a solid line."""
    return ((), (5.0, 2.5), (1.5, 2.5))[min(place // SERIES, 2)]


def level(value: float, low: float, high: float) -> int:
    """The step of the ramp, from 0 to 8, for a value between low and high."""
    if not high > low:  # also if one is NaN
        return 0
    return min(LEVELS - 1, max(0, int((value - low) / (high - low) * LEVELS)))
