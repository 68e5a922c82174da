"""Runs with canaries. All have the same data and initial weights; noise, client sampling and canaries differ.

Shapes: T rounds, c canaries per run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import torch

from torso.audit.bounds import Floats, Scores
from torso.audit.canaries import Canaries
from torso.engine import Batched, Engine, engines
from torso.errors import RequestError
from torso.learn.lockstep import Lockstep
from torso.parallel.packs import CLIENTS
from torso.personal.state import State
from torso.registry import chosen
from torso.runs.job import Simulation
from torso.runs.privacy import Privacy
from torso.runs.rounds import play_round
from torso.runs.stage import Stage
from torso.server import Mean

AuditorView = Literal["all", "last"]


@dataclass(frozen=True)
class Trace:
    """What the auditor observes of the canaries of one run."""

    seen: Floats  # [T, c]: each round's sum projected on each direction, in units of the clip; a participant adds 1
    present: tuple[bool, ...]  # [c]


@dataclass(frozen=True)
class Trials:
    """Runs the audited config many times, each time with other canaries."""

    job: Simulation  # of the audited config
    canaries: int  # per run

    def __post_init__(self) -> None:
        clients, stage = len(self.job.roster.training), self.job.plan[-1]
        if stage.privacy is None:
            raise RequestError(
                "an audit tests a private run, and privacy.noise, privacy.epsilon and privacy.clip are 0. "
                "Example: fedavg --set privacy.epsilon=8"
            )
        if len(self.job.plan) > 1:
            raise RequestError(
                f"method {self.job.config.method.name!r} has {len(self.job.plan)} stages, and an audit tests methods "
                "of one. Example: fedavg"
            )
        if stage.privacy.exchanges:
            raise RequestError(
                f"an audit looks for canaries in the sums of rounds, and method.start = {stage.method.start} has "
                "clients send something before the first. Accepted: fresh"
            )
        if stage.method.server != Mean() or not stage.privacy.poisson or stage.privacy.mechanism.adapts:
            raise RequestError(
                "an audit looks for canaries in the noised mean itself, sampled as the accountant's tight count "
                f"assumes; found {chosen('method.server', stage.method.server)}, privacy.sampling = "
                f"{stage.privacy.config.sampling!r}, privacy.quantile = {stage.privacy.config.quantile:g}. "
                "Accepted: mean, poisson, 0"
            )
        if not 0 < self.canaries < clients:
            raise RequestError(f"--canaries {self.canaries}: there are {clients} clients. Accepted: 1 to {clients - 1}")

    @property
    def stage(self) -> Stage:
        return self.job.plan[0]

    @property
    def privacy(self) -> Privacy:
        assert self.stage.privacy is not None
        return self.stage.privacy

    @property
    def pack(self) -> int:
        """How many runs are computed together: on an accelerator as many as fill a stack of clients, otherwise 1."""
        if self.job.device.type != "cuda":
            return 1
        participants = max(round(self.privacy.expected), 1)
        return max(CLIENTS // participants, 1)

    def traces(
        self, seeds: Sequence[int], told: Callable[[int], None] = lambda done: None, pack: int = 0
    ) -> Iterator[Trace]:
        """The trace of a run for each seed. `told` is called with the number of finished runs.

        `pack`: how many runs are computed together; 0: as many as `self.pack`."""
        pack = pack or self.pack
        for start in range(0, len(seeds), pack):
            chosen_seeds = seeds[start : start + pack]
            if len(chosen_seeds) == 1:
                yield self._run_alone(chosen_seeds[0])
            else:
                lockstep = Lockstep()
                outcomes = lockstep.run_all([partial(self._run_in_lockstep, seed, lockstep) for seed in chosen_seeds])
                for outcome in outcomes:
                    if isinstance(outcome, Exception):
                        raise outcome
                    yield outcome
            told(start + len(chosen_seeds))

    def _run_alone(self, seed: int) -> Trace:
        job, chosen = self._with_canaries(seed)
        run = job.config.run
        with engines[run.engine](job.net, job.federation, run) as engine:
            return self._play(job, chosen, engine, seed)

    def _run_in_lockstep(self, seed: int, lockstep: Lockstep) -> Trace:
        job, chosen = self._with_canaries(seed)
        run = job.config.run
        with Batched(job.net, job.federation, run.clients_at_once, run.precision, lockstep, run.compile) as engine:
            return self._play(job, chosen, engine, seed)

    def _with_canaries(self, seed: int) -> tuple[Simulation, Canaries]:
        like = {name: self.job.model[name] for name in self.stage.uploaded}
        chosen = Canaries.drawn(seed, self.job.roster.training, self.canaries, like, self.privacy.clip)
        return self.job.on(replace(self.job.federation, malicious=frozenset(chosen.clients))), chosen

    def _play(self, job: Simulation, chosen: Canaries, engine: Engine, seed: int) -> Trace:
        stage = replace(self.stage, attack=chosen, privacy=replace(self.privacy, seed=seed))
        state, seen = State.begin(job.model), []
        for _ in range(stage.rounds):
            before = state.server.model
            state, _ = play_round(stage, state, job.roster, engine, seed)
            seen.append(chosen.seen_in(before, state.server.model))
        moved = torch.stack(seen).double().cpu().numpy()
        return Trace(moved * self.privacy.expected / self.privacy.clip, chosen.present)


def scores_of(traces: Sequence[Trace], rate: float, noise: float, sees: AuditorView) -> Scores:
    """One score for each canary of each run.

    `sees` says what the auditor knows. With "all" it is the model after every round, and the score is the log
    likelihood ratio of the trace, with the canary against without it, as if there were no other clients. With "last" it
    is the first and the last model, and the score is the total change along the canary's direction.

    `rate`: the probability of a client to take part in a round. `noise`: the noise multiplier."""

    def score(seen: Floats) -> Floats:
        if sees == "last" or rate >= 1:  # if all clients take part, both scores rank canaries in the same order
            return np.asarray(seen.sum(axis=0))
        log_ratio = np.logaddexp(np.log1p(-rate), np.log(rate) + (seen - 0.5) / noise**2)
        return np.asarray(log_ratio.sum(axis=0))

    scores = np.concatenate([score(trace.seen) for trace in traces])
    present = np.concatenate([np.asarray(trace.present) for trace in traces])
    return Scores(scores[present], scores[~present])
