"""Find keys that are set but have no effect in this run. (data/keys.py finds those of `data` while data are read.)"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torso.config import Config
from torso.data.keys import changed
from torso.learn.attacks import NoAttack
from torso.learn.schedule import schedules
from torso.measure.analyses import round_analyses
from torso.runs.stage import Stage


def unread_keys(config: Config, plan: Sequence[Stage]) -> tuple[str, ...]:
    """A note for each key that is set but has no effect."""
    reasons = {key: reason for key, reason, read in _conditions(config, plan) if not read}
    sections = ("data", "model", "train", "attack", "privacy", "measure", "run")
    found = [pair for name in sections for pair in changed(getattr(config, name), f"{name}.")]
    return tuple(
        f"{key} = {value!r} is set, but has no effect: {reasons[section]}"
        for key, value in found
        for section in (key, key.rpartition(".")[0])
        if section in reasons
    )


def _conditions(config: Config, plan: Sequence[Stage]) -> Iterator[tuple[str, str, bool]]:
    """Keys (or sections) with the reason why they may have no effect, and whether they have an effect in this run."""
    schedule, measure, run = config.train.schedule, config.measure, config.run
    yield "train.decay", f"train.schedule = {schedule!r} does not use it", any(map(_decays, plan))
    yield "attack.fraction", "attack.kind = 'none'", not isinstance(config.attack.chosen, NoAttack)
    yield "privacy", "privacy.noise, privacy.epsilon and privacy.clip are 0", config.privacy.on
    for key in ("clip_rate", "count_noise"):
        yield f"privacy.{key}", "privacy.quantile = 0: clip does not adapt", config.privacy.quantile > 0
    yield "measure.during", "measure.every = 0", measure.every > 0
    yield (
        "measure.analyses_every",
        "measure.analyses names none that is taken of rounds",
        bool(round_analyses(measure.analyses)),
    )
    asked = (*measure.names, *(measure.during if measure.every else ()))
    for start, keys in {"ece_": ("bins",), "shifted_": ("shift",), "corrupted_": ("corruptions", "severities")}.items():
        for key in keys:
            read = any(name.startswith(start) for name in asked)
            yield f"measure.{key}", f"measure.names has no {start}…", read
    uses_meta = any(stage.uses_meta for stage in plan)
    yield "data.meta_per_class", f"method {config.method.name!r} uses no samples of the server", uses_meta
    yield "model.lora", "model.lora.rank = 0, and no part of the method is one of adapters", config.lora is not None
    yield "model.encoder_weights", "model.encoder is empty", bool(config.model.encoder)
    # run.ray is not here: the workers of a cluster do whole runs with run.engine = auto, and keep run.ray
    yield "run.flower.secure", "run.flower.secure.kind = 'none'", run.flower.secure.kind != "none"
    yield "run.flower", f"run.engine = {run.engine!r}", run.engine == "flower"


def _decays(stage: Stage) -> bool:
    """Whether the learning rate of any round depends on train.decay."""
    factor, decay = schedules[stage.schedule], stage.train.decay
    rounds = range(1, min(stage.rounds, 4) + 1)
    return any(factor(round, stage.rounds, decay) != factor(round, stage.rounds, decay / 2) for round in rounds)
