"""The models that come out of a run. What measures them makes them: there is no second way to a client's model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from torso.data import Federation, Split
from torso.data.encoded import Encoded
from torso.data.images import Labelled, Samples
from torso.data.inputs import Input, Tokens, known
from torso.data.tokenizers import stored
from torso.engine import Engine, Workspace, engines
from torso.measure.base import Evaluation
from torso.measure.evaluate import own_models
from torso.measure.head_ensemble import centres_of
from torso.measure.newcomers import settled
from torso.methods.parse import axis_to_config
from torso.nets import Network, Tensors, heads
from torso.nets.card import Card, EncoderCard
from torso.nets.dual import DualHead
from torso.nets.network import CENTRES
from torso.personal.models import generic_model
from torso.personal.state import State
from torso.runs.encoding import wanted
from torso.runs.evaluation import evaluation_of
from torso.runs.job import Job, Simulation

Made = Literal["held", "personal", "newcomer"]
"""Which measures take these models: `initial`; `personalized`, `personal` and the others "of own"; `new_after`."""
MIXED = (
    "that of the generic and the client's own head, mixed for each sample by itself: by the entropy of the mix, and by "
    "how far its features are from the mean feature of all clients and of this one (FedTHE, without a history of "
    "samples)"
)
ALONE = "that of the client's own head alone; the generic head, which is there, too, has no part in it"
_AT_ONCE = 64  # clients whose models wait in memory for whoever asks for them


@dataclass(frozen=True)
class MakeModels:
    """Work: the models of a group of clients, each as tensors of its own on the CPU."""

    kind: Made
    model: Tensors  # as accuracy is reported on it
    how: Evaluation

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> list[Tensors]:
        made = workspace.models(self.model, clients)
        if self.kind == "personal":
            start = self.how.own(workspace, clients, made)
            _, made = next(own_models(workspace, clients, start, self.how, [self.how.epochs]))
            made = {**made, **centres_of(workspace, clients, made, self.how)}
        elif self.kind == "newcomer":
            made = settled(workspace, clients, made, self.how)
        every = {name: tensor.detach().cpu() for name, tensor in made.items()}
        return [{name: tensor[place].clone() for name, tensor in every.items()} for place in range(len(clients))]

    @property
    def batch_samples(self) -> int:
        """How many samples a full batch has."""
        return self.how.settings.batch_size

    def keeps_bits(self, sizes: Sequence[int]) -> bool:
        """Whether the models of clients of these sizes have the bits in a stack that each has alone."""
        return self.kind == "personal" and self.how.keeps_bits(sizes)


@dataclass(frozen=True)
class TrainedModels:
    """The models of a run that has ended: what `Result.models` is where the run's data are here."""

    job: Simulation
    state: State

    def generic(self) -> Tensors:
        weighting = self.job.config.train.weighting
        return generic_model(self.state.reported.model, self.state.clients, self.job.roster, weighting)

    def network(self) -> Network:
        return network_of(self.job, self.generic(), "generic", None)

    def networks(self, clients: Sequence[int], personal: bool) -> Iterator[tuple[int, Network]]:
        """Each client with its network; those that have never trained come last."""
        job, late = self.job, set(self.job.roster.newcomers.tolist())
        groups: tuple[tuple[Made, list[int]], ...] = (
            ("personal" if personal else "held", [k for k in clients if k not in late]),
            ("newcomer" if personal else "held", [k for k in clients if k in late]),
        )
        for kind, who in groups:
            work = MakeModels(kind, self.state.reported.model, self._evaluation())
            for start in range(0, len(who), _AT_ONCE):
                some = who[start : start + _AT_ONCE]
                with _engine(job, job.federation) as engine:  # closed before a yield: it holds torch's threads back
                    made = [tensors for group in engine.map(work, some, self.state.clients) for tensors in group]
                for client, tensors in zip(some, made, strict=True):
                    yield client, network_of(job, tensors, kind, client)

    def newcomer(self, samples: Any, labels: Any, epochs: int | None, number: int | None = None) -> Network:
        """The network of a client that the run has never heard of; its randomness is keyed by `number` (None: the next
        that is free).

        `epochs`: how long it trains for itself (None: as newcomers that are measured; 0: not at all)."""
        job, number = self.job, self.job.roster.clients if number is None else number
        found = card_of(job, "newcomer").samples("newcomer", samples, labels)
        if (encode := _encoder_of(job)) is not None:
            found = Samples(encode(torch.from_numpy(found.samples)).numpy(), found.labels)
        how = self._evaluation()
        if epochs is not None:
            how = replace(how, arrival=tuple(replace(phase, epochs=epochs) for phase in how.arrival))
        kind: Made = "newcomer" if any(phase.epochs for phase in how.arrival) else "held"
        work = MakeModels(kind, self.state.reported.model, how)
        with _engine(job, _with(job.federation, found, number)) as engine:
            ((tensors,),) = engine.map(work, [number])
        return network_of(job, tensors, "newcomer", None)

    def _evaluation(self) -> Evaluation:
        return evaluation_of(self.job, self.job.stage(self.state.round), self.state)


