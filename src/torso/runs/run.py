"""A run from its config to its result."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torso import data, nets
from torso.config import Config, RunConfig
from torso.data import Federation
from torso.data.attacks import attacked
from torso.data.batches import Shuffle
from torso.engine import Engine, EngineFactory, Repairs, engines
from torso.engine.memory import peak_memory_bytes
from torso.errors import PlaceLost, RequestError, RunFailed, TorsoError
from torso.measure import Accuracy, Evaluation, evaluate
from torso.measure.analyses import at_end, class_counts, over_rounds
from torso.methods import ClassMeans, Finished
from torso.nets import Network, Tensors, check_stacking
from torso.randomness import numpy_generator
from torso.runs.analysing import scene_of, watch_round
from torso.runs.checking import check_attack, check_measures, check_reach, remarks
from torso.runs.checkpoint import load_body, load_newest
from torso.runs.evaluation import evaluation_of
from torso.runs.events import Begin, Listener, Stop
from torso.runs.folder import RunFolder
from torso.runs.heeding import Heeding
from torso.runs.opening import ClassSums, linear_of, open_with_class_means
from torso.runs.result import Result, versions
from torso.runs.rounds import Round, play_round
from torso.runs.stages import Stage, check_server_data, stages
from torso.runs.state import State


class Stopped(TorsoError):
    """Somebody asked the run to stop; it can be resumed where it has a folder."""

    exit_status = 130


def run(
    config: Config | Mapping[str, Any],
    out: str | Path | None = None,
    *,
    resume: bool = False,
    listener: Listener | None = None,
    stop: Stop | None = None,
    federation: Federation | None = None,
    engine: EngineFactory | None = None,
) -> Result:
    """Train, measure and record one experiment; `config` may be a mapping with the words of a `Config`.

    With `out` the run has a folder and can be resumed from it; without, it lives in memory. `federation` shares data
    that are loaded already between runs with equal `data.*` and `run.seed`. `engine` stands in for what `run.engine`
    names.
    """
    config = Config.of(config)
    folder = RunFolder.check(Path(out), config, resume) if out is not None else None
    if resume and folder is None:
        raise RequestError("resume needs the folder of the run: out is None.")
    if folder and resume and folder.finished:
        return Result.read(folder.path)
    job = prepare(config, federation)
    make = engine or engines[config.run.engine]
    with make(job.net, job.federation, config.run) as place:
        if folder and not resume:
            folder.create()
        with folder.held() if folder else nullcontext():
            if folder and folder.finished:  # by another process, in the meantime
                return Result.read(folder.path)
            return _Run(job, folder, listener or Listener(), stop or Stop()).go(place, resume)


@dataclass(frozen=True)
class Job:
    """A config with its data and network: all that can be wrong with a request has been found by now."""

    config: Config
    federation: Federation
    net: Network
    plan: tuple[Stage, ...]
    model: Tensors  # initial, on the run's device

    @property
    def rounds(self) -> int:
        return self.plan[-1].last

    def stage(self, round: int) -> Stage:
        """Whose round it is (0: before the first); where there are none (FedNCM), the last stage's."""
        at = max(round, 1)
        return next((stage for stage in self.plan if stage.first <= at <= stage.last), self.plan[-1])

    def evaluation(self, stage: Stage, state: State) -> Evaluation:
        return evaluation_of(self, stage, state)

    @cached_property
    def measured_clients(self) -> tuple[int, ...]:
        """All training clients, whether or not they ever took part, or as many as `measure.clients` says."""
        known = np.setdiff1d(np.arange(self.federation.clients), self.federation.newcomers, assume_unique=True)
        limit = self.config.measure.clients
        if limit and limit < len(known):
            known = np.sort(numpy_generator(self.config.run.seed, "measured").choice(known, limit, replace=False))
        return tuple(known.tolist())


def data_of(config: Config, shelf: data.Shelf | None = None) -> Federation:
    """The clients of a run, on its device; `shelf` keeps what was read for the next."""
    return data.build(config.data, config.run.seed, device_of(config.run), shelf)


