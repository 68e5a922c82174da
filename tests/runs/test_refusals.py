"""Requests that cannot work end in one line that says what would do, before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.runs import samples

import torso
from torso.engine.feature_space import same
from torso.errors import RequestError
from torso.registry import chosen
from torso.server import Mean
from torso.server.private import CLIP, Mechanism


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (("privacy.noise=1e300",), "privacy.noise = 1e+300 is not accepted"),
        (("privacy.noise=1.0", "privacy.clip=1e300"), "privacy.clip = 1e+300 is not accepted"),
        (("privacy.noise=1.0", "privacy.clip_rate=1e9"), "privacy.clip_rate"),
        (("privacy.noise=1.0", "privacy.count_noise=1e300"), "privacy.count_noise = 1e+300 is not accepted"),
        (("run.speeds.hours=1e308",), "run.speeds.hours = 1e+308 is not accepted"),
        (("method.name=fedrs", "method.objective.alpha=2.0"), "method.objective.alpha = 2.0 is not accepted"),
        (("method.name=fedala", "method.personal.lower=all"), "leaves nothing to mix. Accepted: body, none, blocks:J"),
        (("method.name=fedbn",), "this body has no normalisation layers. Accepted: a body that has some, such as"),
        (("method.name=local-only", "method.server=median"), "method.server = 'median' act on what travels"),
    ],
)
def test_refused_in_one_line_and_nothing_is_written(sets: tuple[str, ...], said: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError) as refused:
        torso.run(samples.tiny("fedavg", *sets), out=tmp_path / "run")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_a_choice_is_named_as_the_config_spells_it() -> None:
    class Own(Mean):
        pass

    assert chosen("method.server", Mean(clip=1.0)) == "method.server = 'mean'"
    assert "Own(clip=0.0)" in chosen("method.server", Own())


def test_features_of_a_model_that_diverged_can_be_compared() -> None:
    broken = torch.tensor([1.0, float("nan")])
    assert same(broken, broken.clone())
    assert not same(broken, torch.tensor([2.0, float("nan")]))


def test_a_huge_noise_on_the_count_does_not_overflow_the_clip() -> None:
    wild = Mechanism(noise=1.0, clip=1.0, expected=1.0, key=b"k", quantile=0.5, rate=10.0, count_noise=1e6)
    clips = [float(wild.next_state(1.0, 0.0, str(round))[CLIP]) for round in range(20)]
    assert max(clips) == pytest.approx(5.18e21, rel=1e-2)  # e^50
    assert min(clips) == 0.0
