"""A run from its config to its result."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torso.config import Config
from torso.data import Federation
from torso.engine import ComeAndGo, Engine, EngineFactory, MayEndUs, engines, repairs
from torso.engine.memory import patient_collector, peak_memory_bytes
from torso.errors import CannotWrite, PlaceLost, RequestError, RunFailed, TorsoError
from torso.measure import Accuracy, evaluate_in_parts
from torso.measure.analyses import analyses, at_end, class_counts, over_rounds
from torso.personal.state import State
from torso.results.checkpoint import rounds_of
from torso.results.checksums import of_data, of_model
from torso.results.data_file import ACCEPT, DataFile, check_data, note_data, where_data_were
from torso.results.folder import RunFolder
from torso.results.result import Result, versions
from torso.runs.analyses import scene_of, watch_round
from torso.runs.checks import asks_first, remarks
from torso.runs.evaluation import evaluation_of
from torso.runs.events import Begin, Listener, Stop
from torso.runs.exchange import opened
from torso.runs.extending import extend
from torso.runs.faults import REFUSED, faults_of
from torso.runs.features import FeaturePlan, remark
from torso.runs.history_line import line_of
from torso.runs.inert import unread_keys
from torso.runs.job import Job, Simulation, data_of, simulate
from torso.runs.models import TrainedModels
from torso.runs.objects import OnRound, OnRoundCall, hand_over
from torso.runs.progress import is_shown, showing
from torso.runs.rounds import Begun, Round, TooFewAnswered, begin_round, end_round, named
from torso.runs.speeds import hours_of
from torso.runs.stages import Stage
from torso.runs.stopping import Stoppable

_ATTEMPTS = 10  # of a round that too few clients answer
_OBJECTS = 20  # of Python, at most, that a round leaves a participant


class Stopped(TorsoError):
    """Somebody asked the run to stop; it can be resumed where it has a folder. `whose`: which of several it was."""

    exit_status = 130
    whose = ""


def run(
    config: Config | Mapping[str, Any],
    out: str | Path | None = None,
    *,
    resume: bool = False,
    progress: bool | None = None,
    listener: Listener | None = None,
    stop: Stop | None = None,
    clients: Any = None,
    model: Any = None,
    on_round: OnRoundCall | None = None,
    federation: Federation | None = None,
    engine: EngineFactory | None = None,
    accept_changed_data: bool = False,
) -> Result:
    """Train, measure and record one experiment; `config` may be a mapping with the words of a `Config`.

    With `out` the run has a folder and can be resumed from it; without, it lives in memory. A finished run goes on
    where it is resumed with a larger `train.rounds`. A run is resumed with the data that it began with; others are
    refused, unless `accept_changed_data`.

    `clients`: your own, in place of `data.source`: a list or a dict by name of `(samples, labels)` or of Datasets, or
    `torso.Clients`. `model`: your own nn.Module, in place of `model.body`; its last linear layer is the head. To resume
    such a run, hand both over again. `on_round(round, accuracy)` is called after every round.

    `progress`: show a bar (on a terminal or in a notebook) or a line for each round (elsewhere) on the error stream. If
    you leave it out, a notebook shows it and a script does not. `listener`: an object of a class that derives from
    `torso.Listener`; the run calls its hooks, whether or not progress is shown.

    `federation` shares data that are loaded already between runs with equal `data.*` and `run.seed`. `engine` stands in
    for what `run.engine` names.
    """
    if is_shown(progress):
        with showing(listener) as heard:
            return run(
                config,
                out,
                resume=resume,
                progress=False,
                listener=heard,
                stop=stop,
                clients=clients,
                model=model,
                on_round=on_round,
                federation=federation,
                engine=engine,
                accept_changed_data=accept_changed_data,
            )
    handed = hand_over(Config.of(config), clients, model)
    config = handed.config
    if on_round is not None:
        listener = OnRound(listener or Listener(), on_round)
    folder = RunFolder.check(Path(out), config, resume, extend=True) if out is not None else None
    if resume and folder is None:
        raise RequestError("resume needs the folder of the run: out is None.")
    if folder and resume and folder.finished:
        return Result.read(folder.path)
    if federation is None:
        federation = data_of(where_data_were(folder.path, config) if folder and resume else config)
    changed = ""
    if folder and resume:
        how = f"torso run --out {shlex.quote(str(folder.path))} --resume {ACCEPT}"
        changed = check_data(folder.path, federation, accept=accept_changed_data, how=how)
    job = simulate(config, federation)
    if job.privacy:
        job.privacy.settle()
    make = engine or engines[config.run.engine]
    with make(job.net, job.federation, config.run) as place:
        if folder and not resume:
            folder.create()
        with folder.held() if folder else nullcontext():
            if folder and folder.finished:  # by another process, in the meantime
                return Result.read(folder.path)
            notes = _prepare_folder(folder, job, federation, changed) if folder else []
            folder = replace(folder, extends=0) if folder else None
            return play(job, place, folder, resume, listener, stop, notes=notes)


def _prepare_folder(folder: RunFolder, job: Simulation, federation: Federation, changed: str) -> list[str]:
    """Bring a folder that is held up to the run that begins or goes on in it; what a person should know of that."""
    notes = []
    if folder.extends:
        notes.append(extend(folder, job))
    if changed:
        notes.append(f"the data have changed since the run began, as you accept: {changed}")
    note_data(folder.path, job.config, federation)
    return notes


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
    """Train, measure and record a job whose clients an engine reaches, wherever they are; `folder` is one that is held,
    `command` what resumes such a run, `notes` what is told before the first round."""
    going = _Run(job, folder, listener or Listener(), stop or Stop(), command)
    try:
        return going.go(engine, resume, notes)
    except CannotWrite as failure:
        raise CannotWrite(f"{failure}. {going.left()}") from None


class _Run:
    """The loop over rounds, with its bookkeeping."""

    def __init__(self, job: Job, folder: RunFolder | None, listener: Listener, stop: Stop, command: str) -> None:
        self.job, self.folder, self.listener, self.stop, self.command = job, folder, listener, stop, command
        self.config = job.config
        self.state = State.begin(job.model)
        self.opened = False  # whether the state is past what comes before the first round
        self.seconds = {"train": 0.0, "measure": 0.0}
        self.analysed: dict[int, dict[str, Any]] = {}  # entries of the analyses of rounds, by round
        self.refused: set[int] = set()  # clients whose uploads were not used
        self.counts: dict[str, Any] = {}  # training samples of each client and class, where they are told
        self.peak_memory: int | None = None
        self.features = FeaturePlan(job, self.listener.note)
        self._ahead: Begun | None = None  # the next round, if it has begun

    def go(self, engine: Engine, resume: bool, notes: Sequence[str] = ()) -> Result:
        note = self._resume() if resume else ""
        config, job = self.config, self.job
        self.listener.begin(
            Begin(
                config.method.name,
                config.run.seed,
                job.roster.clients,
                job.rounds,
                self.state.round,
                self.folder.path if self.folder else None,
                note,
            )
        )
        said = remarks(config, job.roster, job.net)
        protected = job.privacy.notes() if job.privacy else ()
        for line in (*notes, *protected, *job.notes, *said, *remark(job), *unread_keys(config, job.plan)):
            self.listener.note(line)
        status, accuracy, found, self.stop.when = "ok", {}, {}, Stop.ROUND
        try:
            if isinstance(engine, MayEndUs):
                engine.last_words(self._if_ended())
            if not self.opened:
                self._heed()
                self._open(engine)
            while self.state.round < job.rounds:
                self._round(engine)
            self.stop.when, stoppable = Stop.MEASURE, Stoppable(engine, self._heed)
            self.listener.measuring(len(job.measured_clients))
            accuracy = self._measure(stoppable, config.measure.names)
            found = self._analyse(stoppable)
        except RunFailed as failure:
            status = f"failed: {failure}"
        except PlaceLost as lost:
            if self.stop.asked:
                raise Stopped(self._interrupted()) from None
            raise PlaceLost(f"{lost}. {self._interrupted()}") from None
        self._note(engine)
        self.counts = class_counts(engine, job.roster)
        self.state = State(self.state.server, self.state.clients.here())  # a cluster's workers end with the engine
        return self._finish(status, accuracy, found)

    def _resume(self) -> str:
        assert self.folder is not None
        self.seconds["train"] = sum((line["seconds"] for line in self.folder.history()), 0.0)
        broken = self.folder.broken()  # before the history is written anew
        found = self.folder.resume(self.job.model)
        self.analysed = {line["round"]: line["analyses"] for line in self.folder.history() if "analyses" in line}
        if found is None:
            return "no checkpoint yet: from the first round"
        self.state, self.opened = found.state, True
        skipped = "".join(f"; {reason}, passed over" for reason in (*found.skipped, *broken))
        return f"continuing after round {found.state.round}, from {found.path}{skipped}"

    def _open(self, engine: Engine) -> None:
        """What comes before the first round."""
        for stage in self.job.plan:
            if stage.first == 1:  # several, where those before have no rounds (FedNCM)
                self._begin_stage(engine, stage)
        if self.folder and (self.job.rounds == 0 or self._asked_once()):
            self.folder.save(self.state)

    def _asked_once(self) -> bool:
        """Whether clients have been asked something that they must not be asked again: a second answer of others would
        cost privacy once more, and a second sum of others would show, by the difference, what single ones sent."""
        once = self.job.privacy is not None or self.config.run.flower.secure.kind != "none"
        return once and any(asks_first(stage, self.job.roster) for stage in self.job.plan)

    def _begin_stage(self, engine: Engine, stage: Stage) -> None:
        config, state = self.config, self.state
        asked = self.features.opening(engine, stage, state.server.model)
        begun = opened(stage, state.server, self.job.roster, asked, config.measure.batch_size, config.run.seed)
        self.state = State(begun, state.clients)

    def _round(self, engine: Engine) -> None:
        began = time.perf_counter()
        stage = self.job.stage(self.state.round + 1)
        if 1 < self.state.round + 1 == stage.first:  # a new stage begins at the model alone
            self.state = self.state.at_new_stage()
            self._begin_stage(engine, stage)
        before = self.state
        self.state, played = self._play(engine, stage)
        self._name_refused(engine, played)
        seconds = time.perf_counter() - began
        self.seconds["train"] += seconds
        if stage.privacy:
            played = replace(played, privacy=stage.privacy.so_far(played.round, self.state.server.privacy))
        every, last = self.config.measure.every, played.round == self.job.rounds
        due = every and played.round % every == 0 and not last
        accuracy = self._measure(engine, self.config.measure.during) if due else {}
        self._watch(engine, before, played)
        self._record(played, seconds, accuracy, last, self._note(engine))
        self.listener.round(played, seconds, accuracy)
        self._heed()

    def _play(self, engine: Engine, stage: Stage) -> tuple[State, Round]:
        """A round that too few clients have answered has not happened: it is played again, a few times."""
        for attempt in range(_ATTEMPTS):
            try:
                with patient_collector(_OBJECTS * self._expected(stage)):
                    ahead, self._ahead = self._ahead, None
                    known = ahead is not None and ahead.state is self.state
                    begun = ahead if ahead and known else self._begin(engine, stage, self.state, attempt)
                    self._ahead = self._look_ahead(engine, begun)
                    return end_round(begun)
            except TooFewAnswered as few:
                self._note(engine)
                self.listener.note(f"{few}: once more")
                reason = str(few)
            self._heed()
        raise PlaceLost(f"{reason}, {_ATTEMPTS} times in a row")

    def _expected(self, stage: Stage) -> int:
        """About as many participants as a round has."""
        return int(self.job.roster.clients * (stage.train.fraction if stage.meets else 1))

    def _begin(self, engine: Engine, stage: Stage, state: State, attempt: int = 0) -> Begun:
        run, number = self.config.run, state.round + 1
        faults = partial(faults_of, run.faults, run.seed, number, attempt) if stage.meets else None
        hours = partial(hours_of, run.speeds, run.seed) if run.speeds.simulated else None
        place = self.features.rounds(engine, stage, state.server.model)
        return begin_round(stage, state, self.job.roster, place, run.seed, faults, hours)

    def _look_ahead(self, engine: Engine, begun: Begun) -> Begun | None:
        """The next round, asked of the device before the numbers of this one are read, so that neither waits for the
        other. It counts if this one ends as it was guessed, and nothing else comes between them."""
        after, every = begun.number + 1, self.config.measure.every
        if begun.guess is None or after > self.job.rounds or (every and begun.number % every == 0) or self.stop.asked:
            return None
        stage = self.job.stage(after)
        if stage.first == after or any(analyses[name].when == "round" for name in self.config.measure.analyses):
            return None
        try:
            return self._begin(engine, stage, begun.guess[0])
        except TorsoError:  # it is raised when its turn comes
            return None

    def _name_refused(self, engine: Engine, played: Round) -> None:
        """Whose uploads are not used, when that happens for the first time; a real federation names them itself."""
        first = {k: kind for k, kind in played.why.items() if kind in REFUSED and k not in self.refused}
        self.refused |= first.keys()
        if first and not isinstance(engine, ComeAndGo):
            kinds = ", ".join(sorted(set(first.values())))
            who = named(sorted(first))
            self.listener.note(
                f"round {played.round}: what {who} sent is not used ({kinds}). The round goes on with the others"
            )

    def _heed(self) -> None:
        """End here if somebody wants that; after the last round, what is left is to measure."""
        if self.stop.asked:
            raise Stopped(self._interrupted())

    def _note(self, engine: Engine) -> tuple[str, ...]:
        """What the engine had to do again."""
        notes = engine.repaired() if repairs(engine) else ()
        for note in notes:
            self.listener.note(note)
        return notes

    def _record(
        self, played: Round, seconds: float, accuracy: Mapping[str, Accuracy], last: bool, replaced: tuple[str, ...]
    ) -> None:
        if self.folder is None:
            return
        line = line_of(played, seconds, accuracy, replaced, self.analysed.get(played.round))
        self.folder.append(line)
        every = self.config.run.checkpoint_every
        if last or (every and played.round % every == 0):
            self.folder.save(self.state)

    def _interrupted(self) -> str:
        """Where the run stands when it ends early, with a checkpoint if there is a folder for one."""
        measuring = ", before all was measured" if self.state.round == self.job.rounds else ""
        where = f"stopped after round {self.state.round} of {self.job.rounds}{measuring}"
        if self.folder is None:
            return f"{where}; without a folder there is nothing to resume"
        left = ""
        try:
            if self.opened or self.state.round:
                self.folder.save(self.state)
                left = ", with a checkpoint"
        except PlaceLost:  # what clients held
            left = "; what came after the last checkpoint is lost"
        return f"{where}{left}. Continue with: {self._again()}"

    def left(self) -> str:
        """What is left of a run whose folder cannot be written any more."""
        if self.folder is None:
            return f"stopped after round {self.state.round} of {self.job.rounds}"
        kept = rounds_of(self.folder.path / "checkpoints")
        newest = f"The checkpoint of round {kept[-1]} is kept" if kept else "There is no checkpoint yet"
        return f"{newest}. Make room, then continue with: {self._again()}"

    def _if_ended(self) -> str:
        """What is left of a run whose process is ended at once."""
        if self.folder is None:
            return "Without a folder there is nothing to resume"
        return f"Checkpoints are kept. Continue with: {self._again()}"

    def _again(self) -> str:
        assert self.folder is not None
        folder, config = (shlex.quote(str(path)) for path in (self.folder.path, self.folder.path / "config.toml"))
        return f"{self.command} {config} --out {folder} --resume"

    def _measure(self, engine: Engine, names: tuple[str, ...]) -> dict[str, Accuracy]:
        self._note_memory()  # of training: the peak may be counted anew when something else begins
        began = time.perf_counter()
        job, state = self.job, self.state
        stage = job.stage(state.round)
        how, reported = evaluation_of(job, stage, state), state.reported
        parts = self.features.measuring(engine, stage, reported.model, names, how)
        found = evaluate_in_parts(parts, job.roster, reported, how, job.measured_clients)
        self._took(began)
        return found

    def _took(self, began: float) -> None:
        self.seconds["measure"] += time.perf_counter() - began
        self._note_memory()

    def _note_memory(self) -> None:
        used = peak_memory_bytes(self.job.device)
        self.peak_memory = max(used, self.peak_memory or 0) if used else None

    def _watch(self, engine: Engine, before: State, played: Round) -> None:
        began = time.perf_counter()
        if found := watch_round(self.job, engine, before, self.state, played):
            self.analysed[played.round] = found
            self._took(began)

    def _analyse(self, engine: Engine) -> dict[str, Any]:
        began = time.perf_counter()
        found = at_end(self.config.measure.analyses, scene_of(self.job, self.state, engine))
        self._took(began)
        return found

    def _checksums(self) -> dict[str, str]:
        """Of a run that leaves a folder: what its numbers were made of."""
        if self.folder is None:
            return {}
        data = DataFile.read(self.folder.path)  # none where clients keep their data to themselves
        return {**({"data": of_data(data.fingerprint)} if data else {}), "model": of_model(self.state)}

    def _finish(self, status: str, accuracy: Mapping[str, Accuracy], found: Mapping[str, Any]) -> Result:
        config, seconds, privacy = self.config, self.seconds, self.job.privacy
        self._note_memory()
        result = Result(
            method=config.method.name,
            dataset=self.job.roster.name,
            model=config.model.body,
            seed=config.run.seed,
            rounds=self.state.round,
            status=status,
            accuracy=accuracy,
            cost=self.state.cost,
            seconds={**seconds, "total": sum(seconds.values())},
            versions=versions(),
            peak_memory_bytes=self.peak_memory,
            malicious=tuple(sorted(self.job.roster.malicious)),
            names=self.job.roster.names,
            class_names=self.job.roster.class_names,
            privacy=privacy.as_json(self.state.round, self.state.server.privacy) if privacy else {},
            sha256=self._checksums(),
            analyses={**self.counts, **over_rounds(self.analysed), **found},
            folder=self.folder.path if self.folder else None,
            models=TrainedModels(self.job, self.state) if isinstance(self.job, Simulation) else None,
        )
        if self.folder:
            self.folder.finish(result)
        self.listener.end(result)
        return result
