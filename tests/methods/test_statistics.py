"""Methods whose clients send statistics, by hand (the network of tiny.py).

With W the unit matrix and s = (1, 1), a sample (1, 0) of class 0 has p − e = (−σ, σ), where σ = 1/(1 + e), and
∂ℓ/∂s = (−σ, 0).
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from torso.engine import OneByOne, Workspace
from torso.errors import RequestError
from torso.learn.teachers import MeanRegularised, Prototypical
from torso.methods import methods
from torso.nets import Output
from torso.personal import Aligned
from torso.personal.state import State
from torso.personal.store import ClientState
from torso.runs.evaluation import evaluation_of
from torso.runs.job import Simulation, simulate
from torso.runs.rounds import play_round
from torso.runs.telling import tell, visit_of
from torso.server.federated_features import (
    FederatedFeatures,
    as_matrix,
    class_gradients,
    directions,
    distance_gradient,
)
from torso.server.fisher import Fisher
from torso.server.gaussians import ClientFeatures, GaussianClasses, Gaussians, estimated, head_of, loss_of
from torso.server.prototypes import MixedHeads, Prototypes, least_on_simplex, mixing_weights, moments
from torso.server.state import ServerState
from torso.server.statistics import RoundStatistics, ServerView, VisitEnd

from . import tiny
from .by_hand import BODY, Data, federated, on, story
from .test_pairs import SEED, _config, federation, resumes
from .tiny import SIGMA

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
    held = ServerView({"means": torch.tensor([[1.0], [2.0], [0.0]]), "known": torch.tensor([1.0, 1.0, 0.0])})
    came = RoundStatistics(
        2, {0: 1.0}, {"total": torch.tensor([[6.0], [0.0], [0.0]]), "count": torch.tensor([3.0, 0.0, 0.0])}
    )
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
    assert_close(mixing_weights(torch.ones(2), shares + 5), found)  # differences alone count
    far = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.1, 2.0], [0.0, 2.0, 4.1]]).double()
    assert_close(least_on_simplex(far), torch.tensor([1.0, 1 / 1.1, 0.0]).double() / (1 + 1 / 1.1))


def test_three_clients_on_a_line_by_hand() -> None:
    """h = 1, 3, 2 and v = 1. Client 0: differences 0, −2, −1, so P = [[1, 0, 0], [0, 5, 2], [0, 2, 2]] and Pu = 1 at
    u = (1, 0, ½). Client 1 is its mirror. Client 2: differences 1, −1, 0, whose product is negative: with P = [[2, −1,
    0], [−1, 2, 0], [0, 0, 1]], u = (1, 1, 1): the two others' errors cancel."""
    found = mixing_weights(torch.ones(3), torch.tensor([1.0, 3.0, 2.0]).view(3, 1, 1))
    wanted = torch.tensor([[2.0, 0.0, 1.0], [0.0, 2.0, 1.0], [1.0, 1.0, 1.0]]).double() / 3
    assert_close(found, wanted, atol=1e-7, rtol=0)


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
    seen: list[VisitEnd] = []
    of_clients = MixedHeads.of_clients

    def spied(self: MixedHeads, at: VisitEnd) -> Any:
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

    def spied(self: Fisher, at: VisitEnd) -> Any:
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


@pytest.mark.parametrize(("over", "aligned"), [("classes", (1.4, 2.2)), ("samples", (1.3, 2.8))])
def test_a_class_counts_as_much_as_another_in_the_alignment_by_hand(over: Any, aligned: tuple[float, float]) -> None:
    """s = (2, 1) of the last visit gives class means (2, 0) and (0, 1). Received is (1, 3): a = ½(1 − 2)² for three
    samples of class 0 and ½(3 − 1)² for one of class 1, so their sum has the gradient (−1, 2), and their mean over
    samples (−¾, ½). A step of rate 0.4; client 1 has one sample more and pads the batch of client 0."""
    data = Data.of([[1, 0]] * 3 + [[0, 1]], [0, 0, 0, 1])
    more = Data.of([[1, 0]] * 5, [0] * 5)
    method = methods["fedas"].but(train="body", personal=Aligned(lr=0.4, over=over))
    job = on(tiny.job(method, head="eye", lr=1e-30), federated((data, more)))
    held = {0: ClientState(own={BODY: torch.tensor([2.0, 1.0])}, notes={"visited": torch.ones(())})}
    for at_once in (1, 2):
        state = State.begin({**job.model, BODY: torch.tensor([1.0, 3.0])}, held, round=1)
        with OneByOne(job.net, job.federation, workers=1, at_once=at_once) as engine:
            state, _ = play_round(job.stage(2), state, job.roster, engine, seed=0)
        assert_close(state.clients[0].own[BODY], torch.tensor(aligned))


