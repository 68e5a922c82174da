"""The trained models of a run as networks. They are made by the functions that measure them, so they are the same."""

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

ModelKind = Literal["held", "personal", "newcomer"]
"""The kinds of a client's model, with the measures that take them.

"held": `initial`. "personal": `personalized`, `personal` and the others "of own". "newcomer": `new_after`."""
MIXED = (
    "that of the generic and the client's own head, mixed for each sample by itself: by the entropy of the mix, and by "
    "how far its features are from the mean feature of all clients and of this one (FedTHE, without a history of "
    "samples)"
)
ALONE = "that of the client's own head alone; the generic head, which is there, too, has no part in it"
_AT_ONCE = 64  # clients whose models are made together and wait in memory until they are yielded


@dataclass(frozen=True)
class MakeModels:
    """Work that makes the models of a group of clients, as separate tensors on the CPU."""

    kind: ModelKind
    model: Tensors  # the server's model on which accuracy is reported
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
        """The number of samples in a full batch."""
        return self.how.settings.batch_size

    def keeps_bits(self, sizes: Sequence[int]) -> bool:
        """Whether clients with these numbers of samples get the same bits in a stack as alone."""
        return self.kind == "personal" and self.how.keeps_bits(sizes)


@dataclass(frozen=True)
class TrainedModels:
    """The models of a finished run whose data are in this process. It is `Result.models`."""

    job: Simulation
    state: State

    def generic(self) -> Tensors:
        """The tensors of the generic model."""
        weighting = self.job.config.train.weighting
        return generic_model(self.state.reported.model, self.state.clients, self.job.roster, weighting)

    def network(self) -> Network:
        """The generic model as a network."""
        return network_of(self.job, self.generic(), "generic", None)

    def networks(self, clients: Sequence[int], personal: bool) -> Iterator[tuple[int, Network]]:
        """Each client with its network. Newcomers, which have never trained, come last."""
        job = self.job
        newcomers = set(job.roster.newcomers.tolist())
        groups: tuple[tuple[ModelKind, list[int]], ...] = (
            ("personal" if personal else "held", [k for k in clients if k not in newcomers]),
            ("newcomer" if personal else "held", [k for k in clients if k in newcomers]),
        )
        for kind, members in groups:
            work = MakeModels(kind, self.state.reported.model, self._evaluation())
            for start in range(0, len(members), _AT_ONCE):
                some = members[start : start + _AT_ONCE]
                with _engine(job, job.federation) as engine:  # closed before a yield: it limits torch's threads
                    made = [tensors for group in engine.map(work, some, self.state.clients) for tensors in group]
                for client, tensors in zip(some, made, strict=True):
                    yield client, network_of(job, tensors, kind, client)

    def newcomer(self, samples: Any, labels: Any, epochs: int | None, number: int | None = None) -> Network:
        """The network of a client that is not part of the run.

        `epochs`: how long it trains (None: as newcomers that are measured; 0: not at all). `number`: the client's
        number, on which its randomness depends (None: the next free one)."""
        job = self.job
        if number is None:
            number = job.roster.clients
        found = card_of(job, "newcomer").samples("newcomer", samples, labels)
        encode = _encoder_of(job)
        if encode is not None:
            found = Samples(encode(torch.from_numpy(found.samples)).numpy(), found.labels)
        how = self._evaluation()
        if epochs is not None:
            how = replace(how, arrival=tuple(replace(phase, epochs=epochs) for phase in how.arrival))
        kind: ModelKind = "newcomer" if any(phase.epochs for phase in how.arrival) else "held"
        work = MakeModels(kind, self.state.reported.model, how)
        with _engine(job, _with(job.federation, found, number)) as engine:
            ((tensors,),) = engine.map(work, [number])
        return network_of(job, tensors, "newcomer", None)

    def _evaluation(self) -> Evaluation:
        return evaluation_of(self.job, self.job.stage(self.state.round), self.state)


def card_of(job: Job, kind: Literal["generic", ModelKind], client: int | None = None) -> Card:
    """The card of a model of a run: what is written into a model file about it."""
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
    """The tokenizer that a model file has to contain so that it takes texts. Empty if the run's data were no texts."""
    kind = _raw(job.roster.input)
    if not isinstance(kind, Tokens) or not kind.tokenizer:
        return ""
    return stored(wanted(job.config).tokenizer)


def _raw(kind: Input) -> Input:
    """The kind of sample that the user has: with an encoder, its input instead of its features."""
    return kind.raw if isinstance(kind, Encoded) and kind.raw is not None else kind


def _encoder_card(kind: Input) -> EncoderCard | None:
    if not isinstance(kind, Encoded):
        return None
    return EncoderCard(kind.encoder, kind.weights, kind.digest, kind.mean, kind.std)


def _encoder_of(job: Job) -> Callable[[Tensor], Tensor] | None:
    """The function that turns stored samples into features, if the run has an encoder."""
    made = job.federation.encoding if isinstance(job, Simulation) else None
    return made.encoder_of(_raw(job.roster.input)) if made is not None else None


def network_of(job: Job, tensors: Tensors, kind: Literal["generic", ModelKind], client: int | None) -> Network:
    """A network with these tensors, in evaluation mode, on the CPU."""
    net = copy.deepcopy(job.net)
    net.fill(tensors, personal=kind != "generic")
    net.card = replace(card_of(job, kind, client), answers=_answers(net))
    net.encoder = _encoder_of(job)
    return net.eval()


def _answers(net: Network) -> str:
    """Which head a call of the network uses, if a client's model has two heads that are not added. Else empty."""
    if not net.personal or CENTRES not in net.client_facts or not isinstance(net.head, DualHead):
        return ""
    return MIXED if net.head.mixes else ALONE


def _engine(job: Simulation, federation: Federation) -> Engine:
    """The run's engine. In place of a cluster it is an engine of this process: a cluster is slow to start."""
    run = job.config.run
    return engines["auto" if run.engine == "ray" else run.engine](job.net, federation, run)


def _with(federation: Federation, samples: Labelled, number: int) -> Federation:
    """A federation in which the client `number` has these samples, and all other clients have none."""
    device = federation.device
    stored = torch.from_numpy(samples.samples).to(device)
    labels = torch.from_numpy(samples.labels).to(device)
    offsets = np.zeros(number + 2, dtype=np.int64)
    offsets[-1] = len(samples)
    train = Split(stored, labels, torch.arange(len(samples), device=device), offsets)
    nothing = torch.zeros(0, dtype=torch.int64, device=device)
    return replace(
        federation,
        train=train,
        clients=number + 1,
        newcomers=np.array([number]),
        server_rows=nothing,  # the rows of the old federation would point to samples that this one does not have
        meta_rows=nothing,
        malicious=frozenset(),
    )
