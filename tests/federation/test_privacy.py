"""A private run over a real federation: its noise comes from a secret of the server's, and resume repeats it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import torch
from tests.federation.at_home import Wire, homes_of
from tests.runs.samples import StopAfter, history_of, last_tensors, same_tensors, tiny

import torso
from torso import Config, RequestError
from torso.federation.notice import what_leaves
from torso.federation.privacy import KEY, with_secret
from torso.federation.run import run_federation
from torso.runs.job import simulate
from torso.runs.run import Stopped
from torso.runs.sampling import participants

SETS = ("train.rounds=3", "train.fraction=0.5", "privacy.noise=0.4", "privacy.clip=0.5", "measure.names=initial")


def config(*sets: str) -> Config:
    return tiny("fedper", *SETS, "run.checkpoint_every=10", *sets)


def go(folder: Path, resume: bool = False, stop: StopAfter | None = None, absent: tuple[str, ...] = ()) -> torso.Result:
    """Ten clients, of which some leave after the beginning."""
    wire = Wire(homes_of(config(), folder / "homes"))
    asked = config("run.flower.clients=10" if not resume else "run.flower.clients=1")
    wire.absent = set(absent)
    more = {"listener": stop, "stop": stop.stop} if stop else {}
    return run_federation(asked, wire, folder / "run", resume=resume, say=lambda _: None, **more)  # type: ignore[arg-type]


def test_noise_and_samples_come_from_a_secret_that_resume_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is stopped and resumed is the run with the same secret that nobody stopped."""
    halted, whole = tmp_path / "halted", tmp_path / "whole"
    with pytest.raises(Stopped):
        go(halted, stop=StopAfter(1))
    key = halted / "run" / KEY
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert go(halted, resume=True).ok
    monkeypatch.setattr("torso.federation.privacy.token_bytes", lambda size: key.read_bytes()[:size])
    assert go(whole).ok
    assert same_tensors(last_tensors(halted / "run"), last_tensors(whole / "run"))
    assert history_of(halted / "run") == history_of(whole / "run")


def test_a_client_is_told_who_sees_what() -> None:
    printed = what_leaves(simulate(config()), 0, "clinic-1")
    assert (
        "What others see of it: sums over clients, clipped and with noise (privacy.noise = 0.4). The server" in printed
    )
    assert "What others see" not in what_leaves(simulate(tiny("fedper")), 0, "clinic-1")


def test_the_secret_stands_for_the_seed_everywhere(tmp_path: Path) -> None:
    """Other participants and other noise than the seed would give; the mechanism binds its noise to the sum."""
    job = simulate(config())
    secret = with_secret(job, tmp_path, resume=False)
    assert job.privacy is not None
    assert secret.privacy is not None
    drawn = [[participants(j.plan[0], j.roster, 0, r) for r in range(1, 6)] for j in (job, secret)]
    assert drawn[0] != drawn[1]
    assert secret.privacy.mechanism.key != job.privacy.mechanism.key
    assert secret.privacy.sampling_seed > 2**128, "nobody can try all"
    assert (secret.privacy.mechanism.binds, job.privacy.mechanism.binds) == (True, False)
    assert with_secret(job, tmp_path, resume=True).privacy == secret.privacy
    plain = simulate(tiny("fedper"))
    assert with_secret(plain, tmp_path, resume=False) is plain


def test_a_run_whose_secret_is_gone_is_not_resumed(tmp_path: Path) -> None:
    job = simulate(config())
    with pytest.raises(RequestError, match=r"privacy\.key' cannot be read"):
        with_secret(job, tmp_path, resume=True)
    (tmp_path / KEY).write_bytes(b"short")
    with pytest.raises(RequestError, match=r"has 5 bytes\. Expected: 32"):
        with_secret(job, tmp_path, resume=True)


def test_clients_that_left_count_as_zero_and_no_round_is_repeated(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        go(tmp_path, stop=StopAfter(1))
    gone = tuple(f"client-{k}" for k in range(1, 10))
    found = go(tmp_path, resume=True, absent=gone)
    lines = history_of(tmp_path / "run")
    assert found.ok
    assert [line["round"] for line in lines] == [1, 2, 3]
    assert all(set(line["participants"]) <= {0} for line in lines[1:])
    assert found.privacy["epsilon"] == lines[-1]["privacy"]["epsilon"]
    assert all(torch.isfinite(t).all() for t in last_tensors(tmp_path / "run").values())


def test_a_round_whose_uploads_are_all_broken_is_noise_alone(tmp_path: Path) -> None:
    """It neither ends the run nor is repeated: both would show everybody that those clients took part."""
    diverges = config("train.rounds=1", "train.fraction=1.0", "train.lr=1e30", "run.flower.clients=10")
    wire = Wire(homes_of(diverges, tmp_path / "homes"))
    assert run_federation(diverges, wire, tmp_path / "run", say=lambda _: None).ok
    (line,) = history_of(tmp_path / "run")
    assert (line["participants"], line["missing"]) == ([], list(range(10)))
    assert [header.kind for _, header in wire.asked].count("told") == 10
    job, end = simulate(diverges), last_tensors(tmp_path / "run")
    moved = {name for name in job.model if not torch.equal(end[f"model/{name}"], job.model[name])}
    assert moved == job.plan[0].travels


def test_every_round_is_on_disk_before_anybody_sees_its_model(tmp_path: Path) -> None:
    """So a run that is killed never shows two versions of one round; measures on the way would."""
    with pytest.raises(
        RequestError, match=r"measure\.every = 1 shows clients models of rounds that are not on disk yet"
    ):
        run_federation(config("measure.every=1"), Wire({}), tmp_path / "run")
    with pytest.raises(Stopped):
        go(tmp_path, stop=StopAfter(2))
    assert {path.name for path in (tmp_path / "run" / "checkpoints").glob("*.json")} >= {
        "round-000001.json",
        "round-000002.json",
    }
