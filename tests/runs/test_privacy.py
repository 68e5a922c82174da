"""Private runs: sampling, what a round divides by, what is refused, engines and resume, and what is told of it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from tests.conftest import Torso
from tests.runs.samples import Heard, StopAfter, assert_same_run, bits, digits, tiny

from torso import Config, RequestError, Result, run
from torso.engine import engines
from torso.methods import methods
from torso.personal.state import State
from torso.results.export import ExportOptions, export
from torso.runs.cost import upload_schema
from torso.runs.job import Simulation, simulate
from torso.runs.privacy import Privacy
from torso.runs.rounds import Round, play_round
from torso.runs.run import Stopped
from torso.runs.sampling import participants
from torso.runs.telling import tell
from torso.server import Mean, servers
from torso.server.private import normal_like

SHORT = ("train.rounds=2", "measure.names=initial")


def job_of(method: str, *sets: str) -> Simulation:
    return simulate(tiny(method, *SHORT, *sets), None if any(s.startswith("data.") for s in sets) else digits())


def privacy_of(*sets: str) -> Privacy:
    found = job_of("fedavg", *sets).privacy
    assert found is not None
    return found


def played(job: Simulation, missing: tuple[int, ...] = (), state: State | None = None) -> tuple[State, Round]:
    faults = lambda chosen: {k: "drop" for k in chosen if k in missing}  # noqa: E731
    with engines["one-by-one"](job.net, job.federation, job.config.run) as engine:
        return play_round(job.plan[0], state or State.begin(job.model), job.roster, engine, 0, faults)


def quick(method: str, *sets: str, out: Path | None = None, **more: Any) -> Result:
    return run(tiny(method, *SHORT, *sets), out, federation=digits(), **more)


# who comes


def test_poisson_draws_every_client_by_itself() -> None:
    """Over 400 rounds of 40 clients and q = 0.25: numbers of participants are binomial (mean 10, variance 7.5), and a
    pair comes together in q² of the rounds. A fixed sample has no variance."""
    job = job_of("fedavg", "data.clients=40", "privacy.clip=1.0", "train.fraction=0.25")
    rounds = [participants(job.plan[0], job.roster, 0, number) for number in range(1, 401)]
    sizes = np.array([len(chosen) for chosen in rounds])
    assert sizes.mean() == pytest.approx(10, abs=0.7)
    assert sizes.var() == pytest.approx(7.5, abs=2.2)
    assert np.mean([{3, 8} <= set(chosen) for chosen in rounds]) == pytest.approx(0.0625, abs=0.04)
    fixed = job_of("fedavg", "data.clients=40", "privacy.clip=1.0", "privacy.sampling=fixed", "train.fraction=0.25")
    assert {len(participants(fixed.plan[0], fixed.roster, 0, number)) for number in range(1, 40)} == {10}


def test_who_is_there_does_not_change_the_draw() -> None:
    for sampling in ("poisson", "fixed"):
        job = job_of("fedavg", "privacy.clip=1.0", f"privacy.sampling={sampling}")
        stage = job.plan[0]
        for number in (1, 2, 3):
            everybody = participants(stage, job.roster, 0, number)
            assert participants(stage, job.roster, 0, number, here={0, 1, 2}) == everybody


def test_newcomers_are_never_drawn() -> None:
    job = job_of("fedavg", "data.new_clients=3", "privacy.clip=1.0", "train.fraction=1.0")
    assert participants(job.plan[0], job.roster, 0, 1) == tuple(job.roster.training.tolist())
    assert job.privacy is not None
    assert job.privacy.clients == 7


# what a round makes of it


def test_without_noise_and_with_everybody_it_is_the_uniform_mean() -> None:
    plain = quick("fedavg", "train.fraction=1.0", "train.weighting=uniform")
    private = quick("fedavg", "train.fraction=1.0", "privacy.clip=1e6")
    torch.testing.assert_close(dict(private.generic), dict(plain.generic))
    assert private.privacy["epsilon"] is None


def test_a_missing_client_adds_nothing_and_the_divisor_stays() -> None:
    """The change of a round is the sum of what single clients would have given, each over q·N = 10."""
    job = job_of("fedavg", "train.fraction=1.0", "privacy.clip=0.5")
    before = State.begin(job.model)
    some, round = played(job, missing=(0, 1, 2, 3, 4, 5, 6))
    assert round.participants == (7, 8, 9)
    alone = [played(job, missing=tuple(k for k in range(10) if k != client))[0] for client in (7, 8, 9)]
    for name, start in before.server.model.items():
        total = sum(state.server.model[name] - start for state in alone)
        torch.testing.assert_close(some.server.model[name] - start, total, rtol=1e-4, atol=1e-6)
    moved = torch.cat([(alone[0].server.model[n] - t).flatten() for n, t in before.server.model.items()])
    assert float(moved.norm()) == pytest.approx(0.5 / 10, rel=1e-4)


def test_a_round_without_anybody_is_noise_alone() -> None:
    """It counts, has no loss, and is not played again."""
    job = job_of("fedbabu", "train.fraction=1.0", "privacy.noise=0.7", "privacy.clip=2.0")
    state, round = played(job, missing=tuple(range(10)))
    assert round.participants == ()
    assert math.isnan(round.loss)
    travels = {name: job.model[name] for name in job.plan[0].travels}
    assert job.privacy is not None
    drawn = normal_like(job.privacy.mechanism.key, "update 1", travels)
    for name, start in travels.items():
        torch.testing.assert_close(state.server.model[name], start + 1.4 * drawn[name] / 10)
    head = [name for name in job.model if name not in travels]
    assert all(torch.equal(state.server.model[name], job.model[name]) for name in head)


def test_the_noise_is_that_of_seed_and_round() -> None:
    keys = {privacy_of("privacy.noise=1.0", f"run.seed={seed}").mechanism.key for seed in (0, 0, 1)}
    assert len(keys) == 2


def test_running_statistics_are_part_of_the_vector() -> None:
    """Neither they nor counters of batches leave a client beside the noised sum."""
    job = job_of("fedavg", "model.body=conv3", "model.norm=running", "train.fraction=1.0", "privacy.clip=0.1")
    stage, before = job.plan[0], State.begin(job.model)
    statistics = [name for name in stage.travels if "running" in name]
    counters = [name for name in stage.travels if not job.model[name].is_floating_point()]
    assert statistics
    assert counters
    assert job.privacy is not None
    assert job.privacy.variances == {name for name in statistics if name.endswith("var")}
    state, _ = played(job, missing=tuple(range(1, 10)))
    moved = [(state.server.model[n] - before.server.model[n]).flatten() for n in stage.travels if n not in counters]
    assert float(torch.cat(moved).norm()) == pytest.approx(0.1 / 10, rel=1e-3)
    assert all(torch.equal(state.server.model[name], job.model[name]) for name in counters)


def test_clients_are_told_the_expected_number_of_participants() -> None:
    assert privacy_of("privacy.noise=1.0", "train.fraction=0.27").told == 3


# engines and resume


@pytest.fixture(scope="module")
def adaptive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with everything on: three rounds, noise, a clip that adapts, momentum on the server."""
    folder = tmp_path_factory.mktemp("private") / "whole"
    assert run(_adaptive(), folder, federation=digits()).ok
    return folder