def test_without_alignment_and_with_equal_traces_fedas_is_fedper_with_uniform_weights() -> None:
    data = (Data.of([[1, 0]], [0]), Data.of([[0, 1]] * 3, [1] * 3))
    one = story(task("fedas", data, personal=Aligned(lr=0.0)), 1)[-1][0]
    uniform = on(tiny.job(methods["fedper"].but(train="body"), head="eye", weighting="uniform"), federated(data))
    assert_close(one.model[BODY], story(uniform, 1)[-1][0].model[BODY])


# FedDBE


def test_the_mean_of_a_batch_leaves_padding_out_by_hand() -> None:
    """f = 1 and 3, and 9 as padding: f̄ = 2. z̄ = 0.5 → (1.5)² = 2.25, times κ/2 = 2: 4.5. Not established: 0."""
    said = Output(torch.tensor([[[1.0], [3.0], [9.0]]]).expand(2, 3, 1), torch.zeros(2, 3, 2))
    told = {"told.consensus": torch.tensor([[0.5], [0.5]]), "told.established": torch.tensor([1.0, 0.0])}
    loss = MeanRegularised(4.0)
    taught = loss.of_statistics(told, torch.zeros(2, 3, dtype=torch.int64))
    found = loss.of_batch(said, torch.tensor([[1.0, 1.0, 0.0]] * 2), taught)
    assert_close(found, torch.tensor([4.5, 0.0]))


def test_feddbe_two_rounds_by_hand() -> None:
    """W stays the unit matrix, so ∂ℓ/∂shift = p − e. Round 1: client 0 to s = (1 + σ, 1) and shift (σ, −σ), client 1,
    with three samples, to (1, 1 + σ) and (−σ, σ). The mean of bodies is a = (1 + σ/4, 1 + 3σ/4), the consensus
    (¼(1 + σ), ¾(1 + σ)). Round 2: client 0 has logits a₀ + σ and −σ, loses q₀ = small(a₀ + 2σ) and is drawn by
    κ/2·(a₀ − ¼(1 + σ)) = ¾·κ/2; client 1 by ¼·κ/2."""
    data = (Data.of([[1, 0]], [0]), Data.of([[0, 1]] * 3, [1] * 3))
    method = methods["feddbe"].but(train="body+head.shift", objective=MeanRegularised(0.4))
    (first, _), (second, _) = story(on(tiny.job(method, head="eye"), federated(data)), rounds=2)
    assert_close(first.clients[0].kept, {"head.shift": torch.tensor([SIGMA, -SIGMA])})
    assert_close(first.server.statistics["consensus"], torch.tensor([0.25, 0.75]) * (1 + SIGMA))
    assert float(first.server.statistics["established"]) == 1
    a = torch.tensor([1 + SIGMA / 4, 1 + 3 * SIGMA / 4])
    assert_close(first.model[BODY], a)
    q = [small(float(each) + 2 * SIGMA) for each in a]
    own = [float(a[0]) + q[0] - 0.2 * 0.75, float(a[1]) + q[1] - 0.2 * 0.25]
    mean = torch.tensor([0.25 * own[0] + 0.75 * float(a[0]), 0.25 * float(a[1]) + 0.75 * own[1]])
    assert_close(second.model[BODY], mean)
    assert_close(second.clients[0].kept["head.shift"], torch.tensor([SIGMA + q[0], -SIGMA - q[0]]))
    assert torch.equal(second.server.statistics["consensus"], first.server.statistics["consensus"])  # once and for all
    assert first.cost.bytes_up == 2 * 4 * (2 + 2)  # s, and the mean feature …
    assert second.cost.bytes_up - first.cost.bytes_up == 2 * 4 * 2  # … once
    assert first.cost.bytes_down == 2 * 4 * (2 + 2 + 1)  # s, the consensus, whether there is one


