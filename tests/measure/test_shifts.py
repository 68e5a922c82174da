"""Test samples drawn again with other shares of classes (spec 9.11), and damaged images (spec 9.12)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from torso import Config, Result, run
from torso.data.batches import Deck
from torso.errors import RequestError
from torso.measure.corruptions import SEVERITIES, corrupted, corruptions
from torso.measure.shifts import redrawn, shifted
from torso.randomness import numpy_generator

KEYS = torch.arange(1, 3)


def go(engine: str, names: Sequence[str], **measure: Any) -> Result:
    data = {"source": "synthetic", "clients": 6, "partition": "dirichlet-class", "alpha": 0.5}
    return run(
        Config(
            method="fedavg",
            data={**data, "synthetic": {"samples": 300, "test_samples": 120}},
            train={"rounds": 1, "local_epochs": 1, "fraction": 0.5, "lr": 0.05},
            measure={"names": list(names), **measure},
            run={"engine": engine, "precision": "fp32"},
        )
    )


def test_classes_are_drawn_by_the_mix_and_samples_within_them() -> None:
    """Labels 5, 5, 5, 7: an even mix (α large) makes half of the samples the one of class 7, and only that one."""
    labels = np.array([5, 7, 5, 5] * 500)
    even = labels[redrawn(labels, 1e6, numpy_generator(0, "test"))]
    assert (even == 7).mean() == pytest.approx(0.5, abs=0.03)  # 2,000 draws: 2.7 standard deviations
    skewed = [(labels[redrawn(labels, 0.01, numpy_generator(0, seed))] == 7).mean() for seed in range(20)]
    assert min(abs(share - 0.5) for share in skewed) > 0.1  # a small α: nearly all of one class
    assert len(redrawn(labels[:0], 0.5, numpy_generator(0, "test"))) == 0


def deck(rows: list[list[int]], clients: Sequence[int]) -> Deck:
    samples, labels = torch.arange(8).view(8, 1), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    return Deck.of(samples, labels, [torch.tensor(row, dtype=torch.int64) for row in rows], clients)


def test_a_client_keeps_its_size_its_samples_and_its_draw_in_any_company() -> None:
    both = shifted(deck([[0, 1, 2], [4, 5, 6, 7, 0]], [3, 9]), 0.5, seed=1)
    alone = shifted(deck([[4, 5, 6, 7, 0]], [9]), 0.5, seed=1)
    assert both.sizes == (3, 5)
    assert both.index[1].tolist() == alone.index[0].tolist()
    assert set(both.index[0, :3].tolist()) <= {0, 1, 2}
    assert set(alone.index[0].tolist()) <= {0, 4, 5, 6, 7}
    assert alone.index[0].tolist() != shifted(deck([[4, 5, 6, 7, 0]], [9]), 0.5, seed=2).index[0].tolist()


def test_deterministic_corruptions_by_hand() -> None:
    """Severity 5: contrast 0.15, brightness +0.3 of the value. Two pixels of one channel, 0.2 and 0.6, mean 0.4."""
    images = torch.tensor([0.2, 0.6]).view(1, 1, 1, 2)
    assert_close(corruptions["contrast"](images, 5, KEYS[:1]).flatten(), torch.tensor([0.37, 0.43]))
    assert_close(corruptions["brightness"](images, 5, KEYS[:1]).flatten(), torch.tensor([0.5, 0.9]))
    colour = torch.tensor([0.5, 0.25, 0.0]).view(1, 3, 1, 1)  # value 0.5 → 0.8: all channels times 1.6
    assert_close(corruptions["brightness"](colour, 5, KEYS[:1]).flatten(), torch.tensor([0.8, 0.4, 0.0]))
    assert corruptions["brightness"](0 * colour, 1, KEYS[:1]).flatten().tolist() == pytest.approx([0.05] * 3)


def test_blur_and_pixelate_by_hand() -> None:
    """A line of 1 between zeros, σ = 1: the middle keeps 1/Σ exp(−k²/2), its neighbour e^(−½) of that. Pixelate at
    severity 5: int(4 · 0.65) = 2 areas of two pixels each."""
    line = torch.zeros(1, 1, 9, 9)
    line[..., 4] = 1.0
    made = corruptions["blur"](line, 5, KEYS[:1])[0, 0, 4]
    weights = torch.exp(-0.5 * torch.arange(-4.0, 5.0) ** 2)
    assert_close(made, weights / weights.sum())
    assert_close(corruptions["blur"](torch.full((1, 3, 5, 5), 0.3), 5, KEYS[:1]), torch.full((1, 3, 5, 5), 0.3))
    square = torch.tensor([[0.0, 1.0, 0.2, 0.4]] * 4).view(1, 1, 4, 4)
    assert_close(corruptions["pixelate"](square, 5, KEYS[:1])[0, 0, 0], torch.tensor([0.5, 0.5, 0.3, 0.3]))


def test_noise_has_the_moments_that_it_should() -> None:
    """20,000 values: the standard deviation is known to about half a percent."""
    grey = torch.full((2, 1, 100, 100), 0.5)
    noise = corruptions["gaussian-noise"](grey, 5, KEYS) - grey
    assert float(noise.std()) == pytest.approx(0.10, rel=0.03)
    assert abs(float(noise.mean())) < 0.003
    assert abs(float((noise[0] * noise[1]).mean())) < 0.0005  # images have noise of their own
    shot = corruptions["shot-noise"](grey, 5, KEYS) - grey
    assert float(shot.std()) == pytest.approx((0.5 / 50) ** 0.5, rel=0.03)
    impulse = corruptions["impulse-noise"](grey, 5, KEYS)
    assert float((impulse == 0).float().mean()) == pytest.approx(0.035, abs=0.005)
    assert float((impulse == 1).float().mean()) == pytest.approx(0.035, abs=0.005)


@pytest.mark.parametrize("name", sorted(corruptions))
def test_severities_grow(name: str) -> None:
    few = torch.rand(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    images = torch.nn.functional.interpolate(few, size=(32, 32), mode="bilinear")
    far = [float((corruptions[name](images, s, KEYS).clamp(0, 1) - images).square().mean()) for s in SEVERITIES]
    assert far == sorted(far)
    assert far[0] > 0


def test_a_deck_of_damaged_images_is_the_same_in_any_company() -> None:
    images = torch.randint(0, 256, (5, 8, 8, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(5)
    rows = [torch.tensor([0, 1]), torch.tensor([4, 2, 3])]
    both = corrupted(Deck.of(images, labels, rows, [0, 7]), "gaussian-noise", 3, seed=5)
    alone = corrupted(Deck.of(images, labels, rows[1:], [7]), "gaussian-noise", 3, seed=5)
    assert both.sizes == (2, 3)
    assert torch.equal(both.samples[both.index[1]], alone.samples[alone.index[0]])
    assert alone.labels[alone.index[0]].tolist() == [4, 2, 3]
    assert alone.samples.dtype == torch.uint8
    assert torch.equal(images, images.clone())  # the clean images are as they were


def test_engines_agree() -> None:
    names = ["initial", "shifted_initial", "shifted_personalized", "corrupted_initial", "corrupted_personalized"]
    alone, together = (
        go(e, names, severities=[5], corruptions=["blur", "shot-noise"]) for e in ("one-by-one", "batched")
    )
    for name in names:
        assert alone.accuracy[name].clients == pytest.approx(together.accuracy[name].clients, abs=1e-3)
    assert alone.accuracy["shifted_initial"].clients != alone.accuracy["initial"].clients


def test_groups_of_a_result() -> None:
    found = go("batched", ["initial", "generic"])
    groups = found.by_group("initial", "size", groups=2)
    assert [group.clients for group in groups] == [3, 3]
    assert groups[0].high <= groups[1].low
    assert sum(g.clients for g in found.by_group("initial", "classes")) == 6
    with pytest.raises(RequestError, match=r"name = 'generic' .* Accepted: initial"):
        found.by_group("generic")
    with pytest.raises(RequestError, match=r"by = 'age' .* Accepted: size, classes"):
        found.by_group("initial", "age")


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"measure\.corruptions = 'fog' is unknown.*Accepted: blur, brightness"):
        Config(measure={"corruptions": ["fog"]})
    with pytest.raises((RequestError, ValueError), match="severities"):
        Config(measure={"severities": [6]})
    rows, labels = np.zeros((8, 3), np.float32), np.arange(8) % 2
    np.savez(tmp_path / "rows.npz", train_samples=rows, train_labels=labels, test_samples=rows, test_labels=labels)
    data = {"source": "npz", "root": str(tmp_path / "rows.npz"), "partition": "iid", "clients": 2}
    with pytest.raises(RequestError, match=r"measure\.names = 'corrupted_initial' damages images, and .* has"):
        run(Config(data=data, model={"body": "mlp"}, measure={"names": ["corrupted_initial"]}))
