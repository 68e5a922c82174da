"""The mechanism of privacy on hand-made updates: clip, sum, noise, the expected number; the adaptive clip."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
import torch

from torso.nets import Tensors
from torso.server.private import CLIP, Mechanism, PrivateSum, noised_directions, normal_like, normals

KEY = b"a key of the tests"


def mechanism(noise: float = 0.0, clip: float = 1.0, expected: float = 4.0, **more: object) -> Mechanism:
    return Mechanism(noise, clip, expected, KEY, **more)  # type: ignore[arg-type]


def two_clients() -> tuple[Tensors, Tensors]:
    """θ, and two uploads that differ from it by (3, 4) and (0, 0.5): a number in each of two tensors."""
    start = {"a": torch.tensor([1.0]), "b": torch.tensor([2.0])}
    return start, {"a": torch.tensor([[4.0], [1.0]]), "b": torch.tensor([[6.0], [2.5]])}


def test_without_noise_it_is_the_clipped_mean_over_the_expected_number() -> None:
    """(3, 4) has length 5, over both tensors, and becomes (0.6, 0.8); (0, 0.5) stays. m = 4, though two came."""
    start, uploads = two_clients()
    total = PrivateSum(mechanism(), {}, start)
    total.add(uploads)
    mean, state = total.release(1)
    torch.testing.assert_close(mean, {"a": torch.tensor([1 + 0.6 / 4]), "b": torch.tensor([2 + 1.3 / 4])})
    assert state == {}


def test_groups_of_any_size_give_the_same_sum() -> None:
    start, uploads = two_clients()
    whole, apart = PrivateSum(mechanism(), {}, start), PrivateSum(mechanism(), {}, start)
    whole.add(uploads)
    for g in range(2):
        apart.add({name: tensor[g : g + 1] for name, tensor in uploads.items()})
    torch.testing.assert_close(whole.total, apart.total, rtol=0, atol=0)


def test_an_upload_that_does_not_count_leaves_no_trace() -> None:
    """Nor in the count of those within the clip."""
    start, uploads = two_clients()
    some, one = (PrivateSum(mechanism(quantile=0.5), {}, start) for _ in range(2))
    broken = {name: torch.cat([tensor, torch.full((1, 1), math.nan)]) for name, tensor in uploads.items()}
    some.add(broken, torch.tensor([True, True, False]))
    one.add(uploads)
    torch.testing.assert_close(some.release(1), one.release(1), rtol=0, atol=0)


def test_one_client_moves_the_sum_by_the_clip_at_most() -> None:
    """Whatever it sends: the sensitivity that the accountant counts on."""
    start = {"a": torch.zeros(50), "b": torch.zeros(3, 7)}
    draws = torch.Generator().manual_seed(0)
    for size in (1e-3, 1.0, 1e4):
        total = PrivateSum(mechanism(clip=0.7), {}, start)
        total.add({n: size * torch.randn(1, *t.shape, generator=draws) for n, t in start.items()})
        assert math.sqrt(sum(float(t.square().sum()) for t in total.total.values())) <= 0.7 * (1 + 1e-6)


def test_the_noise_is_z_times_clip_on_the_sum() -> None:
    start, uploads = two_clients()
    for came in (uploads, None):  # a round that nobody came to is noise alone
        total = PrivateSum(mechanism(noise=2.0, clip=3.0), {}, start)
        if came is not None:
            total.add(came)
        mean, _ = total.release(7)
        drawn = normal_like(KEY, "update 7", start)
        for name, tensor in start.items():
            torch.testing.assert_close(mean[name], tensor + (total.total[name] + 6.0 * drawn[name]) / 4)


def test_numbers_come_from_shake_by_box_and_muller() -> None:
    """The first and the second of two: r·cos and r·sin of the first two 53-bit fractions of the stream."""
    stream = hashlib.shake_256(len(KEY).to_bytes(8, "little") + KEY + b"update 1").digest(16)
    first, second = (int.from_bytes(stream[i : i + 8], "little") >> 11 for i in (0, 8))
    radius, angle = math.sqrt(-2 * math.log((first + 1) / 2**53)), 2 * math.pi * second / 2**53
    expected = [radius * math.cos(angle), radius * math.sin(angle)]
    np.testing.assert_allclose(normals(KEY, "update 1", 2), expected, rtol=1e-12)


def test_numbers_are_standard_normal_and_those_of_rounds_unrelated() -> None:
    """Of 40,000 normal numbers the mean has std 0.005, the variance 0.007, the fourth moment 0.05."""
    one, other = normals(KEY, "update 1", 40_000), normals(KEY, "update 2", 40_000)
    assert abs(one.mean()) < 0.025
    assert one.var() == pytest.approx(1.0, abs=0.035)
    assert (one**4).mean() == pytest.approx(3.0, abs=0.25)
    assert abs((one * other).mean()) < 0.025
    assert np.abs(one).max() > 3.5
    assert not np.array_equal(one, normals(b"another key", "update 1", 40_000))


def test_bound_noise_differs_when_the_uploads_do() -> None:
    """A round of a real federation that is played again with other answers must not get the same noise: their
    difference would show the answers without it."""
    start, uploads = two_clients()
    found = []
    for came in (uploads, uploads, {name: tensor[:1] for name, tensor in uploads.items()}):
        total = PrivateSum(mechanism(noise=1.0, binds=True), {}, start)
        total.add(came)
        found.append((total.release(1)[0]["a"] - start["a"]) * 4 - total.total["a"])
    assert torch.equal(found[0], found[1])
    assert float((found[0] - found[2]).abs()) > 1e-3


def test_the_clip_follows_a_quantile_by_hand() -> None:
    """Lengths 1, 3, 5 and S = 2: one of three is within, Σ(b − ½) = −½, b̃ = −½/4 + ½ = 0.375 with m = 4."""
    total = PrivateSum(mechanism(clip=2.0, quantile=0.5), {}, {"a": torch.zeros(1)})
    total.add({"a": torch.tensor([[1.0], [3.0], [5.0]])})
    _, state = total.release(1)
    assert float(state[CLIP]) == pytest.approx(2.0 * math.exp(-0.2 * (0.375 - 0.5)))
    again = PrivateSum(total.mechanism, state, {"a": torch.zeros(1)})
    assert again.bound == float(state[CLIP])


def test_the_clip_settles_at_the_quantile() -> None:
    found = mechanism(clip=0.1, expected=9.0, quantile=0.5, rate=0.2)
    state: Tensors = {}
    for round in range(1, 150):
        total = PrivateSum(found, state, {"a": torch.zeros(1)})
        total.add({"a": torch.arange(1.0, 10.0)[:, None]})
        _, state = total.release(round)
    assert 4 <= float(state[CLIP]) <= 6


def test_the_count_has_its_own_noise() -> None:
    found = mechanism(noise=1.0, clip=2.0, quantile=0.5, count_noise=3.0)
    state = found.next_state(2.0, -0.5, "5")
    share = (-0.5 + 3.0 * float(normals(KEY, "count 5", 1)[0])) / 4 + 0.5
    assert float(state[CLIP]) == pytest.approx(2.0 * math.exp(-0.2 * (share - 0.5)))


def test_count_and_update_together_cost_what_the_noise_alone_does() -> None:
    """Andrew et al. 2021, Theorem 1: z_Δ = (z⁻² − (2σ_b)⁻²)^−½; z = 1 and σ_b = 1 give √(4/3)."""
    assert mechanism(noise=1.0).update_noise == 1.0
    found = mechanism(noise=1.0, quantile=0.5, count_noise=1.0)
    assert found.update_noise == pytest.approx(math.sqrt(4 / 3))
    assert found.update_noise**-2 + (2 * 1.0) ** -2 == pytest.approx(1.0)


def test_running_variances_stay_above_zero() -> None:
    total = PrivateSum(mechanism(noise=50.0), {}, {"mean": torch.zeros(40), "var": torch.ones(40)}, {"var"})
    mean, _ = total.release(1)
    assert float(mean["var"].min()) == 0.0
    assert float(mean["mean"].min()) < 0


def test_directions_have_length_one_before_they_are_added() -> None:
    """(3, 4) and (0, 2) → (0.6, 0.8) + (0, 1); a client without anything adds nothing."""
    parts = [torch.tensor([[[3.0, 4.0]], [[0.0, 0.0]]]), torch.tensor([[[0.0, 2.0]]])]
    plain = noised_directions(mechanism(), parts, "1")
    assert plain is not None
    torch.testing.assert_close(plain, torch.tensor([[0.6, 1.8]]))
    noised = noised_directions(mechanism(noise=0.5), parts, "1")
    assert noised is not None
    torch.testing.assert_close(noised, plain + 0.5 * normal_like(KEY, "exchange 1", {"": plain})[""])
    assert noised_directions(mechanism(), [], "1") is None


@pytest.mark.parametrize("sent", [math.nan, math.inf, 3e38, 1e-22])
def test_a_client_whose_length_cannot_be_told_adds_no_direction(sent: float) -> None:
    """NaN would be the sum of all. The square of 1e-22 has lost its digits: its direction could be longer than one."""
    parts = [torch.tensor([[[3.0, 4.0]], [[sent, sent]]])]
    found = noised_directions(mechanism(), parts, "1")
    assert found is not None
    torch.testing.assert_close(found, torch.tensor([[0.6, 0.8]]))
