"""What only the data and the method together can tell is wrong with a request, or worth a word."""

from __future__ import annotations

from collections.abc import Sequence

from torso.config import Config
from torso.data import Federation
from torso.errors import RequestError
from torso.learn.gradients import not_reached
from torso.learn.phases import Phase
from torso.measure import measures
from torso.measure.analyses import analyses
from torso.nets import Network, bodies, learnable, part_names
from torso.nets.flops import unreached
from torso.registry import is_foreign
from torso.runs.stages import Stage
from torso.runs.tamper import TAMPERS


def remarks(config: Config, net: Network) -> tuple[str, ...]:
    """What a person may want to know before the first round."""
    found = []
    if config.method.pretrained and not config.model.weights:
        found.append(
            f"method.name = {config.method.name!r} is meant for a body trained elsewhere, and model.weights is empty: "
            "it begins at random weights"
        )
    if not net.stacks:
        found.append(
            f"model.body = {config.model.body!r} has BatchNorm layers that are not Torso's own: clients train one at a "
            "time, each with the statistics of its own samples"
        )
    return tuple(found)


def check_reach(config: Config, plan: Sequence[Stage], net: Network, image: tuple[int, int, int]) -> None:
    """Refuse to train parameters that no loss can depend on; asked of networks that others have made."""
    if not is_foreign(bodies[config.model.body]):
        return
    unused = frozenset(unreached(net, image, learnable(net, net.state_dict())))
    for stage in plan if unused else ():
        keys = {"method.train": stage.method.train, "method.personal.phases": stage.method.personal.phases}
        if config.personalize.part != "method":
            keys["method.personal.phases"] = ()
            keys["personalize.part"] = (Phase(config.personalize.part),)
        for key, phases in keys.items():
            names = [name for phase in phases for name in part_names(net, phase.part) if name in unused]
            if names:
                raise not_reached(names, key)


def check_attack(config: Config, plan: Sequence[Stage]) -> None:
    """Refuse an attack on what never happens."""
    if config.attack.kind in TAMPERS and not any(stage.rounds for stage in plan):
        raise RequestError(
            f"attack.kind = {config.attack.kind!r} replaces what clients send in a round, and method "
            f"{config.method.name!r} has no rounds. Accepted: none, label-poisoning"
        )


def check_measures(config: Config, federation: Federation) -> None:
    """Refuse to measure what there is not."""
    asked = {"names": config.measure.names, "during": config.measure.during}
    for key, name in ((key, name) for key, names in asked.items() for name in names):
        if measures[name].of == "newcomers" and not len(federation.newcomers):
            raise RequestError(
                f"measure.{key} = {name!r} is of clients that never train, and data.new_clients is 0. "
                "Example: --set data.new_clients=10"
            )
    tuned = config.personalize.part != "method" or config.method.personal.phases
    for name in config.measure.analyses:
        if analyses[name].of_tuning and not tuned:
            raise RequestError(
                f"measure.analyses = {name!r} looks at fine-tuning; method.personal of {config.method.name!r} "
                "has none. Example: --set personalize.part=full"
            )
    if config.personalize.sweep and not tuned:
        raise RequestError(
            f"personalize.sweep = {list(config.personalize.sweep)} counts epochs of fine-tuning; method.personal of "
            f"{config.method.name!r} has none. Example: --set personalize.part=full"
        )
