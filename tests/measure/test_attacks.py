"""Clients that attack (spec 9.6): who they are, what they do to labels and uploads, and what is measured of the others.

By hand on the federation of methods/tiny.py: from W = 0 at rate 1, client 0 (a quarter of the samples) learns W₀ and
client 1 W₁, and neither moves the body.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
import pytest
import torch
from tests.methods import tiny
from tests.methods.by_hand import equal
from tests.runs import samples
from torch import Tensor
from torch.testing import assert_close

from torso import Config, RequestError, Result, run
from torso.data import Federation, build
from torso.engine import Batched, OneByOne
from torso.kinds import Positive
from torso.learn.attacks import (
    ALittleIsEnough,
    Attack,
    HonestUpload,
    InnerProduct,
    LabelFlip,
    LabelPoisoning,
    ModelReplacement,
    RandomUpdates,
    attacked,
    attacks,
    hidden_deviations,
)
from torso.nets import Tensors
from torso.personal.state import State
from torso.runs.job import Simulation, simulate
from torso.runs.rounds import play_round

W_0 = torch.tensor([[0.5, 0.0], [-0.5, 0.0]])
W_1 = torch.tensor([[0.0, -0.5], [0.0, 0.5]])


def besieged(
    kind: str, malicious: set[int], method: object = "fedavg", head: str = "zeros", **options: float
) -> Simulation:
    task = tiny.job(method, head)
    plan = tuple(replace(stage, attack=attacks[kind](**options)) for stage in task.plan)
    return replace(task.on(replace(task.federation, malicious=frozenset(malicious))), plan=plan)


def stacked(task: Simulation) -> State:
    with Batched(task.net, task.federation, at_once=2) as engine:
        return play_round(task.stage(1), State.begin(task.model), task.roster, engine, seed=0)[0]


@pytest.mark.parametrize(
    ("malicious", "expected"),
    [
        (set[int](), W_0 / 4 + 3 * W_1 / 4),
        ({0}, W_0 / 2 + 3 * W_1 / 4),
        ({1}, W_0 / 4 + 3 * W_1 / 2),
        ({0, 1}, W_0 / 2 + 3 * W_1 / 2),
    ],
)
def test_model_replacement_sends_the_update_times_the_participants(malicious: set[int], expected: Tensor) -> None:
    task = besieged("model-replacement", malicious)
    assert_close(tiny.head(tiny.play(task)), expected)
    assert_close(tiny.head(stacked(task)), expected)


def test_random_updates_replace_the_attackers_and_leave_the_others() -> None:
    """The mean less client 1's share is a quarter of client 0's noise, which is the same whoever is in the stack."""
    task = besieged("random-updates", {0})
    state = tiny.play(task)
    noise = 4 * (tiny.head(state) - 3 * W_1 / 4)
    assert not noise.isclose(W_0, atol=0.01).any()
    assert_close(tiny.head(stacked(task)), tiny.head(state))
    assert_close(tiny.body(state) != 1, torch.tensor([True, True]))  # nobody trained it, and it is noise all the same


def test_noise_has_mean_zero_and_the_spread_of_the_honest_update() -> None:
    change = {"a": torch.full((2, 100, 100), 3.0), "b": torch.zeros(2, 10_000)}  # half 3, half 0: spread 1.5
    change["a"][1], change["b"][1] = 0.3, 0.0
    noise = RandomUpdates().upload(HonestUpload(change, (4, 7), 2, seed=0, round=1))
    for place, spread in ((0, 1.5), (1, 0.15)):
        entries = torch.cat([noise["a"][place].flatten(), noise["b"][place]])
        assert entries.mean() == pytest.approx(0.0, abs=0.05 * spread)
        assert entries.std() == pytest.approx(spread, rel=0.05)
    alone = RandomUpdates().upload(HonestUpload({n: c[1:] for n, c in change.items()}, (7,), 2, seed=0, round=1))
    assert_close(alone["a"][0], noise["a"][1])
    later = RandomUpdates().upload(HonestUpload(change, (4, 7), 2, seed=0, round=2))
    assert not later["a"].isclose(noise["a"]).all()


def test_sign_flip_sends_the_update_backwards() -> None:
    task = besieged("sign-flip", {0}, factor=2.0)
    expected = -2 * W_0 / 4 + 3 * W_1 / 4
    assert_close(tiny.head(tiny.play(task)), expected)
    assert_close(tiny.head(stacked(task)), expected)


def test_inner_product_manipulation_sends_the_mean_of_the_honest_backwards() -> None:
    """Client 0 lies about client 1, of whom there is one: −½·W₁. Where all lie, or nobody, all send what they learn."""
    task = besieged("inner-product", {0}, factor=0.5)
    expected = -W_1 / 8 + 3 * W_1 / 4
    assert_close(tiny.head(tiny.play(task)), expected)
    assert_close(tiny.head(stacked(task)), expected)
    for malicious in ({0, 1}, set[int]()):
        assert_close(tiny.head(tiny.play(besieged("inner-product", malicious))), W_0 / 4 + 3 * W_1 / 4)
    change = {"w": torch.tensor([[1.0, 0.0], [2.0, 3.0], [6.0, 0.0]])}
    assert_close(InnerProduct(2.0).together(change, attackers=1), {"w": torch.tensor([-6.0, -2.0])})


def test_a_little_is_enough_by_hand() -> None:
    """1, 2, 6: μ = 3, σ = √(14/3); 0, 3, 0: μ = 1, σ = √2."""
    change = {"w": torch.tensor([[1.0, 0.0], [2.0, 3.0], [6.0, 0.0]])}
    expected = torch.tensor([3 - 1.5 * (14 / 3) ** 0.5, 1 - 1.5 * 2**0.5])
    assert_close(ALittleIsEnough(z=1.5).together(change, attackers=1), {"w": expected})


@pytest.mark.parametrize(
    ("participants", "attackers", "share"),
    [(50, 24, 24 / 26), (51, 24, 25 / 27), (10, 3, 4 / 7), (10, 4, 4 / 6), (10, 2, 0.5), (10, 1, 0.5), (10, 8, 0.5)],
)
def test_as_far_as_a_majority_hides_it(participants: int, attackers: int, share: float) -> None:
    """50 and 24: ⌊50/2⌋ + 1 − 24 = 2 of the 26 honest ones must lie beyond z, so that 24 of 26 do not. With few
    attackers z would lie on the other side of the mean, and they send the mean; with most they need one beyond."""
    assert NormalDist().cdf(hidden_deviations(participants, attackers)) == pytest.approx(share)


def test_colluders_are_known_to_a_correction_that_reads_the_uploads() -> None:
    """FedDyn's server works the mean of memories out from what it is sent, −α(θ_k − θ): of W₁ and the lie −½·W₁."""
    state = tiny.play(besieged("inner-product", {0}, {"name": "feddyn", "drift": {"alpha": 0.1}}, factor=0.5))
    assert_close(state.server.drift["head.weight"], -0.1 * (W_1 - W_1 / 2) / 2)


