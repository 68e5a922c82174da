"""`Chart`, and the registry of the kinds of charts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torso.report.charts.drawing import Drawing
from torso.report.charts.panels import Plot
from torso.report.comparison import Comparison


@dataclass(frozen=True)
class Chart:
    """A plot with its title, its note and the data behind it."""

    kind: str
    title: str
    note: str  # one or two sentences on how to read it
    plot: Plot
    columns: tuple[str, ...]  # of the data, for CSV
    rows: Sequence[Sequence[Any]]
    of: str = ""  # the method or measure that it shows, if a kind makes several charts

    @property
    def drawing(self) -> Drawing:
        """The plot as marks on the page."""
        return self.plot.drawing()


Maker = Callable[[Comparison], list[Chart]]
"""Makes the charts of a kind; an empty list if the runs do not have the data for it."""


@dataclass(frozen=True)
class Kind:
    """A kind of chart."""

    section: str  # of the page
    about: str  # the maker's docstring
    make: Maker


KINDS: dict[str, Kind] = {}


def kind(name: str, section: str) -> Callable[[Maker], Maker]:
    """A decorator that registers a maker under a name (for `torso plot --kind`) and a section of the page."""

    def keep(make: Maker) -> Maker:
        KINDS[name] = Kind(section, " ".join((make.__doc__ or "").split()), make)
        return make

    return keep
