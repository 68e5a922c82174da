"""Add differential privacy to a run's stages. A method that sends more than the clipped, noised sum is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch.nn.modules.batchnorm import _BatchNorm

from torso.config import Config
from torso.data import Roster
from torso.errors import RequestError
from torso.learn.drift import Drift, drifts
from torso.methods.starts import ClassMeans, Finished, Fresh
from torso.nets import Network
from torso.registry import chosen
from torso.runs.privacy import Privacy
from torso.runs.stage import Stage
from torso.server import servers
from torso.server.rules import ServerRule
from torso.server.statistics import Statistics, words


def private(config: Config, plan: tuple[Stage, ...], roster: Roster) -> tuple[Stage, ...]:
    """The stages with the privacy that the config asks for. Raises RequestError if a stage cannot be private."""
    if not config.privacy.on:
        return plan
    for stage in plan:
        _check(stage)
    rounds = tuple(r for stage in plan if _sends(stage) for r in range(stage.first, stage.last + 1))
    exchanges = tuple(stage.first for stage in plan if isinstance(stage.method.start, ClassMeans))
    clients = len(roster.training)
    _check_run(config, (*rounds, *exchanges), clients)
    privacy = Privacy(
        config.privacy,
        config.train.fraction,
        clients,
        rounds,
        exchanges,
        config.run.seed,
        variances_of(plan[0].net),
        max((_numbers(stage) for stage in plan if _sends(stage)), default=0),
    )
    return tuple(replace(stage, privacy=privacy) if _sends(stage) else stage for stage in plan)


def _numbers(stage: Stage) -> int:
    """The number of values of the model that a client sends in a round."""
    model = stage.net.state_dict()
    return sum(model[name].numel() for name in stage.travels if model[name].is_floating_point())


def _sends(stage: Stage) -> bool:
    """Whether clients send something in the stage's rounds. They do not if only the server trains."""
    return bool(stage.travels and stage.plan(stage.first))


def variances_of(net: Network) -> frozenset[str]:
    """The names of the running variances of BatchNorm layers."""
    return frozenset(
        f"{where}.running_var"
        for where, module in net.named_modules()
        if isinstance(module, _BatchNorm) and module.running_var is not None
    )


def _check_run(config: Config, releases: Sequence[int], clients: int) -> None:
    """Refuse settings of the run that contradict privacy."""
    if not releases:
        raise RequestError(
            f"privacy protects what travels, and nothing does with method {config.method.name!r}. "
            "Leave privacy out, or choose another method"
        )
    if config.run.flower.secure.kind != "none":  # checked first, since it needs min_clients, which is refused below
        raise RequestError(
            f"run.flower.secure.kind = {config.run.flower.secure.kind!r} shows the server sums only, and privacy has "
            "it clip single uploads. Accepted: one of the two"
        )
    if config.train.min_clients > 1:
        raise RequestError(
            f"train.min_clients = {config.train.min_clients} repeats rounds that too few answer, and under privacy "
            "every round counts, however many answer. Accepted: 1"
        )
    if clients < 2 and not config.privacy.delta:
        raise RequestError("privacy.delta = 0 is N^−1.1, and there is one client. Example: --set privacy.delta=0.001")


def _check(stage: Stage) -> None:
    """Refuse a method that sends, or has the server keep, more than the noised sum."""
    method = stage.method
    if not _only_mean(method.server):
        fine = ", ".join(sorted(name for name, kind in servers.items() if _only_mean(kind)))
        raise RequestError(
            f"{chosen('method.server', method.server)} looks at single uploads, and with privacy the server has only "
            f"their sum. Accepted: {fine}"
        )
    if method.server.clip:
        raise RequestError(
            f"method.server.clip = {method.server.clip:g}: privacy clips updates itself. Accepted: "
            "method.server.clip = 0, with privacy.clip"
        )
    if _tells(method.drift):
        free = ", ".join(sorted(name for name, kind in drifts.items() if not _tells(kind)))
        raise RequestError(
            f"{chosen('method.drift', method.drift)} has the server keep something of single clients, which privacy "
            f"does not cover. Accepted: {free}"
        )
    if method.personal.declares(1):
        raise RequestError(
            f"{chosen('method.personal', method.personal)} tells the server about others' models, which privacy does "
            "not cover. Accepted: ones that tell nothing, such as fine-tune"
        )
    what = _beside(stage)
    if what:
        raise RequestError(
            f"{chosen('method.statistics', method.statistics)} needs more than the noised sum of models ({what}), "
            "which privacy does not cover. Accepted: none"
        )
    _check_start(stage)


def _beside(stage: Stage) -> str:
    """What statistics need in addition to the noised sum of models, in words. Empty if they need nothing else."""
    kind = stage.method.statistics
    if kind.mixes or kind.needs_uploads:
        return words(stage.declared()) or "models of single clients' own"
    if type(kind).combine is not Statistics.combine:  # its arguments show who took part
        return words(stage.declared()) or "who took part"
    return words(stage.declared())


def _only_mean(rule: ServerRule | type[ServerRule]) -> bool:
    """Whether a rule uses nothing but the mean.

    `sees_only_mean` may be inherited by a rule that needs more, so the other flags are checked too."""
    return rule.sees_only_mean and not (rule.needs_each or rule.keeps_uploads or rule.uses_squares)


def _tells(drift: Drift | type[Drift]) -> bool:
    """Whether a drift correction tells the server more about clients than their shared parts."""
    return drift.remembers or drift.sends or drift.gathers or drift.follows


def _check_start(stage: Stage) -> None:
    start = stage.method.start
    if isinstance(start, ClassMeans) and start.metric == "euclidean":
        raise RequestError(
            "method.start.metric = 'euclidean' needs the lengths of class means, and under privacy clients send "
            "directions alone. Accepted: direction"
        )
    if isinstance(start, ClassMeans) and not _sends(stage):
        raise RequestError(
            f"{chosen('method.start', start)} asks clients for class sums, and with "
            f"method.share = {stage.method.share.part!r} they send nothing after that. Accepted with "
            "privacy: a part that clients train"
        )
    if type(start) not in (Fresh, Finished, ClassMeans):
        raise RequestError(
            f"{chosen('method.start', start)} asks clients for something before the first round, which privacy "
            "does not cover. Accepted: fresh, finished, class-means"
        )
    if isinstance(start, Finished) and start.run:
        raise RequestError(
            f"method.start.run = {start.run!r} begins at a model that clients have trained in another run, whose cost "
            "is not counted. Accepted with privacy: method.start.method, which is trained in the same run"
        )
