"""Losses of label skew and losses with teachers against numbers worked out by hand (spec 19.2 to 19.5)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from torso.data.batches import Batch
from torso.learn.gradients import losses_of
from torso.learn.objectives import Calibrated, CrossEntropy, Objective, Restricted
from torso.learn.recorded import _fill, _room_for
from torso.learn.teachers import Contrast, NotTrue, remembers, teacher_tensors, teachers_of
from torso.nets import Output

LOGITS = torch.tensor([[[1.0, 2.0, 0.0]]])  # one client, one sample, three classes
LABEL = torch.tensor([[0]])
COUNTS = torch.tensor([[16, 81, 0]])  # class 2 is absent; 16^(−¼) = ½, 81^(−¼) = ⅓
FEATURES = torch.tensor([[[3.0, 4.0]]])


def loss(objective: Objective, logits: Tensor = LOGITS, counts: Tensor = COUNTS, label: Tensor = LABEL) -> float:
    return objective.per_sample(FEATURES, logits, label, counts).item()


def ce(*logits: float) -> float:
    """−log softmax at class 0."""
    return -logits[0] + math.log(sum(math.exp(z) for z in logits))


def test_calibrated_takes_a_margin_off_every_logit_and_leaves_absent_classes_out() -> None:
    assert loss(Calibrated(3.0)) == pytest.approx(ce(1 - 1.5, 2 - 1))
    assert loss(Calibrated(3.0), counts=torch.tensor([[16, 81, 1]])) == pytest.approx(ce(1 - 1.5, 2 - 1, 0 - 3))


def test_calibrated_against_the_others_alone() -> None:
    """Only class 1 is left in the sum; a client with one class has no others, and a loss that still has a gradient."""
    others = Calibrated(3.0, "others")
    assert loss(others) == pytest.approx(-(1 - 1.5) + (2 - 1))
    alone = LOGITS.clone().requires_grad_()
    others.per_sample(FEATURES, alone, LABEL, torch.tensor([[16, 0, 0]])).sum().backward()
    assert alone.grad is not None
    assert alone.grad.tolist() == [[[-1.0, 0.0, 0.0]]]


def test_calibrated_without_temperature_is_cross_entropy_over_all_classes() -> None:
    assert loss(Calibrated(0.0)) == loss(CrossEntropy())


def test_restricted_scales_the_logits_of_missing_classes() -> None:
    logits = torch.tensor([[[1.0, 2.0, 4.0]]])
    assert loss(Restricted(0.25), logits) == pytest.approx(ce(1, 2, 1))
    shares = Restricted(0.25, "shares")  # 0.25 + 0.75·(16/81, 1, 0)
    assert loss(shares, logits) == pytest.approx(ce(0.25 + 0.75 * 16 / 81, 2, 1))


def test_restricted_by_one_is_cross_entropy() -> None:
    assert loss(Restricted(1.0)) == loss(CrossEntropy())
    assert loss(Restricted(1.0, "shares")) == loss(CrossEntropy())


def taught(objective: Objective, label: int = 0, **said: Tensor) -> float:
    """The loss of the sample above, where teachers say this."""
    answers = {what.replace("_", "."): each for what, each in said.items()}
    batch = Batch(torch.zeros(1, 1, 1), torch.tensor([[label]]), taught=answers)
    return losses_of(Output(FEATURES, LOGITS), batch, objective, COUNTS).item()


@pytest.mark.parametrize(("label", "left"), [(0, (2.0, 0.0)), (1, (1.0, 0.0)), (2, (1.0, 2.0))])
def test_not_true_distillation_by_hand(label: int, left: tuple[float, float]) -> None:
    """The teacher's logits are 0: ½, ½ among the two wrong classes. KL = Σ ½·log(½/q), q at temperature 2."""
    odds = math.exp((left[1] - left[0]) / 2)
    q = (1 / (1 + odds), odds / (1 + odds))
    far = sum(0.5 * math.log(0.5 / each) for each in q)
    plain = -LOGITS[0, 0].log_softmax(dim=0)[label].item()
    start = torch.zeros(1, 1, 3)
    assert taught(NotTrue(0.7, 2.0), label, start_logits=start) == pytest.approx(plain + 0.7 * far, rel=1e-5)
    squared = NotTrue(0.7, 2.0, "tau-squared")
    assert taught(squared, label, start_logits=start) == pytest.approx(plain + 4 * 0.7 * far, rel=1e-5)


def test_not_true_distillation_from_a_teacher_that_agrees_is_cross_entropy() -> None:
    """What the teacher says of the label itself plays no part."""
    agrees = LOGITS.clone()
    agrees[0, 0, 0] = 100.0
    assert taught(NotTrue(5.0), start_logits=agrees) == pytest.approx(ce(1, 2, 0))


def test_contrast_by_hand() -> None:
    """Features (3, 4): cosine 1 with (6, 8), 0 with (4, −3), −1 with (−3, −4)."""
    near, across, far = (torch.tensor([[each]]) for each in ([6.0, 8.0], [4.0, -3.0], [-3.0, -4.0]))
    for glob, before, gap in ((near, across, -1.0), (across, near, 1.0), (near, far, -2.0)):
        found = taught(Contrast(2.0, 0.5), start_features=glob, previous_features=before)
        assert found == pytest.approx(ce(1, 2, 0) + 2 * math.log(1 + math.exp(gap / 0.5)))


def test_contrast_of_a_first_visit_has_no_gradient() -> None:
    """Both teachers are the received model: the term is μ·log 2, whatever the features are."""
    features = FEATURES.clone().requires_grad_()
    same = torch.tensor([[[1.0, 7.0]]])
    batch = Batch(torch.zeros(1, 1, 1), LABEL, taught={"start.features": same, "previous.features": same})
    losses_of(Output(features, LOGITS), batch, Contrast(3.0), COUNTS).sum().backward()
    assert features.grad is not None
    assert features.grad.abs().max() == 0


def test_a_weight_of_zero_needs_no_teacher() -> None:
    assert teachers_of(NotTrue(0.0)) == teachers_of(Contrast(0.0)) == ()
    assert teachers_of(Contrast()) == ("start", "previous")
    assert [remembers(each) for each in (NotTrue(), Contrast(), Contrast(0.0), CrossEntropy())] == [0, 1, 0, 0]


def test_the_previous_model_is_the_noted_one_or_that_of_the_start() -> None:
    start = {"a": torch.ones(1, 2), "b": torch.zeros(1, 2)}
    found = teacher_tensors("previous", start, {"previous.a": torch.full((1, 2), 5.0), "other": torch.zeros(1)})
    assert found["a"].tolist() == [[5.0, 5.0]]
    assert found["b"] is start["b"]
    assert teacher_tensors("start", start, {}) is start


def test_what_teachers_say_is_copied_into_the_memory_of_a_recording() -> None:
    """A narrower batch at the left; two clients."""
    said = {"start.logits": torch.arange(12.0).view(2, 2, 3)}
    batch = Batch(torch.ones(2, 2, 1, 1, 1), torch.ones(2, 2, dtype=torch.int64), taught=said)
    fixed = _room_for(batch, width=4, masked=True)
    _fill(fixed, batch)
    assert fixed.taught is not None
    assert_close(fixed.taught["start.logits"][:, :2], said["start.logits"])
    assert not fixed.taught["start.logits"][:, 2:].any()
    assert batch.first(1).taught is not None
    assert batch.first(1).taught["start.logits"].shape == (1, 2, 3)
