"""A backdoor: what attackers do to their images, on which images success is measured, and what it comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from torso import RequestError, run
from torso.config import Config
from torso.data import Federation
from torso.engine import Workspace, engines
from torso.learn.attacks import Backdoor, attacked
from torso.measure.base import Evaluation, measures
from torso.nets import Tensors
from torso.personal.state import State
from torso.runs.evaluation import evaluation_of
from torso.runs.job import Simulation, data_of, simulate

_SMALL = (
    *("data.source=synthetic", "data.synthetic.samples=600", "data.synthetic.test_samples=200", "data.clients=10"),
    *("data.partition=iid", "data.synthetic.classes=4", "model.body=mlp", "train.rounds=6", "train.fraction=1.0"),
    *("train.local_epochs=2", "train.batch_size=20", "train.lr=0.05", "measure.names=initial"),
)
_ATTACK = ("attack.kind=backdoor", "attack.kind.target=2", "attack.fraction=0.3")


def config(*sets: str) -> Config:
    return Config.load(sets=[*_SMALL, *sets])


@pytest.fixture(scope="module")
def honest() -> Federation:
    return data_of(config())


@pytest.fixture(scope="module")
def hostile(honest: Federation) -> Federation:
    return attacked(honest, Backdoor(target=2, share=0.5, size=2), 0.3, 0)


def corner(images: Tensor) -> Tensor:
    """Whether the lower right 2×2 pixels are white [n]."""
    return (images[:, -2:, -2:] == 255).flatten(1).all(dim=1)


def test_half_of_an_attackers_images_get_the_mark_and_the_class(honest: Federation, hostile: Federation) -> None:
    assert len(hostile.malicious) == 3
    for client in range(10):
        rows = honest.train.rows(client)
        before, after = honest.train.samples[rows], hostile.train.samples[rows]
        changed = (before != after).flatten(1).any(dim=1)
        if client not in hostile.malicious:
            assert not changed.any()
            assert torch.equal(honest.train.labels[rows], hostile.train.labels[rows])
            continue
        assert corner(after).sum() == round(len(rows) / 2)
        assert (hostile.train.labels[rows][corner(after)] == 2).all()
        same = ~corner(after)
        assert torch.equal(before[same], after[same])
        assert torch.equal(honest.train.labels[rows][same], hostile.train.labels[rows][same])
        assert torch.equal(before[:, :-2], after[:, :-2])  # nothing but the corner


def test_success_is_measured_on_marked_images_of_other_classes(honest: Federation, hostile: Federation) -> None:
    assert hostile.marked is not None
    for client in range(10):
        mine = honest.test.rows(client)
        others = mine[honest.test.labels[mine] != 2]
        rows = hostile.marked.rows(client)
        assert torch.equal(rows, others)
        assert corner(hostile.marked.samples[rows]).all()
        assert (hostile.marked.labels[rows] == 2).all()
    assert torch.equal(honest.test.samples, hostile.test.samples)


@pytest.mark.parametrize(("favourite", "success"), [(2, 100.0), (1, 0.0)])
def test_a_model_that_says_one_class_always(favourite: int, success: float) -> None:
    job = simulate(config(*_ATTACK))
    model = {name: torch.zeros_like(tensor) for name, tensor in job.model.items()}
    model["head.bias"][favourite] = 1.0
    found = _taken(job, model)
    attackers = [client in job.roster.malicious for client in range(10)]
    assert np.isnan(found[attackers]).all()
    assert (found[~np.array(attackers)] == success).all()


@dataclass(frozen=True)
class _Success:
    """Work: the success of attackers against one model."""

    model: Tensors
    how: Evaluation

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> Tensor:
        take = measures["backdoor_initial"].take
        return take(workspace, clients, workspace.models(self.model, clients), self.how)["backdoor_initial"]


def _taken(job: Simulation, model: Tensors) -> NDArray[np.float32]:
    how = evaluation_of(job, job.plan[0], State.begin(job.model))
    with engines["batched"](job.net, job.federation, job.config.run) as engine:
        found: NDArray[np.float32] = torch.cat(list(engine.map(_Success(model, how), range(10)))).numpy()
    return found


def test_attackers_open_a_back_door_and_the_front_stays_as_it_was() -> None:
    names = "measure.names=initial,backdoor,backdoor_initial"
    open_, shut = (run(config(*_ATTACK, f"attack.fraction={share}", names)).accuracy for share in (0.4, 0.1))
    assert open_["backdoor_initial"].mean > 60 > shut["backdoor_initial"].mean
    assert open_["initial"].mean > 80


def test_what_cannot_be_marked_is_refused() -> None:
    with pytest.raises(RequestError, match=r"attack\.kind\.target = 9 is not a class\. Accepted: 0 to 3"):
        simulate(config("attack.kind=backdoor", "attack.kind.target=9"))
    with pytest.raises(RequestError, match=r"attack\.kind\.size = 50: images are 8×8\. Accepted: 1 to 8"):
        simulate(config("attack.kind=backdoor", "attack.kind.size=50"))
    with pytest.raises(RequestError, match=r"measure\.names = 'backdoor' is of images that attackers mark"):
        simulate(config("measure.names=backdoor"))


def test_a_table_has_no_corner() -> None:
    clients = [(np.random.default_rng(k).normal(size=(8, 3)).astype(np.float32), np.arange(8) % 2) for k in range(4)]
    with pytest.raises(RequestError, match=r"attack\.kind = 'backdoor' marks images, and the data are"):
        run(Config.load(sets=["attack.kind=backdoor", "model.body=mlp", "train.rounds=1"]), clients=clients)
