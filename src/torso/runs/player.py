"""The rounds of a run as they are played: with their faults and simulated hours, and the next one begun ahead."""

from __future__ import annotations

from functools import partial

from torso.engine import Engine
from torso.engine.memory import patient_collector
from torso.errors import TorsoError
from torso.measure.analyses import of_rounds
from torso.personal.state import State
from torso.runs.events import Stop
from torso.runs.faults import faults_of
from torso.runs.features import FeaturePlan
from torso.runs.job import Job
from torso.runs.rounds import Begun, Round, begin_round, end_round
from torso.runs.speeds import hours_of
from torso.runs.stage import Stage

_OBJECTS = 20  # of Python, at most, that a round leaves a participant


class Player:
    """Plays one round after the other."""

    def __init__(self, job: Job, features: FeaturePlan, stop: Stop) -> None:
        self.job, self.features, self.stop = job, features, stop
        self._ahead: Begun | None = None  # the next round, if it has begun

    def play(self, engine: Engine, stage: Stage, state: State, attempt: int = 0) -> tuple[State, Round]:
        """The next state, and what happened; raises what `play_round` does."""
        with patient_collector(_OBJECTS * self._participants(stage)):
            ahead, self._ahead = self._ahead, None
            fits = ahead is not None and ahead.state is state
            begun = ahead if ahead and fits else self._begin(engine, stage, state, attempt)
            self._ahead = self.look_ahead(engine, begun)
            return end_round(begun)

    def _participants(self, stage: Stage) -> int:
        """About as many as a round has."""
        return int(self.job.roster.clients * (stage.train.fraction if stage.meets else 1))

    def _begin(self, engine: Engine, stage: Stage, state: State, attempt: int = 0) -> Begun:
        run, number = self.job.config.run, state.round + 1
        faults = partial(faults_of, run.faults, run.seed, number, attempt) if stage.meets else None
        hours = partial(hours_of, run.speeds, run.seed) if run.speeds.simulated else None
        place = self.features.rounds(engine, stage, state.server.model)
        return begin_round(stage, state, self.job.roster, place, run.seed, faults, hours)

    def look_ahead(self, engine: Engine, begun: Begun) -> Begun | None:
        """The next round, asked of the device before the numbers of this one are read, so that neither waits for the
        other. It counts if this one ends as it was guessed, and nothing else comes between them."""
        after, measure = begun.number + 1, self.job.config.measure
        measured = measure.every and begun.number % measure.every == 0
        if begun.guess is None or after > self.job.rounds or measured or of_rounds(measure.analyses) or self.stop.asked:
            return None
        stage = self.job.stage(after)
        if stage.first == after:
            return None
        try:
            return self._begin(engine, stage, begun.guess[0])
        except TorsoError:  # it is raised when its turn comes
            return None
