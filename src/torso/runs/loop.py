"""The loop of a run: start or resume, play the rounds, measure, write the result."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torso.engine import Engine, HasAvailability, SupportsExitMessage, supports_repair
from torso.errors import CannotWrite, DeviceFull, NoWorkerLeft, RunFailed
from torso.measure import Accuracy, evaluate_in_parts
from torso.measure.analyses import analyse_end, class_counts, round_analyses
from torso.personal.state import State
from torso.results.folder import RunFolder
from torso.results.result import Result
from torso.runs.analyses import snapshot_of, watch_round
from torso.runs.checks import asks_first, remarks
from torso.runs.ending import Ending, Stopped
from torso.runs.evaluation import evaluation_of
from torso.runs.events import Begin, Listener, Stop
from torso.runs.exchange import state_after_start
from torso.runs.faults import REFUSED
from torso.runs.features import FeaturePlan, remark
from torso.runs.job import Job
from torso.runs.player import Player
from torso.runs.record import Record
from torso.runs.rounds import Round, TooFewAnswered, named
from torso.runs.stage import Stage
from torso.runs.stopping import Stoppable
from torso.runs.unused_keys import unread_keys

_ATTEMPTS = 10  # how often a round is played if too few clients answer


def play(
    job: Job,
    engine: Engine,
    folder: RunFolder | None = None,
    resume: bool = False,
    listener: Listener | None = None,
    stop: Stop | None = None,
    command: str = "torso run",
    notes: Sequence[str] = (),
) -> Result:
    """Train, measure and record a job whose clients an engine reaches, wherever they are.

    `folder`: the run's folder, which the caller has locked. `command`: the command that resumes the run. `notes`:
    messages for the user before the first round."""
    loop = Loop(job, folder, listener or Listener(), stop or Stop(), command)
    try:
        return loop.go(engine, resume, notes)
    except CannotWrite as failure:
        raise CannotWrite(f"{failure}. {loop.ending.unwritable(loop.state)}") from None


class Loop:
    """One run from its first round, or from its newest checkpoint, to its result."""

    def __init__(
        self,
        job: Job,
        folder: RunFolder | None = None,
        listener: Listener | None = None,
        stop: Stop | None = None,
        command: str = "torso run",
    ) -> None:
        self.job = job
        self.config = job.config
        self.folder = folder
        self.listener = listener or Listener()
        self.stop = stop or Stop()
        self.state = State.begin(job.model)
        self.opened = False  # whether the start of the method, which comes before the first round, is done
        self.record = Record(job, folder)
        self.ending = Ending(folder, job.rounds, command)
        self.features = FeaturePlan(job, self.listener.note)
        self.player = Player(job, self.features, self.stop)
        self._refused: set[int] = set()  # clients whose uploads were not used

    def go(self, engine: Engine, resume: bool = False, notes: Sequence[str] = ()) -> Result:
        """Do the whole run. A failure of the training is a result too; a stop is raised."""
        self._announce(self._resume() if resume else "", notes)
        status = "ok"
        accuracy: dict[str, Accuracy] = {}
        found: dict[str, Any] = {}
        self.stop.when = Stop.ROUND
        try:
            if isinstance(engine, SupportsExitMessage):
                engine.set_exit_message(self.ending.at_once())
            if not self.opened:
                self._heed()
                self._open(engine)
            while self.state.round < self.job.rounds:
                self.round(engine)
            self.stop.when = Stop.MEASURE
            stoppable = Stoppable(engine, self._heed)
            self.listener.measuring(len(self.job.measured_clients))
            accuracy = self._measure(stoppable, self.config.measure.names)
            found = self._analyse(stoppable)
        except RunFailed as failure:
            status = f"failed: {failure}"
        except (NoWorkerLeft, DeviceFull) as lost:
            stopped = self.ending.stopped(self.state, self.opened)
            if self.stop.asked:
                raise Stopped(stopped) from None
            raise type(lost)(f"{lost}. {stopped}") from None
        self._note(engine)
        self.record.counts = class_counts(engine, self.job.roster)
        self.state = State(self.state.server, self.state.clients.here())  # fetched now: workers end with the engine
        result = self.record.finish(self.state, status, accuracy, found)
        self.listener.end(result)
        return result

    def _resume(self) -> str:
        """Load the newest checkpoint. Returns a note that says where the run continues."""
        state, note = self.record.resume()
        if state is not None:
            self.state = state
            self.opened = True
        return note

    def _announce(self, note: str, notes: Sequence[str]) -> None:
        """Tell listeners that the run begins, with all notes. `note`: where a resumed run continues."""
        config, job = self.config, self.job
        begin = Begin(
            method=config.method.name,
            seed=config.run.seed,
            clients=job.roster.clients,
            rounds=job.rounds,
            done=self.state.round,
            folder=self.folder.path if self.folder else None,
            note=note,
        )
        self.listener.begin(begin)
        said = remarks(config, job.roster, job.net)
        protected = job.privacy.notes() if job.privacy else ()
        for line in (*notes, *protected, *job.notes, *said, *remark(job), *unread_keys(config, job.plan)):
            self.listener.note(line)

    def _open(self, engine: Engine) -> None:
        """Do what comes before the first round."""
        for stage in self.job.plan:
            if stage.first == 1:  # several stages begin at round 1 if the earlier ones have no rounds (FedNCM)
                self._begin_stage(engine, stage)
        if self.folder and (self.job.rounds == 0 or self._asked_once()):
            self.folder.save(self.state)

    def _asked_once(self) -> bool:
        """Whether clients have answered something that they must not be asked again when the run is resumed.

        With privacy, a second answer would spend privacy again. With secure aggregation, a second sum over other
        clients would show the answers of single clients by the difference."""
        once = self.job.privacy is not None or self.config.run.flower.secure.kind != "none"
        return once and any(asks_first(stage, self.job.roster) for stage in self.job.plan)

    def _begin_stage(self, engine: Engine, stage: Stage) -> None:
        """Carry out the start of a stage's method."""
        config, state = self.config, self.state
        place = self.features.opening(engine, stage, state.server.model)
        begun = state_after_start(
            stage, state.server, self.job.roster, place, config.measure.batch_size, config.run.seed
        )
        self.state = State(begun, state.clients)

    def round(self, engine: Engine) -> None:
        """Play the next round, measure and analyse it if that is due, and record it."""
        began = time.perf_counter()
        stage = self.job.stage(self.state.round + 1)
        if 1 < self.state.round + 1 == stage.first:  # a new stage takes over nothing but the model
            self.state = self.state.at_new_stage()
            self._begin_stage(engine, stage)
        before = self.state
        self.state, played = self._play(engine, stage)
        self._name_refused(engine, played)
        seconds = time.perf_counter() - began
        self.record.seconds["train"] += seconds
        if stage.privacy:
            played = replace(played, privacy=stage.privacy.so_far(played.round, self.state.server.privacy))
        every = self.config.measure.every
        is_last = played.round == self.job.rounds
        is_due = every and played.round % every == 0 and not is_last
        accuracy = self._measure(engine, self.config.measure.during) if is_due else {}
        self._watch(engine, before, played)
        self.record.round(played, self.state, seconds, accuracy, self._note(engine))
        self.listener.round(played, seconds, accuracy)
        self._heed()

    def _play(self, engine: Engine, stage: Stage) -> tuple[State, Round]:
        """Play a round. If too few clients answer, nothing has changed, and the round is played again, a few times."""
        for attempt in range(_ATTEMPTS):
            try:
                return self.player.play(engine, stage, self.state, attempt)
            except TooFewAnswered as few:
                self._note(engine)
                self.listener.note(f"{few}: once more")
                reason = str(few)
            self._heed()
        raise NoWorkerLeft(f"{reason}, {_ATTEMPTS} times in a row")

    def _name_refused(self, engine: Engine, played: Round) -> None:
        """Tell listeners whose uploads are not used, once for each client. A real federation does that itself."""
        first = {k: kind for k, kind in played.why.items() if kind in REFUSED and k not in self._refused}
        self._refused |= first.keys()
        if first and not isinstance(engine, HasAvailability):
            kinds = ", ".join(sorted(set(first.values())))
            who = named(sorted(first))
            self.listener.note(
                f"round {played.round}: what {who} sent is not used ({kinds}). The round goes on with the others"
            )

    def _heed(self) -> None:
        """Raise Stopped if the user has asked for it."""
        if self.stop.asked:
            raise Stopped(self.ending.stopped(self.state, self.opened))

    def _note(self, engine: Engine) -> tuple[str, ...]:
        """Tell listeners what the engine had to do again."""
        notes = engine.repaired() if supports_repair(engine) else ()
        for note in notes:
            self.listener.note(note)
        return notes

    def _measure(self, engine: Engine, names: tuple[str, ...]) -> dict[str, Accuracy]:
        """The measures of these names at the current state."""
        job, state = self.job, self.state
        with self.record.measuring():
            stage = job.stage(state.round)
            how = evaluation_of(job, stage, state)
            reported = state.reported
            parts = self.features.measuring(engine, stage, reported.model, names, how)
            return evaluate_in_parts(parts, job.roster, reported, how, job.measured_clients)

    def _watch(self, engine: Engine, before: State, played: Round) -> None:
        """Record the analyses of this round, if any are due."""
        if not round_analyses(self.config.measure.analyses):
            return
        with self.record.measuring():
            found = watch_round(self.job, engine, before, self.state, played)
            if found:
                self.record.analysed[played.round] = found

    def _analyse(self, engine: Engine) -> dict[str, Any]:
        """The analyses of the trained federation."""
        with self.record.measuring():
            return analyse_end(self.config.measure.analyses, snapshot_of(self.job, self.state, engine))
