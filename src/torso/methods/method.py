"""Method: the axes. The round loop, the local loop and the evaluator read them; nothing else knows a method's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torso.errors import RequestError
from torso.learn.drift import Drift, NoDrift, drifts
from torso.learn.objectives import CrossEntropy, Objective, objectives
from torso.learn.phases import Phase, phases
from torso.learn.steps import Plain, Step, steps
from torso.methods.starts import Fresh, Start, starts
from torso.nets.heads import LinearHead, heads
from torso.nets.parts import names_adapters
from torso.personal import FineTune, Personal, personals
from torso.registry import Registry
from torso.server import Mean, NoStatistics, ServerRule, Statistics, servers, statistics

AXES: Mapping[str, Registry[Any]] = {
    "head": heads,
    "objective": objectives,
    "step": steps,
    "drift": drifts,
    "server": servers,
    "statistics": statistics,
    "personal": personals,
    "start": starts,
}
"""The axes whose choices are registered classes. `train` and `share` are phrased in parts of the network instead."""


@dataclass(frozen=True)
class Share:
    """Which part travels. What a client trains beyond it stays with the client, or is thrown away (`rest = "reset"`).

    A part that nobody trains never travels: everybody can draw it from the run's seed (`frozen = "seed"`), or it is
    sent once to each client when it first takes part (`frozen = "once"`, spec 1.6).
    """

    part: str = "all"
    rest: Literal["persist", "reset"] = "persist"
    frozen: Literal["seed", "once"] = "seed"


@dataclass(frozen=True)
class Method:
    """One method of federated learning, as choices on the axes of the design. `but` copies it with other choices."""

    train: tuple[Phase, ...] = (Phase("all"),)
    share: Share = Share()
    head: Any = field(default_factory=LinearHead)
    objective: Objective = field(default_factory=CrossEntropy)
    step: Step = field(default_factory=Plain)
    drift: Drift = field(default_factory=NoDrift)
    server: ServerRule = field(default_factory=Mean)
    statistics: Statistics = field(default_factory=NoStatistics)
    server_data: str = "none"  # part that the server trains on data of its own after each round (spec 3.3)
    meta_data: bool = False  # clients train on the server's balanced images too (spec 5.7)
    personal: Personal = field(default_factory=FineTune)
    start: Start = field(default_factory=Fresh)
    shared_momentum: bool = False  # one optimiser over all phases of a visit (spec 4.4)
    name: str = "custom"
    about: str = ""
    paper: str = ""  # who proposed it
    pretrained: bool = False  # meant to begin at a body trained elsewhere (spec 7)

    def __post_init__(self) -> None:
        object.__setattr__(self, "train", phases(self.train))
        if isinstance(self.share, str):
            object.__setattr__(self, "share", Share(self.share))
        if not isinstance(self.start, Start):
            raise RequestError(
                f"method.start = {self.start!r} is no start. Expected: a class that derives from torso.methods.Start"
            )
        idle = not self.train or all(phase.part == "none" for phase in self.train)
        if idle and self.server_data == "none":
            raise RequestError(
                "method.train names nothing to train. Accepted: all, body, head, blocks:J, or a list of phases"
            )

    def but(self, **axes: Any) -> Method:
        """The same method with other choices on some axes: `fedbabu.but(drift=Proximal(0.01))`."""
        return replace(self, **axes)

    @property
    def uses_adapters(self) -> bool:
        """Whether a part that it names is one of adapters: then the network must have some."""
        trained = [phase.part for phase in (*self.train, *self.personal.phases)]
        return any(map(names_adapters, [*trained, self.share.part, self.server_data]))

    def choices(self) -> dict[str, Any]:
        """The axes that say something: those that differ from plain FedAvg."""
        plain = Method()
        skip = {"name", "about", "paper", "pretrained"}
        return {f: v for f, v in vars(self).items() if f not in skip and v != getattr(plain, f)}


def method(train: str | Phase | Sequence[Phase] = "all", share: str | Share = "all", **axes: Any) -> Method:
    """Method with the short spellings allowed: `method(train="body", share="body")`."""
    return Method(train=phases(train), share=Share(share) if isinstance(share, str) else share, **axes)
