"""`torso papers` and `torso reproduce` as the shell calls them, on a made CIFAR-10 of 200 images."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.conftest import Torso

from torso.papers.experiments.datasets import find_all, known_roots
from torso.papers.tables.plan import TablePlan, plan
from torso.papers.tables.published import names, recipe
from torso.papers.tables.reproduce import reproduce
from torso.results.result import Result
from torso.runs.run import Stopped

from ..heard import Heard
from ..tiny import QUICK, tiny_cifar10

PART = "shards=2,fraction=0.1,local_epochs=10"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tiny_cifar10(tmp_path / "data")


def _plan(data: Path, only: str, table: str = "fedbabu/13", seeds: int = 1) -> TablePlan:
    return plan(recipe(table), only, seeds, QUICK, find_all(["cifar10"], data))


def test_a_table_that_needs_a_file_of_weights_says_so_in_one_line(torso: Torso, data: Path) -> None:
    words = ("reproduce", "fedncm/6", "--data-root", str(data), "--quiet")
    said = torso(*words)
    assert said.status == 2
    assert said.err.count("\n") == 1
    assert "needs weights that are not here: give torchvision's file of them, --set model.weights=PATH" in said.err
    said = torso(*words, sets=("model.weights=nowhere.pth",))
    assert said.status == 2
    assert said.err.count("\n") == 1
    assert "model.weights = 'nowhere.pth' does not exist. Expected: tensors by name" in said.err


def test_a_table_is_printed_with_ours_beside_the_published_numbers(torso: Torso, data: Path) -> None:
    words = ("reproduce", "fedbabu/13", "--only", f"{PART},method=fedavg|lg-fedavg|fedper", "--data-root", str(data))
    said = torso(*words, "--out", "out", sets=QUICK)
    assert said.status == 0, said.err
    assert "FedPer (as the paper's code)" in said.out
    assert "(85.1, " in said.out  # FedAvg, s = 2, f = 0.1, τ = 10: 85.14
    assert "not comparable" in said.out
    assert f"changed here: {QUICK[0]}" in said.out  # so nobody takes them for the paper's
    assert "4/4  lg-fedavg" in said.err  # after FedAvg, at whose end it begins
    table = json.loads(Path("out/fedbabu-13/table.json").read_text())
    assert len(table) == 129 + 18 + 18 + 3  # variants of FedPer, LG-FedAvg and Local-only
    run = [answer for answer in table if answer["ours"]]
    assert {answer["method"] for answer in run} == {"FedAvg", "LG-FedAvg", "FedPer"}
    fedavg = next(answer for answer in run if answer["method"] == "FedAvg")
    result = json.loads(Path("out/fedbabu-13/fedavg-f0.1-e1-s2-seed0/result.json").read_text())
    assert fedavg["ours"]["mean"] == pytest.approx(result["accuracy"]["personalized"]["mean"], abs=1e-4)
    assert fedavg["ours"]["std"] == pytest.approx(result["accuracy"]["personalized"]["std"], abs=1e-4)
    assert fedavg["machine"]["precision"] == "fp32"
    assert fedavg["data"] == "cifar10_jpeg.npz"
    assert str(data) not in json.dumps(table)  # facts of this machine's disk are not part of a result
    again = torso(*words, "--out", "out", "--json", "--quiet", sets=QUICK)
    asked = [answer for answer in run if answer["setting"]["local_epochs"] == 10]
    assert json.loads(again.out) == asked


def test_a_stopped_table_goes_on_without_repeating_a_finished_run(data: Path, tmp_path: Path) -> None:
    made = _plan(data, f"{PART},method=fedavg|fedbabu|lg-fedavg")
    first = Heard(rounds=3)  # in the middle of the second run
    with pytest.raises(Stopped, match="1 of 3 runs finished"):
        reproduce(made, tmp_path / "out", listener=first, stop=first.stop)
    second = Heard()
    table = reproduce(made, tmp_path / "out", listener=second)
    assert [name.partition("-f0.1")[0] for name, _ in first.begun] == ["fedavg", "fedbabu"]
    assert [(name.partition("-f0.1")[0], done) for name, done in second.begun] == [("fedbabu", 1), ("lg-fedavg", 2)]
    third = Heard()
    assert reproduce(made, tmp_path / "out", listener=third).answers == table.answers
    assert third.begun == []
    assert all(answer["status"] == "ok" for answer in table.answers)


def test_a_run_that_was_on_two_machines_says_so(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FedAvg is stopped on one and ends on the other; LG-FedAvg begins at its end; FedBABU was on the second alone."""
    only, heard = f"{PART},method=fedavg|lg-fedavg|fedbabu", Heard(rounds=1)

    def be(device: str) -> None:
        said = {"device": device, "system": "Linux", "precision": "fp32"}
        monkeypatch.setattr("torso.papers.experiments.provenance.machine", lambda config: dict(said))

    be("a large one")
    with pytest.raises(Stopped):
        reproduce(_plan(data, only), tmp_path, listener=heard, stop=heard.stop)
    be("a small one")
    for _ in range(2):  # also when it is all there
        found = {answer["method"]: answer["machine"] for answer in reproduce(_plan(data, only), tmp_path).answers}
        both = {"device": "a large one, then a small one", "system": "Linux", "precision": "fp32"}
        assert found == {"FedAvg": both, "LG-FedAvg": both, "FedBABU": {**both, "device": "a small one"}}
    be("a third")
    (line,) = reproduce(_plan(data, f"{PART},method=fedbabu", seeds=2), tmp_path).answers
    assert line["machine"]["device"] == "a small one, then a third"  # seed by seed


