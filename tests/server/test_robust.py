"""Robust rules by hand, their breakdown points, and what changes nothing: order, place, scale, threads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from torso.learn.stacked import client_norms
from torso.nets import Tensors
from torso.server import Mean, ServerRule, servers
from torso.server.robust import CentredClipping, GeometricMedian, Krum, Median, TrimmedMean, clipped_uploads

ROBUST = {
    "median": Median(),
    "trimmed-mean": TrimmedMean(share=0.3),
    "krum": Krum(f=2),
    "multi-krum": Krum(f=2, m=3),
    "geometric-median": GeometricMedian(),
    "centred-clipping": CentredClipping(radius=0.5, steps=2),
}
each = pytest.mark.parametrize("rule", ROBUST.values(), ids=ROBUST.keys())
HUGE = 1e9


def of(rule: ServerRule, uploads: Tensors, weights: list[float] | None = None, old: Tensors | None = None) -> Tensors:
    """What the rule makes of uploads; equal weights and θ = 0 unless told."""
    clients = len(next(iter(uploads.values())))
    shares = torch.tensor(weights) if weights else torch.full((clients,), 1 / clients)
    return rule.combine({}, old or {n: torch.zeros_like(t[0]) for n, t in uploads.items()}, uploads, shares)


def numbers(rule: ServerRule, *uploads: float, weights: list[float] | None = None) -> float:
    """The same of one number a client."""
    return of(rule, {"w": torch.tensor(uploads)[:, None]}, weights)["w"].item()


def points(rule: ServerRule, *uploads: tuple[float, float]) -> Tensor:
    """The same of two parameters of one number each, which are one vector to those rules that look at whole uploads."""
    found = of(rule, {"a": torch.tensor([[x] for x, _ in uploads]), "b": torch.tensor([[y] for _, y in uploads])})
    return torch.cat([found["a"], found["b"]])


def drawn(clients: int, seed: int = 0) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    return {
        "a": torch.randn(clients, 4, 3, generator=generator),
        "b": torch.randn(clients, generator=generator),
        "c": torch.randn(clients, 5, generator=generator),
    }


# by hand


def test_the_robust_rules_are_the_registered_ones_that_need_each_upload() -> None:
    assert {type(rule) for rule in ROBUST.values()} == {kind for kind in servers.values() if kind.needs_each}


def test_median_by_hand() -> None:
    """Number by number, so that no client need have sent the result; between 2 and 4 of four."""
    assert points(Median(), (1, 5), (2, -1), (9, 0)).tolist() == [2.0, 0.0]
    assert numbers(Median(), 100, 1, 4, 2) == 3.0
    assert numbers(Median(), 1, 2, 9, weights=[0.05, 0.05, 0.9]) == 2.0


def test_trimmed_mean_by_hand() -> None:
    """⌊0.2 · 5⌋ = 1 at either end: (2 + 3 + 4)/3; of four at 0.25: (2 + 4)/2; of nine at 0.25 two at either end."""
    assert numbers(TrimmedMean(share=0.2), 100, 3, 1, 4, 2) == 3.0
    assert numbers(TrimmedMean(share=0.25), 0, 1000, 2, 4) == 3.0
    assert numbers(TrimmedMean(share=0.25), 0, 0, 1, 2, 3, 4, 5, 50, 50) == 3.0
    assert points(TrimmedMean(share=0.34), (1, 9), (2, 8), (60, 70)).tolist() == [2.0, 9.0]


def test_krum_by_hand() -> None:
    """K = 5, f = 1: the two nearest others count. Of 0, 1, 2.5, 10, 11 the sums are 1 + 6.25, 1 + 2.25, 2.25 + 6.25,
    1 + 56.25, 1 + 72.25: the order is 1, 0, 2.5."""
    values = (0, 1, 2.5, 10, 11)
    assert numbers(Krum(f=1), *values) == 1.0
    assert numbers(Krum(f=1, m=2), *values) == 0.5
    assert numbers(Krum(f=1, m=3), *values) == pytest.approx(3.5 / 3)
    assert numbers(Krum(f=1), *values, weights=[0.01, 0.01, 0.01, 0.01, 0.96]) == 1.0


def test_krum_looks_at_all_parameters_together() -> None:
    """f = 0, K = 3: the nearest other counts. First parameters 0, 1, 9 and second 8, 0, 1: squares of distances are 65,
    130 and 65, so that of equal sums the first stands."""
    assert points(Krum(f=0), (0, 8), (1, 0), (9, 1)).tolist() == [0.0, 8.0]
    assert points(Krum(f=0), (0, 9), (1, 0), (9, 1)).tolist() == [1.0, 0.0]  # 82, 145 and 65


def test_geometric_median_by_hand() -> None:
    """Of a convex quadrilateral it is where the diagonals meet: y = x and x + y = 4. Of an equilateral triangle the
    centre. Of three in a line the middle one; of a triangle with an angle of 120° or more, that corner."""
    assert_close(points(GeometricMedian(), (0, 0), (6, 6), (0, 4), (3, 1)), torch.tensor([2.0, 2.0]), atol=1e-4, rtol=0)
    centre = torch.tensor([1.0, 1 / math.sqrt(3)])
    assert_close(points(GeometricMedian(), (0, 0), (2, 0), (1, math.sqrt(3))), centre, atol=1e-4, rtol=0)
    assert points(GeometricMedian(), (0, 0), (1, 1), (10, 10)).tolist() == [1.0, 1.0]
    assert_close(points(GeometricMedian(), (-4, 1), (0, 0), (5, 1)), torch.zeros(2), atol=1e-4, rtol=0)


def test_geometric_median_goes_by_weight() -> None:
    """Who has more than half of the samples is where it is. It begins at 1, which is an upload but not the answer."""
    assert numbers(GeometricMedian(), 0, 1, 10, weights=[0.6, 0.2, 0.2]) == pytest.approx(0.0, abs=1e-4)


def test_geometric_median_is_cut_off_after_its_steps() -> None:
    """From (1.5, 2.5), where the distances are √8.5, √32.5, √4.5, √4.5: one step by hand."""
    corners = torch.tensor([[0.0, 0.0], [6.0, 6.0], [0.0, 4.0], [3.0, 1.0]])
    pull = 1 / torch.tensor([8.5, 32.5, 4.5, 4.5]).sqrt()
    expected = (pull @ corners) / pull.sum()
    assert_close(points(GeometricMedian(steps=1), (0, 0), (6, 6), (0, 4), (3, 1)), expected)


def test_centred_clipping_by_hand() -> None:
    """Radius 1, from v = 0: (½ − 1 + 1)/3 = 1/6. Next round v is θ and the same change again, 1/3: (1/6 − 1 + 1)/3 more
    is 7/18. Two steps from 0 at once: 1/6 + (1/3 − 1 + 1)/3 = 5/18."""
    rule, uploads, shares = CentredClipping(radius=1.0), {"w": torch.tensor([[0.5], [-3.0], [10.0]])}, torch.ones(3) / 3
    theta: Tensors = {"w": torch.zeros(1)}
    state: Tensors = {}
    for expected in (1 / 6, 7 / 18):
        mean = rule.combine(state, theta, uploads, shares)
        state, theta, _ = rule.step(state, theta, mean, torch.zeros(()))
        assert theta["w"].item() == pytest.approx(expected)
    assert numbers(replace(rule, steps=2), 0.5, -3, 10) == pytest.approx(5 / 18)
    assert_close(points(rule, (3, 4), (0, 0)), torch.tensor([0.3, 0.4]))


def test_clipping_by_hand() -> None:
    """‖(3, 4)‖ = 5 from θ = (10, 20): a fifth of the way; what is within the bound comes back bit for bit."""
    old = {"a": torch.tensor([10.0]), "b": torch.tensor([20.0])}
    uploads = {"a": torch.tensor([[13.0], [10.3], [10.0]]), "b": torch.tensor([[24.0], [20.1], [20.0]])}
    found = clipped_uploads(uploads, old, 1.0)
    assert_close(found["a"][0], torch.tensor([10.6]))
    assert_close(found["b"][0], torch.tensor([20.8]))
    for name in uploads:
        assert torch.equal(found[name][1:], uploads[name][1:])


# some lie

HONEST = (0.9, 1.0, 1.1, 1.2, 0.8)


@each
@pytest.mark.parametrize("lies", [(HUGE, HUGE), (-HUGE, -HUGE), (HUGE, -HUGE), (HUGE, 1.0)])
def test_two_liars_of_seven_do_not_move_the_result_out_of_the_honest_range(
    rule: ServerRule, lies: tuple[float, ...]
) -> None:
    assert abs(numbers(Mean(), *HONEST, HUGE, HUGE)) > 1e8
    found = numbers(rule, *HONEST, *lies)
    if isinstance(rule, CentredClipping):  # no further than two steps of the radius from θ = 0
        assert abs(found) <= 1.0 + 1e-6
    else:
        assert min(HONEST) <= found <= max(HONEST)


@pytest.mark.parametrize(
    ("rule", "liars"),
    [(Median(), 4), (TrimmedMean(share=0.2), 2), (TrimmedMean(share=0.3), 3), (GeometricMedian(), 4), (Krum(f=2), 5)],
    ids=str,
)
def test_one_liar_more_than_a_rule_stands_and_they_have_it(rule: ServerRule, liars: int) -> None:
    found = numbers(rule, *[1.0 + k / 10 for k in range(7 - liars)], *[HUGE] * liars)
    assert found > 1e8


@pytest.mark.parametrize("share", [0.1, 0.2, 0.3, 0.45])
def test_the_least_number_of_participants_is_that_of_which_one_is_trimmed(share: float) -> None:
    rule = TrimmedMean(share=share)
    rest = [1.0] * (rule.least - 1)
    assert numbers(rule, *rest, HUGE) == 1.0
    assert numbers(rule, *rest[1:], HUGE) > 1e6


def test_liars_move_the_geometric_median_by_a_bounded_way() -> None:
    """f of K: no further from any point p than 2(K − f)/(K − 2f) times the distance of the farthest honest upload, by
    the triangle inequality for Σ‖θ_k − z‖ ≤ Σ‖θ_k − p‖."""
    uploads = torch.randn(7, 6, generator=torch.Generator().manual_seed(1))
    middle = uploads[:5].mean(dim=0)
    radius = (uploads[:5] - middle).norm(dim=1).max()
    for direction in torch.eye(6):
        uploads[5:] = HUGE * direction
        found = of(GeometricMedian(), {"w": uploads})["w"]
        assert (found - middle).norm() <= 2 * 5 / 3 * radius


def test_liars_move_centred_clipping_by_their_share_of_the_radius() -> None:
    honest, lie = drawn(7), drawn(7)
    for tensor in lie.values():
        tensor[5:] = -HUGE
    rule = CentredClipping(radius=0.5)
    one, other = (torch.cat([t.flatten() for t in of(rule, each).values()]) for each in (honest, lie))
    assert 0 < (one - other).norm() <= 2 * 0.5 * 2 / 7


# what changes nothing


@each
def test_the_order_of_the_uploads_does_not_matter(rule: ServerRule) -> None:
    uploads, weights = drawn(7), torch.rand(7, generator=torch.Generator().manual_seed(2)).tolist()
    first = of(rule, uploads, weights)
    for order in list(permutations(range(7)))[:: 5040 // 6]:
        again = of(rule, {n: t[list(order)] for n, t in uploads.items()}, [weights[k] for k in order])
        assert_close(again, first, atol=1e-5, rtol=1e-5)


@each
def test_the_result_moves_with_the_uploads_and_the_model(rule: ServerRule) -> None:
    uploads, way = drawn(7), {n: t[0] for n, t in drawn(1, seed=5).items()}
    moved = of(rule, {n: t + way[n] for n, t in uploads.items()}, old=way)
    assert_close(moved, {n: t + way[n] for n, t in of(rule, uploads).items()}, atol=1e-4, rtol=1e-4)


@each
@pytest.mark.parametrize("factor", [8.0, -0.25])
def test_the_result_is_scaled_with_the_uploads(rule: ServerRule, factor: float) -> None:
    """Centred clipping has a length of its own, which is scaled with them."""
    uploads = drawn(7)
    larger = replace(rule, radius=rule.radius * abs(factor)) if isinstance(rule, CentredClipping) else rule
    scaled = of(larger, {n: factor * t for n, t in uploads.items()})
    assert_close(scaled, {n: factor * t for n, t in of(rule, uploads).items()}, atol=1e-5, rtol=1e-4)


@each
def test_of_equal_uploads_that_upload(rule: ServerRule) -> None:
    """Bit for bit; centred clipping, which adds a mean of changes to θ, to rounding, and within its radius."""
    one = drawn(1, seed=3)
    for clients in (rule.least or 1, 7, 10):
        uploads, expected = (
            {n: t.expand(clients, *t.shape[1:]) for n, t in one.items()},
            {n: t[0] for n, t in one.items()},
        )
        if isinstance(rule, CentredClipping):
            assert_close(of(replace(rule, radius=100.0), uploads), expected)
            continue
        found = of(rule, uploads)
        assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_threads_change_no_length() -> None:
    """Of one long upload alone: torch.sum would split it."""
    rows = [{"w": t} for t in torch.randn(8, 1, 400_000, generator=torch.Generator().manual_seed(0)).unbind()]
    found = []
    for count in (1, 2, 4):
        torch.set_num_threads(count)
        found.append([client_norms(row).item() for row in rows])
    assert found[0] == found[1] == found[2]


@each
@pytest.mark.usefixtures("threads")
def test_threads_change_no_bit(rule: ServerRule) -> None:
    """The server of a cluster or a federation has as many as it has cores, the worker of an engine one."""
    generator = torch.Generator().manual_seed(0)
    uploads = {"a": torch.randn(9, 70_001, generator=generator), "b": torch.randn(9, 300, 300, generator=generator)}
    found = []
    for count in (1, 2):
        torch.set_num_threads(count)
        old = {n: t[0] / 2 for n, t in uploads.items()}
        found.append(of(rule, clipped_uploads(uploads, old, 100.0), old=old))
        single = {n: t[:1] for n, t in uploads.items()}
        found[-1] |= {f"single {n}": t[0] for n, t in clipped_uploads(single, old, 100.0).items()}
        found[-1] |= {f"stacked {n}": t[0] for n, t in clipped_uploads(uploads, old, 100.0).items()}
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    assert all(torch.equal(found[0][f"single {name}"], found[0][f"stacked {name}"]) for name in uploads)
