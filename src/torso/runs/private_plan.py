"""Which runs can be private: what they send must be covered by the clipped and noised sum, or is refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torso.config import Config
from torso.data import Roster
from torso.errors import RequestError
from torso.learn.drift import drifts
from torso.methods.starts import Finished, Fresh
from torso.runs.privacy import Privacy
from torso.runs.stages import Stage
from torso.server import servers


def private(config: Config, plan: tuple[Stage, ...], roster: Roster) -> tuple[Stage, ...]:
    """The stages with the privacy that the config asks for; raises RequestError where it cannot be given."""
    if not config.privacy.on:
        return plan
    for stage in plan:
        _check(stage)
    shared = [stage for stage in plan if stage.travels and stage.rounds]
    rounds = tuple(number for stage in shared for number in range(stage.first, stage.last + 1))
    clients = len(roster.training)
    _check_run(config, rounds, clients)
    privacy = Privacy(config.privacy, config.train.fraction, clients, rounds, config.run.seed)
    return tuple(replace(stage, privacy=privacy) if stage in shared else stage for stage in plan)


def settled(plan: Sequence[Stage]) -> Privacy | None:
    """The privacy of a run that is about to begin, with its noise found and everything checked."""
    found = next((stage.privacy for stage in plan if stage.privacy), None)
    if found:
        assert found.mechanism
        found.epsilon(found.rounds[-1])
    return found


def _check_run(config: Config, rounds: Sequence[int], clients: int) -> None:
    if not rounds:
        raise RequestError(
            f"privacy protects what travels in rounds, and nothing does with method {config.method.name!r}. "
            "Leave privacy out, or choose another method"
        )
    if config.train.min_clients > 1:
        raise RequestError(
            f"train.min_clients = {config.train.min_clients} repeats rounds that too few answer, and under privacy "
            "every round counts, however many come. Accepted: 1"
        )
    if clients < 2 and not config.privacy.delta:
        raise RequestError("privacy.delta = 0 is N^−1.1, and there is one client. Example: --set privacy.delta=0.001")


def _check(stage: Stage) -> None:
    """Refuse what would be sent, or kept by the server, beside the noised sum."""
    method = stage.method
    if not method.server.sees_only_mean:
        fine = ", ".join(sorted(name for name, kind in servers.items() if kind.sees_only_mean))
        raise RequestError(
            f"method.server = {method.server} looks at single uploads, which privacy hides. Accepted: {fine}"
        )
    if method.server.clip:
        raise RequestError(
            f"method.server.clip = {method.server.clip:g}: privacy clips updates itself. Accepted: "
            "method.server.clip = 0, with privacy.clip"
        )
    if method.drift.remembers or method.drift.gathers:
        free = ", ".join(sorted(name for name, kind in drifts.items() if not (kind.remembers or kind.gathers)))
        raise RequestError(
            f"method.drift = {method.drift} has the server learn of clients' memories, which privacy does not cover. "
            f"Accepted: {free}"
        )
    if method.personal.tells:
        raise RequestError(
            f"method.personal = {method.personal} tells the server about others' models, which privacy does not cover. "
            "Accepted: ones that tell nothing, such as fine-tune"
        )
    if not isinstance(method.start, Fresh | Finished):
        raise RequestError(
            f"method.start = {method.start} asks clients for sums before the first round, which privacy does not "
            "cover. Accepted: fresh, finished"
        )
