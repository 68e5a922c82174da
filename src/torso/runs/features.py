"""Decide which work of a run is done on precomputed features: all work during which the body does not change.

A stage that trains only the head plays its rounds on features. The questions before the first round (FedNCM's class
means) and the measures use samples without augmentation, so they work on features too, of one body at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from torso.data.augment import augmentations
from torso.engine import Engine
from torso.engine.feature_space import FeatureEngine, SplitName
from torso.engine.features_kept import FeatureCache
from torso.learn.features import goes_by_batch
from torso.measure.base import Evaluation, measures
from torso.nets import Tensors
from torso.personal import FineTune, Personal
from torso.registry import is_foreign
from torso.runs.job import Job, Simulation
from torso.runs.stage import Stage

_ON_TRAIN = ("without_head", "neighbours", "test_time", "test_time_shifted")  # measures that also use training samples


def fixes_body(stage: Stage) -> bool:
    """Whether no tensor of the body changes in this stage. A part of the user's may change any tensor."""
    parts = (stage.method.step, stage.method.personal, stage.method.statistics, stage.attack)
    return not _of_body(stage.moving) and not any(map(is_foreign, parts))


def remark(job: Job) -> tuple[str, ...]:
    """A remark if only augmentation prevents that the features of a fixed body are computed once."""
    looks = sum(_looks(stage) for stage in job.plan if fixes_body(stage))
    if not isinstance(job, Simulation) or job.config.run.features == "off" or not _augments(job) or looks < 2:
        return ()
    return (
        f"the body does not move, but data.augment = {job.federation.augment!r} changes images at random, so features "
        f"are computed anew in every epoch. With data.augment = none they are computed once: about {looks:.0f} times "
        "less work",
    )


class FeaturePlan:
    """Chooses the engine for each piece of work: on features if that gives the same result, else on samples."""

    def __init__(self, job: Job, note: Callable[[str], None]) -> None:
        self.job = job
        self._kept: FeatureCache | None = None
        self._augments = _augments(job)
        where = job.config.run.features
        if isinstance(job, Simulation) and where != "off" and not goes_by_batch(job.net):
            self._kept = FeatureCache(job.net, job.federation, where, note)

    def opening(self, engine: Engine, stage: Stage, model: Tensors) -> Engine:
        """The engine for the questions of a start before the first round."""
        if is_foreign(stage.method.start):
            return engine
        return self._on_features(engine, model, ["train"])

    def rounds(self, engine: Engine, stage: Stage, model: Tensors) -> Engine:
        """The engine for the rounds of a stage."""
        if not fixes_body(stage) or self._augments:
            return engine
        return self._on_features(engine, model, ["train"])

    def measuring(
        self, engine: Engine, stage: Stage, model: Tensors, names: Sequence[str], how: Evaluation
    ) -> list[tuple[Engine, tuple[str, ...]]]:
        """Engines, each with the measures that it takes."""
        chosen = tuple(name for name in names if self._can_measure(stage, name, how))
        if self._kept is None or not chosen or not (fixes_body(stage) or self._gains(chosen, how)):
            return [(engine, tuple(names))]
        parts = [(self._on_features(engine, model, self._splits(stage, chosen, how)), chosen)]
        rest = tuple(name for name in names if name not in chosen)
        if rest:
            parts.append((engine, rest))
        return parts

    def _on_features(self, engine: Engine, model: Tensors, splits: Sequence[SplitName]) -> Engine:
        if self._kept is None:
            return engine
        return FeatureEngine(engine, partial(self._kept.of, engine, model, splits))

    def _can_measure(self, stage: Stage, name: str, how: Evaluation) -> bool:
        """Whether all clients have the same body in a measure, and nothing trains or changes that body."""
        found, personal = measures[name], stage.method.personal
        if found.trains_body or found.marked or found.images or is_foreign(found.take) or _of_body(stage.keeps):
            return False
        if found.of == "local":
            return fixes_body(stage) and not self._augments
        if found.of != "own":
            return True
        if any(_of_body(phase.moving) for epochs in _epochs(how) for phase in how.finetune(epochs)):
            return False
        if self._augments and _trained_epochs(how):
            return False
        return type(personal) in (Personal, FineTune) or (fixes_body(stage) and not self._augments)

    def _splits(self, stage: Stage, names: Iterable[str], how: Evaluation) -> list[SplitName]:
        """The splits whose features some measures need."""
        trained = _trained_epochs(how) or type(stage.method.personal) not in (Personal, FineTune)
        on_train = any(
            name in _ON_TRAIN or measures[name].of == "local" or (measures[name].of == "own" and trained)
            for name in names
        )
        return ["train", "test"] if on_train else ["test"]

    def _gains(self, names: Sequence[str], how: Evaluation) -> bool:
        """Whether the measures would pass more samples through the body than computing all features does."""
        assert isinstance(self.job, Simulation)
        data = self.job.federation
        epochs = _trained_epochs(how)
        share = len(self.job.measured_clients) / max(len(self.job.roster.training), 1)
        owns = any(measures[name].of == "own" for name in names)
        on_train = sum(name in _ON_TRAIN for name in names) + epochs * owns
        on_test = len({measures[name].take for name in names}) + len(how.sweep) * owns
        train, test = len(data.train.order), len(data.test.labels)
        return share * (on_train * train + on_test * test) > train * (on_train > 0) + test


def _augments(job: Job) -> bool:
    return isinstance(job, Simulation) and augmentations[job.federation.augment].random


def _of_body(names: Collection[str]) -> bool:
    return any(name.startswith("body.") for name in names)


def _epochs(how: Evaluation) -> set[int]:
    return {how.epochs, *how.sweep}


def _trained_epochs(how: Evaluation) -> int:
    """The number of epochs of fine-tuning that the measures of own models need."""
    return max(sum(phase.epochs for phase in how.finetune(epochs)) for epochs in _epochs(how))


def _looks(stage: Stage) -> float:
    """How often a stage's rounds use a training sample, on average."""
    fraction = stage.train.fraction if stage.meets else 1.0
    local_phases = stage.plan(stage.first) if stage.rounds else ()
    return stage.rounds * fraction * math.fsum(phase.epochs for phase in local_phases)
