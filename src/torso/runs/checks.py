"""Checks of a request that need the config, the roster and the network together: refusals, and remarks for the user."""

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
from torso.measure import Measurement, measures
from torso.measure.analyses import analyses, round_analyses
from torso.nets import Network, Tensors, bodies, learnable, part_names, wants_of
from torso.nets.flops import unused_parameters
from torso.nets.heads import Dual
from torso.nets.lora import Lora
from torso.registry import chosen, is_foreign
from torso.runs.sampling import participants
from torso.runs.stage import Stage
from torso.server.centre import Centre
from torso.server.statistics import words


def remarks(config: Config, roster: Roster, net: Network) -> tuple[str, ...]:
    """What the user may want to know before the first round."""
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
    """A remark about the size of the adapters, and about how clients share the computation."""
    sizes = {name: tensor.numel() for name, tensor in net.body.state_dict().items()}
    adapters = [name.removeprefix("body.") for name in net.parts["lora"]]
    learns = sum(sizes[name] for name in adapters)
    whole = sum(sizes.values())
    layers = len(adapters) // 2  # each layer has a and b
    how = "clients share one forward pass" if net.body.one_pass else "clients are computed one after the other"
    return (
        f"model.lora: adapters of rank {lora.rank} on {layers} layer{'s' if layers > 1 else ''}, {learns:,} of the "
        f"body's {whole:,} numbers; {how}"
    )


def check_adapters(plan: Sequence[Stage], net: Network, model: Tensors) -> None:
    """Refuse to train `a` if `b` is zero and stays zero: then the update b·a is zero, and no gradient reaches a."""
    moving = frozenset().union(*(stage.moving for stage in plan))
    a, b = net.parts.get("lora.a", ()), net.parts.get("lora.b", ())
    if moving.isdisjoint(a) or not moving.isdisjoint(b) or any(bool(model[name].any()) for name in b):
        return
    raise RequestError(
        "method.train has lora.a and not lora.b, which is zero at the start: nothing would learn. Train lora, or start "
        "from trained adapters (model.lora.weights, or model.weights = a run with adapters)"
    )


def _how_it_runs(net: Network) -> str:
    """How clients share the computation of a body of another library."""
    if not net.stacks:
        return "is computed one client at a time: its BatchNorm layers are not Torso's own and would count padding"
    drops = next((type(m).__name__ for m in net.body.modules() if getattr(m, "p", getattr(m, "drop_prob", 0))), "")
    if drops:
        return f"is trained one client at a time: it draws random numbers ({drops})"
    return "is not Torso's own: on an accelerator several clients are computed at once (torch.func.vmap), on CPU one"


def check_reach(config: Config, plan: Sequence[Stage], net: Network, input: Input) -> None:
    """Refuse to train parameters on which no loss can depend. Torso's own bodies have none and are not checked."""
    if net.body.native and not is_foreign(bodies[config.model.body]):
        return
    unused = frozenset(unused_parameters(net, input, learnable(net, net.state_dict())))
    if not unused:
        return
    for stage in plan:
        keys = {"method.train": stage.method.train, "method.personal.phases": stage.method.personal.phases}
        if config.personalize.part != "method":
            keys["method.personal.phases"] = ()
            keys["personalize.part"] = (Phase(config.personalize.part),)
        for key, phases in keys.items():
            names = [name for phase in phases for name in part_names(net, phase.part) if name in unused]
            if names:
                raise not_reached(names, key)


def check_answers(config: Config, roster: Roster) -> None:
    """Refuse simulated faults in a real federation, and to wait for more answers than a simulation has clients."""
    least = config.train.min_clients
    training = len(roster.training)
    if config.run.engine != "flower" and least > max(training, 1):  # a real federation may get more clients later
        raise RequestError(
            f"train.min_clients = {least}: this number of clients has to answer in a round, and {training} clients "
            f"train. Accepted: 1 to {training}"
        )
    if config.run.engine == "flower" and config.run.faults != FaultsConfig():
        raise RequestError(
            "run.faults is for simulations, and run.engine = 'flower' is a real federation, whose clients fail by "
            "themselves. Leave run.faults out"
        )


def check_time(config: Config, plan: Sequence[Stage], roster: Roster) -> None:
    """Refuse simulated time in a real federation, and asynchronous rounds together with what needs a whole round."""
    real = config.run.engine == "flower"
    if real and config.run.speeds.simulated:
        raise RequestError(
            "run.speeds is for simulations, and run.engine = 'flower' is a real federation, whose clients take their "
            "own time. Leave run.speeds out"
        )
    rule = next((stage.method.server for stage in plan if stage.rounds and stage.method.server.uploads_per_step), None)
    if rule is None:
        return
    where = f"{chosen('method.server', rule)} makes asynchronous rounds"
    training = len(roster.training)
    if real:
        raise RequestError(f"{where}, which run.engine = 'flower' does not have. Expected: another engine or rule")
    if rule.uploads_per_step > training:
        raise RequestError(
            f"{where}: {rule.uploads_per_step} uploads make a step, each from another client, and {training} clients "
            f"train. Expected: method.server.buffer of {training} or less"
        )
    if config.run.faults != FaultsConfig():
        raise RequestError(
            f"{where}, in which run.faults has no meaning: the server waits for no client. Leave run.faults out"
        )
    if config.attack.chosen.colludes():
        free = ", ".join(sorted(name for name, kind in attacks.items() if not kind.colludes()))
        raise RequestError(
            f"{chosen('attack.kind', config.attack.chosen)} looks at all uploads of a round, and {where}. "
            f"Accepted: {free}"
        )
    for name in round_analyses(config.measure.analyses):
        raise RequestError(
            f"measure.analyses = {name!r} looks at participants that begin at the same model, and {where}. Leave it out"
        )


