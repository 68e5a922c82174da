"""What only the data and the method together can tell is wrong with a request, or worth a word."""

from __future__ import annotations

from collections.abc import Sequence

from torso.config import Config, FaultsConfig
from torso.data import Input, Roster
from torso.data.fit_images import reads_files
from torso.data.pixels import Pixels
from torso.errors import RequestError
from torso.learn.attacks import attacks
from torso.learn.gradients import not_reached
from torso.learn.phases import Phase
from torso.measure import measures
from torso.measure.analyses import analyses, of_rounds
from torso.nets import Network, Tensors, bodies, learnable, part_names, wants_of
from torso.nets.flops import unreached
from torso.nets.heads import Dual
from torso.nets.lora import Lora
from torso.registry import chosen, is_foreign
from torso.runs.sampling import participants
from torso.runs.stage import Stage
from torso.server.centre import Centre
from torso.server.statistics import words


def remarks(config: Config, roster: Roster, net: Network) -> tuple[str, ...]:
    """What a person may want to know before the first round."""
    found = [*roster.remarks]
    if config.method.pretrained and not config.model.weights and not config.model.encoder:
        found.append(
            f"method.name = {config.method.name!r} is meant for a body trained elsewhere, and model.weights is empty: "
            "it begins at random weights"
        )
    wants = wants_of(config.model.body, config.model.weights)
    if wants.usual and not config.model.weights and reads_files(config.data.source):
        found.append(
            f"model.weights is empty: model.body = {config.model.body!r} begins at random weights, with train.lr = "
            f"{config.train.lr}. Set model.weights to begin at trained ones"
        )
    lr = wants.lr
    if lr and lr == config.train.lr:
        found.append(f"train.lr = {lr} is the default with pre-trained weights")
    if net.body.lora is not None:
        found.append(_about_adapters(net, net.body.lora))
    elif not net.body.native:
        found.append(f"model.body = {config.model.body!r} {_how_it_runs(net)}")
    return tuple(found)


def _about_adapters(net: Network, lora: Lora) -> str:
    """How much learns, and how clients are computed."""
    sizes = {name: tensor.numel() for name, tensor in net.body.state_dict().items()}
    adapters = [name.removeprefix("body.") for name in net.parts["lora"]]
    learns, whole = sum(sizes[name] for name in adapters), sum(sizes.values())
    layers = len(adapters) // 2
    how = "clients share one forward pass" if net.body.in_line else "clients are computed one after the other"
    return (
        f"model.lora: adapters of rank {lora.rank} on {layers} layer{'s' if layers > 1 else ''}, {learns:,} of the "
        f"body's {whole:,} numbers; {how}"
    )


def check_adapters(plan: Sequence[Stage], net: Network, model: Tensors) -> None:
    """Refuse to train `a` under a `b` that is zero and stays so: the change b·a is zero, and no gradient reaches a."""
    moving = frozenset().union(*(stage.moving for stage in plan))
    a, b = net.parts.get("lora.a", ()), net.parts.get("lora.b", ())
    if moving.isdisjoint(a) or not moving.isdisjoint(b) or any(bool(model[name].any()) for name in b):
        return
    raise RequestError(
        "method.train has lora.a and not lora.b, which is zero at the start: nothing would learn. Train lora, or begin "
        "with trained adapters (model.lora.weights, or model.weights = a run with adapters)"
    )


def _how_it_runs(net: Network) -> str:
    """How clients share the computation of a body that is not Torso's own."""
    if not net.stacks:
        return "is computed one client at a time: its BatchNorm layers are not Torso's own and would count padding"
    drops = next((type(m).__name__ for m in net.body.modules() if getattr(m, "p", getattr(m, "drop_prob", 0))), "")
    if drops:
        return f"is trained one client at a time: it draws random numbers ({drops})"
    return "is not Torso's own: on an accelerator several clients are computed at once (torch.func.vmap), on CPU one"


def check_reach(config: Config, plan: Sequence[Stage], net: Network, input: Input) -> None:
    """Refuse to train parameters that no loss can depend on; asked of networks that others have made."""
    if net.body.native and not is_foreign(bodies[config.model.body]):
        return
    unused = frozenset(unreached(net, input, learnable(net, net.state_dict())))
    for stage in plan if unused else ():
        keys = {"method.train": stage.method.train, "method.personal.phases": stage.method.personal.phases}
        if config.personalize.part != "method":
            keys["method.personal.phases"] = ()
            keys["personalize.part"] = (Phase(config.personalize.part),)
        for key, phases in keys.items():
            names = [name for phase in phases for name in part_names(net, phase.part) if name in unused]
            if names:
                raise not_reached(names, key)


