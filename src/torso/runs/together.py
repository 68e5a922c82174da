"""Several independent runs, each in a folder of its own: data are read once, and small runs learn side by side.

Ten clients do not keep an accelerator busy. Runs that differ only in their seed, or in how data are dealt, have
networks that can stand in one stack, so they go in lockstep (`learn/meeting.py`), as if they were one run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from torso import data
from torso.config import Config
from torso.data import Shelf
from torso.engine import Batched, Engine
from torso.learn.meeting import Meeting
from torso.runs.events import Listener, Stop
from torso.runs.folder import fingerprint
from torso.runs.result import Result
from torso.runs.run import Stopped, device_of, run

CLIENTS = 128  # in one stack: more of them make an accelerator no faster
_DEALING = {
    "clients",
    "partition",
    "shards",
    "alpha",
    "test_shards",
    "balance",
    "min_size",
    "new_clients",
    "validation",
}
_USUAL = Config()


def run_together(
    configs: Sequence[Config],
    outs: Sequence[Path],
    *,
    listener: Listener | None = None,
    stop: Stop | None = None,
    clients: int | None = None,
) -> Iterator[tuple[int, Result | Exception]]:
    """Run them all, and tell of each as it ends: its place in the list, and its result or what went wrong.

    A folder that holds an unfinished run of its config is resumed. `Stopped` is raised, not told: it ends them all.
    `clients`: how many of a round may stand in one stack; by default 128 on an accelerator, and one run at a time on
    CPU, where a stack is no faster."""
    shelf = Shelf()

    def one(place: int, meeting: Meeting | None = None) -> Result:
        config, out = configs[place], outs[place]
        resume = (out / "config.toml").exists()
        if resume and (out / "result.json").exists():
            return Result.read(out)
        federation = data.build(config.data, config.run.seed, device_of(config.run), shelf)
        engine = None if meeting is None else _engine(config, meeting)
        return run(config, out, resume=resume, listener=listener, stop=stop, federation=federation, engine=engine)

    for group in packs(configs, clients):
        if len(group) == 1:
            ends = [_told(partial(one, group[0]))]
        else:
            meeting = Meeting()
            ends = meeting.hold([partial(one, place, meeting) for place in group])
        for end in ends:
            if isinstance(end, Stopped):
                raise end
        yield from zip(group, ends, strict=True)


def packs(configs: Sequence[Config], clients: int | None = None) -> list[list[int]]:
    """Places of configs that run side by side, in the order in which the first of each pack stands."""
    made: dict[str, list[int]] = {}
    filled: dict[str, float] = {}
    done: list[list[int]] = []
    for place, config in enumerate(configs):
        most = clients if clients is not None else CLIENTS * (device_of(config.run).type == "cuda")
        key, each = _key(config), participants(config)
        if key in made and filled[key] + each <= most and config.run.engine in ("auto", "batched"):
            made[key].append(place)
            filled[key] += each
        else:
            made[key], filled[key] = [place], each
            done.append(made[key])
    return done


def participants(config: Config) -> float:
    """Clients of a round, or so: a partition may make more or fewer than asked for. Local-only clients all train."""
    fraction = 1.0 if config.method.share.part == "none" else config.train.fraction
    return max(config.data.clients * fraction, 1)


def _key(config: Config) -> str:
    """Equal for runs whose networks, images and lessons are the same."""
    usual = {name: getattr(_USUAL.data, name) for name in _DEALING}
    alike = config.model_copy(
        update={
            "data": config.data.model_copy(update=usual),
            "train": config.train.model_copy(update={"fraction": _USUAL.train.fraction}),
            "run": config.run.model_copy(update={"seed": 0}),
            "measure": _USUAL.measure,
        }
    )
    seeded = config.data.imbalance > 1 or config.data.source == "synthetic"  # then the seed makes other images
    return f"{fingerprint(alike)} {config.run.precision} {config.run.device} {config.run.seed if seeded else ''}"


def _engine(config: Config, meeting: Meeting) -> Callable[..., Engine]:
    chosen = config.run
    return lambda net, federation, _: Batched(
        net, federation, chosen.workers, chosen.clients_at_once, chosen.precision, meeting
    )


def _told(work: Callable[[], Result]) -> Result | Exception:
    try:
        return work()
    except Exception as error:  # one run's trouble is not the others'
        return error
