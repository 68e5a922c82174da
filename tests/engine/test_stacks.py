"""Clients that share a stack by default have the bits that each has alone."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import pytest
import torch
from tests.runs.samples import bits

from torso import Config, run
from torso.data.batches import Batch
from torso.engine import OneByOne, Workspace, stacks
from torso.engine.memory import patient_collector
from torso.engine.stacks import MOST, Stacker
from torso.learn.unpadded import equal_widths, joined_gradients, narrowed
from torso.measure.base import Evaluation, Measurement, measures
from torso.measure.evaluate import MeasureWork
from torso.methods import methods
from torso.nets import Tensors
from torso.personal.state import State
from torso.runs.evaluation import evaluation_of
from torso.runs.job import data_of, simulate
from torso.runs.models import TrainedModels
from torso.runs.telling import tell, visit_of
from torso.server.state import ServerState

SETS = (
    *("data.source=digits", "data.per_class=12", "data.clients=6", "data.partition=iid", "data.meta_per_class=1"),
    *("data.server_fraction=0.05", "model.body=mlp", "train.rounds=2", "train.local_epochs=1", "train.fraction=0.7"),
    *("train.batch_size=8", "train.momentum=0.9", "measure.names=[]", "run.device=cpu", "run.workers=1"),
    "personalize.epochs=2",
)
UNEVEN = ("data.partition=dirichlet-class", "data.alpha=0.5")


def config(method: str, *sets: str) -> Config:
    body = ("model.body=conv3",) if method == "fedbn" else ()
    return Config.load(None, [*SETS, f"method.name={method}", *body, *sets])


@pytest.fixture
def own_bits(monkeypatch: pytest.MonkeyPatch) -> str:
    """A measure that tells the bits of each client's own model: the sum of its numbers, read as integers."""

    def take(workspace: Workspace, clients: Sequence[int], tensors: Tensors, how: Evaluation) -> Tensors:
        words = [t.contiguous().view(torch.int32).flatten(1).long().sum(dim=1) for t in tensors.values()]
        return {"own_bits": torch.stack(words).sum(dim=0).double()}

    monkeypatch.setitem(measures, "own_bits", Measurement(take, "own", "bits of own models"))
    return "measure.names=own_bits"


def bits_of(asked: Config) -> object:
    result = run(asked)
    assert isinstance(result.models, TrainedModels)
    return bits(result.models.state), {name: found.clients for name, found in result.accuracy.items()}


@pytest.mark.parametrize("method", methods)
def test_every_method_has_the_bits_that_clients_have_one_by_one(method: str, own_bits: str) -> None:
    """Clients of one size; the certified runs have clients of different sizes, for every method too."""
    assert bits_of(config(method, own_bits)) == bits_of(config(method, own_bits, "run.clients_at_once=1"))


@pytest.mark.parametrize("method", ["fedavg", "fedper", "ditto", "scaffold", "pfedme", "fedntd", "fedrod-hyper"])
def test_clients_of_different_sizes_have_them_too(method: str, own_bits: str) -> None:
    uneven = own_bits, *UNEVEN
    assert bits_of(config(method, *uneven)) == bits_of(config(method, *uneven, "run.clients_at_once=1"))


def stack_of(method: str, *sets: str) -> int:
    """How many clients share a stack in the first round."""
    asked = config(method, *sets)
    job = simulate(asked, data_of(asked))
    stage, everybody = job.stage(1), range(job.roster.clients)
    visit = visit_of(stage, tell(stage, ServerState(job.model), job.roster, everybody, 1, 0), 0)
    return Stacker(job.net, job.federation)(visit, everybody)


@pytest.mark.parametrize(
    ("expected", "method", "sets"),
    [
        (MOST, "fedavg", ()),
        (MOST, "fedavg", UNEVEN),
        (MOST, "fedrep", ()),
        (1, "fedrep", UNEVEN),  # its head learns on features, which are computed with padding
        (1, "per-fedavg", UNEVEN),  # pairs of batches
        (1, "fedproto", UNEVEN),  # class means over all samples
        (1, "moon", ()),
        (1, "fedrod-meta-bsm", ()),
        (1, "fedit", ()),  # the frozen body stands once for all
        (1, "fedavg", ("model.body=conv3",)),
        (1, "fedavg", ("data.size=32", "train.batch_size=32")),  # large enough to keep a core busy
    ],
)
def test_who_shares_a_stack(expected: int, method: str, sets: tuple[str, ...]) -> None:
    assert stack_of(method, *sets) == expected


