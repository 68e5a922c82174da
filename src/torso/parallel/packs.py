"""Several independent runs, each in a folder of its own: data are read once, and small runs learn side by side.

Ten clients do not keep an accelerator busy. Runs that differ only in their seed, in how data are dealt, in their
learning rate or in what becomes of models after a visit (server rules, attacks on uploads) have networks that can stand
in one stack, so they go in lockstep (`learn/lockstep.py`), as if they were one run.
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

CLIENTS = 128  # in one stack: more of them make an accelerator no faster
_DEALING = {
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
    """One of several runs. A folder that holds an unfinished run of its config is resumed."""

    config: Config
    folder: Path | None

    @property
    def name(self) -> str:
        return f"{self.config.method.name} seed {self.config.run.seed}"


After = Callable[[Config, Path], None]
Ended = tuple[int, Result | Exception]


def side_by_side(
    plans: Sequence[PlannedRun],
    listeners: Sequence[Listener],
    stop: Stop,
    made: Callable[[Config], Federation],
    after: After | None = None,
) -> list[Result | Exception]:
    """The runs of one pack, in this process; `made` gives the data of one."""

    made = _spoiled_once(made)

    def one(place: int, lockstep: Lockstep | None = None) -> Result:
        config, out = plans[place].config, plans[place].folder
        resume = out is not None and (out / "config.toml").exists()
        if out is not None and resume and RunFolder.check(out, config, resume).finished:
            result = Result.read(out)
        else:
            told, engine = listeners[place], None if lockstep is None else _engine(config, lockstep)
            data = made(config)
            try:
                result = run(config, out, resume=resume, listener=told, stop=stop, federation=data, engine=engine)
            except Stopped:
                if after is not None and out is not None and out.is_dir():
                    after(config, out)
                raise
        if after is not None and out is not None:
            after(config, out)
        return result

    if len(plans) == 1:
        return [_told(partial(one, 0))]
    lockstep = Lockstep()
    return lockstep.hold([partial(one, place, lockstep) for place in range(len(plans))])


def _spoiled_once(made: Callable[[Config], Federation]) -> Callable[[Config], Federation]:
    """The data of runs, as attackers have changed them. Runs with the same attackers get the same tensors: only then
    can they share a stack."""
    known: dict[str, Federation] = {}

    def give(config: Config) -> Federation:
        if not config.attack.chosen.changes_data():
            return made(config)
        key, seed = _spoiled(config), config.run.seed
        if key not in known:
            known[key] = attacked(made(config), config.attack.chosen, config.attack.fraction, seed)
        return known[key]

    return give


def _spoiled(config: Config) -> str:
    """Equal for runs whose attackers change the same labels or samples alike."""
    return f"{config.data.model_dump_json()} {config.attack.model_dump_json()} {config.run.seed}"


def packs(configs: Sequence[Config], clients: int | None = None) -> list[list[int]]:
    """Places of configs that run side by side, in the order in which the first of each pack stands."""
    made: dict[str, list[int]] = {}
    filled: dict[str, int] = {}
    done: list[list[int]] = []
    for place, config in enumerate(configs):
        most = clients if clients is not None else CLIENTS * _accelerated(config.run)
        key, each = alike(config), max(participants(config), 1)
        if key in made and filled[key] + each <= most and config.run.engine in ("auto", "batched", "ray"):
            made[key].append(place)
            filled[key] += each
        else:
            made[key], filled[key] = [place], each
            done.append(made[key])
    return done


def _accelerated(run: RunConfig) -> bool:
    """Where runs take place, which on a cluster is with its workers."""
    return run.ray.gpus_per_worker > 0 if run.engine == "ray" else device_of(run).type == "cuda"


def participants(config: Config) -> int:
    """Clients that train in a round, or so: a partition may make more or fewer than asked for. Local-only: all."""
    method, there = config.method, config.data.clients - config.data.new_clients
    if all(phase.part == "none" for phase in method.train):
        return 0
    fraction = 1.0 if method.share.part == "none" else config.train.fraction
    return max(math.floor(there * fraction + 1e-9), 1)


def alike(config: Config) -> str:
    """Equal for runs whose networks, images and phases are the same, up to the rate.

    What the server does with models, which of their parts travel, what a client keeps and what attackers send is each
    run's own business. Attackers that change labels or samples have to be the same."""
    dealing = {name: getattr(_USUAL.data, name) for name in _DEALING}
    after = {name: getattr(_USUAL.method, name) for name in ("server", "share", "personal", "name", "about", "paper")}
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
        images = _spoiled(config)
    return f"{fingerprint(usual)} {config.run.engine} {config.run.device} {images}"


def _engine(config: Config, lockstep: Lockstep) -> Callable[..., Engine]:
    chosen = config.run
    how = chosen.clients_at_once, chosen.precision, lockstep, chosen.compile
    return lambda net, federation, _: Batched(net, federation, *how)


def _told(work: Callable[[], Result]) -> Result | Exception:
    try:
        return work()
    except Exception as error:  # one run's trouble is not the others'
        return error