def test_without_its_term_and_with_a_shift_that_stays_feddbe_is_fedavg_to_the_bit() -> None:
    method = methods["feddbe"].but(train="all-head.shift", objective=MeanRegularised(0.0))
    one = story(on(tiny.job(method, head="eye"), federated(ONE_CLASS)), rounds=3)[-1][0]
    plain = story(on(tiny.job("fedavg", head="eye"), federated(ONE_CLASS)), rounds=3)[-1][0]
    assert torch.equal(one.model[BODY], plain.model[BODY])
    assert torch.equal(one.model["head.linear.weight"], plain.model["head.weight"])


# pFedFDA


def test_the_head_of_gaussian_classes_by_hand() -> None:
    """μ = 1 and −1, Σ = 2, shares ¾ and ¼: W = ½ and −½, b = log π − ½·½. A class without samples is ruled out."""
    found = Gaussians(torch.tensor([[[1.0], [-1.0]]]), torch.full((1, 1, 1), 2.0))
    head = head_of(found, torch.tensor([[3, 1]]), ridge=1e-12)
    assert_close(head["head.weight"], torch.tensor([[[0.5], [-0.5]]]))
    assert_close(head["head.bias"], torch.tensor([[math.log(0.75) - 0.25, math.log(0.25) - 0.25]]))
    assert head_of(found, torch.tensor([[3, 0]]), 1e-12)["head.bias"][0, 1] < -1e3


def test_estimates_by_hand() -> None:
    """Features 1 and 3 of class 0 and 5 of class 1, and 99 as padding: means 2 and 5, Σ = (1 + 1 + 0)/3, and the floor;
    of a class that is not there the told mean. Half way to μ = 0, Σ = 1: 1, 2.5 and ½·⅔ + ½."""
    told = Gaussians(torch.zeros(1, 3, 1), torch.ones(1, 1, 1))
    told.means[0, 2] = 7.0
    seen = ClientFeatures(
        torch.tensor([[[1.0], [3.0], [5.0], [99.0]]]), torch.tensor([[0, 0, 1, 1]]), torch.tensor([[1.0, 1, 1, 0]])
    )
    assert_close(estimated(seen, told, 0.5).covariance.flatten(), torch.tensor([2 / 3 + 0.5]))
    own = estimated(seen, told, 0.0)
    assert_close(own.means.flatten(), torch.tensor([2.0, 5.0, 7.0]))
    assert_close(own.covariance.flatten(), torch.tensor([2 / 3]))
    half = own.mixed(told, torch.full((2, 1), 0.5))
    assert_close(half.means.flatten(), torch.tensor([1.0, 2.5, 7.0]))
    assert_close(half.covariance.flatten(), torch.tensor([1 / 3 + 0.5]))


def test_the_losses_of_a_sample_by_hand() -> None:
    """f = 1 under μ = ±1, Σ = 1, equal shares: logits differ by 2, so −log of 1 − small(2)."""
    found = Gaussians(torch.tensor([[[1.0], [-1.0]]]), torch.ones(1, 1, 1))
    seen = ClientFeatures(torch.tensor([[[1.0], [1.0]]]), torch.tensor([[0, 0]]), torch.tensor([[1.0, 0.0]]))
    head = head_of(found, torch.tensor([[1, 1]]), 1e-12)
    assert_close(loss_of(seen, head), torch.tensor([-math.log(1 - small(2.0))]))


def test_beta_trusts_the_others_where_they_are_right_and_itself_where_they_are_wrong() -> None:
    """Classes at ±1. Told the same, 0 is as good as any and is taken; told the opposite, at ½ both classes have the
    same mean, and below it the wrong one."""
    features = torch.tensor([1.2, 0.8, 1.1, 0.9, -1.2, -0.8, -1.1, -0.9]).view(1, 8, 1)
    features = features[:, [0, 4, 1, 5, 2, 6, 3, 7]]
    seen = ClientFeatures(features, torch.tensor([[0, 1] * 4]), torch.ones(1, 8))
    right = estimated(seen, Gaussians(torch.zeros(1, 2, 1), torch.ones(1, 1, 1)), 0.0)
    wrong = Gaussians(-right.means, right.covariance)
    for statistics in (GaussianClasses(folds=4, floor=0.0), GaussianClasses(folds=4, floor=0.0, betas="two")):
        assert float(statistics.chosen(seen, wrong)[0]) > 0.5
        assert statistics.chosen(seen, right).tolist() == [[0.0], [0.0]]


