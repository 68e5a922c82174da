"""Runs side by side: who is paired with whom, who is not and why, and what rows are called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torso.errors import RequestError
from torso.report.comparison import Comparison, compare_folders
from torso.report.records import read
from torso.report.rerun import command_of
from torso.report.statistics import Difference, Refused
from torso.report.summary import heading, sentences, setting
from torso.results.seal import seal_text

from .samples import write_run


def pair(tmp_path: Path, *sets: str, method: str = "fedbabu") -> Comparison:
    write_run(tmp_path / "a", accuracy={"personalized": [70.0, 80.0, 90.0]})
    write_run(tmp_path / "b", method, accuracy={"personalized": [80.0, 92.0, 98.0]}, sets=sets)
    return compare_folders([tmp_path])


def test_fedavg_is_the_baseline_unless_another_is_named(tmp_path: Path) -> None:
    comparison = pair(tmp_path)
    assert comparison.baseline.label == "fedavg"
    assert compare_folders([tmp_path], "fedbabu").baseline.label == "fedbabu"
    with pytest.raises(RequestError, match=r"did you mean 'fedbabu'\? Accepted: fedavg, fedbabu"):
        compare_folders([tmp_path], "fedbab")
    d = comparison.difference(comparison.entries[1], "personalized")
    assert isinstance(d, Difference)
    assert (d.mean, d.pairs) == (10, 3)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("data.shards=4", "different data: data.shards is 2 and 4"),
        ("data.source=synthetic", "different data: dataset is digits and synthetic"),
        ("measure.clients=3", "different data: measure.clients is 0 and 3"),
    ],
)
def test_runs_of_other_data_are_not_paired_and_it_is_said(tmp_path: Path, change: str, why: str) -> None:
    comparison = pair(tmp_path, change)
    d = comparison.difference(comparison.entries[1], "personalized")
    assert isinstance(d, Refused)
    assert set(why.split()) == set(d.reason.split())
    assert any(
        "did not have the same clients" in note and "no difference is tested" in note for note in comparison.notes()
    )


@pytest.mark.parametrize("change", ["data.augment=none", "train.lr=0.5", "run.workers=3"])
def test_other_settings_do_not_hinder_pairing(tmp_path: Path, change: str) -> None:
    comparison = pair(tmp_path, change)
    assert isinstance(comparison.difference(comparison.entries[1], "personalized"), Difference)
    assert comparison.notes() == []


def test_the_same_classes_by_name_but_other_clients(tmp_path: Path) -> None:
    write_run(tmp_path / "a", analyses={"class_counts": [[1, 0], [0, 1]]})
    write_run(tmp_path / "b", "fedbabu", analyses={"class_counts": [[0, 1], [1, 0]]})
    comparison = compare_folders([tmp_path])
    assert comparison.difference(comparison.entries[1], "personalized") == Refused(
        "different data: the clients hold other classes"
    )


def test_seeds_are_one_row_and_settings_or_repeats_are_rows_of_their_own(tmp_path: Path) -> None:
    write_run(tmp_path / "a", seed=0)
    write_run(tmp_path / "b", seed=1)
    write_run(tmp_path / "c", seed=0, sets=["train.lr=0.5"])
    comparison = compare_folders([tmp_path])
    assert [(e.label, len(e.runs)) for e in comparison.entries] == [
        ("fedavg (train.lr=0.1)", 2),
        ("fedavg (train.lr=0.5)", 1),
    ]
    write_run(tmp_path / "d", seed=0)
    labels = [entry.label for entry in compare_folders([tmp_path / "a", tmp_path / "d"]).entries]
    assert labels == ["fedavg (a)", "fedavg (d)"]


def test_a_failed_run_is_named_and_counts_for_nothing(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", seed=1, status="failed: non-finite loss in round 1, client 2")
    (entry,) = compare_folders([tmp_path]).entries
    assert (entry.failed, len(entry.runs)) == (1, 2)
    pooled = entry.pooled("personalized")
    assert pooled is not None
    assert pooled.n == 2
    (note,) = compare_folders([tmp_path]).notes()
    assert note == "fedavg, seed 1: failed: non-finite loss in round 1, client 2. Its numbers are left out."


def test_own_models_of_clients_that_never_took_part_are_told(tmp_path: Path) -> None:
    """Clients 0 and 1 of 50 took part, 3 never train: 45 models of Ditto are random. FedBABU tunes what was shared."""
    for place, (method, sets) in enumerate((("ditto", ["data.new_clients=3"]), ("fedbabu", []))):
        write_run(tmp_path / str(place), method, sets=sets)
    (note,) = (note for note in compare_folders([tmp_path]).notes() if "no round" in note)
    assert note.startswith("ditto: 45 of 47 clients took part in no round, so their own models are the initial ones")
    write_run(tmp_path / "all", "ditto", sets=["data.clients=2"])
    assert not [note for note in compare_folders([tmp_path / "all"]).notes() if "no round" in note]


def test_the_summary_says_who_is_best_and_who_is_too_close(tmp_path: Path) -> None:
    write_run(tmp_path / "a", accuracy={"personalized": [70.0, 80.0, 90.0], "initial": [75.0, 60.0, 90.0]})
    write_run(tmp_path / "b", "fedbabu", accuracy={"personalized": [81.0, 89.0, 100.0]})
    write_run(tmp_path / "c", "fedper", accuracy={"personalized": [85.0, 80.0, 99.0]})
    comparison = compare_folders([tmp_path])
    said = sentences(comparison)
    assert said[0] == (
        "fedbabu has the highest personalised accuracy: 90.0% on average over 3 client results, 10.0 points above "
        "fedavg (95% interval 7.5 to 12.5). fedper is not clearly below it."
    )  # differences 11, 9, 10: mean 10, std 1, ± 4.303/√3
    assert "Clients whose own model is worse than the model they received: fedavg 1 of 3." in said
    assert heading(comparison) == "fedavg, fedbabu and fedper on digits"


def test_a_federation_is_called_what_its_clients_agreed_on(tmp_path: Path) -> None:
    """Its config still names the usual data, digits dealt to 50 clients, which no client has. Of its three clients one
    came later; the other two are those of the history. The command is that of the server's machine."""
    folder = write_run(tmp_path / "a", "ditto", sets=["run.engine=flower"])
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(
        json.dumps({**result, "dataset": "federation", "names": ["east", "north", "south"]})
    )
    (folder / "federation.json").write_text(json.dumps({"agreement": {"newcomers": [2]}}))
    sealed = {name: (folder / name).read_bytes() for name in ("result.json", "history.jsonl")}
    (folder / "seal.json").write_text(seal_text(sealed))  # without federation.json, which changes after the end
    assert read(folder).problems == ()
    comparison = compare_folders([folder])
    assert heading(comparison) == "ditto on a federation"
    assert setting(comparison) == "3 clients · real machines · mlp · 4 rounds · seed 0"
    assert not [note for note in comparison.notes() if "no round" in note]
    assert command_of(read(folder)) == f"torso federation run --at FEDERATION {folder}/config.toml"


