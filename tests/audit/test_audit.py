"""Canaries in real runs: what they send arrives, the audit believes a right claim and catches a wrong one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from torso.audit.canaries import directions
from torso.audit.trials import Trace, Trials, scores_of
from torso.audit.verdict import Claim, audit, judge
from torso.cli import app
from torso.config import Config
from torso.errors import RequestError
from torso.runs.job import simulate

CANARIES, RUNS = 100, 40
TINY = (
    *("method.name=lp", "data.source=synthetic", "data.synthetic.samples=1040", "data.synthetic.size=2"),
    *("data.synthetic.test_samples=104", "data.clients=104", "data.partition=iid", "train.batch_size=10"),
    *("train.fraction=1.0", "train.rounds=1", "train.local_epochs=1", "train.weighting=uniform"),
    *("run.device=cpu", "run.engine=batched", "privacy.clip=1.0", "privacy.delta=1e-5"),
)


def tiny(*sets: str) -> Config:
    return Config.load(None, [*TINY, *sets])


@pytest.fixture(scope="module")
def traces() -> list[Trace]:
    """Noise 0.4 in one round of everybody: two normal distributions 2.5 apart, 2,000 scores or so of each."""
    return list(Trials(simulate(tiny("privacy.noise=0.4")), CANARIES).traces(range(RUNS)))


def test_directions_have_length_one_and_little_in_common() -> None:
    like = {"w": torch.zeros(40, 50), "b": torch.zeros(9)}
    found = directions(3, (0, 1, 7), like)
    flat = torch.cat([found["b"], found["w"].flatten(1)], dim=1)
    torch.testing.assert_close(flat @ flat.T, torch.eye(3), atol=0.1, rtol=0)
    assert torch.equal(found["w"][1], directions(3, (1,), like)["w"][0])  # whoever stands beside it


def test_a_canary_that_is_in_adds_one_clip_and_one_that_is_out_nothing() -> None:
    """Hardly any noise, and clients that learn nothing to speak of."""
    config = tiny("privacy.noise=1e-6", "train.lr=1e-6", "train.rounds=2")
    (trace,) = Trials(simulate(config), 1).traces([3])
    expected = np.full((2, 1), float(trace.present[0]))
    np.testing.assert_allclose(trace.seen, expected, atol=1e-2)
    present = {t.present[0] for t in Trials(simulate(config), 1).traces(range(6))}
    assert present == {True, False}


def test_the_same_seed_is_the_same_run(traces: list[Trace]) -> None:
    (again,) = Trials(simulate(tiny("privacy.noise=0.4")), CANARIES).traces([1])
    np.testing.assert_array_equal(again.seen, traces[1].seen)
    assert not np.array_equal(traces[0].seen, traces[1].seen)


def test_runs_side_by_side_are_the_same_runs() -> None:
    """As on an accelerator, where several runs stand in one stack; Poisson samples of different sizes."""
    config = tiny("privacy.noise=0.4", "train.fraction=0.3", "train.rounds=2")
    trials = Trials(simulate(config), 20)
    heard: list[int] = []
    packed = list(trials.traces(range(3), heard.append, pack=2))
    assert heard == [2, 3]
    for together, alone in zip(packed, trials.traces(range(3)), strict=True):
        np.testing.assert_allclose(together.seen, alone.seen, atol=1e-4)
        assert together.present == alone.present


@pytest.mark.parametrize("sees", ["all", "last"])
def test_a_right_claim_stands_and_a_broken_accountant_is_caught(traces: list[Trace], sees: str) -> None:
    """The broken one counts noise of 0.6, and the run has a third less. By simulation the bound on the noise is 0.46 ±
    0.02 here, so that 0.6 lies more than six standard deviations above it."""
    right = Claim(noise=0.4, rate=1.0, rounds=1, delta=1e-5)
    found = scores_of(traces, 1.0, 0.4, sees)
    assert min(len(found.present), len(found.absent)) > 1800
    fair = judge(found, right, sees, 0.95, RUNS, CANARIES)
    assert not fair.refuted
    assert fair.epsilon <= fair.epsilon_of_noise <= fair.claimed
    assert fair.epsilon > 2
    assert "if canaries of one run do not depend on each other" in fair.lines()[1]
    assert "if canaries" not in replace(fair, canaries=1).lines()[1]
    broken = judge(found, replace(right, noise=0.6), sees, 0.95, RUNS, CANARIES)
    assert broken.refuted
    assert "REFUTED" in broken.lines()[-1]
    assert broken.epsilon_of_noise > broken.claimed


def test_scores_of_samples_are_likelihood_ratios() -> None:
    """log(1 − q + q·exp((x − ½)/z²)) of each round, by hand with q = ¼, z = 1, x = ½ and x = ½ + ln 5."""
    trace = Trace(np.array([[0.5], [0.5 + np.log(5)]]), (True,))
    found = scores_of([trace, replace(trace, present=(False,))], 0.25, 1.0, "all")
    assert found.present[0] == found.absent[0] == pytest.approx(np.log(0.75 + 0.25 * 5))


def test_a_claim_with_sampling_has_its_own_profile() -> None:
    """A sample of a tenth tells less than everybody does, and no rounds more than none."""
    sampled, everybody = Claim(1.0, 0.1, 3, 1e-5), Claim(1.0, 1.0, 3, 1e-5)
    some = np.array([0.5, sampled.epsilon(1.0)])
    assert np.all((sampled.profile(1.0)(some) > 0) & (sampled.profile(1.0)(some) < everybody.profile(1.0)(some)))
    assert sampled.epsilon(1.0) < everybody.epsilon(1.0)
    assert sampled.profile(1.0)(some)[1] == pytest.approx(1e-5, rel=0.05)


@pytest.mark.parametrize(
    ("sets", "canaries", "said"),
    [
        (["privacy.clip=0.0"], 4, "Example: fedavg --set privacy.epsilon=8"),
        (["privacy.noise=1.0", "privacy.sampling=fixed"], 4, "Accepted: mean, poisson, 0"),
        (["privacy.noise=1.0"], 104, "Accepted: 1 to 103"),
        (["privacy.noise=1.0", "method.name=fedncm-ft"], 4, "has clients send something before the first"),
    ],
)
def test_what_cannot_be_audited_is_refused(sets: list[str], canaries: int, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        audit(tiny(*sets), 200, canaries)


def test_the_command(tmp_path: Path) -> None:
    words = [word for text in (*TINY, "privacy.noise=0.4") for word in ("--set", text)]
    told = ["audit", *words, "--runs", "2", "--canaries", "100", "--quiet", "--out", str(tmp_path / "found.json")]
    done = CliRunner().invoke(app, told)
    assert done.exit_code == 0, done.output
    assert "claimed   ε ≤" in done.output
    assert "2 runs × 100 canaries" in done.output
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["claim"] == {"noise": 0.4, "rate": 1.0, "rounds": 1, "delta": 1e-5}
    assert found["refuted"] is False
    assert (found["setting"]["clients"], found["setting"]["device"]) == (104, "CPU")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sees", "some"], "Accepted: all, last"),
        (["--confidence", "1.5"], "Accepted: 0.5 or more, below 1"),
        (["--out", "/no/such/folder/found.json"], "does not exist"),
        (["--runs", "3", "--canaries", "2"], "Expected: 160 or more"),
    ],
)
def test_a_wrong_request_is_one_line(words: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["audit", "--quiet", *words])
    assert isinstance(done.exception, RequestError)
    assert said in str(done.exception)
