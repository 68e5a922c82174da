"""Where does training begin? A start is asked; what it answers, runs/ carries out."""

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

_NEVER = -1e4  # the bias of a class that nobody has: finite, so that training can go on from it


@dataclass(frozen=True)
class Pace:
    """How long and how fast a method trains: rounds, learning rate of the first, schedule."""

    rounds: int
    lr: float
    schedule: str


@dataclass(frozen=True)
class Earlier:
    """A method that is trained first, in the same run. `rounds` 0: as many as the run has."""

    method: str
    rounds: int = 0


class Question(Protocol):
    def __call__(self, workspace: Any, clients: Sequence[int]) -> Tensors:
        """What each of G clients answers [G, *]; `workspace` (engine.Workspace) has their data."""
        ...


class Exchange(Protocol):
    """What a start can ask of all training clients at once. `model` [*] is what everybody has."""

    @property
    def net(self) -> Network: ...

    @property
    def model(self) -> Tensors: ...

    def ask(self, question: Question, passes: int = 0) -> Tensors:
        """The answers of all training clients, summed. `passes`: how often the question has a client look at each of
        its samples, for the cost; the bytes of the answers are counted as they are."""
        ...

    def class_sums(self) -> tuple[Tensor, Tensor]:
        """Features of the training samples summed by class [C, d], and how many samples there are [C]."""
        ...


ReadRun = Callable[[str], Tensors | None]
"""The model of a finished run's folder; None where there is no such run."""


class Start:
    """The base of starts. What is not overridden is that of random weights, the same for everybody."""

    def earlier(self) -> Earlier | None:
        """The method whose finished model this one begins at."""
        return None

    def pace(self, run: Pace) -> Pace:
        """Rounds, rate and schedule of the method, where the run's are given."""
        return run

    def within(self, rounds: int) -> Start:
        """The same start where `rounds` have to be enough for the earlier method and this one together."""
        return self

    def check(self, net: Network) -> None:
        """Raise RequestError, by key and with what would do, where the network does not fit."""

    def weights(self, drawn: Tensors, read: ReadRun) -> Tensors:
        """The model that the run begins with, from the one that the seed and model.weights give."""
        return drawn

    def before_first_round(self, exchange: Exchange) -> Tensors:
        """Tensors of the model that are set before the method's first round. The default asks and sets nothing."""
        return {}

    def declares(self, net: Network, classes: int) -> Declared:
        """What a client sends before the first round: for those who count bytes and who tell people."""
        return {}


starts: Registry[type[Start]] = Registry("method.start")


@starts.register("fresh")
@dataclass(frozen=True)
class Fresh(Start):
    """Random weights, the same for everybody."""


@starts.register("finished")
@dataclass(frozen=True)
class Finished(Start):
    """Another method's finished model, then a share of the rounds at a rate of its own (LG-FedAvg, spec 4.3 and 7.4).

    `run` names a finished run folder to begin from; without one the other `method` is trained first, in the same run,
    for `first` rounds. Where `first`, `lr` or `schedule` are not given (0 or ""), those of the run are used.
    """

    method: str = "fedavg"
    run: str = ""
    first: CountOrZero = 0
    rounds: Fraction = 0.25
    lr: NotNegative = 0.001
    schedule: str = "const"

    def earlier(self) -> Earlier | None:
        return None if self.run else Earlier(self.method, self.first)

    def pace(self, run: Pace) -> Pace:
        return Pace(max(_share(run.rounds, self.rounds), 1), self.lr or run.lr, self.schedule or run.schedule)

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
    """The head begins as the class means of everybody's features, each of length one (FedNCM, spec 7.1).

    `rounds` is the share of train.rounds that follows: 0 for FedNCM, 1 for FedNCM+FT. `metric`: the nearest direction,
    or the nearest mean, whose −‖m‖²/2 is the head's bias."""

    rounds: Annotated[float, Field(ge=0, le=1)] = 0.0
    metric: Literal["direction", "euclidean"] = "direction"

    def pace(self, run: Pace) -> Pace:
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
        """One exchange with all training clients; the result does not depend on who has what."""
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
    """The answer to `Exchange.class_sums`: features of a client's samples summed by class, and how many there are."""
    return {
        "total": Statistic((classes, net.body.features), "class sums", counts=True, over_samples=True),
        "count": Statistic((classes,), "class sums", counts=True, numbers="count"),
    }


def _share(rounds: int, share: float) -> int:
    return int(rounds * share + 1e-9)


def _linear_of(net: Network) -> tuple[str, Linear]:
    """The one linear layer of the head, and where it is; a head of several layers has no place for class means."""
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
    """Features must be a function of the sample alone: by the statistics of a batch, or of all that one client has,
    they depend on who else has been dealt to that client, and so do their means (spec 7.1 and 18, point 7)."""
    for name, module in net.body.named_modules():
        if isinstance(module, _BatchNorm) and module.running_mean is None:
            raise RequestError(
                "method.start = 'class-means' needs features that do not depend on how data are dealt, and BatchNorm "
                f"at body.{name} takes its statistics from the batch. Accepted: model.norm = 'running' (and a body of "
                "model.weights that was trained with it), or a body without BatchNorm"
            )


def _check_all_there(count: Tensor) -> None:
    absent = (count == 0).nonzero().flatten().tolist()
    if absent:
        raise RunFailed(
            f"method.start = 'class-means': no client has samples of class {absent[0]}, and the head has no bias that "
            "would rule the class out. Accepted: model.head_bias = true with method.head = 'linear' or 'dual', "
            "method.head.bias = true with method.head = 'normalized'"
        )