def check_secure(config: Config, plan: Sequence[Stage], roster: Roster) -> None:
    """Refuse secure aggregation in a simulation, with too few clients, or if the server needs more than sums."""
    options = config.run.flower.secure
    key = "run.flower.secure.kind = 'secagg+'"
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
        reason = _needs_single(stage)
        if reason:
            raise RequestError(f"{key} shows the server sums only, and {reason}. Accepted: plain and weighted means")
    summed = [len(participants(stage, roster, 0, stage.first)) for stage in plan if stage.rounds]
    summed += [len(roster.training) for stage in plan if asks_first(stage, roster)]
    count = max(summed, default=0)  # clients in the largest sum
    if count << options.bits >= 1 << 32:
        raise RequestError(
            f"run.flower.secure.bits = {options.bits}: a sum of {count} clients does not fit into 32 bits. Accepted: "
            f"{32 - count.bit_length()} or less"
        )


def _needs_single(stage: Stage) -> str:
    """Why a method needs single uploads (the end of a sentence). Empty if it does not."""
    method = stage.method
    rule = method.server
    if rule.needs_each or rule.keeps_uploads:
        return f"{chosen('method.server', rule)} needs single uploads"
    if rule.clip:
        return f"method.server.clip = {rule.clip} bounds single uploads"
    if rule.uses_squares:
        return f"{chosen('method.server', rule)} needs the norm of single uploads"
    if method.drift.gathers or method.personal.declares(1):
        return f"method {method.name!r} shows clients the models of others"
    single = {name: each for name, each in stage.declared().items() if each.rule == "each"}
    if single:
        return f"{chosen('method.statistics', method.statistics)} needs what single clients send ({words(single)})"
    return ""


def asks_first(stage: Stage, roster: Roster) -> bool:
    """Whether the method's start asks all clients something before the first round."""
    return bool(stage.method.start.declares(stage.net, roster.classes))


def check_attack(config: Config, plan: Sequence[Stage]) -> None:
    """Refuse an attack on uploads if the method has no uploads, or on their mean if it takes none."""
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
    """Refuse a server rule that needs more uploads than a round has."""
    for stage in plan:
        if not stage.rounds:
            continue
        rule = stage.method.server
        count = len(participants(stage, roster, 0, stage.first))
        if 0 < count < rule.least:
            key = f"method.server.{rule.minimum_option}"
            whole = len(roster.training)
            raise RequestError(
                f"{key} = {getattr(rule, rule.minimum_option)} needs {rule.least} participants or more, and a round "
                f"has {count} (train.fraction = {stage.train.fraction} of {whole} clients). Expected: a larger "
                f"train.fraction, or another {key}"
            )


def check_measures(config: Config, roster: Roster) -> None:
    """Refuse measures and analyses of something that the run does not have."""
    asked = [("names", name) for name in config.measure.names]
    asked += [("during", name) for name in config.measure.during]
    for key, name in asked:
        _check_measure(f"measure.{key} = {name!r}", measures[name], config, roster)
    if config.measure.among == "last-round" and config.privacy.on:
        raise RequestError(
            "measure.among = 'last-round' shows who took part, which must stay secret with privacy. Accepted: all"
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


def _check_measure(where: str, measure: Measurement, config: Config, roster: Roster) -> None:
    """Refuse a measure of clients, heads or samples that the run does not have. `where`: the key and its value."""
    method, attack = config.method, config.attack.chosen
    if measure.of == "newcomers" and not len(roster.newcomers):
        raise RequestError(
            f"{where} is of clients that never train, and data.new_clients is 0. Example: --set data.new_clients=10"
        )
    if measure.marked and not attack.changes_samples():
        raise RequestError(
            f"{where} is of images that attackers mark, and {chosen('attack.kind', attack)} marks none. "
            "Example: --set attack.kind=backdoor"
        )
    has_two_heads = isinstance(method.head, Dual) and isinstance(method.statistics, Centre)
    if measure.two_heads and not has_two_heads:
        raise RequestError(
            f"{where} mixes two heads by where features lie, and method {method.name!r} does not have two heads, or "
            "sends clients no centre of features. Expected: method.head = 'dual' and method.statistics = 'centre', as "
            "method.name = 'fedthe' has them"
        )
    if measure.images and not isinstance(roster.input, Pixels):
        raise RequestError(
            f"{where} damages images, and {roster.name} has {roster.input.words}. Accepted: other measures, such as "
            "shifted_initial; or data whose samples are images"
        )


POOLED = "generic"
"""The measure on the whole test set that can be computed from the clients' test data instead."""


def _check_test_set(config: Config, roster: Roster) -> None:
    """Refuse measures and analyses on the whole test set if the server has none."""
    if roster.test_samples:
        return
    of_measures = {name: measure.whole_test and name != POOLED for name, measure in measures.items()}
    asked = {
        "measure.names": (config.measure.names, of_measures),
        "measure.during": (config.measure.during, of_measures),
        "measure.analyses": (config.measure.analyses, {n: a.whole_test for n, a in analyses.items()}),
    }
    for key, (names, needs) in asked.items():
        for name in names:
            if not needs[name]:
                continue
            free = ", ".join(sorted(n for n, needed in needs.items() if not needed))
            raise RequestError(
                f"{key} = {name!r} is taken on a test set of the server's own, and it has none. Accepted: {free}"
            )
