"""What a method's start asks of the clients before the first round (`methods/starts.py`), and what that costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torso.data import Roster
from torso.data.batches import Shuffle
from torso.engine import Engine, Workspace
from torso.errors import NoWorkerLeft, RunFailed
from torso.learn.stacked import all_finite
from torso.measure.accuracy import class_sums
from torso.methods.starts import Question
from torso.nets import Network, Tensors
from torso.nets.flops import step_flops
from torso.runs.privacy import Privacy
from torso.runs.stage import Stage
from torso.server.private import noised_directions
from torso.server.state import Cost, ServerState, bytes_of
from torso.server.sums import add_stacked


@dataclass(frozen=True)
class ClassSums:
    """Work that sums the features of each client by class [G, C, d], and counts the samples of each class [G, C]."""

    model: Tensors
    batch_size: int
    order: Shuffle

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> Tensors:
        tensors = workspace.models(self.model, clients, kept=False)
        total, count = class_sums(workspace, clients, tensors, self.batch_size, self.order)
        return {"total": total, "count": count}


def class_sums_of(model: Tensors, batch_size: int, seed: int) -> ClassSums:
    """The question for class sums, with the same randomness on the server and on a client."""
    return ClassSums(model, batch_size, Shuffle(seed, "templates", 0))


class ClientExchange:
    """An `Exchange` with the training clients of a federation, through an engine. Every question adds to `cost`.

    `first`: the number of the round that comes next. With `privacy`, the start gets only noised sums of the answers."""

    def __init__(
        self,
        net: Network,
        model: Tensors,
        roster: Roster,
        engine: Engine,
        batch_size: int,
        seed: int,
        privacy: Privacy | None = None,
        first: int = 1,
    ) -> None:
        self.net = net
        self.model = model
        self.roster = roster
        self.engine = engine
        self.batch_size = batch_size
        self.seed = seed
        self.privacy = privacy
        self.first = first
        self.clients: list[int] = roster.training.tolist()
        self.cost = Cost()

    def ask(self, question: Question, passes: int = 0) -> Tensors:
        """The sums of all clients' answers. `passes`: forward passes per sample that the question costs."""
        sums: Tensors = {}
        for part in self.engine.map(question, self.clients):
            add_stacked(sums, part)
        if not sums:
            raise NoWorkerLeft("no client has answered what is asked before the first round")
        self._count(sums, passes)
        return sums

    def _count(self, sums: Tensors, passes: int) -> None:
        samples = self.roster.samples * passes
        flops = samples * step_flops(self.net, self.roster.input, 2) // 2
        self.cost += Cost(bytes_of(sums) * len(self.clients), 0, samples, flops)

    def class_sums(self) -> tuple[Tensor, Tensor]:
        question = class_sums_of(self.model, self.batch_size, self.seed)
        if self.privacy:
            return self._noised(question)
        sums = self.ask(question, passes=1)
        return sums["total"], sums["count"]

    def _noised(self, question: Question) -> tuple[Tensor, Tensor]:
        """The noised sum of all clients' class sums, each scaled to length one as one vector.

        The counts are not used, since they would cost privacy: they are returned as ones."""
        parts = (part["total"] for part in self.engine.map(question, self.clients))
        assert self.privacy is not None
        total = noised_directions(self.privacy.mechanism, parts, str(self.first))
        if total is None:
            raise NoWorkerLeft("no client has answered what is asked before the first round")
        self._count({"total": total}, passes=1)
        return total, torch.ones_like(total[:, 0])


def state_after_start(
    stage: Stage, server: ServerState, roster: Roster, engine: Engine, batch_size: int, seed: int
) -> ServerState:
    """The state with which the first round of a stage begins."""
    start = stage.method.start
    exchange = ClientExchange(stage.net, server.model, roster, engine, batch_size, seed, stage.privacy, stage.first)
    made = start.before_first_round(exchange)
    if wrong := misfit(made, server.model):
        raise RunFailed(f"method.start = {start} sets {wrong}")
    if not bool(all_finite(made.values())):
        raise RunFailed(f"method.start = {start} sets values that are not finite")
    there = {name: tensor.to(server.model[name].device) for name, tensor in made.items()}
    return replace(server, model={**server.model, **there}, cost=server.cost + exchange.cost)


def misfit(found: Tensors, model: Tensors) -> str:
    """Why tensors do not fit a model (the end of a sentence). Empty if they fit."""
    for name, tensor in found.items():
        if name not in model:
            return f"{name}, which the network does not have. It has: {', '.join(model)}"
        if (tensor.shape, tensor.dtype) != (model[name].shape, model[name].dtype):
            return f"{name} to {_words(tensor)}. Expected: {_words(model[name])}"
    return ""


def _words(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"
