"""The stages of a run: usually one; two if a method begins at the finished model of another one (the start axis)."""

from __future__ import annotations

from dataclasses import replace

from torso.config import Config, TrainConfig
from torso.data import Roster
from torso.errors import RequestError
from torso.learn.schedule import schedules
from torso.methods import Method, methods
from torso.methods.starts import EarlierMethod, TrainingPlan
from torso.nets import Network
from torso.registry import chosen
from torso.runs.method_checks import check_part, check_parts, check_sense
from torso.runs.stage import Stage


def stages(config: Config, net: Network) -> tuple[Stage, ...]:
    """The stages of a config for a network. Checks everything for which the network is needed (parts, blocks)."""
    plan = _stages(config.method, config.train, net, chain=())
    if config.personalize.part != "method":
        check_part("personalize.part", config.personalize.part, net, learns=True)
    return tuple(replace(stage, attack=config.attack.chosen) for stage in plan)


def _stages(method: Method, train: TrainConfig, net: Network, chain: tuple[str, ...]) -> tuple[Stage, ...]:
    """The stages of a method, after those of the method at whose model it begins. `chain`: names of later methods."""
    earlier = method.start.earlier()
    before = () if earlier is None else _stages_before(method, earlier, train, net, chain)
    first = before[-1].last + 1 if before else 1
    plan = method.start.training_plan(TrainingPlan(train.rounds, train.lr, train.schedule))
    if before and plan.rounds < 1:  # without a round, the method's start would never be carried out
        raise RequestError(
            f"{chosen('method.start', method.start)} trains {before[-1].method.name!r} first and leaves no round to "
            f"{method.name!r}. Expected: one round or more"
        )
    return (*before, _stage(method, train, net, first, plan))


def _stages_before(
    method: Method, earlier: EarlierMethod, train: TrainConfig, net: Network, chain: tuple[str, ...]
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


def _stage(method: Method, train: TrainConfig, net: Network, first: int, plan: TrainingPlan) -> Stage:
    schedules.look_up(plan.schedule, "method.start.schedule")  # raises RequestError with the nearest name
    check_parts(method, net)
    stage = Stage(method, net, train, first, plan.rounds, plan.lr, plan.schedule)
    if not stage.moving:
        raise RequestError(
            f"method {method.name!r} trains nothing: method.train = {[p.part for p in method.train]} "
            f"with train.head_lr_factor = {train.head_lr_factor}"
        )
    check_sense(stage)
    return stage


def check_server_data(plan: tuple[Stage, ...], roster: Roster) -> None:
    """Refuse a method that trains on server data if the server has none."""
    for stage in plan:
        if stage.method.server_data != "none" and roster.server_samples == 0:
            raise RequestError(
                f"method {stage.method.name!r} trains on server data and there are none: data.server_fraction is 0 "
                "or rounds to no sample. Example: --set data.server_fraction=0.05"
            )
