"""Methods with adapters through a round, worked out by hand. The federation is that of tiny.py.

The body is f = W x + s·b (a x) with W the unit matrix, rank 1 and s = alpha / rank = 2; the head H is the unit matrix.
With g = p − e for p = softmax(H f): ∂ℓ/∂H = g fᵀ, ∂ℓ/∂b = s (a x) Hᵀg and ∂ℓ/∂a = s (bᵀHᵀg) xᵀ.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.near import assert_states_near
from torch import Tensor, nn
from torch.testing import assert_close

from torso import Config, RequestError, Result, load_model, run, save_model
from torso.engine import Batched
from torso.learn import lockstep
from torso.learn.drift import Dynamic, Proximal
from torso.methods import Method, methods
from torso.methods.method import method
from torso.nets import Tensors, bodies, body_of, build
from torso.nets.heads import head_inits
from torso.nets.lora import Lora, is_adapter
from torso.parallel.together import run_together
from torso.personal.state import State
from torso.runs.job import Simulation, simulate
from torso.runs.stages import stages
from torso.runs.telling import tell, visit_of
from torso.runs.unused_keys import unread_keys

from .tiny import eye, federation, play

W, A, B = (f"body.module.layer.{name}weight" for name in ("", "lora_a.", "lora_b."))
H = "head.weight"
Trained = tuple[Path, Result, Result]
START = {A: torch.tensor([[0.5, 1.0]]), B: torch.tensor([[1.0], [-0.5]])}  # b = 0 would hide what a learns
X = (torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))


@pytest.fixture(autouse=True)
def _bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bodies, "one-layer", lambda channels, height, width: body_of(OneLayer(), features=2))
    monkeypatch.setitem(bodies, "reads", lambda channels, height, width: body_of(Reads(), features=4))
    monkeypatch.setitem(head_inits, "eye", eye)


class OneLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2, bias=False)
        nn.init.eye_(self.layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1))  # type: ignore[no-any-return]


class Reads(nn.Module):
    """Reads the weights of a layer that it does not call."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x.flatten(1)) @ self.second.weight


def job(chosen: Method, epochs: int = 1) -> Simulation:
    train = {"rounds": 2, "local_epochs": epochs, "fraction": 1.0, "lr": 1.0, "momentum": 0.0, "schedule": "const"}
    model = {"body": "one-layer", "head_init": "eye", "head_bias": False, "lora": {"rank": 1, "alpha": 2.0}}
    config = Config(method=chosen, model=model, train=train)
    net = build("one-layer", 2, (1, 1, 2), config.method.head, head_init="eye", head_bias=False, lora=config.lora)
    tensors = {name: tensor.detach() for name, tensor in net.state_dict().items()} | START
    return Simulation(config, federation().roster, net, stages(config, net), tensors, federation())


def by_hand(client: int) -> Tensors:
    """What a client has after one step of rate 1 on all that learns."""
    a, b, x = START[A][0], START[B][:, 0], X[client]
    f = x + 2 * b * (a @ x)
    g = f.softmax(0) - torch.eye(2)[client]
    return {
        A: START[A] - 2 * (b @ g) * x[None],
        B: START[B] - 2 * (a @ x) * g[:, None],
        H: torch.eye(2) - torch.outer(g, f),
    }


def mean(name: str) -> Tensor:
    return by_hand(0)[name] / 4 + by_hand(1)[name] * 3 / 4


EXPECTED: list[tuple[Any, set[str], set[str], int]] = [  # method, travels, stays, numbers that travel
    (methods["fedit"], {A, B, H}, set(), 2 + 2 + 4),
    (methods["ffa-lora"], {B, H}, set(), 2 + 4),
    (methods["fedsa-lora"], {A}, {B, H}, 2),
    (method(train="lora+head", share="lora.a+head"), {A, H}, {B}, 2 + 4),  # b personal
    (method(train="lora+head", share="lora"), {A, B}, {H}, 2 + 2),  # the head personal
    (method(train="body", share="body"), {A, B}, set(), 2 + 2),  # FedBABU of a body whose adapters alone can learn
    (method(train="lora.a", share="all"), {A}, set(), 2),
]