def prepare(config: Config, federation: Federation | None = None, *, begins: bool = True) -> Job:
    """Read the data, build the network, work the method out; raises RequestError and writes nothing.

    `begins`: whether the weights are wanted that the run begins with, where they come from files."""
    federation = federation or data_of(config)
    device = _where(federation, config.run)
    federation = attacked(federation, config.attack, config.run.seed)
    net = nets.build(
        body=config.model.body,
        classes=federation.classes,
        image=federation.image,
        head=config.method.head,
        head_init=config.model.head_init,
        head_bias=config.model.head_bias,
        norm=config.model.norm,
        seed=config.run.seed,
    )
    plan = stages(config, net)
    check_server_data(plan, federation)
    check_attack(config, plan)
    check_reach(config, plan, net, federation.image)
    check_stacking(net, config.run.clients_at_once)
    if isinstance(plan[0].method.start, ClassMeans):
        linear_of(net)  # raises RequestError where the head has no place for them
    check_measures(config, federation)
    if config.train.batch_size == 1 and nets.smallest_map(net, federation.image) == 1:
        _, height, width = federation.image
        raise RequestError(
            f"train.batch_size = 1: BatchNorm of model.body = {config.model.body!r} sees one value per channel in "
            f"images of {height}×{width}, which has no variance. Accepted: 2 or more"
        )
    model = {name: tensor.detach().to(device) for name, tensor in net.state_dict().items()}
    if begins and config.model.weights:
        model |= load_body(Path(config.model.weights), model, config.model.body)
    start = config.method.start
    if begins and isinstance(start, Finished) and start.run:
        model = _finished_model(Path(start.run), model)
    return Job(config, federation, net, plan, model)


def _finished_model(folder: Path, model: Tensors) -> Tensors:
    finished = (folder / "result.json").is_file() and Result.read(folder).ok
    found = load_newest(folder / "checkpoints", model, fingerprint=None) if finished else None
    if found is None:
        raise RequestError(
            f"method.start.run = {str(folder)!r} is not the folder of a finished run "
            "(result.json with status ok, and a checkpoint)."
        )
    return {**found.state.model, **found.state.shown}


def device_of(run: RunConfig) -> torch.device:
    """Where the run's tensors are. The driver of a cluster only adds up: the accelerators are the workers'."""
    return device_named("cpu" if run.engine == "ray" and run.device == "auto" else run.device)