@pytest.mark.parametrize("kind", ["random-updates", "model-replacement"])
@pytest.mark.parametrize("method", ["fedbabu", "scaffold", "fedexp", "fedfomo", "mtl", "fedrod-hyper"])
def test_every_method_that_uploads_is_attacked(method: str, kind: str) -> None:
    """What the server or the other clients get differs from what honest clients send."""

    def got(malicious: set[int]) -> list[Tensor]:
        state = tiny.play(besieged(kind, malicious, method, "eye"))
        return [*state.model.values(), *(t for sent in state.server.uploads.values() for t in sent.values())]

    assert any(not torch.equal(*pair) for pair in zip(got({0}), got(set()), strict=True))


def test_an_attack_on_nothing_that_travels_changes_nothing() -> None:
    honest, hostile = (tiny.play(besieged("model-replacement", who, "local-only")) for who in (set[int](), {0}))
    for client in (0, 1):
        assert honest.clients[client].kept
        assert equal(honest.clients[client].kept, hostile.clients[client].kept)


# labels


def digits(**more: object) -> Federation:
    config = Config(data={"clients": 10, "new_clients": 4, "server_fraction": 0.1, **more})
    return build(config.data, 0, torch.device("cpu"))


def test_poisoned_labels_are_random_and_only_the_attackers() -> None:
    before = digits()
    after = attacked(before, LabelPoisoning(), 0.5, seed=0)
    assert len(after.malicious) == 3  # ⌊0.5 · 6⌋ of the clients that train
    assert not after.malicious & set(before.newcomers.tolist())
    for client in range(10):
        old, new = (f.train.labels[f.train.rows(client)] for f in (before, after))
        if client in after.malicious:
            assert 0.8 < (old != new).float().mean() < 0.98  # nine in ten of ten classes
            assert len(new.unique()) == 10
        else:
            assert torch.equal(old, new)
    for rows in ("server_rows", "meta_rows"):  # the server's copies are clean
        was, now = getattr(before, rows), getattr(after, rows)
        assert torch.equal(before.train.labels[was], after.train.labels[now])
        assert torch.equal(before.train.samples[was], after.train.samples[now])
    assert torch.equal(before.test.labels, after.test.labels)