def _adaptive(*sets: str) -> Config:
    private = ("privacy.noise=0.6", "privacy.clip=0.5", "privacy.quantile=0.5")
    return tiny("fedavgm", "train.rounds=3", "measure.names=initial", *private, *sets)


def test_stopped_and_resumed_it_is_the_same_run(adaptive: Path, tmp_path: Path) -> None:
    listener = StopAfter(2)
    with pytest.raises(Stopped):
        run(_adaptive(), tmp_path / "run", federation=digits(), listener=listener, stop=listener.stop)
    assert run(_adaptive(), tmp_path / "run", federation=digits(), resume=True).ok
    assert_same_run(adaptive, tmp_path / "run")


def test_engines_agree() -> None:
    """Threads to the bit; a stack, whose clients have different sizes, to rounding."""
    sets = ("data.partition=dirichlet-class", "train.fraction=0.6", "privacy.noise=0.3", "privacy.clip=0.5")
    federation = simulate(tiny("fedper", *SHORT, *sets)).federation
    states = []
    for how in (("run.workers=1",), ("run.workers=3",), ("run.engine=batched", "run.clients_at_once=4")):
        found = run(tiny("fedper", *SHORT, *sets, *how), federation=federation).state
        assert found is not None
        states.append(found)
    assert bits(states[0]) == bits(states[1])
    for name, tensor in states[0].server.model.items():
        torch.testing.assert_close(states[2].server.model[name], tensor, rtol=1e-4, atol=1e-5)