def device_named(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type == "meta":
            raise RuntimeError("it holds no data")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason, there = str(error).splitlines()[0].rstrip("."), torch.cuda.device_count()
        usable = ["auto", "cpu", *(["cuda"] if there else []), *(f"cuda:{number}" for number in range(there))]
        raise RequestError(
            f"run.device = {name!r} cannot be used here: {reason}. Accepted: {', '.join(usable)}"
        ) from None
    return device


def _where(federation: Federation, run: RunConfig) -> torch.device:
    """The data's place: a federation that was made elsewhere is not moved behind its owner's back."""
    if run.device != "auto" and device_of(run).type != federation.device.type:
        raise RequestError(
            f"run.device = {run.device!r}, but the federation that was given lies on {federation.device}. "
            f"Accepted: auto, {federation.device}"
        )
    return federation.device


class _Run:
    """The loop over rounds, with its bookkeeping."""

    def __init__(self, job: Job, folder: RunFolder | None, listener: Listener, stop: Stop) -> None:
        self.job, self.folder, self.listener, self.stop = job, folder, listener, stop
        self.config = job.config
        self.state = State(job.model)
        self.opened = False  # whether the state is past what comes before the first round
        self.seconds = {"train": 0.0, "measure": 0.0}
        self.analysed: dict[int, dict[str, Any]] = {}  # entries of the analyses of rounds, by round
        self.peak_memory: int | None = None

    def go(self, engine: Engine, resume: bool) -> Result:
        note = self._resume() if resume else ""
        config, job = self.config, self.job
        self.listener.begin(
            Begin(
                config.method.name,
                config.run.seed,
                job.federation.clients,
                job.rounds,
                self.state.round,
                self.folder.path if self.folder else None,
                note,
            )
        )
        for remark in remarks(config, job.net):
            self.listener.note(remark)
        status, accuracy, found, self.stop.when = "ok", {}, {}, Stop.ROUND
        try:
            if not self.opened:
                self._open(engine)
            while self.state.round < job.rounds:
                self._round(engine)
            self.stop.when, heeding = Stop.MEASURE, Heeding(engine, self._heed)
            self.listener.measuring(len(job.measured_clients))
            accuracy = self._measure(heeding, config.measure.names)
            found = self._analyse(heeding)
        except RunFailed as failure:
            status = f"failed: {failure}"
        except PlaceLost as lost:
            raise PlaceLost(f"{lost}. {self._interrupted()}") from None
        self._note(engine)
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
        job, start = self.job, self.job.plan[0].method.start
        if isinstance(start, ClassMeans):
            order = Shuffle(self.config.run.seed, "templates", 0)
            work = ClassSums(self.state.model, self.config.measure.batch_size, order)
            self.state = open_with_class_means(start, self.state, job.net, job.federation, engine, work)
        if self.folder and job.rounds == 0:
            self.folder.save(self.state)

    def _round(self, engine: Engine) -> None:
        began = time.perf_counter()
        stage = self.job.stage(self.state.round + 1)
        if 1 < self.state.round + 1 == stage.first:  # a new stage begins at the model alone
            self.state = self.state.at_new_stage()
        before = self.state
        self.state, played = play_round(stage, self.state, self.job.federation, engine, self.config.run.seed)
        seconds = time.perf_counter() - began
        self.seconds["train"] += seconds
        every, last = self.config.measure.every, played.round == self.job.rounds
        due = every and played.round % every == 0 and not last
        accuracy = self._measure(engine, self.config.measure.during) if due else {}
        self._watch(engine, before, played)
        self._record(played, seconds, accuracy, last, self._note(engine))
        self.listener.round(played, seconds, accuracy)
        self._heed()

    def _heed(self) -> None:
        """End here if somebody wants that; after the last round, what is left is to measure."""
        if self.stop.asked:
            raise Stopped(self._interrupted())

    def _note(self, engine: Engine) -> tuple[str, ...]:
        """What the engine had to do again."""
        notes = engine.repaired() if isinstance(engine, Repairs) else ()
        for note in notes:
            self.listener.note(note)
        return notes

    def _record(
        self, played: Round, seconds: float, accuracy: Mapping[str, Accuracy], last: bool, replaced: tuple[str, ...]
    ) -> None:
        if self.folder is None:
            return
        line: dict[str, Any] = {**asdict(played), **asdict(played.cost), "seconds": round(seconds, 4)}
        del line["cost"]
        if replaced:
            line["replaced"] = replaced
        if accuracy:
            line["accuracy"] = {name: found.in_brief() for name, found in accuracy.items()}
        if played.round in self.analysed:
            line["analyses"] = self.analysed[played.round]
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
        if self.opened or self.state.round:
            self.folder.save(self.state)
        folder, config = (shlex.quote(str(path)) for path in (self.folder.path, self.folder.path / "config.toml"))
        return f"{where}, with a checkpoint. Continue with: torso run {config} --out {folder} --resume"

    def _measure(self, engine: Engine, names: tuple[str, ...]) -> dict[str, Accuracy]:
        began = time.perf_counter()
        job, state = self.job, self.state
        how = job.evaluation(job.stage(state.round), state)
        found = evaluate(engine, job.federation, names, state.reported, how, job.measured_clients)
        self._took(began)
        return found

    def _took(self, began: float) -> None:
        self.seconds["measure"] += time.perf_counter() - began
        used = peak_memory_bytes(self.job.federation.device)
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

    def _finish(self, status: str, accuracy: Mapping[str, Accuracy], found: Mapping[str, Any]) -> Result:
        config, seconds = self.config, self.seconds
        result = Result(
            method=config.method.name,
            dataset=self.job.federation.name,
            model=config.model.body,
            seed=config.run.seed,
            rounds=self.state.round,
            status=status,
            accuracy=accuracy,
            cost=self.state.cost,
            seconds={**seconds, "total": sum(seconds.values())},
            versions=versions(),
            peak_memory_bytes=self.peak_memory,
            malicious=tuple(sorted(self.job.federation.malicious)),
            analyses={**class_counts(self.job.federation), **over_rounds(self.analysed), **found},
            folder=self.folder.path if self.folder else None,
            job=self.job,
            state=self.state,
        )
        if self.folder:
            self.folder.finish(result)
        self.listener.end(result)
        return result
