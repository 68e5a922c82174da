"""Checks of a method: combinations of choices that contradict each other are refused, with what is accepted instead."""

from __future__ import annotations

from torso.errors import RequestError
from torso.learn.drift import Drift, NoDrift, drifts
from torso.learn.meta import MetaWeighted
from torso.learn.objectives import BalancedSoftmax
from torso.learn.phases import moved_by
from torso.learn.teachers import hears
from torso.methods import Method
from torso.nets import Network, learnable, part_names
from torso.registry import chosen
from torso.runs.stage import Stage
from torso.server import Mean, NoStatistics, Statistics, servers, statistics
from torso.server.statistics import ServerView


def check_sense(stage: Stage) -> None:
    """Refuse a method whose choices contradict each other."""
    _check_that_something_travels(stage)
    _check_apart(stage)
    _check_one_beginning(stage)
    _check_statistics(stage)
    stage.method.objective.check(stage.net)
    _check_whole_rounds(stage)
    _check_memories(stage)
    _check_trained_on_server(stage)
    _check_weighed_loss(stage)


def _drift(method: Method) -> str:
    return chosen("method.drift", method.drift)


def _server(method: Method) -> str:
    return chosen("method.server", method.server)


def _check_that_something_travels(stage: Stage) -> None:
    """Refuse a drift correction or a server rule if nothing travels on which it could act."""
    method = stage.method
    guards = method.server == Mean() or (method.server.takes_statistics and bool(stage.declared()))
    if not stage.corrected and (type(method.drift) is not NoDrift or not guards):
        clips = f", method.server.clip = {method.server.clip:g}" if method.server.clip else ""
        raise RequestError(
            f"{_drift(method)} and {_server(method)}{clips} act on what travels, and nothing does: method.share = "
            f"{method.share.part!r}. Expected: a method that shares something, or none and mean"
        )


def _check_apart(stage: Stage) -> None:
    """Refuse choices that need a mean of the uploads if the server takes none (method.server = "apart")."""
    method = stage.method
    if not method.server.keeps_uploads:
        return
    alone = not method.drift.gathers and not method.statistics.mixes
    if alone and type(method.drift) is not NoDrift:
        raise RequestError(
            f"{_server(method)} averages nothing, so there is no model for {_drift(method)} to hold a client near. "
            "Accepted: none, multi-task"
        )
    if method.server.clip:
        raise RequestError(
            f"method.server.clip = {method.server.clip} bounds what one client adds to the mean, and method.server = "
            "'apart' has none. Accepted: 0"
        )


def _check_one_beginning(stage: Stage) -> None:
    """Refuse asynchronous rounds with a correction that needs all participants to begin at the same model."""
    method = stage.method
    if method.server.uploads_per_step and _needs_one_beginning(method.drift):
        free = ", ".join(sorted(name for name, kind in drifts.items() if not _needs_one_beginning(kind)))
        raise RequestError(
            f"{_server(method)} takes uploads that began at different models, and {_drift(method)} needs all "
            f"participants of a round to begin at the same one. Accepted: {free}"
        )


def _check_whole_rounds(stage: Stage) -> None:
    """Refuse asynchronous rounds with personal models that compare the models of a round's participants."""
    method = stage.method
    if method.server.uploads_per_step and method.personal.declares(1):
        raise RequestError(
            f"{chosen('method.personal', method.personal)} compares the models of a round's participants, and "
            f"{_server(method)} has no such rounds. Expected: method.server = 'apart', or another method"
        )


def _check_memories(stage: Stage) -> None:
    """Refuse a robust server rule with a correction whose memories an attacker could use to evade the rule."""
    method = stage.method
    if method.drift.remembers and not method.server.is_unbounded:
        free = ", ".join(sorted(name for name, kind in drifts.items() if not kind.remembers))
        raise RequestError(
            f"{_server(method)} bounds what one upload can do, and {_drift(method)} has the server keep a mean of the "
            f"clients' memories, which nothing bounds. Accepted: {free}"
        )


def _check_trained_on_server(stage: Stage) -> None:
    """Refuse to train parts on the server's data that do not travel to the clients."""
    method = stage.method
    shared = frozenset(part_names(stage.net, method.share.part))
    unshared = moved_by(stage.server_plan(stage.first)) - shared
    if method.server_data != "none" and (unshared or method.server.keeps_uploads):
        raise RequestError(
            f"method.server_data = {method.server_data!r} trains parts that do not travel (method.share = "
            f"{method.share.part!r}, {_server(method)}), so no client would get them: "
            f"{', '.join(sorted(unshared)[:3]) or 'any'}"
        )


def _check_weighed_loss(stage: Stage) -> None:
    """Refuse a step that learns the weights of a loss if the loss has no weights."""
    method = stage.method
    balanced = isinstance(method.objective, BalancedSoftmax) and method.objective.gamma > 0
    if isinstance(method.step, MetaWeighted) and not balanced:
        raise RequestError(
            "method.step = 'meta-weighted' learns to weigh the balanced soft-max, found "
            f"{chosen('method.objective', method.objective)}. Accepted: balanced-softmax with gamma above 0"
        )


def _check_statistics(stage: Stage) -> None:
    """Refuse statistics with a server rule that cannot use them, or whose robustness they would break."""
    method = stage.method
    _check_heard(method, stage.net)
    if type(method.statistics) is NoStatistics:
        return
    named, server = chosen("method.statistics", method.statistics), _server(method)
    method.statistics.check(stage.net, stage.travels)
    if method.statistics.needs_uploads and not method.server.keeps_uploads:
        raise RequestError(
            f"{named} mixes the clients' last uploads, and {server} keeps none. Accepted: method.server = 'apart', or "
            "method.statistics = 'none'"
        )
    if method.server.uploads_per_step:
        raise RequestError(
            f"{server} takes uploads that began at different models, and {named} combines statistics of clients that "
            "began at the same one. Accepted: method.statistics = 'none', or a rule of whole rounds"
        )
    if not method.server.is_unbounded and stage.declared():
        _check_guarded(stage, named, server)


def _check_guarded(stage: Stage, named: str, server: str) -> None:
    """Refuse statistics that a robust server rule cannot guard as it guards models."""
    method = stage.method
    single = [name for name, each in stage.declared().items() if each.rule == "each"]
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
    """Refuse a loss, or personal models, that read statistics which the server does not send."""
    needs = {"objective": hears(method.objective), "personal": method.personal.hears}
    for axis, names in needs.items():
        if not names:
            continue
        told = _told(method.statistics, net)
        missing = next((name for name in names if name not in told), None)
        if missing is None:
            continue
        fitting = sorted(repr(kind) for kind, each in statistics.items() if set(names) <= _told(each(), net))
        raise RequestError(
            f"{chosen(f'method.{axis}', getattr(method, axis))} reads {missing!r} of what the server tells, and "
            f"{chosen('method.statistics', method.statistics)} tells nothing of it. Accepted: method.statistics = "
            f"{' or '.join(fitting) or 'one that does'}"
        )


def _told(choice: Statistics, net: Network) -> set[str]:
    """The names of the statistics that all participants are told."""
    return set(choice.to_all(ServerView(choice.first(net, net.classes, 0))))


def _needs_one_beginning(drift: Drift | type[Drift]) -> bool:
    """Whether a correction needs all participants of a round to begin at the same model."""
    return drift.remembers or drift.gathers or drift.follows


def check_parts(method: Method, net: Network) -> None:
    """Refuse parts that the network does not have. The message names the key."""
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
    """Refuse a part that is unknown, empty, or frozen although it has to learn. `key`: the key for the message."""
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
