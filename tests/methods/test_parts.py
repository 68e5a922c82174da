"""Parts that a network names, and what its owner froze, through a round. The federation is that of tiny.py.

The body is x ⊙ s + t: s scales the two pixels, t, the part `norm`, shifts them. With W the unit matrix, s = (1, 1)
and t = 0, client 0 meets x = (1, 0) of class 0: p − e = (−σ, σ), so ∂ℓ/∂s = x ⊙ (p − e) = (−σ, 0), ∂ℓ/∂t = (−σ, σ) and
∂ℓ/∂W = (p − e)(x)ᵀ. Client 1 is its mirror image, with three times the samples.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from torso import Config, RequestError
from torso.engine import Batched, OneByOne
from torso.learn.gradients import gradients
from torso.learn.recorded import Recorder
from torso.methods import Method
from torso.methods.method import Share, method
from torso.nets import Tensors, bodies, body_of, build
from torso.nets.heads import head_inits
from torso.personal import FineTune
from torso.personal.state import State
from torso.runs.job import Simulation
from torso.runs.models import TrainedModels
from torso.runs.rounds import play_round
from torso.runs.stages import stages
from torso.runs.telling import tell, visit_of

from .tiny import SIGMA, eye, federation, play

S, T, W = "body.module.scale", "body.module.shift", "head.weight"


class ScaleAndShift(nn.Module):
    def __init__(self, frozen: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(2)), nn.Parameter(torch.zeros(2))
        for name in frozen:
            self.get_parameter(name).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) * self.scale + self.shift


def is_shift(name: str, layer: nn.Module) -> bool:
    return name == "shift"


@pytest.fixture(autouse=True)
def _bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(*frozen: str) -> Any:
        return lambda channels, height, width: body_of(ScaleAndShift(frozen), features=2, parts={"norm": is_shift})

    monkeypatch.setitem(bodies, "free", made())
    monkeypatch.setitem(bodies, "frozen", made("scale"))
    monkeypatch.setitem(bodies, "still", made("scale", "shift"))
    monkeypatch.setitem(head_inits, "eye", eye)


def job(method: Method, body: str = "free", **more: Any) -> Simulation:
    train = {"rounds": 2, "local_epochs": 1, "fraction": 1.0, "lr": 1.0, "momentum": 0.0, "schedule": "const"}
    model = {"body": body, "head_init": "eye", "head_bias": False}
    config = Config(method=method, model=model, train=train, **more)
    net = build(body, 2, (1, 1, 2), config.method.head, head_init="eye", head_bias=False)
    tensors = {name: tensor.detach() for name, tensor in net.state_dict().items()}
    return Simulation(config, federation().roster, net, stages(config, net), tensors, federation())


def pair(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float32)


def by_hand(client: int) -> Tensors:
    """What a client has after one step of rate 1 on all it has."""
    sign = 1 if client == 0 else -1
    scale = pair(1 + SIGMA, 1) if client == 0 else pair(1, 1 + SIGMA)
    weight = torch.eye(2)
    weight[:, client] += sign * pair(SIGMA, -SIGMA)
    return {S: scale, T: sign * pair(SIGMA, -SIGMA), W: weight}


def assert_same(found: Tensors, expected: Tensors) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert_close(found[name], tensor)


def test_fedbn_keeps_the_norm_of_each_client_and_averages_the_rest() -> None:
    """share = all-norm: s and W are the mean weighted by 1 : 3, t is each client's own and stays where it was here."""
    task = job(method(share="all-norm"))
    assert task.plan[0].travels == {S, W}
    assert task.plan[0].keeps == {T}
    state = play(task)
    mean = {name: by_hand(0)[name] / 4 + by_hand(1)[name] * 3 / 4 for name in (S, W)}
    assert_same(state.model, {**mean, T: pair(0, 0)})
    for client in (0, 1):
        assert_same(state.clients[client].kept, {T: by_hand(client)[T]})
    assert (state.cost.bytes_up, state.cost.bytes_down) == (2 * 24, 2 * 24)  # four numbers of W, two of s, to and fro


def test_a_part_without_another_in_one_line() -> None:
    """share = body-norm: the head stays at home, too."""
    state = play(job(method(share="body-norm")))
    assert_same(state.model, {S: pair(1 + SIGMA / 4, 1 + 3 * SIGMA / 4), T: pair(0, 0), W: torch.eye(2)})
    for client in (0, 1):
        assert_same(state.clients[client].kept, {name: by_hand(client)[name] for name in (T, W)})
    assert state.cost.bytes_up == 2 * 8


def test_train_takes_a_part_that_the_network_names() -> None:
    state = play(job(method(train="norm")))
    assert_same(state.model, {S: pair(1, 1), T: pair(-SIGMA / 2, SIGMA / 2), W: torch.eye(2)})  # (σ − 3σ)/4
    assert not state.clients.of_kind("kept")
    assert state.cost.bytes_up == 2 * 8