@pytest.mark.parametrize(("chosen", "travels", "stays", "numbers"), EXPECTED)
def test_a_round_by_hand(chosen: Method, travels: set[str], stays: set[str], numbers: int) -> None:
    """What travels is the mean by samples 1 : 3, what stays is the client's own, all else keeps its bits; bytes are
    those of what travels, four a number, of two clients."""
    task = job(chosen)
    state = play(task)
    for name in (A, B, H):
        start = START.get(name, torch.eye(2))
        assert_close(state.model[name], mean(name) if name in travels else start)
    assert state.model[W] is task.model[W]
    for client in (0, 1):
        kept = state.clients[client].kept
        assert kept.keys() == stays
        for name in stays:
            assert_close(kept[name], by_hand(client)[name])
    assert state.cost.bytes_up == state.cost.bytes_down == 2 * 4 * numbers


def learned(chosen: Method) -> Tensors:
    """What both clients have learned, in one stack."""
    task = job(chosen)
    told = tell(task.plan[0], State.begin(task.model).server, task.roster, [0, 1], 1, seed=0)
    with Batched(task.net, task.federation, at_once=2) as engine:
        (found,) = engine.map(visit_of(task.plan[0], told, seed=0).alone, [0, 1])
    assert found.tensors[W].untyped_storage().nbytes() == 16  # one base for both
    return found.tensors


def test_the_mean_of_b_is_exact_where_a_is_frozen_and_not_where_it_learns() -> None:
    """FFA-LoRA: b̄ a is the mean of the b_k a. FedIT: b̄ ā is not the mean of the b_k a_k."""
    shares = torch.tensor([0.25, 0.75])[:, None, None]

    def both_ways(chosen: Method) -> tuple[Tensor, Tensor]:
        found = learned(chosen)
        a, b = found[A], found[B]
        return (shares * b).sum(0) @ (shares * a).sum(0), (shares * (b @ a)).sum(0)

    assert_close(*both_ways(methods["ffa-lora"]))
    of_means, of_products = both_ways(methods["fedit"])
    assert (of_means - of_products).abs().max() > 0.01


def test_stacked_clients_learn_what_they_learn_by_hand() -> None:
    found = learned(methods["fedit"])
    for client in (0, 1):
        for name, tensor in by_hand(client).items():
            assert_close(found[name][client], tensor)


def test_dropout_of_adapters_has_its_keys_in_a_run() -> None:
    """The body is Torso's own, which otherwise draws nothing; the same run draws the same."""
    one, again, without = (
        run(tiny_run("fedit", f"model.lora.dropout={share}", "run.engine=batched")).state for share in (0.5, 0.5, 0.0)
    )
    assert one is not None
    assert again is not None
    assert without is not None
    moved = {name for name, tensor in one.model.items() if not torch.equal(tensor, without.model[name])}
    assert moved == {name for name in one.model if is_adapter(name) or name.startswith("head.")}
    assert all(torch.equal(tensor, again.model[name]) for name, tensor in one.model.items())


@pytest.mark.parametrize("drift", [Proximal(0.5), Dynamic(0.5)])
def test_drift_corrections_act_on_what_travels(drift: Any) -> None:
    """On a, though b and the head learn as well: in the second of two steps a is held near where it began."""
    task, plain = (job(methods["fedsa-lora"].but(**axes), epochs=2) for axes in ({"drift": drift}, {}))
    assert task.plan[0].corrected == (A,)
    held, free = (play(each).model[A] - START[A] for each in (task, plain))
    assert held.norm() < 0.9 * free.norm()


def test_adapters_are_there_when_the_method_or_the_config_asks() -> None:
    assert Config().lora is None
    assert Config(method="fedit").lora == Lora(rank=8, alpha=16.0)
    assert Config(method="fedit", model={"lora": {"rank": 4, "targets": "query, value"}}).lora == Lora(
        4, 16.0, ("query", "value")
    )
    assert Config(personalize={"part": "lora.b+head"}).lora == Lora()
    assert Config.load(None, ["method.share=body-lora.a"]).lora == Lora()
    assert Config(model={"lora": {"rank": 2}}).lora == Lora(2)


def test_a_alone_learns_under_a_b_that_has_learned(trained: Trained) -> None:
    """The change is b·a: where b is zero no gradient reaches a, which is refused; here a finished run gave b."""
    folder, *_ = trained
    begun = ("method.train=lora.a", "method.share=lora.a", f"model.weights={folder / 'both'}")
    run(tiny_run("fedit"), folder / "both")
    job, result = simulate(tiny_run("fedit", *begun)), run(tiny_run("fedit", *begun))
    assert result.state is not None
    moved = {name for name, tensor in result.state.model.items() if not torch.equal(tensor, job.model[name])}
    assert moved == set(job.net.parts["lora.a"])


