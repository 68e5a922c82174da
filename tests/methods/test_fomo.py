"""FedFomo (spec 5.6): who is sent whose model, what they are worth, and a run of it against NumPy."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from torso.engine import Workspace
from torso.learn.task import LocalTask
from torso.nets import Tensors
from torso.personal import Fomo, VisitStart
from torso.personal.fomo import AFFINITY, SCORES
from torso.personal.models import generic_model

from .by_hand import EYE, Data, Model, equal, federated, last, losses, mean, on, same, sgd, story
from .tiny import job


def opening(own: Tensor, offers: list[Tensor], senders: list[list[int]]) -> VisitStart:
    """G clients with models [G, 2] of one tensor w; L(w) = ‖w‖² / 2 on what they hold out."""
    return VisitStart(
        task=cast(LocalTask, None),  # of no interest before training
        received={"w": own, "counter": torch.zeros(len(own), dtype=torch.int64)},
        own={},
        notes={},
        offered=[lambda w=w: {"w": w, "counter": torch.full((len(own),), 7)} for w in offers],  # type: ignore[misc]
        senders=torch.tensor(senders),
        loss=lambda tensors: tensors["w"].square().sum(dim=1) / 2,
        parameters=("w",),
    )


def test_fomo_weights_by_gain_over_distance() -> None:
    """θ_k = (3, 4) has loss 12.5. θ₁ = (3, 0): gain 8, distance 4 → 2. θ₂ = (0, 4): gain 4.5, distance 3 → 1.5.
    θ₃ = (3, 6): gain −10, distance 2 → −5, clipped. Own model: 0. Weights 2/3.5 = 4/7 and 3/7:
    θ_k + 4/7·(0, −4) + 3/7·(−3, 0) = (12/7, 12/7)."""
    offers = [torch.tensor([offer]) for offer in ([3.0, 0.0], [0.0, 4.0], [3.0, 6.0], [3.0, 4.0])]
    at = opening(torch.tensor([[3.0, 4.0]]), offers, [[1, 2, 3, 0]])
    start, notes = Fomo().before(at)
    assert_close(start["w"], torch.tensor([[12 / 7, 12 / 7]]), atol=1e-4, rtol=1e-4)  # 1e-5 is added to distances
    assert_close(
        notes[SCORES], torch.tensor([[2.0, 1.5, -5.0, 0.0]]), atol=1e-4, rtol=1e-4
    )  # raw, in the offers' order
    # the server adds the raw scores, the negative one too; whoever was not sent keeps what it had
    before = torch.tensor([1.0, 0.25, 0.0, 0.0, 9.0])
    known = Fomo().heard({AFFINITY: before}, at.senders[0], {SCORES: notes[SCORES][0]})
    assert_close(known[AFFINITY], torch.tensor([1.0, 2.25, 1.5, -5.0, 9.0]), atol=1e-4, rtol=1e-4)
    assert before.tolist() == [1.0, 0.25, 0.0, 0.0, 9.0]  # a new tensor
    assert start["counter"].tolist() == [0]  # counters are not mixed


def test_fomo_distance_gets_a_small_number_added() -> None:
    """Own weights (1, 0), loss ½; an offer at distance 1e-5: gain ≈ 1e-5, score 1e-5 / 2e-5 = ½, not 1."""
    own, near = torch.tensor([[[1.0, 0.0]], [[1 - 1e-5, 0.0]]], dtype=torch.float64)
    at = opening(own, [near], [[1]])
    assert_close(Fomo().before(at)[1][SCORES][0, 0].item(), 0.5, atol=1e-4, rtol=0)


def test_fomo_keeps_its_own_model_where_nobody_helps() -> None:
    """Two clients at once: offers that are worse, or equal, for the first; a better one for the second."""
    own = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    offers = [torch.tensor([[2.0, 0.0], [0.0, 1.0]]), own.clone()]
    start, notes = Fomo().before(opening(own, offers, [[1, 0], [0, 1]]))
    assert torch.equal(start["w"][0], own[0])
    assert_close(start["w"][1], torch.tensor([0.0, 1.0]))
    assert_close(notes[SCORES], torch.tensor([[-1.5, 0.0], [1.5, 0.0]]), atol=1e-4, rtol=1e-4)


def test_fomo_without_offers_goes_on_with_what_it_has() -> None:
    at = opening(torch.ones(1, 2), [], [[]])
    assert Fomo().before(at) == (at.received, at.notes)


AFFINITIES = {AFFINITY: torch.tensor([0.1, 0.9, -3.0, 0.5, 0.4, 0.2])}


def test_fomo_offers_the_greatest_affinities_among_those_available() -> None:
    best = Fomo(models=3, explore=0.0)
    for seed in range(20):
        assert set(best.offer(AFFINITIES, range(6), 1, np.random.default_rng(seed))) == {1, 3, 4}
        assert set(best.offer(AFFINITIES, [0, 2, 4, 5], 1, np.random.default_rng(seed))) == {4, 5, 0}
        assert set(best.offer(AFFINITIES, [2, 1], 1, np.random.default_rng(seed))) == {1, 2}  # fewer than three
    assert best.offer(AFFINITIES, [], 1, np.random.default_rng(0)) == ()


def test_fomo_begins_with_an_affinity_to_itself_alone_and_draws_equals_at_random() -> None:
    known = Fomo().known(2, 6)
    assert known[AFFINITY].tolist() == [0, 0, 1, 0, 0, 0]
    drawn = [Fomo(models=2, explore=0.0).offer(known, range(6), 1, np.random.default_rng(seed)) for seed in range(500)]
    assert all(2 in offer for offer in drawn)
    others = Counter(k for offer in drawn for k in offer if k != 2)
    assert set(others) == {0, 1, 3, 4, 5}
    assert all(60 < count < 145 for count in others.values())  # 100 each, ±4.5 deviations of 9


def test_fomo_explores_for_certain_at_one() -> None:
    """Each of the best two gives way to one of the other four; where there are too few others, the best stay."""
    bold = Fomo(models=2, explore=1.0)
    offers = [set(bold.offer(AFFINITIES, range(6), 1, np.random.default_rng(seed))) for seed in range(200)]
    assert all(len(offer) == 2 and not offer & {1, 3} for offer in offers)
    assert set().union(*offers) == {0, 2, 4, 5}
    crowded = [Fomo(models=5, explore=1.0).offer(AFFINITIES, range(6), 1, np.random.default_rng(s)) for s in range(20)]
    assert all(len(set(offer)) == 5 and 2 in offer for offer in crowded)


@pytest.mark.parametrize(("round", "share"), [(1, 0.3), (2, 0.25), (5, 0.1), (7, 0.0), (50, 0.0)])
def test_fomo_explores_less_in_every_round(round: int, share: float) -> None:
    """Probability 0.3 − 0.05·(r − 1) for each of the three best, so over 2000 draws of 3 a deviation of at most 36."""
    usual = Fomo(models=3)
    count = sum(
        len({1, 3, 4} - set(usual.offer(AFFINITIES, range(6), round, np.random.default_rng(seed))))
        for seed in range(2000)
    )
    assert abs(count - 6000 * share) <= 160 * (share > 0)


def fomo(mine: list[Model], k: int, data: Data, lr: float, affinity: np.ndarray[Any, Any], senders: list[int]) -> Model:
    """A visit: mix, then one step on a batch of equal samples; held out are samples like those that are learned."""
    own = mine[k]
    gain = [float(losses(own, data).mean() - losses(mine[j], data).mean()) for j in senders]
    score = [g / (mine[j].minus(own).squared() ** 0.5 + 1e-5) for g, j in zip(gain, senders, strict=True)]
    for j, raw in zip(senders, score, strict=True):
        affinity[j] += raw
    good = [max(0.0, raw) for raw in score]
    start = own
    for weight, j in zip(good, senders, strict=True):
        start = start.moved(mine[j].minus(own), weight / sum(good) if sum(good) else 0.0)
    return sgd(start, data, lr)


CLIENTS = [Data.of([(1, 0)] * 5, [0] * 5), Data.of([(1, 0.2)] * 6, [0] * 6), Data.of([(0.2, 1)] * 5, [1] * 5)]


@pytest.mark.parametrize("at_once", [1, 3])
@pytest.mark.parametrize("fraction", [1.0, 0.7])
def test_fomo_rounds_against_numpy(at_once: int, fraction: float) -> None:
    """Three clients of equal samples, one of five held out. Nobody has uploaded before the first round; from then on
    everybody gets all models there are (three of them, M = 5), and whoever comes first later begins at the start."""
    task = on(job("fedfomo", head="eye", lr=0.4, fraction=fraction), federated(CLIENTS))
    models, uploaded, affinity = [EYE] * 3, set[int](), np.eye(3)
    for state, played in story(task, 4, at_once):
        before, senders = list(models), sorted(uploaded)
        for k in played.participants:
            models[k] = fomo(before, k, CLIENTS[k], 0.4, affinity[k], senders)
        uploaded |= set(played.participants)
        assert set(state.clients.of_kind("kept")) == uploaded
        for k in uploaded:
            same(state.clients[k].kept, models[k], tol=1e-4)
            assert equal(state.server.uploads[k], state.clients[k].kept)  # the server has what the client has
            assert not state.clients[k].notes  # scores are told, not kept
            known = state.server.of_clients.get(k) or Fomo().known(k, 3)
            assert_close(known[AFFINITY].double(), torch.from_numpy(affinity[k]), atol=1e-3, rtol=1e-3)
        assert torch.equal(state.model["head.weight"], torch.eye(2))  # nothing is averaged
        generic = generic_model(state.model, state.clients, task.roster)
        same(generic, mean(models, [5 / 16, 6 / 16, 5 / 16]), tol=1e-4)  # by samples; who never came counts as I


def test_fomo_does_not_train_on_what_it_holds_out() -> None:
    """Client 0's five samples differ: one step on the four that Deck.parted leaves it, and none of the fifth."""
    data = Data.of([(1, 0), (1, 0.2), (0.2, 1), (0, 1), (1, 1)], [0, 0, 1, 1, 0])
    task = on(job("fedfomo", head="eye"), federated([data, CLIENTS[2]]))
    workspace = Workspace.at(task.net, task.federation)
    kept, held = workspace.train_deck([0]).split_off(0.2, seed=0)
    rows = kept.index[0].tolist()
    assert (len(rows), len(held.index[0])) == (4, 1)
    state = last(task)
    same(state.clients[0].kept, sgd(EYE, Data(data.x[rows], data.y[rows]), 1.0))
    others = [[row for row in range(5) if row != out] for out in range(5)]
    fits = [sgd(EYE, Data(data.x[rest], data.y[rest]), 1.0).w for rest in others]
    close = [np.abs(fit - state.clients[0].kept["head.weight"].double().numpy()).max() < 1e-5 for fit in fits]
    assert sum(close) == 1  # no other choice of four gives the same step


def test_fomo_measures_on_the_samples_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss that decides is the mean cross-entropy on the held-out deck, of the same samples in every round."""
    data = Data.of([(1, 0), (1, 0.2), (0.2, 1), (0, 1), (1, 1)], [0, 0, 1, 1, 0])
    task = on(job("fedfomo", head="eye"), federated([data, CLIENTS[2]]))
    seen: list[tuple[Tensors, Tensor]] = []
    usual = Fomo.before

    def spy(self: Fomo, at: VisitStart) -> tuple[Tensors, Tensors]:
        if at.task.deck.clients == (0,):
            seen.append((at.received, at.loss(at.received)))
        return usual(self, at)

    monkeypatch.setattr(Fomo, "before", spy)
    story(task, 3)
    row = Workspace.at(task.net, task.federation).train_deck([0]).split_off(0.2, seed=0)[1].index[0].tolist()
    assert len(seen) == 3
    for received, found in seen:
        model = Model(*(received[n][0].double().numpy() for n in ("body.blocks.0.weight", "head.weight")))
        assert found.item() == pytest.approx(float(losses(model, Data(data.x[row], data.y[row])).mean()), abs=1e-5)