def check_answers(config: Config, roster: Roster) -> None:
    """Refuse faults where clients are real, and to wait for more answers than there are clients in a simulation."""
    least, there = config.train.min_clients, len(roster.training)
    if config.run.engine != "flower" and least > max(there, 1):  # a real federation waits for them
        raise RequestError(
            f"train.min_clients = {least}: so many have to answer in a round, and {there} clients train. "
            f"Accepted: 1 to {there}"
        )
    if config.run.engine == "flower" and config.run.faults != FaultsConfig():
        raise RequestError(
            "run.faults is for simulations, and run.engine = 'flower' is a real federation, whose clients fail by "
            "themselves. Leave run.faults out"
        )


def check_time(config: Config, plan: Sequence[Stage], roster: Roster) -> None:
    """Refuse simulated time where clients are real, and asynchronous rounds together with what needs a whole round."""
    real, speeds = config.run.engine == "flower", config.run.speeds
    if real and speeds.simulated:
        raise RequestError(
            "run.speeds is for simulations, and run.engine = 'flower' is a real federation, whose clients take their "
            "own time. Leave run.speeds out"
        )
    rule = next((stage.method.server for stage in plan if stage.rounds and stage.method.server.waits_for), None)
    if rule is None:
        return
    where, there = f"{chosen('method.server', rule)} makes asynchronous rounds", len(roster.training)
    if real:
        raise RequestError(f"{where}, which run.engine = 'flower' does not have. Expected: another engine or rule")
    if rule.waits_for > there:
        raise RequestError(
            f"{where}: {rule.waits_for} uploads make a step, each from another client, and {there} clients train. "
            f"Expected: method.server.buffer of {there} or less"
        )
    if config.run.faults != FaultsConfig():
        raise RequestError(f"{where}, in which run.faults has no meaning: nobody waits. Leave run.faults out")
    if config.attack.chosen.colludes():
        free = ", ".join(sorted(name for name, kind in attacks.items() if not kind.colludes()))
        raise RequestError(
            f"{chosen('attack.kind', config.attack.chosen)} looks at all uploads of a round, and {where}. "
            f"Accepted: {free}"
        )
    for name in of_rounds(config.measure.analyses):
        raise RequestError(
            f"measure.analyses = {name!r} looks at participants that begin at the same model, and {where}. Leave it out"
        )


def check_secure(config: Config, plan: Sequence[Stage], roster: Roster) -> None:
    """Refuse secure sums where there is nothing to hide, or where the server needs more than sums."""
    options, key = config.run.flower.secure, "run.flower.secure.kind = 'secagg+'"
    if options.kind == "none":
        return
    if config.run.engine != "flower":
        raise RequestError(
            f"{key} hides uploads from the server of a real federation (`torso federation run`), and run.engine = "
            f"{config.run.engine!r} is a simulation. Accepted: none"
        )
    if config.train.min_clients < 3:
        raise RequestError(
            f"{key} with train.min_clients = {config.train.min_clients}: of two uploads, each client knows the "
            "other's from their sum. Accepted: train.min_clients = 3 or more"
        )
    for stage in plan:
        if reason := _needs_single(stage):
            raise RequestError(f"{key} shows the server sums only, and {reason}. Accepted: plain and weighted means")
    asked = [len(participants(stage, roster, 0, stage.first)) for stage in plan if stage.rounds]
    asked += [len(roster.training) for stage in plan if asks_first(stage, roster)]
    count = max(asked, default=0)
    if count << options.bits >= 1 << 32:
        raise RequestError(
            f"run.flower.secure.bits = {options.bits}: a sum of {count} clients does not fit into 32 bits. Accepted: "
            f"{32 - count.bit_length()} or less"
        )


def _needs_single(stage: Stage) -> str:
    """What of a method needs single uploads, in words; "": nothing."""
    method, rule = stage.method, stage.method.server
    if rule.needs_each or rule.keeps_uploads:
        return f"{chosen('method.server', rule)} needs single uploads"
    if rule.clip:
        return f"method.server.clip = {rule.clip} bounds single uploads"
    if rule.uses_squares:
        return f"{chosen('method.server', rule)} needs the norm of single uploads"
    if method.drift.gathers or method.personal.declares(1):
        return f"method {method.name!r} shows clients the models of others"
    if single := {name: each for name, each in stage.declared().items() if each.rule == "each"}:
        return f"{chosen('method.statistics', method.statistics)} needs what single clients send ({words(single)})"
    return ""