def card_of(job: Job, kind: Literal["generic", Made], client: int | None = None) -> Card:
    from torso import __version__

    config, roster = job.config, job.roster
    kind_of_run = roster.input
    by_batch = any(isinstance(module, _BatchNorm) and module.running_mean is None for module in job.net.modules())
    return Card(
        method=config.method.name,
        dataset=roster.name,
        body=config.model.body,
        encoder=_encoder_card(kind_of_run),
        head=axis_to_config(heads, config.method.head),
        head_bias=config.model.head_bias,
        norm=config.model.norm,
        classes=roster.classes,
        input=known(_raw(kind_of_run)),
        batch_statistics=by_batch,
        kind=kind,
        torso=__version__,
        client=roster.names[client] if client is not None and roster.names else client,
        class_names=roster.class_names,
        lora=config.lora,
        tokenizer_file=_tokenizer_file(job),
    )


def _tokenizer_file(job: Job) -> str:
    """What a model file has to hold so that it takes texts: nothing where the run's data were no texts."""
    kind = _raw(job.roster.input)
    if not isinstance(kind, Tokens) or not kind.tokenizer:
        return ""
    return stored(wanted(job.config).tokenizer)


def _raw(kind: Input) -> Input:
    """The kind of sample that a person has: what an encoder takes, where there is one."""
    return kind.raw if isinstance(kind, Encoded) and kind.raw is not None else kind


def _encoder_card(kind: Input) -> EncoderCard | None:
    if not isinstance(kind, Encoded):
        return None
    return EncoderCard(kind.encoder, kind.weights, kind.digest, kind.mean, kind.std)


def _encoder_of(job: Job) -> Callable[[Tensor], Tensor] | None:
    """What makes features of stored samples, in a run that stands on an encoder."""
    made = job.federation.encoding if isinstance(job, Simulation) else None
    return made.encoder_of(_raw(job.roster.input)) if made is not None else None


def network_of(job: Job, tensors: Tensors, kind: Literal["generic", Made], client: int | None) -> Network:
    """Ready to answer: in evaluation mode, on the CPU."""
    net = copy.deepcopy(job.net)
    net.fill(tensors, personal=kind != "generic")
    net.card, net.encoder = replace(card_of(job, kind, client), answers=_answers(net)), _encoder_of(job)
    return net.eval()


def _answers(net: Network) -> str:
    """Of a client's model with two heads that are not added: which of them a call answers with."""
    if not net.personal or CENTRES not in net.told or not isinstance(net.head, DualHead):
        return ""
    return MIXED if net.head.mixes else ALONE


def _engine(job: Simulation, federation: Federation) -> Engine:
    """Where the run's clients were measured; a cluster is not started for a few of them."""
    run = job.config.run
    return engines["auto" if run.engine == "ray" else run.engine](job.net, federation, run)


def _with(federation: Federation, samples: Labelled, number: int) -> Federation:
    """The federation in which one client, `number`, has these samples, and nobody else has any."""
    device = federation.device
    stored, labels = (torch.from_numpy(array).to(device) for array in (samples.samples, samples.labels))
    offsets = np.zeros(number + 2, dtype=np.int64)
    offsets[-1] = len(samples)
    train = Split(stored, labels, torch.arange(len(samples), device=device), offsets)
    nothing = torch.zeros(0, dtype=torch.int64, device=device)
    return replace(
        federation,
        train=train,
        clients=number + 1,
        newcomers=np.array([number]),
        server_rows=nothing,  # rows of samples that are not here
        meta_rows=nothing,
        malicious=frozenset(),
    )
