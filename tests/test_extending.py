"""docs/extending.md and docs/own-parts.md: their code is that of examples/, and does what the pages say (by hand:
methods/tiny.py)."""

from __future__ import annotations

import importlib
import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.methods import tiny
from tests.methods.tiny import tiny_parts  # noqa: F401  a fixture
from tests.runs import samples
from tests.runs.samples import assert_same_state
from torch import Tensor
from torch.testing import assert_close
from typer.testing import CliRunner

from torso import Config, RequestError, Result, RunFailed, load, run
from torso.cli import app
from torso.data import build, partitions, sources
from torso.data.batches import Batch
from torso.engine import OneByOne
from torso.learn.attacks import attacks
from torso.learn.drift import Drift, DriftState, drifts
from torso.learn.gradients import gradients
from torso.learn.steps import Learner, Step
from torso.measure import measures
from torso.methods import AXES, methods
from torso.nets import Network, Tensors, bodies
from torso.personal import FineTune, OwnModelStart, VisitStart, personals
from torso.personal.state import State
from torso.personal.store import ClientState
from torso.registry import Registry
from torso.runs.loop import play
from torso.runs.rounds import play_round
from torso.runs.run import Stopped

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
EXAMPLE_MODULES = ("fedala", "fedsam", "own_methods", "own_parts", "own_statistics")
PAGES = [(ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("extending.md", "own-parts.md")]


@pytest.fixture(autouse=True, scope="module")
def _examples() -> Iterator[None]:
    """The examples can be imported, and what they register is forgotten afterwards: other tests list what there is."""
    registries: tuple[Registry[Any], ...] = (methods, *AXES.values(), sources, partitions, bodies, measures, attacks)
    kept = [(registry, dict(registry)) for registry in registries]
    sys.path.insert(0, str(EXAMPLES))
    for name in EXAMPLE_MODULES:
        importlib.import_module(name)
    yield
    sys.path.remove(str(EXAMPLES))
    for name in EXAMPLE_MODULES:
        del sys.modules[name]
    for registry, before in kept:
        registry.clear()
        registry.update(before)


# the page


def test_every_python_block_of_the_pages_is_in_an_example_or_here() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (*EXAMPLES.glob("*.py"), Path(__file__))]
    blocks = [block for page in PAGES for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL)]
    assert len(blocks) >= 12
    for block in blocks:
        assert any(block in source for source in sources), block


def torso(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torso", *words]
    return subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, check=False)