def test_two_betas_are_the_best_of_all_pairs() -> None:
    """The told means lie (±1, ∓1), the client's near (±1, 0), and the told covariance is four times too wide: means in
    between, and its own covariance. The sum over folds is worked out again, pair by pair."""
    features = torch.tensor([[1.5, 0.2], [-1.0, 0.4], [0.7, -0.5], [-1.6, 0.1], [1.1, 0.9], [-0.4, -1.1]]).view(1, 6, 2)
    seen = ClientFeatures(features, torch.tensor([[0, 1] * 3]), torch.ones(1, 6))
    told = Gaussians(torch.tensor([[[1.0, -1.0], [-1.0, 1.0]]]), 2 * torch.eye(2)[None])
    statistics, counts = GaussianClasses(folds=3, steps=4, betas="two", floor=0.0), torch.tensor([[3, 3]])

    def loss(of_means: float, of_covariance: float) -> float:
        total = 0.0
        for fold in range(3):
            out = (torch.arange(6) % 3 == fold).float()
            mixed = estimated(seen.only(1 - out), told, 0.0).mixed(told, torch.tensor([[of_means], [of_covariance]]))
            total += float(loss_of(seen.only(out), head_of(mixed, counts, statistics.ridge)))
        return total

    grid = [0.0, 0.25, 0.5, 0.75, 1.0]
    best = min((loss(m, c), m, c) for m in grid for c in grid)
    assert tuple(statistics.chosen(seen, told).flatten().tolist()) == best[1:]
    assert best[1] != best[2]
    one = min((loss(b, b), b) for b in grid)
    assert replace(statistics, betas="one").chosen(seen, told).flatten().tolist() == [one[1]] * 2


def test_pfedfda_sends_means_and_a_covariance_and_clients_keep_nothing() -> None:
    """The first head is the drawn one, since its rows stand for means and Σ is 1; the head never learns and never
    travels. Afterwards the server holds the weighted mean of what was sent, and the generic head is made of it."""
    config = _config(methods["pfedfda"])
    job = simulate(config, federation())
    stage = job.plan[0]
    told = tell(stage, ServerState(job.model), job.roster, (0, 1), 1, seed=0)
    assert torch.equal(told.said["means"], job.model["head.weight"])
    assert torch.equal(told.said["covariance"], torch.eye(job.net.body.features))
    with OneByOne(job.net, job.federation, workers=1) as engine:
        sent = list(engine.map(visit_of(stage, told, 0), [0, 1]))
        state, played = play_round(stage, State.begin(job.model), job.roster, engine, SEED)
    assert all("head.weight" not in each.model for each in sent)
    assert torch.equal(state.model["head.weight"], job.model["head.weight"])
    shown = head_of(
        Gaussians(state.server.statistics["means"][None], state.server.statistics["covariance"][None]),
        torch.ones(1, job.roster.classes),
        1e-4,
    )
    assert torch.equal(state.reported.model["head.weight"], shown["head.weight"][0])
    assert len(played.participants) == 2
    assert not any(state.clients[k] for k in played.participants)


def test_a_personal_model_of_pfedfda_is_made_under_the_servers_body_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has s = (2, 1): features (2, 0), (1.2, 0) of class 0 and (0, 1), (0, 0.6) of class 1. Means are (1.6,
    0), (0, 0.8); Σ = diag(2·0.4²/4, 2·0.2²/4) = diag(0.08, 0.02), and 1 as the floor. Half way to μ = 0 and Σ = 1 are
    (0.8, 0), (0, 0.4) and diag(1.04, 1.01). A body that the client's last visit left plays no part."""
    monkeypatch.setattr(GaussianClasses, "chosen", lambda self, seen, told: torch.full((2, 1), 0.5))
    data = Data.of([[1, 0], [0.6, 0], [0, 1], [0, 0.6]], [0, 0, 1, 1])
    job = on(tiny.job("pfedfda", head="eye", bias=True), federated((data, data)))
    model = {**job.model, BODY: torch.tensor([2.0, 1.0])}
    said = {"means": torch.zeros(2, 2), "covariance": torch.eye(2), "known": torch.ones(())}
    state = State.begin(model, {0: ClientState(own={BODY: torch.tensor([9.0, 9.0])})}, round=1, statistics=said)
    workspace = replace(Workspace.at(job.net, job.federation), store=state.clients)
    own = evaluation_of(job, job.plan[0], state).own(workspace, [0], workspace.models(model, [0]))
    wide = torch.tensor([1.0401, 1.0101])  # with the ridge
    assert_close(own[BODY], torch.tensor([[2.0, 1.0]]))
    assert_close(own["head.weight"], torch.diag(torch.tensor([0.8, 0.4]) / wide)[None])
    assert_close(own["head.bias"], math.log(0.5) - torch.tensor([0.64, 0.16])[None] / wide / 2)