def tiny_run(method: str, *sets: str) -> Config:
    base = ("data.clients=4", "train.rounds=2", "train.local_epochs=1", "train.fraction=0.5", "personalize.epochs=1")
    few = ("data.source=synthetic", "data.synthetic.samples=120", "data.synthetic.test_samples=40")
    return Config.load(None, [f"method.name={method}", *base, *few, "data.partition=iid", "model.body=mlp", *sets])


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["method.share=lora.c"], r"method\.share: part = 'lora\.c' is unknown.*lora, lora\.a, lora\.b, or blocks"),
        (
            ["method.train=lora.a"],
            r"method\.train has lora\.a and not lora\.b, which is zero at the start: nothing would",
        ),
        (["model.body=reads"], r"trains body\.module\.second\.lora_a\.weight, .*Choose others by model\.lora\.targets"),
        (["model.lora.targets=nothing"], r"model\.lora\.targets = 'nothing' is no layer of model\.body = 'mlp'"),
        (["model.lora.alpha=0"], r"model\.lora\.alpha = 0 is not accepted"),
        (["model.lora.rank=-1"], r"model\.lora\.rank = -1 is not accepted"),
        (["model.lora.dropout=1"], r"model\.lora\.dropout = 1 is not accepted"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_written(sets: list[str], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        simulate(tiny_run("fedit", *sets))


def test_a_key_of_adapters_that_nothing_reads_is_told() -> None:
    job = simulate(tiny_run("fedavg", "model.lora.alpha=4"))
    (note,) = unread_keys(job.config, job.plan)
    assert note.startswith("model.lora.alpha = 4.0 is set, but has no effect: model.lora.rank = 0")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A body that a run has trained, and a run of adapters on it."""
    folder = tmp_path_factory.mktemp("trained")
    base = run(tiny_run("fedavg"), folder / "base")
    return folder, base, run(tiny_run("fedsa-lora", f"model.weights={folder / 'base'}", "run.seed=1"), folder / "lora")


def test_adapters_go_on_a_trained_body_and_leave_its_bits(trained: Trained) -> None:
    _, base, result = trained
    assert result.ok
    assert base.state is not None
    assert result.state is not None
    body = {name: tensor for name, tensor in base.state.model.items() if name.startswith("body.")}
    assert all(torch.equal(result.state.model[name], tensor) for name, tensor in body.items())
    kept = {name for state in result.state.clients.of_kind("kept").values() for name in state}
    assert kept == {name for name in result.state.model if name.endswith("lora_b.weight") or name.startswith("head.")}


def test_a_clients_network_with_adapters_goes_through_a_file(trained: Trained, tmp_path: Path) -> None:
    *_, result = trained
    net = result.network(0)
    assert net.card is not None
    assert net.card.lora == Lora()
    again = load_model(save_model(net, tmp_path / "mine.safetensors"))
    x = torch.rand(3, 1, 8, 8)
    assert_close(again(x), net(x))


def test_a_body_with_adapters_begins_another_run(trained: Trained) -> None:
    folder, _, result = trained
    job = simulate(tiny_run("ffa-lora", f"model.weights={folder / 'lora'}", "run.seed=2"))
    assert result.state is not None
    assert all(torch.equal(job.model[n], t) for n, t in result.state.model.items() if is_adapter(n))
    with pytest.raises(RequestError, match=r"lora_a\.weight .* which the body has not"):
        simulate(tiny_run("fedavg", f"model.weights={folder / 'lora'}"))


def test_runs_side_by_side_share_a_stack_only_where_they_share_the_body(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two seeds draw two bodies, of which a stack would hold one; two seeds on a trained body have the same."""
    stacks: list[int] = []
    learn = lockstep._learn_together
    monkeypatch.setattr(lockstep, "_learn_together", lambda group: stacks.append(len(group)) or learn(group))
    for place, (weights, together) in enumerate((("", 1), (str(trained[0] / "base"), 2))):
        stacks.clear()
        common = ("data.source=digits", "data.clients=20", "run.engine=batched", f"model.weights={weights}")
        seeds = [tiny_run("fedit", *common, f"run.seed={seed}", "train.fraction=0.1") for seed in (1, 2)]
        found = dict(run_together(seeds, [tmp_path / f"{place} {seed}" for seed in (1, 2)], clients=1000))
        assert set(stacks) == {together}
        for number, config in enumerate(seeds):
            beside = found[number]
            assert isinstance(beside, Result)
            assert_states_near(run(config), beside, model=1e-4, kept=1e-3)