@pytest.mark.parametrize(
    ("personal", "part", "moves"),
    [
        (FineTune("norm"), "method", {T}),
        (FineTune("all-norm"), "method", {S, W}),
        (FineTune("all"), "norm", {T}),
        (FineTune("norm"), "body-norm+head", {S, W}),
    ],
)
def test_personalisation_takes_it_as_well(personal: FineTune, part: str, moves: set[str]) -> None:
    """One step of rate 1 from the unit matrix."""
    task = job(method(personal=personal), personalize={"part": part, "lr": 1.0, "epochs": 1})
    for client, net in TrainedModels(task, State.begin(task.model)).networks([0, 1], personal=True):
        assert_same(net.state_dict(), {n: by_hand(client)[n] if n in moves else t for n, t in task.model.items()})


def test_the_server_trains_such_a_part_on_its_own_data() -> None:
    task = job(method(server_data="norm"))
    assert task.plan[0].server_plan(1)[0].moving == {T}


def test_what_the_owner_froze_is_neither_trained_nor_sent() -> None:
    task = job(Method(), "frozen")
    (stage,) = task.plan
    assert stage.moving == stage.travels == {T, W}
    assert stage.keeps == frozenset()
    state = play(task)
    mean = {name: by_hand(0)[name] / 4 + by_hand(1)[name] * 3 / 4 for name in (T, W)}
    assert_same(state.model, {S: pair(1, 1), **mean})
    assert state.model[S] is task.model[S]
    assert state.cost.bytes_up == state.cost.bytes_down == 2 * 24
    once = play(
        job(method(share=Share(frozen="once")), "frozen")
    )  # unless the method asks for it, by a word of its own
    assert once.cost.bytes_down == 2 * (24 + 8)


def test_a_body_that_is_all_frozen_costs_a_forward_pass() -> None:
    """As head tuning does (spec 14.2); four samples in all, and W alone travels."""
    state = play(job(Method(), "still"))
    assert_same({n: state.model[n] for n in (S, T)}, {S: pair(1, 1), T: pair(0, 0)})
    assert_close(state.model[W], by_hand(0)[W] / 4 + by_hand(1)[W] * 3 / 4)
    assert (state.cost.forward_passes, state.cost.bytes_up) == (4, 2 * 16)
    assert play(job(Method())).cost.forward_passes == 12


def test_a_frozen_part_cannot_learn() -> None:
    words = r"method\.train: part = 'body-norm' cannot learn: all its parameters are frozen \(requires_grad=False\)"
    with pytest.raises(RequestError, match=words):
        job(method(train="body-norm"), "frozen")
    with pytest.raises(RequestError, match=r"personalize\.part: part = 'body-norm' cannot learn"):
        job(Method(), "frozen", personalize={"part": "body-norm"})
    job(method(share="body-norm"), "frozen")  # nothing of it travels, and so it may be said


def test_what_is_frozen_is_one_tensor_for_all_clients() -> None:
    """From the broadcast through learning to the end of a visit: the server's own memory."""
    task = job(Method(), "frozen")
    told = tell(task.plan[0], State.begin(task.model).server, task.roster, [0, 1], 1, seed=0)
    visit = visit_of(task.plan[0], told, seed=0)
    with Batched(task.net, task.federation, at_once=2) as engine:
        (learned,) = engine.map(visit.alone, [0, 1])
    assert learned.tensors[S].shape == (2, 2)
    assert learned.tensors[S].data_ptr() == task.model[S].data_ptr()
    assert learned.tensors[S].untyped_storage().nbytes() == 8  # two numbers
    assert learned.tensors[T].untyped_storage().nbytes() == 16
    assert learned.copy().tensors[S].untyped_storage().nbytes() == 8


def test_a_recorder_holds_what_is_frozen_once() -> None:
    task = job(Method(), "frozen")
    tensors = {name: tensor.expand(3, *tensor.shape) for name, tensor in task.model.items()}
    home = Recorder(gradients, frozen=task.net.frozen).another().home(tensors, width=4)
    assert {name: tensor.untyped_storage().nbytes() for name, tensor in home.items()} == {S: 8, T: 24, W: 48}
    assert all(torch.equal(home[name], tensor) for name, tensor in tensors.items())


def test_frozen_clients_stacked_are_those_one_by_one() -> None:
    task = job(method(share="all-norm"), "frozen")
    stage, state = task.plan[0], State.begin(task.model)
    with Batched(task.net, task.federation, at_once=2) as stacked, OneByOne(task.net, task.federation) as alone:
        together, _ = play_round(stage, state, task.roster, stacked, seed=0)
        apart, _ = play_round(stage, state, task.roster, alone, seed=0)
    assert_same(together.model, apart.model)
    for client in (0, 1):
        assert_same(together.clients[client].kept, apart.clients[client].kept)