# all of them


@pytest.mark.parametrize("name", ["fedproto", "fedpac", "fedas", "feddbe", "pfedfda", "creff"])
def test_it_resumes_to_the_bit(name: str, tmp_path: Path) -> None:
    job = simulate(_config(methods[name]), federation())
    resumes(job, tmp_path)


@pytest.mark.parametrize(("axis", "choice"), [("objective", "prototypes"), ("personal", "gaussian-head")])
def test_what_nobody_tells_cannot_be_read(axis: str, choice: str) -> None:
    config = _config(methods["fedavg"]).but(f"method.{axis}={choice}")
    with pytest.raises(RequestError, match=rf"method.{axis} = '{choice}' reads 'means' .* tells nothing of it"):
        simulate(config, federation())


# CReFF


def test_the_gradients_of_a_class_by_hand() -> None:
    """v = (1, 0) of class 0 and (0, 1) of class 1 under the unit matrix: (p − e)vᵀ, p − e = (−σ, σ) and (σ, −σ). With a
    bias of 0 each row has p − e once more."""
    features = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    wrong = torch.tensor([[-SIGMA, SIGMA], [SIGMA, -SIGMA]])
    wanted = torch.stack([torch.outer(wrong[0], features[0, 0]), torch.outer(wrong[1], features[1, 0])])
    assert_close(class_gradients(features, torch.eye(2)), wanted)
    with_bias = as_matrix({"head.weight": torch.eye(2), "head.bias": torch.zeros(2)})
    assert_close(class_gradients(features, with_bias), torch.cat([wanted, wrong.unsqueeze(-1)], dim=-1))


def far(one: Tensor, other: Tensor, size: int) -> Tensor:
    """The distance [C] of gradients [C, C, d']: 1 − cosine, summed over the rows of the weight and the bias."""
    rows = (1 - F.cosine_similarity(one[..., :size], other[..., :size], dim=-1)).sum(dim=-1)
    if size == one.shape[-1]:
        return rows
    return rows + 1 - F.cosine_similarity(one[..., size], other[..., size], dim=-1)


def test_the_directions_of_gradients_by_hand() -> None:
    """Each row has length 1, a row of zeros stays; the bias, here (3, 4), is one more vector."""
    gradients = torch.tensor([[[2.0, 0.0, 3.0], [0.0, 0.0, 4.0]]])
    assert_close(directions(gradients, 2), torch.tensor([[[1.0, 0.0, 0.6], [0.0, 0.0, 0.8]]]))
    assert_close(directions(gradients[..., :2], 2), torch.tensor([[[1.0, 0.0], [0.0, 0.0]]]))


@pytest.mark.parametrize("bias", [False, True])
def test_the_gradient_of_the_distance_is_that_of_autograd(bias: bool) -> None:
    """In float64: 4 classes with 5 features of 3 numbers; class 2 is absent."""
    draw = torch.Generator().manual_seed(0)
    features, head = (torch.randn(*size, generator=draw).double() for size in ((4, 5, 3), (4, 3 + bias)))
    wanted = torch.randn(4, 4, 3 + bias, generator=draw).double()
    there = torch.tensor([1.0, 1.0, 0.0, 1.0]).double()
    leaf = features.clone().requires_grad_()
    (far(class_gradients(leaf, head), wanted, 3) * there).sum().backward()
    goal = directions(wanted, 3) * there.view(-1, 1, 1)
    assert leaf.grad is not None
    assert_close(distance_gradient(features, head, goal), leaf.grad)