def test_the_attackers_are_fixed_by_the_seed_and_the_same_in_every_attack() -> None:
    def drawn(kind: str, seed: int) -> frozenset[int]:
        return attacked(digits(), attacks[kind](), 0.5, seed).malicious

    assert drawn("random-updates", 3) == drawn("model-replacement", 3) == drawn("label-poisoning", 3)
    assert len({drawn("random-updates", seed) for seed in range(5)}) > 1


def test_flipped_labels_count_from_the_other_end() -> None:
    before = digits()
    after = attacked(before, LabelFlip(), 0.5, seed=0)
    for client in range(10):
        old, new = (f.train.labels[f.train.rows(client)] for f in (before, after))
        assert torch.equal(new, 9 - old if client in after.malicious else old)


class Reversed(Attack):
    """Class 0 is the last one, and so on; or what no federation takes."""

    def __init__(self, shift: int = 0) -> None:
        self.shift = shift

    def labels(self, honest: Tensor, classes: int, rng: np.random.Generator) -> Tensor:
        return classes - 1 - honest + self.shift


def test_an_own_attack_on_labels() -> None:
    before = digits()
    after = attacked(before, Reversed(), 0.5, seed=0)
    for client in range(10):
        old, new = (f.train.labels[f.train.rows(client)] for f in (before, after))
        assert torch.equal(new, 9 - old if client in after.malicious else old)


def test_labels_that_are_none_are_refused() -> None:
    words = r"^attack\.kind = 'Reversed': labels gives int64 \[\d+\] from 1\d to 1\d\. Expected: int64 .* from 0 to 9$"
    with pytest.raises(RequestError, match=words):
        attacked(digits(), Reversed(10), 0.5, seed=0)


def test_an_attack_that_changes_no_label_leaves_the_data() -> None:
    before = digits()
    assert attacked(before, ModelReplacement(), 0.5, seed=0).train is before.train


@dataclass(frozen=True)
class Louder(Attack):
    """The honest update, longer."""

    factor: Positive = 2.0

    def upload(self, honest: HonestUpload) -> Tensors:
        return {name: self.factor * change for name, change in honest.change.items()}


