"""Packs: independent runs that train side by side in one process, with their clients in one stack.

Ten clients do not keep an accelerator busy. Runs that differ only in their seed, in how the data are partitioned, in
their learning rate or in what happens to models after a visit (server rules, attacks on uploads) have networks that can
be stacked. So they go in lockstep (`learn/lockstep.py`), as if they were one run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torso.config import Config, RunConfig
from torso.data import Federation, dealing_seed, seeded
from torso.engine import Batched, Engine
from torso.learn.attacks import attacked
from torso.learn.lockstep import Lockstep
from torso.results.folder import RunFolder
from torso.results.result import Result
from torso.results.same_run import fingerprint
from torso.runs.devices import device_of
from torso.runs.events import Listener, Stop
from torso.runs.run import Stopped, run

CLIENTS = 128  # in one stack; an accelerator is no faster with more
_DEALING = {  # the keys of `data` that say how samples are divided over clients
    "clients",
    "partition",
    "shards",
    "alpha",
    "test_shards",
    "test_order",
    "balance",
    "min_size",
    "floor",
    "seed",
    "new_clients",
    "validation",
}
_USUAL = Config()


@dataclass(frozen=True)
class PlannedRun:
    """One of several runs. If its folder holds an unfinished run of its config, that run is resumed."""

    config: Config
    folder: Path | None

    @property
    def name(self) -> str:
        return f"{self.config.method.name} seed {self.config.run.seed}"


AfterRun = Callable[[Config, Path], None]  # called with config and folder when a run has ended or stopped
RunEnd = tuple[int, Result | Exception]  # a run's number, and its result or error


def side_by_side(
    plans: Sequence[PlannedRun],
    listeners: Sequence[Listener],
    stop: Stop,
    made: Callable[[Config], Federation],
    after: AfterRun | None = None,
) -> list[Result | Exception]:
    """Do the runs of one pack in this process. `made` gives the data of a config."""

    made = _attacked_once(made)

    def one(place: int, lockstep: Lockstep | None = None) -> Result:
        config = plans[place].config
        out = plans[place].folder
        resume = out is not None and (out / "config.toml").exists()
        if out is not None and resume and RunFolder.check(out, config, resume).finished:
            result = Result.read(out)
        else:
            listener = listeners[place]
            engine = None if lockstep is None else _engine(config, lockstep)
            data = made(config)
            try:
                result = run(config, out, resume=resume, listener=listener, stop=stop, federation=data, engine=engine)
            except Stopped:
                if after is not None and out is not None and out.is_dir():
                    after(config, out)
                raise
        if after is not None and out is not None:
            after(config, out)
        return result

    if len(plans) == 1:
        return [_result_or_error(partial(one, 0))]
    lockstep = Lockstep()
    return lockstep.run_all([partial(one, place, lockstep) for place in range(len(plans))])


def _attacked_once(made: Callable[[Config], Federation]) -> Callable[[Config], Federation]:
    """Like `made`, with the data as attackers have changed them.

    Runs with the same attackers get the same tensors: only then can they share a stack."""
    known: dict[str, Federation] = {}

    def give(config: Config) -> Federation:
        if not config.attack.chosen.changes_data():
            return made(config)
        key = _attack_key(config)
        if key not in known:
            known[key] = attacked(made(config), config.attack.chosen, config.attack.fraction, config.run.seed)
        return known[key]

    return give


def _attack_key(config: Config) -> str:
    """A key that is equal for runs whose attackers change the same labels or samples in the same way."""
    return f"{config.data.model_dump_json()} {config.attack.model_dump_json()} {config.run.seed}"


def packs(configs: Sequence[Config], clients: int | None = None) -> list[list[int]]:
    """Group configs into packs, as lists of their indices, ordered by the first config of each pack.

    `clients`: how many of a round may stand in one stack; by default CLIENTS on an accelerator, no packs on CPU."""
    latest: dict[str, list[int]] = {}  # the pack that is filled now, by the key of its configs
    filled: dict[str, int] = {}  # the clients in it
    done: list[list[int]] = []
    for place, config in enumerate(configs):
        most = clients if clients is not None else CLIENTS * _accelerated(config.run)
        key = stack_key(config)
        count = max(participants(config), 1)
        if key in latest and filled[key] + count <= most and config.run.engine in ("auto", "batched", "ray"):
            latest[key].append(place)
            filled[key] += count
        else:
            latest[key] = [place]
            filled[key] = count
            done.append(latest[key])
    return done


def _accelerated(run: RunConfig) -> bool:
    """Whether runs take place on an accelerator; on a cluster, on one of its workers."""
    if run.engine == "ray":
        return run.ray.gpus_per_worker > 0
    return device_of(run).type == "cuda"


def participants(config: Config) -> int:
    """The approximate number of clients that train in a round; all, if the method shares nothing.

    Approximate, because a partition may make more or fewer clients than the config asks for."""
    method = config.method
    if all(phase.part == "none" for phase in method.train):
        return 0
    training = config.data.clients - config.data.new_clients
    fraction = 1.0 if method.share.part == "none" else config.train.fraction
    return max(math.floor(training * fraction + 1e-9), 1)


def stack_key(config: Config) -> str:
    """A key that is equal for runs that can share a stack: same network, images and phases, up to the learning rate.

    Runs may differ in what the server does with models, which parts travel, what a client keeps and what attackers
    send. Attackers that change labels or samples have to be the same."""
    dealing = {name: getattr(_USUAL.data, name) for name in _DEALING}
    after = {name: getattr(_USUAL.method, name) for name in ("server", "share", "personal", "name", "about", "paper")}
    # every setting in which the runs may differ is replaced by its default
    usual = config.model_copy(
        update={
            "data": config.data.model_copy(update=dealing),
            "method": config.method.but(**after),
            "train": config.train.model_copy(update={"fraction": _USUAL.train.fraction, "lr": _USUAL.train.lr}),
            "run": config.run.model_copy(update={"seed": 0}),
            "measure": _USUAL.measure,
            "personalize": _USUAL.personalize,
            "attack": _USUAL.attack,
        }
    )
    images = str(dealing_seed(config.data, config.run.seed)) if seeded(config.data) else ""
    if config.attack.chosen.changes_data():
        images = _attack_key(config)
    return f"{fingerprint(usual)} {config.run.engine} {config.run.device} {images}"


def _engine(config: Config, lockstep: Lockstep) -> Callable[..., Engine]:
    """The engine of a run that shares its stacks with others, as a factory."""
    run = config.run
    return lambda net, federation, _: Batched(
        net, federation, run.clients_at_once, run.precision, lockstep, run.compile
    )


def _result_or_error(work: Callable[[], Result]) -> Result | Exception:
    try:
        return work()
    except Exception as error:  # returned, so that it does not end the other runs
        return error
