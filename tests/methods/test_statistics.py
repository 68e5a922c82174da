"""Methods whose clients send statistics, by hand (the network of tiny.py).

With W the unit matrix and s = (1, 1), a sample (1, 0) of class 0 has p − e = (−σ, σ), where σ = 1/(1 + e), and
∂ℓ/∂s = (−σ, 0).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from torso.engine import OneByOne
from torso.learn.taught import Prototypical
from torso.methods import methods
from torso.nets import Output
from torso.personal import Aligned
from torso.personal.state import State
from torso.runs.job import Simulation
from torso.runs.rounds import play_round
from torso.server.fisher import Fisher
from torso.server.prototypes import MixedHeads, Prototypes, least_on_simplex, mixing_weights, moments
from torso.server.statistics import Came, Held, Visited

from . import tiny
from .by_hand import BODY, Data, federated, on, story
from .tiny import SIGMA, tiny_parts  # noqa: F401  a fixture

ONE_CLASS = (Data.of([[1, 0]], [0]), Data.of([[0, 1]] * 3, [0, 0, 0]))  # both clients have class 0 alone


def small(gap: float) -> float:
    """The smaller side of a soft-max."""
    return 1 / (1 + math.exp(gap))


def task(name: str, data: tuple[Data, ...] = ONE_CLASS, **axes: Any) -> Simulation:
    """The head stays the unit matrix: only s learns, at rate 1."""
    return on(tiny.job(methods[name].but(train="body", **axes), head="eye"), federated(data))


# FedProto


def test_the_term_draws_features_to_the_class_mean_by_hand() -> None:
    """f = (1, 3), m = (0, 1): squares 1 and 4, mean 2.5, sum 5; with λ = 2: 5 and 10. A class not known: 0."""
    said = Output(torch.tensor([[[1.0, 3.0], [1.0, 3.0]]]), torch.zeros(1, 2, 2))
    taught = {"told.means": torch.tensor([[[0.0, 1.0], [0.0, 1.0]]]), "told.known": torch.tensor([[1.0, 0.0]])}
    labels = torch.zeros(1, 2, dtype=torch.int64)
    assert_close(Prototypical(2.0).against(said, labels, taught), torch.tensor([[5.0, 0.0]]))
    assert_close(Prototypical(2.0, "sum").against(said, labels, taught), torch.tensor([[10.0, 0.0]]))


def test_a_class_that_nobody_sent_keeps_its_mean() -> None:
    held = Held({"means": torch.tensor([[1.0], [2.0], [0.0]]), "known": torch.tensor([1.0, 1.0, 0.0])})
    came = Came(2, {0: 1.0}, {"total": torch.tensor([[6.0], [0.0], [0.0]]), "count": torch.tensor([3.0, 0.0, 0.0])})
    found = Prototypes().combine(held, came).shared
    assert found["means"].flatten().tolist() == [2.0, 2.0, 0.0]
    assert found["known"].tolist() == [1.0, 1.0, 0.0]


@pytest.mark.parametrize(("weighting", "share"), [("samples", 0.25), ("clients", 0.5)])
def test_fedproto_two_rounds_by_hand(weighting: Any, share: float) -> None:
    """Round 1 has no means: client 0 goes to s₀ = 1 + σ; client 1, whose (0, 1) of class 0 has ∂ℓ/∂s₁ = 1 − σ, to
    s₁ = σ. Their features are (1 + σ, 0) and (0, σ). In round 2 client 0 has ∂ℓ/∂s₀ = −τ, τ = small(1 + σ), and from
    the term ½·2·(f₀ − m₀) with m₀ = share·(1 + σ). Nothing of the model reaches the server."""
    job = task("fedproto", statistics=Prototypes(weighting))
    (first, _), (second, _) = story(job, rounds=2)
    means = first.server.statistics["means"]
    assert_close(means, torch.tensor([[share * (1 + SIGMA), (1 - share) * SIGMA], [0.0, 0.0]]))
    assert first.server.statistics["known"].tolist() == [1.0, 0.0]
    own = second.clients[0].kept[BODY]
    assert_close(own, torch.tensor([1 + SIGMA + small(1 + SIGMA) - (1 - share) * (1 + SIGMA), 1.0]))
    assert torch.equal(second.model[BODY], job.model[BODY])
    numbers = 2 * 2 + 2  # C·d + C, each way, of two clients in two rounds
    assert (second.cost.bytes_up, second.cost.bytes_down) == (2 * 2 * 4 * numbers, 2 * 2 * 4 * numbers)


def test_without_its_term_fedproto_is_local_only_to_the_bit() -> None:
    job = task("fedproto", objective=Prototypical(0.0))
    alone = task("local-only")
    for k in (0, 1):
        assert torch.equal(story(job, 3)[-1][0].clients[k].kept[BODY], story(alone, 3)[-1][0].clients[k].kept[BODY])


# FedPAC


def test_the_programme_by_hand() -> None:
    """diag(1, 3): α ∝ 1/P. With ‖h₁ − h₀‖² = 2 and v = 1 each, client 0 has diag(1, 3), and client 1 its mirror. In
    the third, 1 and 2 lie in one direction, and 2 twice as far: u₂ = (1.1 − 2)/0.51 < 0 leaves, u₁ = 1/1.1."""
    assert_close(least_on_simplex(torch.diag(torch.tensor([1.0, 3.0]).double())), torch.tensor([0.75, 0.25]).double())
    shares = torch.tensor([[[0.0, 0.0]], [[1.0, 1.0]]])
    found = mixing_weights(torch.ones(2), shares)
    assert_close(found, torch.tensor([[0.75, 0.25], [0.25, 0.75]]).double())
    far = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.1, 2.0], [0.0, 2.0, 4.1]]).double()
    assert_close(least_on_simplex(far), torch.tensor([1.0, 1 / 1.1, 0.0]).double() / (1 + 1 / 1.1))


@pytest.mark.parametrize("seed", range(20))
def test_the_programme_meets_its_conditions(seed: int) -> None:
    """At the minimum Pα = λ where α > 0, and is not below elsewhere, λ = αᵀPα; low ranks and zeros included."""
    rng = np.random.default_rng(seed)
    factor = torch.from_numpy(rng.normal(size=(9, 1 + seed % 5)))
    matrix = factor @ factor.T + torch.diag(torch.from_numpy(rng.random(9) * (seed % 3) * 0.1))
    alpha = least_on_simplex(matrix)
    slope = matrix @ alpha - alpha @ matrix @ alpha
    assert float(alpha.sum()) == pytest.approx(1.0)
    assert float(alpha.min()) >= 0
    assert float(slope.min()) > -1e-6
    assert float(slope[alpha > 1e-6].abs().max()) < 1e-6


def test_moments_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Features (1, 0) of class 0 and (0, 0.6) of class 1: mean ‖f‖² = 0.68; p_c μ_c = (½, 0), (0, 0.3), squares 0.34;
    v = (0.68 − 0.34)/2 = 0.17."""
    job = task("fedpac", (Data.of([[1, 0], [0, 0.6]], [0, 1]),))
    seen: list[Visited] = []
    of_clients = MixedHeads.of_clients

    def spied(self: MixedHeads, at: Visited) -> Any:
        seen.append(at)
        return of_clients(self, at)

    monkeypatch.setattr(MixedHeads, "of_clients", spied)
    story(job, rounds=1)
    spread, shares = moments(seen[0])
    assert_close(spread, torch.tensor([0.17]))
    assert_close(shares, torch.tensor([[[0.5, 0.0], [0.0, 0.3]]]))


