"""The expected calibration error (spec 9.10): by hand, of models that know nothing, and on every engine."""

from __future__ import annotations

import math

import pytest
import torch
from tests.measure.test_shifts import go

from torso.data.batches import Batch
from torso.measure.calibration import confidence_gaps, error_of, own_logits
from torso.nets import Output


def sure(probabilities: list[float], labels: list[int], real: list[float] | None = None) -> tuple[Batch, Output]:
    """Two classes; each sample says class 0 with this probability."""
    p = torch.tensor([probabilities])
    logits = torch.stack([p.log(), (1 - p).log()], dim=-1)
    mask = None if real is None else torch.tensor([real])
    return Batch(p, torch.tensor([labels]), mask), Output(p.unsqueeze(-1), logits)


def error(*looks: tuple[Batch, Output], bins: int, samples: float) -> float:
    return float(error_of(confidence_gaps(looks, bins, own_logits, torch.zeros(1, bins)), torch.tensor([samples])))


def test_by_hand() -> None:
    """Two bins. In (½, 1]: 0.9 right, 0.7 wrong, 0.8 right (as class 1): confidence 2.4, right 2, gap 0.4.
    In (0, ½]: 0.5 right, gap −0.5. ECE = (0.4 + 0.5)/4; signed gaps would cancel to 0.025."""
    look = sure([0.9, 0.7, 0.2, 0.5], [0, 1, 1, 0])
    assert error(look, bins=2, samples=4) == pytest.approx(100 * 0.9 / 4, abs=1e-4)
    assert error(look, bins=1, samples=4) == pytest.approx(100 * 0.1 / 4, abs=1e-4)  # 2.9 − 3


def test_batches_add_up_and_padding_has_no_part() -> None:
    """The same samples in two batches: gaps are summed before their absolute value is taken."""
    first, second = sure([0.9, 0.7], [0, 1]), sure([0.2, 0.5, 0.99], [1, 0, 1], [1.0, 1.0, 0.0])
    assert error(first, second, bins=2, samples=4) == pytest.approx(100 * 0.9 / 4, abs=1e-4)


def test_a_model_that_is_not_finite_is_sure_and_wrong() -> None:
    batch, said = sure([0.9, 0.9], [0, 0])
    broken = said._replace(logits=torch.full_like(said.logits, math.nan))
    assert error((batch, broken), bins=15, samples=2) == pytest.approx(100.0)


def test_a_client_without_samples_has_no_value() -> None:
    assert math.isnan(error(bins=3, samples=0))


def test_engines_agree_and_the_server_pools_its_batches() -> None:
    names = ["ece_initial", "ece_personalized", "ece_generic", "initial"]
    alone, together = (go(engine, names, batch_size=16) for engine in ("one-by-one", "batched"))
    for name in names[:3]:
        assert alone.accuracy[name].mean == pytest.approx(together.accuracy[name].mean, abs=1e-2)
        assert 0 < alone.accuracy[name].mean < 100
    whole = go("batched", names, batch_size=512)  # one batch: the bins of 16 are summed before |·|
    assert together.accuracy["ece_generic"].mean == pytest.approx(whole.accuracy["ece_generic"].mean, abs=1e-2)