def test_options_of_an_attack_are_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a file, on the command line and as an object; an attack without options stays a name, as in older files."""
    monkeypatch.setitem(attacks, "louder", Louder)
    config = Config.load(None, ["attack.kind=louder", "attack.kind.factor=3.0"])
    assert config.attack.chosen == Louder(3.0)
    assert config.as_tree()["attack"]["kind"] == {"name": "louder", "factor": 3.0}
    assert Config(**config.as_tree()) == config
    assert Config(attack={"kind": Louder(3.0)}) == config
    assert Config.load(None, ["attack.kind=louder"]).attack.chosen == Louder()
    assert Config.load(None, ["attack.kind=random-updates"]).as_tree()["attack"]["kind"] == "random-updates"


# a run


@pytest.fixture(scope="module")
def poisoned() -> Result:
    sets = ("attack.kind=label-poisoning", "attack.fraction=0.3", "measure.names=personalized,benign")
    return run(samples.tiny("fedavg", *sets), federation=samples.digits())


def test_benign_is_the_personalised_accuracy_of_those_who_do_not_attack(poisoned: Result) -> None:
    everybody, benign = poisoned.accuracy["personalized"].clients, poisoned.accuracy["benign"].clients
    assert len(poisoned.malicious) == 3
    assert poisoned.as_json()["malicious"] == list(poisoned.malicious)
    assert benign == tuple(None if k in poisoned.malicious else value for k, value in enumerate(everybody))
    assert poisoned.accuracy["benign"].n == 7


def test_an_attack_leaves_a_shared_federation_as_it_is(poisoned: Result) -> None:
    assert not samples.digits().malicious
    assert samples.digits().train.labels.sum() != poisoned.federation.train.labels.sum()  # type: ignore[union-attr]


def test_without_an_attack_everybody_is_benign() -> None:
    found = run(samples.tiny("fedavg", "measure.names=personalized,benign"), federation=samples.digits())
    assert found.accuracy["benign"] == found.accuracy["personalized"]
    assert "malicious" not in found.as_json()


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (
            ("attack.kind=bribery",),
            "attack.kind = 'bribery' is unknown. Accepted: alie, backdoor, inner-product, label-flip",
        ),
        (("attack.kind=3",), "attack.kind = 3 is neither a name nor a table. Accepted: alie, backdoor, inner-product"),
        (("attack.kind=none", "attack.kind.factor=3"), "not a key. attack.kind = 'none' has no options."),
        (("attack.fraction=1.0",), "attack.fraction = 1.0"),
        (
            ("attack.kind=random-updates", "attack.fraction=0.01"),
            "attack.fraction = 0.01 of 10 training clients makes none of them malicious",
        ),
        (
            ("attack.kind=random-updates", "method.name=fedncm"),
            "attack.kind = 'random-updates' replaces what clients send in a round, and method 'fedncm' has no rounds. "
            "Accepted: none, label-poisoning, label-flip",
        ),
        (
            ("attack.kind=alie", "attack.fraction=0.2", "method.name=local-only"),
            "attack.kind = 'alie' replaces what clients send in a round, and method 'local-only' sends no part of a "
            "model. Accepted: ",
        ),
    ],
)
def test_refusals_name_the_key(sets: tuple[str, ...], words: str) -> None:
    with pytest.raises(RequestError) as refused:
        simulate(samples.tiny("fedavg", *sets), samples.digits())
    assert words in str(refused.value)


@pytest.mark.parametrize("kind", ["random-updates", "inner-product"])
def test_attackers_do_not_depend_on_workers_or_stacks(kind: str) -> None:
    sets = (f"attack.kind={kind}", "attack.fraction=0.5", "train.rounds=2", "measure.names=generic")
    one = run(samples.tiny("fedavg", *sets), federation=samples.digits())
    other = run(samples.tiny("fedavg", *sets, "run.clients_at_once=3", "run.workers=2"), federation=samples.digits())
    assert one.state is not None
    assert other.state is not None
    for name, tensor in one.state.model.items():
        assert_close(other.state.model[name], tensor, rtol=1e-4, atol=1e-5)


def test_one_by_one_engine_meets_the_attack_too() -> None:
    task = besieged("model-replacement", {1})
    with OneByOne(task.net, task.federation, workers=1, at_once=2) as engine:
        state, _ = play_round(task.stage(1), State.begin(task.model), task.roster, engine, seed=0)
    assert_close(tiny.head(state), W_0 / 4 + 3 * W_1 / 2)


def test_noise_has_the_spread_of_all_entries_about_their_mean() -> None:
    """A quarter of the entries is 4, the others are 0, in two tensors: mean 1, standard deviation √3. The mean of their
    sizes would be 1, and that of the first tensor alone 0 (spec 9.6)."""
    change = {"a": torch.zeros(1, 30_000), "b": torch.full((1, 10_000), 4.0)}
    noise = RandomUpdates().upload(HonestUpload(change, clients=(3,), participants=2, seed=0, round=1))
    entries = torch.cat([noise["a"][0], noise["b"][0]])
    assert entries.std().item() == pytest.approx(3**0.5, rel=0.02)
    assert entries.mean().item() == pytest.approx(0.0, abs=0.04)