# what is refused


REFUSED = {
    "scaffold": "method.drift = 'scaffold'",
    "feddyn": "method.drift = 'dynamic'",
    "mtl": "method.server = 'apart'",
    "fedfomo": "method.server = 'apart'",
    "fedexp": "method.server = 'fedexp'",
    "mofedsam": "method.drift = 'client-momentum'",
    "local-only": "nothing does with method 'local-only'",
}


@pytest.mark.parametrize(("method", "said"), REFUSED.items())
def test_messages_that_are_not_covered_are_refused_by_name(method: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=said):
        quick(method, "privacy.noise=1.0", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (("method.server=median",), "method.server = 'median'"),
        (("method.server.clip=1.0",), "privacy clips updates itself"),
        (("train.min_clients=2",), "train.min_clients = 2 repeats rounds"),
        (("method.start=class-means", "method.start.metric=euclidean"), "clients send directions alone"),
        (("method.start=finished", "method.start.run=runs/before"), r"method\.start\.run = 'runs/before' begins at a"),
        (("privacy.quantile=0.5", "privacy.count_noise=0.4"), "privacy.count_noise = 0.4 alone costs more"),
        (("privacy.epsilon=2",), "both set"),
        (("privacy.delta=1.0",), "privacy.delta"),
    ],
)
def test_what_makes_no_sense_is_refused(sets: tuple[str, ...], said: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=said):
        quick("fedavg", "privacy.noise=1.0", *sets, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_rule_of_ones_own_that_needs_uploads_is_refused_whatever_it_inherits() -> None:
    @servers.register("nosy")
    @dataclass(frozen=True)
    class Nosy(Mean):
        needs_each: ClassVar[bool] = True

    try:
        with pytest.raises(RequestError, match=r"looks at single uploads.*Accepted: adaptive, mean, momentum, torch-"):
            job_of("fedavg", "method.server=nosy", "privacy.noise=1.0")
    finally:
        del servers["nosy"]


def test_all_other_methods_send_nothing_but_what_is_noised() -> None:
    """Of the whole catalogue: an upload has the tensors that travel, and nothing else, or the method is refused."""
    refused, federation = set(), simulate(tiny("fedavg", "data.server_fraction=0.1")).federation
    for name in methods:
        try:
            job = simulate(tiny(name, "data.server_fraction=0.1", "privacy.noise=1.0"), federation)
        except RequestError:
            refused.add(name)
            continue
        for stage in job.plan:
            told = tell(stage, State.begin(job.model).server, job.roster, (0, 1), stage.first, 0)
            assert {tensor.removeprefix("model/") for tensor in upload_schema(stage, told, 0)} == stage.travels
    kinds = ("scaffold", "feddyn", "fedexp", "mtl", "fedfomo", "local-only", "centralized")
    assert refused >= {name for name in methods if any(kind in name for kind in kinds)}
    assert len(refused) < len(methods) / 2


@pytest.mark.parametrize(
    "method", ["fedbabu", "fedrep", "ditto", "pfedme", "per-fedavg", "fedadam", "fedrod-hyper", "fedprox", "fedncm-ft"]
)
def test_other_methods_are_private_as_they_are(method: str) -> None:
    found = quick(method, "train.rounds=1", "privacy.noise=0.5", "train.fraction=1.0")
    assert found.ok
    assert found.privacy["epsilon"] > 0


def test_keys_without_privacy_have_no_effect_and_it_is_said() -> None:
    heard = Heard()
    quick("fedavg", "privacy.delta=0.01", "train.rounds=1", listener=heard)
    assert any("privacy.delta = 0.01 is set, but has no effect" in note for note in heard.notes)


# what it has cost


def test_a_budget_finds_the_noise_before_the_first_round() -> None:
    heard = Heard()
    found = quick("fedavg", "privacy.epsilon=8", "privacy.delta=0.01", "train.fraction=0.5", listener=heard)
    assert 7.9 < found.privacy["epsilon"] <= 8.0
    note, *_ = (note for note in heard.notes if note.startswith("privacy: "))
    assert f"noise {found.privacy['noise']:.4g}, found for privacy.epsilon = 8" in note
    assert "at δ = 0.01 after 2 rounds" in note


def test_noise_that_drowns_everything_is_said() -> None:
    """Of 1,000 numbers, noise 1 and 4 clients: z·√d/m = 7.9 times an update; with 40 clients nobody needs to know."""
    few = replace(privacy_of("privacy.noise=1.0", "privacy.delta=0.01", "train.fraction=0.4"), numbers=1000)
    said = few.notes()
    assert len(said) == 2
    assert "about 7.91 times as long as the mean update can be, since 1,000 numbers travel and 4 clients" in said[1]
    assert len(replace(few, clients=100).notes()) == 1
    whole = sum(tensor.numel() for tensor in job_of("fedavg").model.values())
    assert privacy_of("privacy.noise=1.0").numbers == whole


def test_every_round_says_what_was_spent(adaptive: Path) -> None:
    lines = [json.loads(line) for line in (adaptive / "history.jsonl").read_text().splitlines()]
    spent = [line["privacy"]["epsilon"] for line in lines]
    assert spent == sorted(spent)
    assert len(set(spent)) == 3
    clips = [line["privacy"]["clip"] for line in lines]
    assert len({0.5, *clips}) == 4
    told = Result.read(adaptive).privacy
    assert told == {
        **{"epsilon": spent[-1], "clip": clips[-1], "delta": 10**-1.1, "noise": 0.6},
        **{"sampling": "poisson", "rate": 0.3, "clients": 10, "adaptive": True},
    }


def test_fedncm_costs_one_exchange_with_everybody() -> None:
    """No round, so one Gaussian release, whatever train.fraction is; and the head is noised."""
    private, plain = quick("fedncm", "privacy.noise=2.0", "privacy.delta=0.01"), quick("fedncm")
    one = privacy_of("privacy.noise=2.0", "privacy.delta=0.01", "train.rounds=1", "train.fraction=1.0").epsilon(1)
    assert private.privacy["epsilon"] == pytest.approx(one)
    head, other = private.generic["head.weight"], plain.generic["head.weight"]
    assert not torch.allclose(head, other, atol=1e-2)
    torch.testing.assert_close(head.norm(dim=1), torch.ones(10))


def test_two_stages_cost_both() -> None:
    """LG-FedAvg: two rounds of FedAvg, then a round that shares heads."""
    found = job_of("lg-fedavg", "privacy.noise=1.0").privacy
    assert found is not None
    assert found.rounds == (1, 2, 3)


def test_more_rounds_are_refused_when_the_budget_is_spent(tmp_path: Path) -> None:
    sets = ("privacy.epsilon=20", "train.rounds=1")
    quick("fedavg", *sets, out=tmp_path / "run")
    with pytest.raises(RequestError, match=r"privacy\.epsilon = 20 has been spent on the 1 rounds"):
        quick("fedavg", *sets, "train.rounds=2", out=tmp_path / "run", resume=True)
    assert Result.read(tmp_path / "run").rounds == 1


def test_the_table_compare_and_the_page_say_it(adaptive: Path, torso: Torso, tmp_path: Path) -> None:
    epsilon = Result.read(adaptive).privacy["epsilon"]
    said = torso("compare", str(adaptive)).out
    assert " ε " in said
    assert (
        f"private, ε = {epsilon:.3g} at δ = 0.0794 for a client among 10, each with probability 0.3 in a round" in said
    )
    torso("report", str(adaptive), "--out", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text()
    assert f"private, ε = {epsilon:.3g} at δ = 0.0794" in page
    assert "Privacy spent" in page


def test_an_export_says_what_is_not_covered(tmp_path: Path) -> None:
    """Means of heads, statistics of training samples, models of clients: none of them has noise."""
    sets = ("train.rounds=1", "privacy.noise=0.5")
    plain = quick("fedavg", *sets)
    assert export(plain, tmp_path / "plain").note == ""
    kept = quick("fedper", *sets, "model.body=conv3")
    said = export(kept, tmp_path / "kept", clients=(0,))
    for words in ("models of single clients", "parts that stay with clients", "BatchNorm statistics"):
        assert words in said.note
    assert said.note in said.page.read_text()
    assert "BatchNorm" not in export(kept, tmp_path / "batch", form=ExportOptions(norm="batch")).note


def test_a_large_delta_is_told() -> None:
    """N^−1.1 is large where clients are few."""

    def told(*sets: str) -> bool:
        privacy = simulate(tiny("fedavg", *SHORT, "privacy.noise=1.0", *sets)).privacy
        assert privacy is not None
        return any("δ = 0." in note and "is large" in note for note in privacy.notes())

    assert told()
    assert not told("privacy.delta=0.001")