def asks_first(stage: Stage, roster: Roster) -> bool:
    """Whether all clients are asked something before the first round."""
    return bool(stage.method.start.declares(stage.net, roster.classes))


def check_attack(config: Config, plan: Sequence[Stage]) -> None:
    """Refuse an attack on what never happens."""
    rounds = [stage for stage in plan if stage.rounds]
    if config.attack.chosen.replaces_uploads() and not any(stage.uploaded or stage.declared() for stage in rounds):
        others = [name for name, kind in attacks.items() if not kind.replaces_uploads()]
        why = "sends no part of a model" if rounds else "has no rounds"
        raise RequestError(
            f"{chosen('attack.kind', config.attack.chosen)} replaces what clients send in a round, and method "
            f"{config.method.name!r} {why}. Accepted: {', '.join(others)}"
        )
    if config.attack.chosen.colludes() and any(stage.method.server.keeps_uploads for stage in plan):
        raise RequestError(
            f"{chosen('attack.kind', config.attack.chosen)} works on the mean of the uploads, and "
            f"method.server = 'apart' takes none. Accepted: "
            f"{', '.join(sorted(name for name, kind in attacks.items() if not kind.colludes()))}"
        )


def check_rule(plan: Sequence[Stage], roster: Roster) -> None:
    """Refuse a server rule that wants more uploads than a round has."""
    for stage in (stage for stage in plan if stage.rounds):
        rule, count = stage.method.server, len(participants(stage, roster, 0, stage.first))
        if 0 < count < rule.least:
            key, whole = f"method.server.{rule.least_by}", len(roster.training)
            raise RequestError(
                f"{key} = {getattr(rule, rule.least_by)} needs {rule.least} participants or more, and a round has "
                f"{count} (train.fraction = {stage.train.fraction} of {whole} clients). Expected: a larger "
                f"train.fraction, or another {key}"
            )


def check_measures(config: Config, roster: Roster) -> None:
    """Refuse to measure what there is not."""
    asked = {"names": config.measure.names, "during": config.measure.during}
    for key, name in ((key, name) for key, names in asked.items() for name in names):
        if measures[name].of == "newcomers" and not len(roster.newcomers):
            raise RequestError(
                f"measure.{key} = {name!r} is of clients that never train, and data.new_clients is 0. "
                "Example: --set data.new_clients=10"
            )
        if measures[name].marked and not config.attack.chosen.changes_samples():
            raise RequestError(
                f"measure.{key} = {name!r} is of images that attackers mark, and "
                f"{chosen('attack.kind', config.attack.chosen)} marks none. Example: --set attack.kind=backdoor"
            )
        if measures[name].two_heads and not (
            isinstance(config.method.head, Dual) and isinstance(config.method.statistics, Centre)
        ):
            raise RequestError(
                f"measure.{key} = {name!r} mixes two heads by where features lie, and method {config.method.name!r} "
                "has no two heads, or nobody is told where. Expected: method.head = 'dual' and method.statistics = "
                "'centre', as method.name = 'fedthe'"
            )
        if measures[name].images and not isinstance(roster.input, Pixels):
            raise RequestError(
                f"measure.{key} = {name!r} damages images, and {roster.name} has {roster.input.words}. Accepted: other "
                "measures, such as shifted_initial; or data whose samples are images"
            )
    if config.measure.among == "last-round" and config.privacy.on:
        raise RequestError(
            "measure.among = 'last-round' tells who took part, which privacy relies on being a secret. Accepted: all"
        )
    _check_test_set(config, roster)
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


POOLED = "generic"
"""The measure of the whole test set that the clients' test data can stand in for."""


def _check_test_set(config: Config, roster: Roster) -> None:
    """Refuse what looks at the whole test set where the server has none."""
    if roster.test_samples:
        return
    of_measures = {name: measure.whole_test and name != POOLED for name, measure in measures.items()}
    asked = {
        "measure.names": (config.measure.names, of_measures),
        "measure.during": (config.measure.during, of_measures),
        "measure.analyses": (config.measure.analyses, {n: a.whole_test for n, a in analyses.items()}),
    }
    for key, (names, needs) in asked.items():
        for name in (name for name in names if needs[name]):
            free = ", ".join(sorted(n for n, needed in needs.items() if not needed))
            raise RequestError(
                f"{key} = {name!r} is taken on a test set of the server's own, and it has none. Accepted: {free}"
            )
