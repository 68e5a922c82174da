"""`Method`: a method of federated learning as choices on axes.

The round loop, the local loop and the evaluator read these choices. No other code asks for a method's name.
"""

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
"""The axes whose choices are registered classes. `train` and `share` name parts of the network instead."""


@dataclass(frozen=True)
class Share:
    """The part of the model that travels. The rest of what a client trains stays with the client, or is thrown away
    after the visit (`rest = "reset"`).

    A part that no client trains never travels: each client draws it from the run's seed (`frozen = "seed"`), or gets it
    once, when it first takes part (`frozen = "once"`, spec 1.6).
    """

    part: str = "all"
    rest: Literal["persist", "reset"] = "persist"
    frozen: Literal["seed", "once"] = "seed"


@dataclass(frozen=True)
class Method:
    """A method of federated learning, as one choice on each axis. The default is FedAvg. `but` makes a copy with other
    choices."""

    train: tuple[Phase, ...] = (Phase("all"),)  # which parts clients train, in which order
    share: Share = Share()  # which part travels
    head: Any = field(default_factory=LinearHead)
    objective: Objective = field(default_factory=CrossEntropy)  # the clients' loss
    step: Step = field(default_factory=Plain)  # how clients move their weights on a batch
    drift: Drift = field(default_factory=NoDrift)  # what keeps a client near the others
    server: ServerRule = field(default_factory=Mean)  # how the server computes the next shared part
    statistics: Statistics = field(default_factory=NoStatistics)  # what clients send with their weights
    server_data: str = "none"  # the part that the server trains on its own data after each round (spec 3.3)
    meta_data: bool = False  # whether clients also train on the server's balanced images (spec 5.7)
    personal: Personal = field(default_factory=FineTune)  # how a client gets its own model
    start: Start = field(default_factory=Fresh)  # the model that training begins at
    shared_momentum: bool = False  # one optimiser for all phases of a visit (spec 4.4)
    name: str = "custom"
    about: str = ""  # one sentence for lists of methods
    paper: str = ""  # label of the paper that proposed it (bibliography.py)
    pretrained: bool = False  # whether it is meant for a pre-trained body (spec 7)

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
        """Whether it names a part that consists of adapters, so that the network must have adapters."""
        trained = [phase.part for phase in (*self.train, *self.personal.phases)]
        return any(map(names_adapters, [*trained, self.share.part, self.server_data]))

    def choices(self) -> dict[str, Any]:
        """The choices that differ from plain FedAvg, by axis."""
        plain = Method()
        skip = {"name", "about", "paper", "pretrained"}
        return {f: v for f, v in vars(self).items() if f not in skip and v != getattr(plain, f)}


def method(train: str | Phase | Sequence[Phase] = "all", share: str | Share = "all", **axes: Any) -> Method:
    """Make a `Method`, with short forms allowed: `method(train="body", share="body")`."""
    return Method(train=phases(train), share=Share(share) if isinstance(share, str) else share, **axes)
