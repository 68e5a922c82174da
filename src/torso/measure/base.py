"""What a measure is: a function of a workspace and G clients with their models, registered by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
from torch import Tensor

from torso.data.batches import Shuffle
from torso.engine import Workspace
from torso.learn.phases import LocalPhase
from torso.learn.steps import LocalSettings
from torso.learn.task import LocalResult, stacks_alike
from torso.nets import Tensors
from torso.registry import Registry


class OwnModels(Protocol):
    """What the fine-tuning of G clients starts at, from the models that they hold; `visit`, where it was made."""

    def __call__(
        self,
        workspace: Workspace,
        clients: Sequence[int],
        held: Tensors,
        visit: Callable[[], LocalResult] | None = None,
    ) -> Tensors: ...

    def for_clients(self, clients: Sequence[int]) -> OwnModels:
        """A copy that knows of these clients only."""
        ...

    def keeps_bits(self, sizes: Sequence[int]) -> bool:
        """Whether clients of these sizes have the same bits in a stack as each alone."""
        ...


class OneMoreVisit(Protocol):
    """A visit of G clients of which nothing is uploaded."""

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> LocalResult: ...

    def told_to(self, workspace: Workspace, clients: Sequence[int]) -> Tensors:
        """The statistics [G, *] that the server would tell these clients."""
        ...

    def said_by(self, workspace: Workspace, clients: Sequence[int], tensors: Tensors) -> Tensors:
        """The statistics that they would send of some models [G, *]."""
        ...

    def for_clients(self, clients: Sequence[int]) -> OneMoreVisit:
        """A copy that knows of these clients only."""
        ...

    def keeps_bits(self, sizes: Sequence[int]) -> bool:
        """Whether clients of these sizes have the same bits in a stack as each alone."""
        ...


@dataclass(frozen=True)
class Evaluation:
    """How to measure: what the measures of one evaluation have in common."""

    batch_size: int
    templates: Literal["cosine", "l2"]
    template_order: Literal["shuffled", "code"]
    visit: OneMoreVisit
    alone: Callable[
        [Workspace, Sequence[int]], Tensors
    ]  # their models had they never met the server, after as many epochs
    alone_by_epoch: Callable[
        [Workspace, Sequence[int]], Iterator[Tensors]
    ]  # after each of them; each is gone with the next
    own: OwnModels
    finetune: Callable[[int], tuple[LocalPhase, ...]]  # number of epochs → phases
    epochs: int
    sweep: tuple[int, ...]
    settings: LocalSettings
    shuffle: Shuffle  # of the fine-tuning batches
    weighting: str  # of the generic model, where clients keep parts of their own …
    keeps: bool  # … and whether they do
    arrival: tuple[LocalPhase, ...]  # what a client goes through that comes when training is over …
    arrival_settings: LocalSettings  # … and how
    bins: int = 15  # of the calibration error
    shift: float = 0.5  # how even the shares of classes are that test samples are drawn again with
    corruptions: tuple[str, ...] = ()  # of test images …
    severities: tuple[int, ...] = ()  # … and how strong

    def for_clients(self, clients: Sequence[int]) -> Evaluation:
        """A copy that knows of these clients only."""
        return replace(self, visit=self.visit.for_clients(clients), own=self.own.for_clients(clients))

    def keeps_bits(self, sizes: Sequence[int]) -> bool:
        """Whether the own models of clients of these sizes have the same bits in a stack as each alone."""
        plan = [phase for epochs in (self.epochs, *self.sweep) for phase in self.finetune(epochs)]
        return stacks_alike(self.settings, plan, sizes) and self.own.keeps_bits(sizes)


Taken = Literal["clients", "own", "local", "newcomers", "server", "mixes"]
Measure = Callable[[Workspace, Sequence[int], Tensors, Evaluation], dict[str, Tensor]]
"""(workspace, G clients, their models [G, *], how) → percentages [G] by name; NaN where nothing can be measured."""


@dataclass(frozen=True)
class Measurement:
    """A measure and what it is taken of.

    `clients`: each client with the model it holds; `own`: with its own, as method.personal makes it; `local`: with that
    which one more visit leaves it. `newcomers`: clients that never train, with the model they are given. `server`: the
    generic model; "clients" are then the numbers of the batches of the test set, and the values are right answers [G],
    or signed numbers [G, K]; they are summed over batches, and then their absolute values over K. `mixes`: the same
    with right answers by class [G, C], which are then weighed by the mix of classes of each client. `swept`: taken
    after each number of epochs of personalize.sweep as well. `whole_test`: taken on the server's own test set, which a
    real federation may not have. `marked`: taken on images that attackers mark. `trains_body`: it trains whole networks
    on the way, whatever the method trains. `images`: taken on images that it changes; other samples are refused.
    `two_heads`: it mixes the answers of a generic and a personal head, and looks at training samples and at the mean
    feature that the server tells.
    """

    take: Measure
    of: Taken
    about: str
    swept: bool = False
    whole_test: bool = False
    marked: bool = False
    trains_body: bool = False
    images: bool = False
    two_heads: bool = False


measures: Registry[Measurement] = Registry("measure.names")


def measure(
    *names: str,
    of: Taken,
    swept: bool = False,
    whole_test: bool = False,
    marked: bool = False,
    trains_body: bool = False,
    images: bool = False,
    two_heads: bool = False,
) -> Callable[[Measure], Measure]:
    """Decorator: register a measure under the name that `measure.names` and `result.json` use.

    One that finds several values in one pass has several names; whoever asks for one of them gets that one."""

    def keep(take: Measure) -> Measure:
        for name in names:
            about, whole = " ".join((take.__doc__ or "").split()), whole_test or of in ("server", "mixes")
            measures.register(name)(Measurement(take, of, about, swept, whole, marked, trains_body, images, two_heads))
        return take

    return keep


QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Accuracy:
    """Percentages over clients: mean and population std (spec 9.1); a client without test data has None."""

    mean: float
    std: float
    n: int
    clients: tuple[float | None, ...] = field(repr=False, default=())

    def __str__(self) -> str:
        """`81.4 ± 12.0 (50 clients)`; of one model for all clients `81.4`."""
        of_clients = f" ± {self.std:.1f} ({self.n} client{'' if self.n == 1 else 's'})" if self.clients else ""
        return f"{self.mean:.1f}{of_clients}"

    @classmethod
    def over(cls, values: Sequence[float], per_client: bool = True) -> Accuracy:
        known = np.array([v for v in values if not math.isnan(v)], dtype=np.float64)
        clients = tuple(None if math.isnan(v) else v for v in values) if per_client else ()
        if not len(known):
            return cls(math.nan, math.nan, 0, clients)
        return cls(float(known.mean()), float(known.std()), len(known), clients)

    def in_brief(self) -> dict[str, Any]:
        """For the history: no value of a single client, but how they are spread."""
        brief = {key: value for key, value in self.as_json().items() if key != "clients"}
        known = [value for value in self.clients if value is not None]
        return {**brief, "quantiles": np.quantile(known, QUANTILES).tolist()} if known else brief

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Accuracy:
        """The accuracy that `as_json` wrote."""
        mean, std = (math.nan if found[k] is None else found[k] for k in ("mean", "std"))
        return cls(mean, std, found["n"], tuple(found["clients"]))

    def as_json(self) -> dict[str, Any]:
        number = {"mean": self.mean, "std": self.std}
        return {
            **{k: None if math.isnan(v) else v for k, v in number.items()},
            "n": self.n,
            "clients": list(self.clients),
        }
