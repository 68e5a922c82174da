"""The search space of the leaderboard: combinations of choices, and which of them a preset already has."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torso.config import Config
from torso.errors import RequestError
from torso.methods import Method, methods
from torso.methods.method import AXES
from torso.methods.parse import axis_to_config
from torso.nets import build
from torso.papers.board.definition import Board
from torso.papers.board.trials import BoardMethod, BoardPlan, presets
from torso.runs.stages import stages


@dataclass(frozen=True)
class Combination:
    """A combination of the search space."""

    entry: BoardMethod
    axes: Mapping[str, str]  # axis → name of the choice
    known_as: str = ""  # the preset with the same choices, if there is one
    refused: str = ""  # why it cannot be run; empty if it can


def combinations(plan: BoardPlan) -> list[Combination]:
    """All combinations. A combination that equals a method of the board has its name, so that both share their runs."""
    there = {method_of(entry.sets): entry for entry in presets(plan.board)}
    found = []
    for axes, sets in _products(plan.board):
        entry = BoardMethod("-".join(axes.values()), ("method.name=custom", *sets), new=True)
        try:
            config = plan.config(plan.board.search.settings[0], entry, {})
            stages(config, build(config.model.body, 10, (3, 32, 32), config.method.head, seed=0))
        except RequestError as error:
            found.append(Combination(entry, axes, refused=str(error)))
            continue
        same = there.get(bare(config.method))
        found.append(Combination(same or entry, axes, same.name if same else known_as(config.method)))
    return found


def _products(board: Board) -> Iterator[tuple[dict[str, str], tuple[str, ...]]]:
    """The choices (axis → name) and the settings of every combination."""
    for space in board.search.spaces:
        for choices in itertools.product(*(choices.items() for choices in space.axes.values())):
            axes = dict(zip(space.axes, (name for name, _ in choices), strict=True))
            yield axes, (*space.common, *(text for _, sets in choices for text in sets))


def method_of(sets: Sequence[str]) -> Method:
    """The method that these settings make, without its name."""
    return bare(Config.load(None, sets).method)


def bare(method: Method) -> Method:
    """The method without its name and description."""
    return method.but(name="custom", about="", paper="")


def known_as(method: Method) -> str:
    """The preset with the same choice on every axis, or an empty string. Numbers (μ, hidden units, divisor) and the
    personalisation do not count: a combination that differs only in them is not new."""
    wanted = _choices(method)
    return next((name for name, preset in methods.items() if _choices(preset) == wanted), "")


def _choices(method: Method) -> str:
    """The names of the method's choices, as a key. The personal head of a dual head counts as a choice, too."""
    names: dict[str, Any] = {
        axis: axis_to_config(registry, getattr(method, axis))["name"]
        for axis, registry in AXES.items()
        if axis != "personal"
    }
    names["dual"] = getattr(method.head, "personal", "")
    phases = [(phase.part, phase.epochs) for phase in method.train]
    return json.dumps([names, phases, method.share.part, method.share.rest, method.server_data, method.meta_data])