def test_own_files_are_called_by_their_name(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", sets=["data.source=csv", "data.root=patients.csv", "data.clients=0"])
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**result, "dataset": "patients", "names": ["a", "b"]}))
    comparison = compare_folders([folder])
    assert heading(comparison) == "fedavg on patients"
    assert setting(comparison).startswith("2 clients · shards")


def test_nothing_to_compare_is_said(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", status="failed: x")
    assert sentences(compare_folders([folder])) == ["No run has a result yet, so there is nothing to compare."]


@pytest.mark.parametrize(
    "sets", [(), ("train.lr=0.05", "method.drift=proximal", "method.drift.mu=0.5", "personalize.sweep=[1, 2]")]
)
def test_the_command_describes_the_same_run(tmp_path: Path, sets: tuple[str, ...]) -> None:
    said = command_of(read(write_run(tmp_path / "a", "fedbabu", 3, sets=sets)))
    assert said.startswith("torso run --set method.name=fedbabu --set ")
    for text in sets:
        assert text.replace("method.drift=", "method.drift.name=") in said
    assert "run.seed=3" in said


def test_the_command_falls_back_to_the_file(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a b")
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(config.replace('name = "fedavg"', 'name = "of-a-plugin"'))
    assert command_of(read(folder)) == f"torso run '{folder}/config.toml'"