def test_another_table_trains_nothing_that_a_first_has_trained(data: Path, tmp_path: Path) -> None:
    reproduce(_plan(data, f"{PART},method=fedavg"), tmp_path / "out")
    heard = Heard()
    table = reproduce(_plan(data, f"{PART},method=fedavg", "fedbabu/12"), tmp_path / "out", listener=heard)
    assert [done for _, done in heard.begun] == [2, 2]  # both rounds come from the other table; measured twice
    assert {answer["metric"] for answer in table.answers} == {"initial_with_head", "initial_without_head"}


def test_what_choosing_the_epoch_on_test_data_adds_to_local_only(data: Path, tmp_path: Path) -> None:
    heard, sets = Heard(), (*QUICK, "train.local_epochs=3", "train.lr=0.2")  # a rate at which epochs differ
    made = plan(recipe("fedbabu/13"), "shards=2,method=local-only", 1, sets, find_all(["cifar10"], data))
    table = reproduce(made, tmp_path / "out", listener=heard)
    assert heard.begun == [("local-only-s2-seed0", 0), ("local-only-paper-bug-s2-seed0", 2)]  # trained once
    fair, best = table.answers
    assert (fair["variant"], best["variant"]) == ("", "each client's best epoch on test data, as the paper's code")
    last, chosen = (Result.read(table.place(run)).accuracy for run in made.runs)
    ends, tops = last["initial"].clients, chosen["local_only_best_on_test"].clients
    assert all((top or 0) >= (end or 0) for end, top in zip(ends, tops, strict=True))
    assert fair["ours"]["mean"] == pytest.approx(last["initial"].mean, abs=1e-4)
    assert best["ours"]["mean"] == pytest.approx(chosen["local_only_best_on_test"].mean, abs=1e-4)
    assert best["ours"]["mean"] > fair["ours"]["mean"]


def test_the_mean_is_over_seeds_and_earlier_commands_are_kept(data: Path, tmp_path: Path) -> None:
    seeds = _plan(data, f"{PART},method=fedavg", seeds=2)
    answer = reproduce(seeds, tmp_path / "out").answers[0]
    each = list(answer["ours"]["seeds"].values())
    assert len(each) == 2
    assert answer["ours"]["mean"] == pytest.approx(sum(each) / 2, abs=1e-3)
    whole = plan(recipe("fedbabu/13"), "", 2, QUICK, known_roots(data))
    reproduce(_plan(data, f"{PART},method=fedbabu"), tmp_path / "out", whole=whole)
    table = json.loads((tmp_path / "out" / "fedbabu-13" / "table.json").read_text())
    chosen = [a for a in table if a["ours"] and a["setting"].get("local_epochs") == 10 and not a["variant"]]
    assert {a["method"]: len(a["ours"]["seeds"]) for a in chosen} == {"FedAvg": 2, "FedBABU": 1}


def test_a_run_that_does_not_converge_is_a_result(data: Path, tmp_path: Path) -> None:
    sets = (*QUICK, "train.lr=1e30")
    made = plan(recipe("fedbabu/13"), f"{PART},method=fedavg", 1, sets, find_all(["cifar10"], data))
    (answer,) = reproduce(made, tmp_path / "out").answers
    assert answer["ours"] is None
    assert answer["status"].startswith("failed: non-finite")