def test_what_clients_of_creff_send_by_hand() -> None:
    """Client 0: (1, 0) of class 0, client 1: three times (0, 1) of class 1; means over a class, at the head of the
    start. Each class has one client, so the server's mean is that client's."""
    job = on(tiny.job("creff", head="eye"), federated((Data.of([[1, 0]], [0]), Data.of([[0, 1]] * 3, [1] * 3))))
    told = tell(job.plan[0], ServerState(job.model), job.roster, (0, 1), 1, seed=0)
    assert torch.equal(told.said["retrained"], torch.eye(2))
    with OneByOne(job.net, job.federation, workers=1) as engine:
        sent = list(engine.map(visit_of(job.plan[0], told, 0), [0, 1]))
    assert_close(sent[0].said["gradients"][0], torch.tensor([[[-SIGMA, 0.0], [SIGMA, 0.0]], [[0.0, 0.0], [0.0, 0.0]]]))
    assert_close(sent[1].said["gradients"][0, 1], torch.tensor([[0.0, SIGMA], [0.0, -SIGMA]]))
    assert sent[1].said["present"].tolist() == [[0.0, 1.0]]


def test_the_head_is_trained_again_by_hand() -> None:
    """One step of rate 2 on (1, 0) of class 0, class 1 not seen: W − 2·(p − e)vᵀ. With both seen, half of each."""
    features = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    statistics = FederatedFeatures(train_steps=1, train_lr=2.0)
    alone = statistics.retrained(torch.eye(2), features, torch.tensor([1.0, 0.0]))
    assert_close(alone, torch.tensor([[1 + 2 * SIGMA, 0.0], [-2 * SIGMA, 1.0]]))
    both = statistics.retrained(torch.eye(2), features, torch.ones(2))
    assert_close(both, torch.tensor([[1 + SIGMA, -SIGMA], [-SIGMA, 1 + SIGMA]]))


def test_features_learn_to_have_the_gradients_of_real_ones() -> None:
    """Real features near (2, 0) and (0, 2); an absent class keeps its features to the bit."""
    statistics, head = FederatedFeatures(features=3, match_steps=200, match_lr=1.0), torch.eye(3, 2)
    real = torch.tensor([[[2.0, 0.1], [1.8, -0.1]], [[0.1, 2.0], [0.0, 1.9]], [[0.0, 0.0], [0.0, 0.0]]])
    wanted = class_gradients(real, head)
    start = torch.randn(3, 3, 2, generator=torch.Generator().manual_seed(0))
    there = torch.tensor([True, True, False])
    found = statistics.matched(start, head, wanted, there)
    before, after = (far(class_gradients(each, head), wanted, 2) for each in (start, found))
    assert bool((after[:2] < 0.1).all())
    assert bool((after[:2] < before[:2]).all())
    assert torch.equal(found[2], start[2])


def test_the_first_match_is_at_the_head_that_clients_were_told() -> None:
    """In the first round that is the head of the start, not the one after the server's step."""
    moved = {"head.weight": 5 * torch.eye(2)}
    held = ServerView(
        FederatedFeatures(features=2).first(tiny.job("creff", head="eye").net, 2, seed=0),
        model=moved,
        before={"head.weight": torch.eye(2)},
    )
    came = RoundStatistics(1, {0: 1.0}, {"gradients": torch.ones(2, 2, 2), "present": torch.ones(2)})
    once = FederatedFeatures(features=2, match_steps=1, train_steps=0)
    found = once.combine(held, came)
    wanted = once.matched(held.shared["features"], torch.eye(2), torch.ones(2, 2, 2), torch.ones(2) > 0)
    assert torch.equal(found.shared["features"], wanted)
    assert torch.equal(found.shared["retrained"], moved["head.weight"])  # training begins at the averaged head
    assert torch.equal(once.shows(found)["head.weight"], moved["head.weight"])


def test_creff_trains_fedavgs_model_to_the_bit() -> None:
    """What is broadcast and averaged is FedAvg's; the head that accuracy is reported on is another."""
    one, plain = (
        story(on(tiny.job(name, head="eye"), federated(ONE_CLASS)), rounds=3)[-1][0] for name in ("creff", "fedavg")
    )
    assert all(torch.equal(tensor, plain.model[name]) for name, tensor in one.model.items())
    assert not torch.equal(one.reported.model["head.weight"], plain.model["head.weight"])
