"""A run is a row of stages: usually one, two where a method begins at another's finished model (the start axis).

A stage is a method worked out for one network: what moves, what travels, what stays, at which rate in which round.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from torso.config import Config, TrainConfig
from torso.data import Input, Roster
from torso.errors import RequestError
from torso.learn.attacks import Attack, NoAttack
from torso.learn.drift import Drift, NoDrift, drifts
from torso.learn.meta import MetaWeighted
from torso.learn.objectives import BalancedSoftmax
from torso.learn.phases import Lesson, Phase, lessons, moved_by
from torso.learn.schedule import schedules
from torso.learn.steps import Habits
from torso.learn.taught import hears
from torso.methods import Method, methods
from torso.methods.starts import Earlier, Pace
from torso.nets import Network, learnable, part_names, smallest_map
from torso.registry import chosen
from torso.runs.privacy import Privacy
from torso.server import Mean, NoStatistics, Statistics, servers, statistics
from torso.server.statistics import Declared, Held


@dataclass(frozen=True)
class Stage:
    """`first` is the run's number of the stage's first round (from 1); the schedule counts rounds of the stage."""

    method: Method
    net: Network
    train: TrainConfig
    first: int
    rounds: int
    lr: float
    schedule: str
    attack: Attack = field(default_factory=NoAttack)  # what malicious clients do (spec 9.6)
    privacy: Privacy | None = None  # how what travels is protected; None: not at all

    @property
    def last(self) -> int:
        return self.first + self.rounds - 1

    def rate(self, round: int) -> float:
        return self.lr * schedules[self.schedule](round - self.first + 1, self.rounds, self.train.decay)

    def plan(self, round: int) -> tuple[Lesson, ...]:
        """What a participant trains in this round."""
        return self.lessons(self.method.train, round, self.train.local_epochs)

    def server_plan(self, round: int) -> tuple[Lesson, ...]:
        """What the server trains on its own data after the round: one epoch (spec 3.3)."""
        return self.lessons((Phase(self.method.server_data),), round, 1)

    def lessons(self, plan: tuple[Phase, ...], round: int, epochs: int) -> tuple[Lesson, ...]:
        """Worked out once for each rate: a run asks several times a round."""
        key = plan, self.rate(round), epochs
        if key not in self._lessons:
            self._lessons[key] = lessons(self.net, plan, epochs, self.rate(round), self.train.head_lr_factor)
        return self._lessons[key]

    @cached_property
    def _lessons(self) -> dict[object, tuple[Lesson, ...]]:
        return {}

    def skips_single(self, input: Input) -> bool:
        """Whether a client leaves a last batch of one sample out (spec 12.2)."""
        if input not in self._skips:
            self._skips[input] = smallest_map(self.net, input) == 1
        return self._skips[input]

    @cached_property
    def _skips(self) -> dict[Input, bool]:
        return {}

    @cached_property
    def moving(self) -> frozenset[str]:
        """Everything that anybody changes in this stage."""
        by_server = moved_by(self.server_plan(self.first)) if self.method.server_data != "none" else frozenset()
        return moved_by(self.plan(self.first)) | by_server

    @cached_property
    def travels(self) -> frozenset[str]:
        """The shared part, without what nobody trains (spec 4.1: the frozen head is known to everybody)."""
        return self.moving & frozenset(part_names(self.net, self.method.share.part))

    @cached_property
    def corrected(self) -> tuple[str, ...]:
        """The parameters that travel: what drift corrections and server rules see.

        Running statistics are averaged, and so is a personal branch that travels (spec 6.4)."""
        return learnable(self.net, sorted(self.travels - frozenset(part_names(self.net, "personal"))))

    @cached_property
    def uploaded(self) -> tuple[str, ...]:
        """All parameters that travel, a personal branch among them: what attackers replace, and robust rules guard."""
        return learnable(self.net, sorted(self.travels))

    @cached_property
    def keeps(self) -> frozenset[str]:
        """What stays with a client between its visits."""
        moved = moved_by(self.plan(self.first))
        if self.method.server.keeps_uploads:
            return moved
        return frozenset() if self.method.share.rest == "reset" else moved - self.travels

    def declared(self, offered: int = 1, round: int | None = None) -> Declared:
        """What a participant sends beside its model in a round (None: in any), where it is offered so many models of
        others (spec 5.6)."""
        of_personal = self.method.personal.declares(offered)
        if type(self.method.statistics) is NoStatistics or not self.gathers(round):
            return of_personal
        return {**self.method.statistics.declares(self.net, self.net.classes), **of_personal}

    def gathers(self, round: int | None) -> bool:
        """Whether statistics are sent in a round: in all of them, or in the first alone."""
        return not self.method.statistics.once or round in (None, self.first)

    @property
    def meets(self) -> bool:
        """Whether clients and server say anything to each other in its rounds."""
        return bool(self.travels or self.declared())

    @property
    def uses_meta(self) -> bool:
        """Whether clients need the balanced images of the server."""
        return self.method.meta_data or self.method.step.uses_meta

    def habits(self) -> Habits:
        return Habits(
            batch_size=self.train.batch_size,
            momentum=self.train.momentum,
            weight_decay=self.train.weight_decay,
            objective=self.method.objective,
            drift=self.method.drift,
            step=self.method.step,
            shared_momentum=self.method.shared_momentum,
        )


def stages(config: Config, net: Network) -> tuple[Stage, ...]:
    """Work the config out, checking what only the network can tell (parts, blocks)."""
    plan = _stages(config.method, config.train, net, chain=())
    if config.personalize.part != "method":
        check_part("personalize.part", config.personalize.part, net, learns=True)
    return tuple(replace(stage, attack=config.attack.chosen) for stage in plan)


def _stages(method: Method, train: TrainConfig, net: Network, chain: tuple[str, ...]) -> tuple[Stage, ...]:
    earlier = method.start.earlier()
    before = () if earlier is None else _stages_before(method, earlier, train, net, chain)
    first = before[-1].last + 1 if before else 1
    pace = method.start.pace(Pace(train.rounds, train.lr, train.schedule))
    if before and pace.rounds < 1:  # its start would never be carried out
        raise RequestError(
            f"{chosen('method.start', method.start)} trains {before[-1].method.name!r} first and leaves no round to "
            f"{method.name!r}. Expected: a pace of one round or more"
        )
    return (*before, _stage(method, train, net, first, pace))


def _stages_before(
    method: Method, earlier: Earlier, train: TrainConfig, net: Network, chain: tuple[str, ...]
) -> tuple[Stage, ...]:
    name = earlier.method
    if name in chain:
        raise RequestError(f"method.start.method = {name!r} begins at itself: {' → '.join((*chain, name))}")
    other = methods.look_up(name, "method.start.method")
    if other.head != method.head:
        raise RequestError(
            f"method.start.method = {name!r} has another head ({other.head}) than {method.name!r} "
            f"({method.head}), so its model does not fit. Choose a method with the same head."
        )
    shorter = train.model_copy(update={"rounds": earlier.rounds}) if earlier.rounds else train
    return _stages(other, shorter, net, (*chain, name))


def _stage(method: Method, train: TrainConfig, net: Network, first: int, pace: Pace) -> Stage:
    schedules.look_up(pace.schedule, "method.start.schedule")  # raises RequestError with the nearest name
    check_parts(method, net)
    stage = Stage(method, net, train, first, pace.rounds, pace.lr, pace.schedule)
    if not stage.moving:
        raise RequestError(
            f"method {method.name!r} trains nothing: method.train = {[p.part for p in method.train]} "
            f"with train.head_lr_factor = {train.head_lr_factor}"
        )
    _check_sense(stage)
    return stage


def _check_sense(stage: Stage) -> None:
    """Refuse combinations that cannot mean anything, with the reason."""
    method, share = stage.method, f"method.share = {stage.method.share.part!r}"
    drift, server = chosen("method.drift", method.drift), chosen("method.server", method.server)
    guards = method.server == Mean() or (method.server.takes_statistics and bool(stage.declared()))
    if not stage.corrected and (type(method.drift) is not NoDrift or not guards):
        clips = f", method.server.clip = {method.server.clip:g}" if method.server.clip else ""
        raise RequestError(
            f"{drift} and {server}{clips} act on what travels, and nothing does: {share}. Expected: a method that "
            "shares something, or none and mean"
        )
    alone = not method.drift.gathers and not method.statistics.mixes
    if method.server.keeps_uploads and alone and type(method.drift) is not NoDrift:
        raise RequestError(
            f"{server} averages nothing, so there is no model for {drift} to hold a client near. Accepted: "
            "none, multi-task"
        )
    if method.server.keeps_uploads and method.server.clip:
        raise RequestError(
            f"method.server.clip = {method.server.clip} bounds what one client adds to the mean, and method.server = "
            "'apart' has none. Accepted: 0"
        )
    if method.server.waits_for and _needs_one_beginning(method.drift):
        free = ", ".join(sorted(name for name, kind in drifts.items() if not _needs_one_beginning(kind)))
        raise RequestError(
            f"{server} takes uploads that began at different models, and {drift} needs all participants of "
            f"a round to begin at the same one. Accepted: {free}"
        )
    _check_statistics(stage)
    method.objective.check(stage.net)
    if method.server.waits_for and method.personal.declares(1):
        raise RequestError(
            f"{chosen('method.personal', method.personal)} compares the models of a round's participants, and "
            f"{server} has no such rounds. Expected: method.server = 'apart', or another method"
        )
    if method.drift.remembers and not method.server.trusts:
        free = ", ".join(sorted(name for name, kind in drifts.items() if not kind.remembers))
        raise RequestError(
            f"{server} bounds what one upload can do, and {drift} has the server keep a mean of the "
            f"clients' memories, which nothing bounds. Accepted: {free}"
        )
    unshared = moved_by(stage.server_plan(stage.first)) - frozenset(part_names(stage.net, method.share.part))
    if method.server_data != "none" and (unshared or method.server.keeps_uploads):
        raise RequestError(
            f"method.server_data = {method.server_data!r} trains parts that do not travel ({share}, "
            f"{server}), so no client would get them: {', '.join(sorted(unshared)[:3]) or 'any'}"
        )
    balanced = isinstance(method.objective, BalancedSoftmax) and method.objective.gamma > 0
    if isinstance(method.step, MetaWeighted) and not balanced:
        raise RequestError(
            "method.step = 'meta-weighted' learns to weigh the balanced soft-max, found "
            f"{chosen('method.objective', method.objective)}. Accepted: balanced-softmax with gamma above 0"
        )


def _check_statistics(stage: Stage) -> None:
    """Refuse statistics beside a server rule that makes nothing of them, or whose promise they would break."""
    method = stage.method
    _check_heard(method, stage.net)
    if type(method.statistics) is NoStatistics:
        return
    named, server = chosen("method.statistics", method.statistics), chosen("method.server", method.server)
    method.statistics.check(stage.net, stage.travels)
    if method.statistics.needs_uploads and not method.server.keeps_uploads:
        raise RequestError(
            f"{named} mixes the clients' last uploads, and {server} keeps none. Accepted: method.server = 'apart', or "
            "method.statistics = 'none'"
        )
    if method.server.waits_for:
        raise RequestError(
            f"{server} takes uploads that began at different models, and {named} combines statistics of clients that "
            "began at the same one. Accepted: method.statistics = 'none', or a rule of whole rounds"
        )
    if not method.server.trusts and stage.declared():
        _check_guarded(stage, named, server)


def _check_guarded(stage: Stage, named: str, server: str) -> None:
    """Refuse statistics that the server rule cannot guard as it guards models."""
    method, single = stage.method, [n for n, each in stage.declared().items() if each.rule == "each"]
    if single or method.statistics.weighs:
        by = f"use each client's own {single[0]!r}" if single else f"weigh models by {method.statistics.weighs!r}"
        raise RequestError(
            f"{server} bounds what one upload can do, and {named} has the server {by}, which nothing bounds. Accepted: "
            "method.statistics = 'none', or method.server = 'mean' without a clip"
        )
    if not method.server.takes_statistics or method.server.clip:
        fitting = ", ".join(sorted(name for name, kind in servers.items() if kind.takes_statistics))
        clips = " with a clip" if method.server.clip else ""
        raise RequestError(
            f"{server}{clips} bounds what one upload can do, and not what clients send beside their models ({named}). "
            f"Accepted: {fitting}, mean without a clip, or method.statistics = 'none'"
        )


def _check_heard(method: Method, net: Network) -> None:
    """Refuse a loss, or a way to personal models, that reads statistics which nobody tells."""
    needs = {"objective": hears(method.objective), "personal": method.personal.hears}
    for axis, names in needs.items():
        if not set(names) <= (told := _told(method.statistics, net) if names else set()):
            missing = next(name for name in names if name not in told)
            fitting = sorted(repr(kind) for kind, each in statistics.items() if set(names) <= _told(each(), net))
            raise RequestError(
                f"{chosen(f'method.{axis}', getattr(method, axis))} reads {missing!r} of what the server tells, and "
                f"{chosen('method.statistics', method.statistics)} tells nothing of it. Accepted: method.statistics = "
                f"{' or '.join(fitting) or 'one that does'}"
            )


def _told(choice: Statistics, net: Network) -> set[str]:
    """The statistics that all participants are told."""
    return set(choice.to_all(Held(choice.first(net, net.classes, 0))))


def _needs_one_beginning(drift: Drift | type[Drift]) -> bool:
    """Whether a correction compares participants that begin a round at the same model."""
    return drift.remembers or drift.gathers or drift.follows


def check_parts(method: Method, net: Network) -> None:
    """Say no to a part that the network does not have, with the key that asks for it."""
    trained = [("method.train", phase.part) for phase in method.train]
    trained += [("method.personal.phases", phase.part) for phase in method.personal.phases]
    trained.append(("method.server_data", method.server_data))
    named = [(f"method.personal.{key}", part) for key, part in method.personal.parts.items()]
    named.append(("method.share", method.share.part))
    for learns, asked in ((True, trained), (False, named)):
        for key, part in asked:
            check_part(key, part, net, learns)
    method.personal.check(net)


def check_part(key: str, part: str, net: Network, learns: bool) -> None:
    """Refuse a part that is unknown or empty, or that is to learn and is frozen, by the key that asks for it."""
    try:
        names = part_names(net, part)
    except RequestError as error:
        raise RequestError(f"{key}: {error}") from None
    if part == "none":
        return
    if not names:
        idle = "trains nothing: it holds" if learns else "holds"
        raise RequestError(f"{key}: part = {part!r} {idle} nothing in this network. Accepted: {_filled(net)}")
    if learns and not learnable(net, names):
        raise RequestError(
            f"{key}: part = {part!r} cannot learn: all its parameters are frozen (requires_grad=False). "
            "Choose another part, or set requires_grad where the network is made"
        )


def _filled(net: Network) -> str:
    return ", ".join(name for name, held in net.parts.items() if held)


def check_server_data(plan: tuple[Stage, ...], roster: Roster) -> None:
    for stage in plan:
        if stage.method.server_data != "none" and roster.server_samples == 0:
            raise RequestError(
                f"method {stage.method.name!r} trains on server data and there are none: data.server_fraction is 0 "
                "or rounds to no sample. Example: --set data.server_fraction=0.05"
            )
