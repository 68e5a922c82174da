"""What a chart is, and the list of kinds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torso.report.charts.drawing import Drawing
from torso.report.charts.panels import Plot
from torso.report.comparison import Comparison


@dataclass(frozen=True)
class Chart:
    """A plot with the words around it and the data behind it. `of`: which one, where a kind has several."""

    kind: str
    title: str
    note: str
    plot: Plot
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]
    of: str = ""

    @property
    def drawing(self) -> Drawing:
        """The drawing as the page shows it."""
        return self.plot.drawing()


Maker = Callable[[Comparison], list[Chart]]
"""Empty where the runs do not hold what the chart shows."""


@dataclass(frozen=True)
class Kind:
    section: str
    about: str
    make: Maker


KINDS: dict[str, Kind] = {}


def kind(name: str, section: str) -> Callable[[Maker], Maker]:
    """Decorator: register a chart under the name that `torso plot --kind` uses, in a section of the page."""

    def keep(make: Maker) -> Maker:
        KINDS[name] = Kind(section, " ".join((make.__doc__ or "").split()), make)
        return make

    return keep