def test_fedpac_mixes_heads_of_clients_that_are_alike() -> None:
    """Clients 0 and 1 have the same two samples, so h is the same, and both weigh ½; client 2 has another class alone
    and no spread, so that its own head is best for it, and none of it for them … up to what its low spread buys: the
    programme of client 0 is worked out again here from its definition."""
    two = Data.of([[1, 0], [0, 0.6]], [0, 1])
    job = on(tiny.job("fedpac", head="eye", lr=0.5), federated((two, two, Data.of([[0, 1]], [1]))))
    (first, _), (second, _) = story(job, rounds=2)
    heads = torch.stack([first.clients[k].kept["head.weight"] for k in range(3)])
    h = torch.tensor([[0.5, 0, 0, 0.3], [0.5, 0, 0, 0.3], [0, 0, 0, 1.0]]).double()
    v = torch.tensor([0.17, 0.17, 0.0]).double()
    apart = h[0] - h
    alpha = least_on_simplex(torch.diag(v) + apart @ apart.T)
    assert_close(alpha[0], alpha[1])
    assert 0 < float(alpha[2]) < float(alpha[0])
    mixed = (alpha.float().view(3, 1, 1) * heads).sum(dim=0)
    assert_close(first.server.of_clients[0]["head.weight"], mixed)
    assert_close(first.server.of_clients[2]["head.weight"], heads[2], atol=1e-6, rtol=0)
    assert set(second.server.of_clients) == {0, 1, 2}
    assert not torch.equal(second.server.of_clients[0]["head.weight"], mixed)


