"""Starts: the model that training begins at, and what is trained or exchanged before the first round.

A `Start` only answers questions; runs/ does the work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Protocol

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from torso.errors import RequestError, RunFailed
from torso.kinds import CountOrZero, Fraction, NotNegative
from torso.nets import Network, Tensors
from torso.nets.dual import DualHead
from torso.nets.layers import Linear
from torso.registry import Registry
from torso.server.statistics import Declared, Statistic

_NEVER = -1e4  # bias of a class that no client has: finite, so that training can continue from it


@dataclass(frozen=True)
class TrainingPlan:
    """The training schedule of a method."""

    rounds: int
    lr: float  # learning rate of the first round
    schedule: str


@dataclass(frozen=True)
class EarlierMethod:
    """A method that is trained first, in the same run. `rounds` 0: as many as the run has."""

    method: str
    rounds: int = 0


class Question(Protocol):
    """A function that a start lets all training clients compute on their data."""

    def __call__(self, workspace: Any, clients: Sequence[int]) -> Tensors:
        """The answers of G clients [G, *]; `workspace` (engine.Workspace) has their data."""
        ...


class Exchange(Protocol):
    """An exchange with all training clients before the first round. `model` [*]: the model that all of them have."""

    @property
    def net(self) -> Network: ...

    @property
    def model(self) -> Tensors: ...

    def ask(self, question: Question, passes: int = 0) -> Tensors:
        """The sum of the answers of all training clients [*]. `passes`: forward passes over each sample that the
        question takes, for the cost; the bytes of the answers are counted automatically."""
        ...

    def class_sums(self) -> tuple[Tensor, Tensor]:
        """The sums of features by class [C, d] over all training samples, and the numbers of samples [C]."""
        ...


ReadRun = Callable[[str], Tensors | None]
"""Reads the model of a finished run from its folder; None if the folder has no finished run."""


class Start:
    """The base class of starts. The default is a start from random weights, the same for all clients."""

    def earlier(self) -> EarlierMethod | None:
        """The method that is trained first in the same run, and at whose model this one begins."""
        return None

    def training_plan(self, run: TrainingPlan) -> TrainingPlan:
        """Rounds, learning rate and schedule of the method, from those of the run."""
        return run

    def within(self, rounds: int) -> Start:
        """The same start, for a run whose `rounds` include those of the earlier method."""
        return self

    def check(self, net: Network) -> None:
        """Refuse a network that does not fit: raise RequestError with the key and what is accepted."""

    def weights(self, drawn: Tensors, read: ReadRun) -> Tensors:
        """The model that the run begins with. `drawn`: the model from the seed and model.weights."""
        return drawn

    def before_first_round(self, exchange: Exchange) -> Tensors:
        """Tensors of the model to set before the method's first round, from an exchange with the clients. By default
        there is no exchange."""
        return {}

    def declares(self, net: Network, classes: int) -> Declared:
        """What a client sends before the first round: for counting bytes, and for people at a client to read."""
        return {}


starts: Registry[type[Start]] = Registry("method.start")


@starts.register("fresh")
@dataclass(frozen=True)
class Fresh(Start):
    """Random weights, the same for all clients."""


@starts.register("finished")
@dataclass(frozen=True)
class Finished(Start):
    """The model of another method after its training; then this method has a share of the run's rounds and its own
    learning rate (LG-FedAvg, spec 4.3 and 7.4).

    `run` names the folder of a finished run to begin from. Without it, the other `method` is trained first, in the same
    run, for `first` rounds. If `first`, `lr` or `schedule` is not given (0 or ""), that of the run is used.
    """

    method: str = "fedavg"
    run: str = ""
    first: CountOrZero = 0
    rounds: Fraction = 0.25
    lr: NotNegative = 0.001
    schedule: str = "const"

    def earlier(self) -> EarlierMethod | None:
        return None if self.run else EarlierMethod(self.method, self.first)

    def training_plan(self, run: TrainingPlan) -> TrainingPlan:
        return TrainingPlan(max(_share(run.rounds, self.rounds), 1), self.lr or run.lr, self.schedule or run.schedule)

    def within(self, rounds: int) -> Start:
        return replace(self, first=max(rounds - max(_share(rounds, self.rounds), 1), 1))

    def weights(self, drawn: Tensors, read: ReadRun) -> Tensors:
        if not self.run:
            return drawn
        found = read(self.run)
        if found is None:
            raise RequestError(
                f"method.start.run = {self.run!r} is not the folder of a finished run "
                "(result.json with status ok, and a checkpoint)."
            )
        return found


@starts.register("class-means")
@dataclass(frozen=True)
class ClassMeans(Start):
    """A head whose rows are the class means of all clients' features, scaled to length one (FedNCM, spec 7.1).

    `rounds` is the share of train.rounds that follow: 0 for FedNCM, 1 for FedNCM+FT. `metric`: the head predicts the
    class of the nearest direction, or of the nearest mean m (then −‖m‖²/2 is the head's bias)."""

    rounds: Annotated[float, Field(ge=0, le=1)] = 0.0
    metric: Literal["direction", "euclidean"] = "direction"

    def training_plan(self, run: TrainingPlan) -> TrainingPlan:
        return replace(run, rounds=_share(run.rounds, self.rounds))

    def check(self, net: Network) -> None:
        _, linear = _linear_of(net)
        if self.metric == "euclidean" and type(linear) is not Linear:
            raise RequestError(
                "method.start.metric = 'euclidean' compares whole features with class means, and a head "
                f"{type(linear).__name__} sees only their direction. Accepted: method.start.metric = 'direction', or "
                "method.head = 'linear'"
            )
        if self.metric == "euclidean" and not _has_bias(linear):
            raise RequestError(
                "method.start.metric = 'euclidean' keeps −‖m‖²/2 of each class mean m in the head's bias, and "
                "model.head_bias = false. Accepted: model.head_bias = true, or method.start.metric = 'direction'"
            )
        _check_statistics(net)

    def before_first_round(self, exchange: Exchange) -> Tensors:
        """The class means as a head. The result does not depend on which client has which sample."""
        where, linear = _linear_of(exchange.net)
        total, count = exchange.class_sums()
        means = total / count.clamp(min=1).unsqueeze(-1)
        if self.metric == "euclidean":  # argmin ‖f − m‖² = argmax f·m − ‖m‖²/2
            weight, bias = means, -means.square().sum(dim=1) / 2
        else:  # rows of length one, so that the largest product is the nearest direction
            weight, bias = F.normalize(means, dim=1), torch.zeros_like(means[:, 0])
        if not _has_bias(linear):
            _check_all_there(count)
            return {f"{where}weight": weight}
        return {f"{where}weight": weight, f"{where}bias": torch.where(count > 0, bias, _NEVER)}

    def declares(self, net: Network, classes: int) -> Declared:
        return class_sums_declared(net, classes)


def class_sums_declared(net: Network, classes: int) -> Declared:
    """The declaration of what a client sends for `Exchange.class_sums`."""
    return {
        "total": Statistic((classes, net.body.features), "class sums", counts=True, over_samples=True),
        "count": Statistic((classes,), "class sums", counts=True, numbers="count"),
    }


def _share(rounds: int, share: float) -> int:
    """⌊rounds · share⌋, safe against rounding."""
    return int(rounds * share + 1e-9)


def _linear_of(net: Network) -> tuple[str, Linear]:
    """The prefix and the layer of the head's only linear layer; refuses a head of several layers."""
    if isinstance(net.head, Linear):
        return "head.", net.head
    if type(net.head) is DualHead:
        return "head.generic.", net.head.generic
    raise RequestError(
        f"method.start = 'class-means' needs a head of one linear layer, found {type(net.head).__name__}. "
        "Accepted heads: linear, normalized, sphere, dual"
    )


def _has_bias(linear: Linear) -> bool:
    return any(name == "bias" for name, _ in linear.named_parameters())


def _check_statistics(net: Network) -> None:
    """Refuse BatchNorm that uses batch statistics. Features, and so the class means, would depend on which samples are
    on the same client (spec 7.1 and 18, point 7)."""
    for name, module in net.body.named_modules():
        if isinstance(module, _BatchNorm) and module.running_mean is None:
            raise RequestError(
                "method.start = 'class-means' needs features that do not depend on how data are dealt, and BatchNorm "
                f"at body.{name} takes its statistics from the batch. Accepted: model.norm = 'running' (and a body of "
                "model.weights that was trained with it), or a body without BatchNorm"
            )


def _check_all_there(count: Tensor) -> None:
    """Refuse a class without samples [C], for a head without bias."""
    absent = (count == 0).nonzero().flatten().tolist()
    if absent:
        raise RunFailed(
            f"method.start = 'class-means': no client has samples of class {absent[0]}, and the head has no bias that "
            "would rule the class out. Accepted: model.head_bias = true with method.head = 'linear' or 'dual', "
            "method.head.bias = true with method.head = 'normalized'"
        )