@pytest.mark.parametrize(
    ("expected", "method", "names", "sets"),
    [
        (MOST, "fedavg", ("initial", "personalized"), UNEVEN),
        (1, "fedavg", ("initial",), ()),  # nothing is trained
        (1, "fedbabu", ("personalized",), (*UNEVEN, "personalize.part=head")),  # on features
        (MOST, "fedbabu", ("personalized",), ("personalize.part=head",)),
        (MOST, "fedrod-linear", ("personal",), UNEVEN),  # by one more visit
        (1, "fedala", ("personalized",), ()),  # by one that mixes models first
    ],
)
def test_who_shares_a_stack_of_own_models(
    expected: int, method: str, names: tuple[str, ...], sets: tuple[str, ...]
) -> None:
    asked = config(method, *sets)
    job = simulate(asked, data_of(asked))
    how = evaluation_of(job, job.stage(1), State.begin(job.model))
    assert Stacker(job.net, job.federation)(MeasureWork(names, job.model, how), range(job.roster.clients)) == expected


def test_networks_of_clients_are_those_that_were_measured() -> None:
    """All at once as one by one."""
    alone, together = (run(config("fedavg", *UNEVEN, *sets)).models for sets in (("run.clients_at_once=1",), ()))
    assert isinstance(alone, TrainedModels)
    assert isinstance(together, TrainedModels)
    for (_, one), (_, other) in zip(alone.networks(range(6), True), together.networks(range(6), True), strict=True):
        assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in one.state_dict().items())


def test_a_machine_that_rounds_otherwise_in_stacks_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "_alike", {})
    monkeypatch.setattr(Stacker, "_tried", lambda self, samples: samples != 8)
    assert stack_of("fedavg") == 1
    assert stack_of("fedavg", "train.batch_size=7") == MOST


def test_a_step_that_differs_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last bit of one number of one client, as soon as it has company."""
    asked = config("fedavg")
    job = simulate(asked, data_of(asked))
    stacker, usual = Stacker(job.net, job.federation), stacks.leading_gradients
    assert stacker._tried(8)

    def rounded(*given: object) -> object:
        grads, losses = usual(*given)  # type: ignore[arg-type]
        if len(losses) > 1:
            number = grads["head.bias"][3, 4]
            number.copy_(torch.nextafter(number, number + 1))
        return grads, losses

    monkeypatch.setattr(stacks, "leading_gradients", rounded)
    assert not stacker._tried(8)


class Groups:
    """Work that says with whom it was done."""

    batch_samples = 8

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> tuple[int, ...]:
        return tuple(clients)

    def keeps_bits(self, sizes: Sequence[int]) -> bool:
        return True


def test_the_engine_asks_where_nobody_has_said_how_many() -> None:
    asked = config("fedavg")
    job = simulate(asked, data_of(asked))
    for at_once, expected in ((0, [(0, 1, 2, 3, 4)]), (2, [(0, 1), (2, 3), (4,)])):
        with OneByOne(job.net, job.federation, 1, at_once) as engine:
            assert list(engine.map(Groups(), range(5))) == expected


def test_runs_of_a_batch_by_hand() -> None:
    """Widths 3, 3, 1 and 0: two together, one after them, and nobody computes for the last."""
    real = torch.tensor([[1.0, 1, 1], [1, 1, 1], [1, 0, 0], [0, 0, 0]])
    labels = torch.arange(12).view(4, 3)
    batch = Batch(labels.float().unsqueeze(-1), labels, real)
    assert equal_widths(batch) == [(slice(0, 2), 3), (slice(2, 3), 1)]
    assert narrowed(batch, slice(2, 3), 1).labels.tolist() == [[6]]
    assert narrowed(batch, slice(0, 2), 3).real is None
    assert equal_widths(Batch(batch.inputs, labels)) == []
    assert equal_widths(Batch(batch.inputs, labels, real.flip(0))) == []  # they do not stand by their number
    assert equal_widths(Batch(batch.inputs, labels, real.flip(1))) == []  # padding stands before samples
    parts = [({"w": torch.ones(2, 1)}, torch.ones(2)), ({"w": torch.zeros(1, 1)}, torch.zeros(1))]
    grads, losses = joined_gradients(parts)
    assert grads["w"].flatten().tolist() == losses.tolist() == [1, 1, 0]


def test_the_collector_waits_and_goes_on_as_before() -> None:
    before = gc.get_threshold()
    with patient_collector(10**6):
        assert gc.get_threshold() == (10**6, *before[1:])
        with patient_collector(5):
            assert gc.get_threshold()[0] == 10**6
        assert gc.get_threshold()[0] == 10**6
    assert gc.get_threshold() == before
