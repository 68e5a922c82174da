"""The player of a run's rounds: adds faults and simulated time, and can begin the next round ahead of time."""

from __future__ import annotations

from functools import partial

from torso.engine import Engine
from torso.engine.memory import patient_collector
from torso.errors import TorsoError
from torso.measure.analyses import round_analyses
from torso.personal.state import State
from torso.runs.events import Stop
from torso.runs.faults import faults_of
from torso.runs.features import FeaturePlan
from torso.runs.job import Job
from torso.runs.rounds import BegunRound, Round, begin_round, end_round
from torso.runs.speeds import hours_of
from torso.runs.stage import Stage

_OBJECTS = 20  # Python objects that a round creates and keeps for each participant, at most


class Player:
    """Plays the rounds of a run, one after the other."""

    def __init__(self, job: Job, features: FeaturePlan, stop: Stop) -> None:
        self.job = job
        self.features = features
        self.stop = stop
        self._ahead: BegunRound | None = None  # the next round, if it has begun already

    def play(self, engine: Engine, stage: Stage, state: State, attempt: int = 0) -> tuple[State, Round]:
        """Play the next round. Returns the new state and what happened. Raises the errors of `play_round`."""
        with patient_collector(_OBJECTS * self._participants(stage)):
            begun, self._ahead = self._ahead, None
            if begun is None or begun.state is not state:  # not begun, or begun from a state that proved wrong
                begun = self._begin(engine, stage, state, attempt)
            self._ahead = self.look_ahead(engine, begun)
            return end_round(begun)

    def _participants(self, stage: Stage) -> int:
        """The approximate number of participants of a round."""
        return int(self.job.roster.clients * (stage.train.fraction if stage.meets else 1))

    def _begin(self, engine: Engine, stage: Stage, state: State, attempt: int = 0) -> BegunRound:
        run, number = self.job.config.run, state.round + 1
        faults = partial(faults_of, run.faults, run.seed, number, attempt) if stage.meets else None
        hours = partial(hours_of, run.speeds, run.seed) if run.speeds.simulated else None
        place = self.features.rounds(engine, stage, state.server.model)
        return begin_round(stage, state, self.job.roster, place, run.seed, faults, hours)

    def look_ahead(self, engine: Engine, begun: BegunRound) -> BegunRound | None:
        """Begin the next round before the numbers of this one are read from the device, so that the device never idles.

        The next round is used if this one ends as expected (`begun.guess`). None if it cannot be begun: there is no
        expectation, this round is the last, or something is measured or analysed between the two."""
        after = begun.number + 1
        measure = self.job.config.measure
        measured = measure.every and begun.number % measure.every == 0
        if (
            begun.guess is None
            or after > self.job.rounds
            or measured
            or round_analyses(measure.analyses)
            or self.stop.asked
        ):
            return None
        stage = self.job.stage(after)
        if stage.first == after:
            return None
        try:
            return self._begin(engine, stage, begun.guess[0])
        except TorsoError:  # the round is then begun in its turn, which raises the error again
            return None
