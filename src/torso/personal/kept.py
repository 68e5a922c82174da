"""Own models that a visit leaves on the client: the local model before aggregation, and Ditto's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torso.kinds import NotNegative
from torso.learn.drift import DriftState, Proximal
from torso.learn.local import learn
from torso.learn.phases import moved_by
from torso.learn.steps import Plain
from torso.learn.task import LocalResult
from torso.nets import Tensors
from torso.personal.base import OwnModelStart, Personal, VisitStart, personals


@personals.register("kept")
@dataclass(frozen=True)
class Kept(Personal):
    """The client's model after local training, before aggregation (spec 9.4).

    `refresh = "final"`: after the last round all clients train once more, without upload; `"last-visit"`: the model
    that the client's last visit left, or the server's model for a client without a visit. `mode = "global"` takes the
    shared tensors from the server and only the others from the client (spec 6.2); `"global-head"` takes only the
    generic head from the server."""

    refresh: Literal["final", "last-visit"] = "final"
    mode: Literal["local", "global", "global-head"] = "local"

    @property
    def keeps(self) -> bool:
        return self.refresh == "last-visit" and self.mode != "global"

    def after(self, at: VisitStart, learned: LocalResult) -> Tensors:
        return {name: learned.own[name] for name in moved_by(at.task.plan)} if self.keeps else {}

    def begin(self, at: OwnModelStart) -> Tensors:
        mine = at.own if self.refresh == "last-visit" else at.visit().own
        taken = {"local": frozenset[str](), "global": at.travels, "global-head": at.travels & at.head}[self.mode]
        return {name: at.held[name] if name in taken else tensor for name, tensor in mine.items()}


@personals.register("ditto")
@dataclass(frozen=True)
class Ditto(Personal):
    """A second model v on the client, trained at each visit on loss + (λ/2)‖v − θ‖², with θ the received model (spec
    5.3).

    It never travels, begins at the run's initial model, and does not change while the client does not take part."""

    lam: NotNegative = 0.75
    from_start: ClassVar[bool] = True
    passes: ClassVar[int] = 1

    @property
    def keeps(self) -> bool:
        return True

    def after(self, at: VisitStart, learned: LocalResult) -> Tensors:
        plan = at.task.plan
        pull = DriftState(start={n: at.received[n] for phase in plan for n in phase.rates}, params={})
        settings = replace(at.task.settings, drift=Proximal(self.lam), step=Plain())
        tensors = learn(replace(at.task, settings=settings), at.own, pull).tensors
        return {name: tensors[name] for name in moved_by(plan)}

    def begin(self, at: OwnModelStart) -> Tensors:
        return at.own