def test_a_visit_of_fedpac_begins_with_the_mixed_head() -> None:
    """At a rate of almost 0 clients keep what they were told: client 0 the head that the server holds for it, client 1
    that of the start."""
    job = on(tiny.job("fedpac", head="eye", lr=1e-30), federated(ONE_CLASS))
    mixed = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    state = State.begin(job.model, of_clients={0: {"head.weight": mixed}})
    with OneByOne(job.net, job.federation, workers=1) as engine:
        state, _ = play_round(job.plan[0], state, job.roster, engine, seed=0)
    assert_close(state.clients[0].kept["head.weight"], mixed)
    assert_close(state.clients[1].kept["head.weight"], torch.eye(2))


# FedAS


def test_bodies_weigh_by_fisher_information() -> None:
    """Client 0 goes to s = (1 + σ, 1), client 1, with three copies of (0, 1) of class 1, to (1, 1 + σ). Both have
    ‖∂ℓ/∂s‖ = τ there, so they weigh the same: (1 + σ/2, 1 + σ/2), and not by 1 and 3 samples."""
    job = task("fedas", (Data.of([[1, 0]], [0]), Data.of([[0, 1]] * 3, [1] * 3)))
    ((state, _),) = story(job, rounds=1)
    assert_close(state.model[BODY], torch.full((2,), 1 + SIGMA / 2))
    assert float(state.server.statistics.get("fisher", torch.zeros(()))) == 0  # it is used and not held
    assert (state.cost.bytes_up, state.cost.bytes_down) == (2 * 4 * (2 + 1), 2 * 4 * 2)


def test_the_trace_counts_every_batch_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Client 0 after its visit has s₀ = 1 + σ and loses τ = small(1 + σ): ∂ℓ/∂s = (−τ, 0), so τ². Three batches of one
    sample each have three times the trace of one."""
    seen: list[float] = []
    of_clients = Fisher.of_clients

    def spied(self: Fisher, at: Visited) -> Any:
        found = of_clients(self, at)
        seen.extend(found["fisher"].tolist())
        return found

    monkeypatch.setattr(Fisher, "of_clients", spied)
    story(task("fedas", (Data.of([[1, 0]], [0]),)), rounds=1)
    assert seen == pytest.approx([small(1 + SIGMA) ** 2])
    seen.clear()
    job = on(
        tiny.job(methods["fedas"].but(train="body"), head="eye", lr=1e-30, batch_size=1),
        federated((Data.of([[1, 0]] * 3, [0] * 3),)),
    )
    story(job, rounds=1)
    assert seen == pytest.approx([3 * SIGMA**2])


def test_the_received_body_is_aligned_with_the_last_one_by_hand() -> None:
    """As above; in round 2 client 0 receives a = 1 + σ/2 for s₀ and had 1 + σ. The mean over two features of
    (f − m)² has ∂/∂s₀ = a − (1 + σ) = −σ/2, so a step of rate 0.4 leads to b = a + 0.2σ. There it learns: b +
    small(b)."""
    job = task("fedas", (Data.of([[1, 0]], [0]), Data.of([[0, 1]] * 3, [1] * 3)), personal=Aligned(lr=0.4))
    (first, _), (second, _) = story(job, rounds=2)
    assert_close(first.clients[0].own[BODY], torch.tensor([1 + SIGMA, 1.0]))  # nothing to align with at first
    b = 1 + SIGMA / 2 + 0.2 * SIGMA
    assert_close(second.clients[0].own[BODY], torch.tensor([b + small(b), 1 + SIGMA / 2]))


def test_without_alignment_and_with_equal_traces_fedas_is_fedper_with_uniform_weights() -> None:
    data = (Data.of([[1, 0]], [0]), Data.of([[0, 1]] * 3, [1] * 3))
    one = story(task("fedas", data, personal=Aligned(lr=0.0)), 1)[-1][0]
    uniform = on(tiny.job(methods["fedper"].but(train="body"), head="eye", weighting="uniform"), federated(data))
    assert_close(one.model[BODY], story(uniform, 1)[-1][0].model[BODY])