def test_the_file_of_small_methods_runs_as_a_program() -> None:
    done = subprocess.run([sys.executable, EXAMPLES / "own_methods.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["fedper-fn-prox", "fedbabu-nesterov", "fedper"]


# a composition, and a server rule


def test_a_composition_is_the_same_in_python_and_in_a_config() -> None:
    by_words = Config.load(
        None,
        ["method.name=fedper", "method.head=normalized", "method.drift=proximal", "method.drift.mu=0.1"],
    )
    assert by_words.method.choices() == methods["fedper-fn-prox"].choices()


def test_nesterov_by_hand() -> None:
    """Δ = 1, then 3, with β = ½: m = 1, θ = 1 + ½·1 = 1.5; m = ½ + 3 = 3.5, θ = 1.5 + 3 + ½·3.5 = 6.25."""
    from own_methods import Nesterov

    rule, state, theta = Nesterov(beta=0.5), {}, {"w": torch.zeros(1)}
    for delta, expected in ((1.0, 1.5), (3.0, 6.25)):
        state, theta, _ = rule.step(state, theta, {"w": theta["w"] + delta}, squares=torch.zeros(()))
        assert theta["w"].item() == expected


def test_nesterov_without_memory_is_fedavg(plain: Small) -> None:
    """β = 0 leaves θ + Δ, which is the mean to rounding."""
    mine = small({"name": "fedavg", "server": {"name": "nesterov", "beta": 0.0}})
    for name, tensor in plain.model.items():
        assert_close(mine.model[name], tensor, rtol=1e-4, atol=1e-5)


# a step


def test_a_sharpness_aware_step_by_hand() -> None:
    """At W = 0 client 0 has g = (∓½, 0) with ‖g‖ = √½, so at W + ρg/‖g‖ its logits are ∓ρ/√2 and p − e = ∓σ(√2·ρ)."""
    from fedsam import SharpnessAware

    rho = 0.7
    state = tiny.play(tiny.job(methods["fedavg"].but(step=SharpnessAware(rho))))
    s = 1 / (1 + math.exp(-math.sqrt(2) * rho))
    w_0, w_1 = torch.tensor([[s, 0.0], [-s, 0.0]]), torch.tensor([[0.0, -s], [0.0, s]])
    assert_close(tiny.head(state), w_0 / 4 + 3 * w_1 / 4)


def test_sharpness_aware_clients_stacked_and_one_by_one(plain: Small) -> None:
    """Ragged clients; ρ → 0 is FedAvg, and costs twice the passes."""
    method = {"name": "fedavg", "step": {"name": "own-sam", "rho": 0.2}}
    one, two = small(method), small(method, at_once=2)
    close(one.model, two.model)
    close(plain.model, small({"name": "fedavg", "step": {"name": "own-sam", "rho": 1e-7}}).model)
    assert not all(torch.equal(one.model[name], tensor) for name, tensor in plain.model.items())


# gradients of the wrong shape


@dataclass(frozen=True)
class Crooked(Drift):
    """Sums over the clients, changes a name, or gives a number."""

    how: str = "sum"

    def gradient(self, grads: Tensors, at: DriftState) -> Tensors:
        if self.how == "sum":
            return {n: g.sum(dim=0) for n, g in grads.items()}
        return {"mine": grads["head.weight"]} if self.how == "name" else dict.fromkeys(grads, 0.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("sum", "gives a gradient of 'body.blocks.0.weight' of shape [2]. Expected: [1, 2], clients first (here 1)"),
        ("name", "gives a gradient of 'mine', which does not learn here. Expected: some of body.blocks.0.weight, head"),
        ("number", "gives a gradient of 'body.blocks.0.weight' that is no tensor but float"),
    ],
)
def test_gradients_that_do_not_fit_are_refused_by_name(how: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(drifts, "crooked", Crooked)
    with pytest.raises(RunFailed, match=re.escape(f"method.drift = 'crooked' {words}")):
        tiny.play(tiny.job(methods["fedavg"].but(drift=Crooked(how))))


@dataclass(frozen=True)
class Lopsided(Step):
    """Forgets the client dimension."""

    def epoch(self, learner: Learner, batches: Iterator[Batch]) -> None:
        for batch in batches:
            learner.move({n: g[0] for n, g in learner.gradients(learner.tensors, batch).items()}, batch)


def test_so_are_those_of_a_step() -> None:
    with pytest.raises(RunFailed, match=r"method.step = 'Lopsided' gives a gradient of .* of shape \[2\]"):
        tiny.play(tiny.job(methods["fedavg"].but(step=Lopsided())))


# models that a personal strategy gives


@dataclass(frozen=True)
class Careless(FineTune):
    """Forgets the notes, a tensor, or the client dimension."""

    how: str = "notes"

    def before(self, at: VisitStart) -> tuple[Tensors, Tensors]:
        if self.how == "notes":
            return at.received  # type: ignore[return-value]
        return (at.received if self.how == "begin" else {n: t[0] for n, t in at.received.items()}), at.notes

    def begin(self, at: OwnModelStart) -> Tensors:
        return {}


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("notes", "before() returns dict. Expected: the models that the visit begins with, and the clients' notes"),
        ("shape", "before() returns a 'body.blocks.0.weight' of shape [2]. Expected: [1, 2], clients first"),
        ("begin", "begin() returns models without body.blocks.0.weight, head.weight. Expected: all of body.blocks.0"),
    ],
)
def test_models_that_do_not_fit_are_refused_by_name(how: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(personals, "careless", Careless)
    job = tiny.job(methods["fedavg"].but(personal=Careless(how=how)))
    with OneByOne(job.net, job.federation, workers=1) as engine:
        assert f"failed: method.personal = 'careless': {words}" in play(job, engine).status


# a start, and an attack


def test_class_shares_by_hand() -> None:
    """One sample of class 0, three of class 1, and one more of each: ln 2/6 and ln 4/6. The rate is almost 0."""
    config = Config(
        method={"name": "fedavg", "start": "class-shares"},
        model={"body": "scale"},
        train={"rounds": 1, "lr": 1e-12},
        measure={"names": ["generic"]},
    )
    state = run(config, federation=tiny.federation()).state
    assert state is not None
    assert_close(state.model["head.bias"], torch.tensor([math.log(2 / 6), math.log(4 / 6)]))


def test_boost_by_hand() -> None:
    """From W = 0 at rate 1, client 0 (a quarter of the samples) learns W₀ and client 1 W₁. Client 0 sends 2·W₀."""
    config = Config.load(None, ["attack.kind=boost", "attack.kind.factor=2.0"])
    task = tiny.job("fedavg")
    plan = tuple(replace(stage, attack=config.attack.chosen) for stage in task.plan)
    state = tiny.play(replace(task, federation=replace(task.federation, malicious=frozenset({0})), plan=plan))
    w_0, w_1 = torch.tensor([[0.5, 0.0], [-0.5, 0.0]]), torch.tensor([[0.0, -0.5], [0.0, 0.5]])
    assert_close(tiny.head(state), 2 * w_0 / 4 + 3 * w_1 / 4)


# FedALA by hand

OLD = {0: torch.tensor([[0.5, 0.0], [-0.5, 0.0]]), 1: torch.tensor([[0.0, -0.5], [0.0, 0.5]])}  # heads, last visit
MEAN = 0.25 * OLD[0] + 0.75 * OLD[1]  # the head received: columns ±⅛ and ∓⅜
Q = 1 / (1 + math.exp(0.25))  # client 0, pixels (1, 0), at MEAN: logits ±⅛, p − e = (−Q, Q)
R = 1 / (1 + math.exp(0.75))  # client 1, pixels (0, 1), at MEAN: logits ∓⅜, p − e = (R, −R)


def second_round(notes: dict[int, Tensors] | None = None, **options: Any) -> State:
    """A round of two clients that have been there before; their own steps are too small to change a bit."""
    from fedala import FedALA

    task = tiny.job(replace(methods["own-fedala"], personal=FedALA(**options)), lr=1e-30)
    held = {k: ClientState(own={"head.weight": w}, notes=(notes or {}).get(k, {})) for k, w in OLD.items()}
    start = State.begin({**task.model, "head.weight": MEAN}, held, round=1)
    with OneByOne(task.net, task.federation, workers=1) as engine:
        return play_round(task.stage(2), start, task.roster, engine, seed=0)[0]


def heads(state: State) -> list[Tensor]:
    return [state.clients[k].own["head.weight"] for k in (0, 1)]


def test_one_step_of_the_weights_by_hand() -> None:
    """∂ℓ/∂W = (p − e)xᵀ ⊙ (MEAN − OLD). Client 0, first column: (−Q)(⅛ − ½) = ⅜Q above and Q(−⅛ + ½) = ⅜Q below, so
    W = 1 − ⅜Q·lr there, 1 in the other column, and the mix is ±(½ − ⅜W). Client 1, second column: W = 1 − ⅛R·lr."""
    lr = 2.0
    state = second_round(lr=lr, sample=1.0)
    first, second = heads(state)
    one, other = 0.5 - 0.375 * (1 - 0.375 * Q * lr), 0.5 - 0.125 * (1 - 0.125 * R * lr)
    assert_close(first, torch.stack([torch.tensor([one, -one]), MEAN[:, 1]], dim=1))
    assert_close(second, torch.stack([MEAN[:, 0], torch.tensor([-other, other])], dim=1))
    assert_close(state.clients[0].notes["W.head.weight"], torch.tensor([[1 - 0.375 * Q * lr, 1.0]]).expand(2, 2))


def test_two_epochs_are_two_steps_of_the_weights() -> None:
    """Client 0 again: at the mix ±a the logits are ±a, so the second gradient is ⅜ / (1 + e^2a)."""
    once = 1 - 0.375 * Q
    twice = once - 0.375 / (1 + math.exp(2 * (0.5 - 0.375 * once)))
    assert_close(heads(second_round(epochs=2))[0][0, 0], torch.tensor(0.5 - 0.375 * twice))


def test_the_weights_learn_from_a_share_of_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """⅔ of one sample is that sample, ⅔ of three are two: n − ⌊n/3⌋."""
    import fedala

    met: list[int] = []

    def counting(net: Network, tensors: Tensors, names: Any, batch: Batch, *rest: Any) -> tuple[Tensors, Tensor]:
        met.append(batch.labels.shape[1])
        return gradients(net, tensors, names, batch, *rest)

    monkeypatch.setattr(fedala, "gradients", counting)
    second_round(sample=2 / 3)
    assert met == [1, 2]


def test_the_weights_go_on_from_the_last_visit() -> None:
    """A rate of 0 leaves W as the client has noted it: at 0 its old head, at 1 the one received."""
    kept = {0: {"W.head.weight": torch.zeros(2, 2)}}
    first, second = heads(second_round(kept, lr=0.0))
    assert torch.equal(first, OLD[0])
    assert torch.equal(second, MEAN)


def test_weights_that_would_leave_the_interval_keep_the_old_model_where_there_is_a_gradient() -> None:
    """The other column of a client's head meets only zeros: no gradient, W = 1, as received."""
    first, second = heads(second_round(lr=1e6))
    assert torch.equal(first, torch.stack([OLD[0][:, 0], MEAN[:, 1]], dim=1))
    assert torch.equal(second, torch.stack([MEAN[:, 0], OLD[1][:, 1]], dim=1))


def test_the_mix_is_exact_at_both_ends() -> None:
    from fedala import mix

    generator = torch.Generator().manual_seed(0)
    own, received = (torch.randn(3, 50, generator=generator) * 10 for _ in range(2))
    at: Any = type("At", (), {"own": {"w": own, "b": own}, "received": {"w": received, "b": received}})
    assert torch.equal(mix(at, {"w": torch.zeros(3, 50)})["w"], own)
    assert torch.equal(mix(at, {"w": torch.ones(3, 50)})["w"], received)
    assert torch.equal(mix(at, {"w": torch.zeros(3, 50)})["b"], received)  # no weights: as received


def test_the_lower_part_is_taken_as_received() -> None:
    """Own bodies of 3 are passed over with lower = body; with lower = none and W driven to 0 they come back."""
    from fedala import FedALA

    for lower, expected in (("body", [1.0, 1.0]), ("none", [3.0, 1.0])):
        task = tiny.job(replace(methods["own-fedala"], personal=FedALA(lower=lower, lr=1e6)), lr=1e-30)
        held = {0: ClientState(own={"head.weight": OLD[0], "body.blocks.0.weight": torch.full((2,), 3.0)})}
        with OneByOne(task.net, task.federation, workers=1) as engine:
            start = State.begin({**task.model, "head.weight": MEAN}, held, round=1)
            state, _ = play_round(task.stage(2), start, task.roster, engine, seed=0)
        assert state.clients[0].own["body.blocks.0.weight"].tolist() == expected


def test_nothing_to_mix_is_said_with_the_key() -> None:
    with pytest.raises(RequestError, match=r"method.personal.lower = 'all' leaves nothing to mix. Example: none"):
        second_round(lower="all")


# FedALA on digits


class Small:
    """A short run of ragged clients in which some come back, and what its clients have."""

    def __init__(self, result: Result) -> None:
        assert result.ok
        assert result.state is not None
        self.result, self.state, self.model = result, result.state, result.state.model


def small(method: Any, at_once: int = 1) -> Small:
    data = {"clients": 10, "partition": "dirichlet-class"}
    train = {"rounds": 5, "fraction": 0.4, "local_epochs": 1, "batch_size": 10, "schedule": "const", "momentum": 0.0}
    model, runs = {"body": "mlp"}, {"clients_at_once": at_once, "workers": 1}
    return Small(run(Config(method=method, data=data, train=train, model=model, run=runs)))


@pytest.fixture(scope="module")
def mixed() -> Small:
    return small("own-fedala")


@pytest.fixture(scope="module")
def plain() -> Small:
    return small("fedavg")


def close(one: Tensors, other: Tensors) -> None:
    for name, tensor in one.items():
        assert (other[name] - tensor).norm() < 1e-3 * max(tensor.norm().item(), 1.0), name


def test_weights_of_one_are_fedavg_bit_for_bit(mixed: Small, plain: Small) -> None:
    """A rate of 0 leaves W at 1; the mix does something where it does not."""
    ones = small({"name": "own-fedala", "personal": {"lr": 0.0}})
    assert all(torch.equal(ones.model[name], tensor) for name, tensor in plain.model.items())
    assert not all(torch.equal(mixed.model[name], tensor) for name, tensor in plain.model.items())


def test_the_catalogue_has_the_same_methods(mixed: Small) -> None:
    """`fedala` bit for bit, where there are no running statistics, and `fedsam` to rounding; `fedala` also counts its
    passes, and the first time takes more of them."""
    theirs = small({"name": "fedala", "personal": {"settled": 0.0}})
    assert all(torch.equal(theirs.model[name], tensor) for name, tensor in mixed.model.items())
    assert theirs.result.cost.forward_passes > mixed.result.cost.forward_passes
    one, other = (small({"name": "fedavg", "step": {"name": name, "rho": 0.2}}) for name in ("sam", "own-sam"))
    for name, tensor in other.model.items():  # lengths are summed in another order
        torch.testing.assert_close(one.model[name], tensor, rtol=1e-5, atol=1e-6)


def test_clients_side_by_side_are_clients_one_by_one(mixed: Small) -> None:
    stacked = small("own-fedala", at_once=2)
    close(mixed.model, stacked.model)
    for client, own in mixed.state.clients.of_kind("own").items():
        close(own, stacked.state.clients[client].own)
    for client, notes in mixed.state.clients.of_kind("notes").items():
        close(notes, stacked.state.clients[client].notes)


def test_a_client_keeps_its_last_model_and_the_server_sees_what_fedavg_sends(mixed: Small, plain: Small) -> None:
    assert mixed.state.clients.of_kind("own").keys() == mixed.state.server.met
    assert not mixed.state.clients.of_kind("kept")
    cost, without = mixed.result.cost, plain.result.cost
    assert (cost.bytes_up, cost.bytes_down) == (without.bytes_up, without.bytes_down)


def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    assert run(samples.tiny("own-fedala"), tmp_path / "whole").ok
    listener = samples.StopAfter(2)
    with pytest.raises(Stopped):
        run(samples.tiny("own-fedala"), tmp_path / "half", listener=listener, stop=listener.stop)
    assert run(samples.tiny("own-fedala"), tmp_path / "half", resume=True).ok
    whole, half = (load(tmp_path / name).state for name in ("whole", "half"))
    assert whole is not None
    assert half is not None
    assert whole.clients.of_kind("own")
    assert_same_state(whole, half)
    assert samples.result_of(tmp_path / "whole") == samples.result_of(tmp_path / "half")


def test_the_command_line_knows_it_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sets = [f"--set={text}" for text in (*samples.TINY, "method.name=own-fedala", "method.personal.lower=blocks:1")]
    done = torso("run", "--plugin", "fedala", *sets, "--quiet", "--json", "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["method"] == "own-fedala"
    assert 'lower = "blocks:1"' in (tmp_path / "run" / "config.toml").read_text(encoding="utf-8")
    monkeypatch.delitem(methods, "own-fedala")  # nobody has imported it
    refused = CliRunner().invoke(app, ["run", "--set", "method.name=own-fedala", "--quiet"])
    assert isinstance(refused.exception, RequestError)
    assert "did you mean" in str(refused.exception)


# data, a partition, a network and a measure

PARTS = ("data.source=stripes", "data.partition=in-turn", "data.clients=4", "model.body=small-cnn")


def test_the_source_and_the_partition_give_what_the_page_says() -> None:
    """1000 and 200 images, two classes in turn: with four clients, each has 250 of one class and is measured on 50."""
    federation = build(Config.load(None, PARTS).data, 0, torch.device("cpu"))
    assert (federation.name, federation.classes, federation.input.shape) == ("stripes", 2, (1, 8, 8))
    assert federation.class_counts.tolist() == [[250, 0], [0, 250], [250, 0], [0, 250]]
    assert federation.test.sizes.tolist() == [50, 50, 50, 50]
    image, label = federation.train.samples[0, ..., 0].int(), federation.train.labels[0]
    assert label == 0
    assert (image[1::2] >= 200).all()  # lying: whole rows are bright
    assert (image[::2] < 56).all()


def test_the_network_and_the_measure_give_what_the_page_says() -> None:
    """Clients of one class: after fine-tuning at a high rate each is sure of everything, at first of nothing."""
    sets = (*PARTS, "train.rounds=1", "train.lr=1e-6", "measure.names=initial,sure")
    assert run(Config.load(None, sets)).accuracy["sure"].clients == (0.0, 0.0, 0.0, 0.0)
    alone = run(Config.load(None, [*sets, "method.name=local-only", "train.lr=0.1", "train.rounds=3"]))
    assert alone.accuracy["sure"].clients == alone.accuracy["initial"].clients == (100.0, 100.0, 100.0, 100.0)
    assert alone.initial is not None
    assert alone.initial.body.features == 32
