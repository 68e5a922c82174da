"""Jobs: a checked config with its roster, network, stages and initial model, before any client is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from torso import data, nets
from torso.config import Config, RunConfig
from torso.data import Federation, Roster
from torso.engine.feature_files import check_cache
from torso.errors import RequestError
from torso.learn.attacks import attacked
from torso.methods import Start
from torso.nets import Network, Tensors, check_stacking
from torso.randomness import numpy_generator
from torso.results.body_weights import load_body
from torso.results.checkpoint import load_newest
from torso.results.peft_file import read_adapters
from torso.results.result import Result
from torso.runs.checks import (
    check_adapters,
    check_answers,
    check_attack,
    check_measures,
    check_reach,
    check_rule,
    check_secure,
    check_time,
)
from torso.runs.devices import device_of
from torso.runs.encoding import check_given, wanted
from torso.runs.exchange import misfit
from torso.runs.privacy import Privacy
from torso.runs.private_plan import private
from torso.runs.sampling import participants
from torso.runs.stage import Stage
from torso.runs.stages import check_server_data, stages


@dataclass(frozen=True)
class Job:
    """A config with its roster and network. Everything that can be wrong with a request was checked before."""

    config: Config
    roster: Roster
    net: Network
    plan: tuple[Stage, ...]
    model: Tensors  # [*], initial, on the run's device
    notes: tuple[str, ...] = field(default=(), kw_only=True)  # what the user should know of the initial weights

    @property
    def rounds(self) -> int:
        return self.plan[-1].last

    @property
    def privacy(self) -> Privacy | None:
        """The protection of what travels; None: no protection."""
        return next((stage.privacy for stage in self.plan if stage.privacy), None)

    @property
    def keeps_parts(self) -> bool:
        """Whether clients keep parts of the generic model, so that the server does not have all of it."""
        return any(stage.keeps for stage in self.plan if not stage.method.server.keeps_uploads)

    @property
    def device(self) -> torch.device:
        """The device of the server's tensors."""
        return next(iter(self.model.values())).device

    def begun(self, model: Tensors) -> Job:
        """This job with another initial model, for example one that the server has sent."""
        return replace(self, model={name: model[name].to(self.device) for name in self.model})

    def stage(self, round: int) -> Stage:
        """The stage of a round (0: the stage of the first). If there are no rounds (FedNCM), the last stage."""
        at = max(round, 1)
        return next((stage for stage in self.plan if stage.first <= at <= stage.last), self.plan[-1])

    @cached_property
    def measured_clients(self) -> tuple[int, ...]:
        """The clients that are measured: all training clients, whether or not they ever took part.

        `measure.among` can limit them to the participants of the last round, `measure.clients` to a random sample."""
        known = self.roster.training
        limit = self.config.measure.clients
        if self.config.measure.among == "last-round" and self.rounds:
            last = participants(self.plan[-1], self.roster, self.config.run.seed, self.rounds)
            known = np.array(last, dtype=known.dtype) if last else known
        if limit and limit < len(known):
            known = np.sort(numpy_generator(self.config.run.seed, "measured").choice(known, limit, replace=False))
        return tuple(known.tolist())


@dataclass(frozen=True)
class Simulation(Job):
    """A job whose clients' data are in this process."""

    federation: Federation

    def on(self, federation: Federation) -> Simulation:
        """The job with other clients, whose samples are of the same kind."""
        return replace(self, roster=federation.roster, federation=federation)


def data_of(config: Config, data_cache: data.DataCache | None = None) -> Federation:
    """Read the clients' data of a run, onto its device. `data_cache`: a cache of data sets for runs that follow."""
    return data.build(config.data, config.run.seed, device_of(config.run), data_cache, wanted(config))


def simulate(config: Config, federation: Federation | None = None, *, begins: bool = True) -> Simulation:
    """Read the data and prepare the job. Raises RequestError, and writes nothing."""
    federation = federation or data_of(config)
    check_given(config.model, federation)
    device = _where(federation, config.run)
    federation = attacked(federation, config.attack.chosen, config.attack.fraction, config.run.seed)
    job = prepare(config, federation.roster, device, begins=begins)
    return Simulation(**vars(job), federation=federation)


def prepare(config: Config, roster: Roster, device: torch.device | None = None, *, begins: bool = True) -> Job:
    """Build the network, work out the stages of the method, check the request. Raises RequestError, writes nothing.

    `begins`: whether initial weights that come from files are read."""
    device = device_of(config.run) if device is None else device
    net = nets.build(
        body=config.model.body,
        classes=roster.classes,
        input=roster.input,
        head=config.method.head,
        head_init=config.model.head_init,
        head_bias=config.model.head_bias,
        norm=config.model.norm,
        seed=config.run.seed,
        source="" if config.model.encoder else config.data.source,
        lora=config.lora,
    )
    plan = stages(config, net)
    plan = private(config, plan, roster)
    check_server_data(plan, roster)
    check_attack(config, plan)
    check_answers(config, roster)
    check_time(config, plan, roster)
    check_rule(plan, roster)
    check_secure(config, plan, roster)
    check_reach(config, plan, net, roster.input)
    check_stacking(net, config.run.clients_at_once)
    for stage in plan:
        stage.method.start.check(net)
    check_measures(config, roster)
    if config.run.features == "disk":
        check_cache()
    if config.train.batch_size == 1 and nets.smallest_map(net, roster.input) == 1:
        raise RequestError(
            f"train.batch_size = 1: BatchNorm of model.body = {config.model.body!r} sees one value per channel in "
            f"{roster.input.words}, which has no variance. Accepted: 2 or more"
        )
    model = {name: tensor.detach().to(device) for name, tensor in net.state_dict().items()}
    notes: list[str] = []
    if begins:
        model = _initial_model(config, net, plan, model, notes)
    return Job(config, roster, net, plan, model, notes=tuple(notes))


def _initial_model(config: Config, net: Network, plan: Sequence[Stage], drawn: Tensors, notes: list[str]) -> Tensors:
    """The model with which the run begins: the weights drawn from the seed, with those that files and the method's
    start have in their place. `notes` gets remarks about the files."""
    model = dict(drawn)
    if config.model.weights:
        model |= load_body(config.model.weights, model, config.model.body, notes)
    if config.model.lora.weights and net.body.lora is not None:
        key = f"model.lora.weights = {config.model.lora.weights!r}"
        model |= read_adapters(Path(config.model.lora.weights), model, net, key, notes)
    model = _started(plan[0].method.start, model)
    check_adapters(plan, net, model)
    return model


def _started(start: Start, drawn: Tensors) -> Tensors:
    """The weights with which a start begins. Tensors that it does not give stay as drawn."""

    def read(run: str) -> Tensors | None:
        folder = Path(run)
        finished = (folder / "result.json").is_file() and Result.read(folder).ok
        found = load_newest(folder / "checkpoints", drawn, fingerprint=None) if finished else None
        return None if found is None else {**found.server.model, **found.server.shown}

    found = start.weights(drawn, read)
    wrong = misfit(found, drawn)
    if wrong:
        raise RequestError(f"method.start = {start} begins with {wrong}")
    return {name: found[name].to(tensor.device) if name in found else tensor for name, tensor in drawn.items()}


def _where(federation: Federation, run: RunConfig) -> torch.device:
    """The device of the data. A federation that the caller has made is never moved to another device."""
    if run.device != "auto" and device_of(run).type != federation.device.type:
        raise RequestError(
            f"run.device = {run.device!r}, but the federation that was given lies on {federation.device}. "
            f"Accepted: auto, {federation.device}"
        )
    return federation.device