def test_the_pages_of_a_table(torso: Torso, data: Path) -> None:
    words = ("reproduce", "fedbabu/13", "--only", f"{PART},method=fedavg", "--data-root", str(data), "--out", "out")
    assert torso(*words, "--report", "--quiet", sets=QUICK).status == 0
    assert "(85.1, " in Path("out/fedbabu-13/table.html").read_text()
    assert "fedavg" in Path("out/fedbabu-13/report.html").read_text()


def test_a_dry_run_shows_configs_that_run_as_they_are(torso: Torso, data: Path) -> None:
    words = ("reproduce", "fedbabu/6", "--only", "shards=10,method=fedavg", "--dry-run")
    said = torso(*words)
    assert said.status == 0
    assert "sweep = [\n    1," in said.out
    assert "1 run of fedbabu/6" in said.out
    assert not Path("runs").exists()
    tree = json.loads(torso(*words, "--json").out)
    assert tree["fedavg-s10-seed0"]["train"]["rounds"] == 32


def test_the_list_has_every_table_and_a_time(torso: Torso) -> None:
    said = torso("papers", "--json")
    rows = json.loads(said.out)
    assert [row["table"] for row in rows] == list(names())
    runs = {row["table"]: row["runs"] for row in rows}
    assert (runs["fedbabu/13"], runs["fedbabu/19"], runs["fedncm/2"]) == (150, 0, 1)
    assert all((row["seconds"] > 0) == (row["runs"] > 0) for row in rows)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("fedbabu/8",), "table 'fedbabu/8' is unknown"),
        (("fedbabu/13", "--only", "shards=3"), "matches nothing"),
        (("fedbabu/13",), "none of cifar-10-batches-py, cifar-10-python.tar.gz, cifar10_jpeg.npz"),
        (("fedbabu/13", "--data-root", "nowhere"), "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"),
        (("fedncm/3",), "nothing of fedncm/3 can be run: 9 × needs weights that are not here"),
        (("fedbabu/13", "--device", "cuda:77"), "run.device = 'cuda:77' cannot be used here"),
        (("fedbabu/13", "--set", "train.lr=fast"), "train.lr = 'fast'"),
    ],
)
def test_a_wrong_request_is_refused_and_leaves_nothing(torso: Torso, words: tuple[str, ...], said: str) -> None:
    found = torso("reproduce", *words, "--out", "out")
    assert found.status == 2
    assert said in " ".join(found.err.split())
    assert not Path("out").exists()


def test_a_folder_of_another_experiment_is_refused(torso: Torso, data: Path) -> None:
    words = ("reproduce", "fedbabu/13", "--only", f"{PART},method=fedavg", "--data-root", str(data), "--out", "out")
    assert torso(*words, sets=QUICK).status == 0
    other = torso(*words, sets=(*QUICK, "train.lr=0.2"))
    assert other.status == 2
    assert "train.lr was 0.1, now 0.2" in " ".join(other.err.split())


@pytest.mark.parametrize("out", ["file", "file/below"])
def test_a_file_in_the_place_of_out_is_told(torso: Torso, data: Path, out: str) -> None:
    Path("file").write_text("")
    said = torso("reproduce", "fedbabu/13", "--only", f"{PART},method=fedavg", "--data-root", str(data), "--out", out)
    assert said.status == 2
    assert f"--out '{out}/fedbabu-13' cannot be written: " in " ".join(said.err.split())


def test_a_folder_like_a_seeds_is_left_alone(torso: Torso, data: Path) -> None:
    Path("out/fedbabu-13/fedavg-seed0-copy2").mkdir(parents=True)
    words = ("reproduce", "fedbabu/13", "--only", f"{PART},method=fedavg", "--data-root", str(data), "--out", "out")
    assert torso(*words, sets=QUICK).status == 0


def test_memory_that_does_not_suffice_is_said(data: Path, torso: Torso, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device cannot be made small here, so the run itself is replaced."""

    def full(*_: object, **__: object) -> None:
        raise MemoryError("needed 300 GiB")

    monkeypatch.setattr("torso.parallel.packs.run", full)
    words = ("reproduce", "fedbabu/13", "--only", f"{PART},method=fedavg", "--data-root", str(data), "--out", "out")
    said = torso(*words, sets=QUICK)
    assert said.status == 2
    assert "does not fit into the memory of the device (needed 300 GiB)" in " ".join(said.err.split())
