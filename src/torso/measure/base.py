"""The form of measures (functions of a workspace and G clients with their models) and their registry."""

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
    """Makes the models [G, *] with which the fine-tuning of G clients begins. `held`: the models that they hold;
    `visit`: gives one more visit, if the caller shares it with other measures."""

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
        """Whether clients with these numbers of samples get the same bits in a stack as alone."""
        ...


class OneMoreVisit(Protocol):
    """Makes one more visit of G clients, without upload."""

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> LocalResult: ...

    def told_to(self, workspace: Workspace, clients: Sequence[int]) -> Tensors:
        """The statistics [G, *] that the server would tell these clients."""
        ...

    def said_by(self, workspace: Workspace, clients: Sequence[int], tensors: Tensors) -> Tensors:
        """The statistics [G, *] that these clients would send for models [G, *]."""
        ...

    def for_clients(self, clients: Sequence[int]) -> OneMoreVisit:
        """A copy that knows of these clients only."""
        ...

    def keeps_bits(self, sizes: Sequence[int]) -> bool:
        """Whether clients with these numbers of samples get the same bits in a stack as alone."""
        ...


@dataclass(frozen=True)
class Evaluation:
    """The settings of one evaluation, which all its measures use."""

    batch_size: int
    templates: Literal["cosine", "l2"]  # how features are compared with class means
    template_order: Literal["shuffled", "code"]  # order of the samples from which class means are computed
    visit: OneMoreVisit
    alone: Callable[[Workspace, Sequence[int]], Tensors]  # models [G, *] that clients train alone, without the server
    alone_by_epoch: Callable[[Workspace, Sequence[int]], Iterator[Tensors]]  # after each epoch; valid until the next
    own: OwnModels
    finetune: Callable[[int], tuple[LocalPhase, ...]]  # number of epochs → phases of fine-tuning
    epochs: int  # of fine-tuning
    sweep: tuple[int, ...]  # further numbers of epochs to measure after
    settings: LocalSettings  # of fine-tuning
    shuffle: Shuffle  # of fine-tuning
    weighting: str  # weights of clients in the generic model, if clients keep parts of the model …
    keeps: bool  # … and whether they do
    arrival: tuple[LocalPhase, ...]  # phases of the training of newcomers …
    arrival_settings: LocalSettings  # … and its settings
    bins: int = 15  # of the calibration error
    shift: float = 0.5  # Dirichlet parameter of the class mixes with which test samples are redrawn
    corruptions: tuple[str, ...] = ()  # corruptions of test images …
    severities: tuple[int, ...] = ()  # … and their severities, 1 to 5

    def for_clients(self, clients: Sequence[int]) -> Evaluation:
        """A copy that knows of these clients only."""
        return replace(self, visit=self.visit.for_clients(clients), own=self.own.for_clients(clients))

    def keeps_bits(self, sizes: Sequence[int]) -> bool:
        """Whether the own models of clients with these numbers of samples get the same bits in a stack as alone."""
        plan = [phase for epochs in (self.epochs, *self.sweep) for phase in self.finetune(epochs)]
        return stacks_alike(self.settings, plan, sizes) and self.own.keeps_bits(sizes)


MeasuredOn = Literal["clients", "own", "local", "newcomers", "server", "mixes"]
Measure = Callable[[Workspace, Sequence[int], Tensors, Evaluation], dict[str, Tensor]]
"""(workspace, G clients, their models [G, *], how) → percentages [G] by name; NaN if nothing can be measured."""


@dataclass(frozen=True)
class Measurement:
    """A registered measure, with what it is taken of (`of`):

    - `clients`: each client with the model that it holds;
    - `own`: each client with its own model, as method.personal makes it;
    - `local`: each client with the model after one more visit;
    - `newcomers`: clients that never train, with the model that they get;
    - `server`: the generic model. "Clients" are then numbers of batches of the test set, and the values are numbers of
      correct predictions [G], or signed numbers [G, K]. They are summed over batches; then their absolute values are
      summed over K;
    - `mixes`: as `server`, with correct predictions by class [G, C], weighted by each client's mix of classes.
    """

    take: Measure
    of: MeasuredOn
    about: str
    swept: bool = False  # also taken after each number of epochs in personalize.sweep
    whole_test: bool = False  # needs the server's test set, which a real federation may not have
    marked: bool = False  # taken on images with the trigger of a backdoor
    trains_body: bool = False  # trains whole networks, whatever the method trains
    images: bool = False  # changes images; other kinds of samples are refused
    two_heads: bool = False  # mixes a generic and a personal head, by training samples and the server's mean feature


measures: Registry[Measurement] = Registry("measure.names")


def measure(
    *names: str,
    of: MeasuredOn,
    swept: bool = False,
    whole_test: bool = False,
    marked: bool = False,
    trains_body: bool = False,
    images: bool = False,
    two_heads: bool = False,
) -> Callable[[Measure], Measure]:
    """Decorator: register a measure under the name that `measure.names` and `result.json` use.

    A measure that finds several values in one pass has several names, and a run may ask for any of them."""

    def keep(take: Measure) -> Measure:
        about = " ".join((take.__doc__ or "").split())
        whole = whole_test or of in ("server", "mixes")
        for name in names:
            measures.register(name)(Measurement(take, of, about, swept, whole, marked, trains_body, images, two_heads))
        return take

    return keep


QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Accuracy:
    """One measure over clients, in percent: mean and standard deviation (spec 9.1)."""

    mean: float
    std: float  # over clients, of the population (ddof 0)
    n: int  # clients with a value
    clients: tuple[float | None, ...] = field(repr=False, default=())  # None: a client without a value

    def __str__(self) -> str:
        """`81.4 ± 12.0 (50 clients)`; of one model for all clients `81.4`."""
        of_clients = f" ± {self.std:.1f} ({self.n} client{'' if self.n == 1 else 's'})" if self.clients else ""
        return f"{self.mean:.1f}{of_clients}"

    @classmethod
    def over(cls, values: Sequence[float], per_client: bool = True) -> Accuracy:
        """From the values of clients; NaN is no value. `per_client`: whether to keep them."""
        known = np.array([v for v in values if not math.isnan(v)], dtype=np.float64)
        clients = tuple(None if math.isnan(v) else v for v in values) if per_client else ()
        if not len(known):
            return cls(math.nan, math.nan, 0, clients)
        return cls(float(known.mean()), float(known.std()), len(known), clients)

    def in_brief(self) -> dict[str, Any]:
        """The entry of the history as JSON: quantiles over clients instead of their values."""
        brief = {key: value for key, value in self.as_json().items() if key != "clients"}
        known = [value for value in self.clients if value is not None]
        return {**brief, "quantiles": np.quantile(known, QUANTILES).tolist()} if known else brief

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Accuracy:
        """The accuracy that `as_json` wrote."""
        mean, std = (math.nan if found[k] is None else found[k] for k in ("mean", "std"))
        return cls(mean, std, found["n"], tuple(found["clients"]))

    def as_json(self) -> dict[str, Any]:
        """The accuracy as JSON, with null for NaN."""
        number = {"mean": self.mean, "std": self.std}
        return {
            **{k: None if math.isnan(v) else v for k, v in number.items()},
            "n": self.n,
            "clients": list(self.clients),
        }
