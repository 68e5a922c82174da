"""Methods under attacks are run in a given time, and the table of docs/robustness-study.md says what the files hold."""

from __future__ import annotations

import math
import tarfile
from pathlib import Path

import pytest
import torch

from torso.measure.fairness import worst
from torso.papers.experiments.deadline import Deadline
from torso.papers.experiments.result_files import Record
from torso.papers.pages.robustness import Section, filled
from torso.papers.robust import records
from torso.papers.robust.__main__ import main
from torso.papers.robust.answers import CHANCE, GENERIC, PERSONAL, Answers, Estimate
from torso.papers.robust.cells import Cell, Plan
from torso.papers.robust.definition import FILE, MEAN, NONE, SMALL, Evidence, load
from torso.papers.robust.lengths import Watching, known_lengths
from torso.papers.robust.running import Runs
from torso.parallel.packs import packs
from torso.results.result import Result

TINY = Path(__file__).with_name("tiny.toml")


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return load(TINY)


def runs_in(folder: Path, evidence: Evidence, *only: str, seconds: float = 600.0, seeds: int = 0) -> Runs:
    plan = Plan(evidence, folder / "work", only=frozenset(only), seeds=seeds)
    return Runs(plan, folder / "json", Deadline(seconds), say=lambda _: None)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, evidence: Evidence) -> Path:
    """Everything, run once."""
    folder = tmp_path_factory.mktemp("robust")
    assert runs_in(folder, evidence).go()
    return folder


def test_a_file_has_all_rules_of_a_method_under_an_attack(done: Path) -> None:
    found = records.read(done / "json")
    names = [f"{method}-{attack}" for method in ("fedavg", "fedper") for attack in ("backdoor", "none", "sign-flip")]
    assert sorted(found) == [*names, "local-only-none"]
    cell = found["fedper-backdoor"]
    assert list(cell["rules"]) == ["mean", "clip", "median"]
    run = cell["rules"]["median"]["runs"]["0"]
    assert run["malicious"] == 2
    assert {GENERIC, PERSONAL, "backdoor", "backdoor_initial"} < run.keys()
    assert cell["origins"][run["origin"]]["versions"]["torch"] == torch.__version__
    assert list(found["local-only-none"]["rules"]) == [MEAN]


def test_the_worst_tenth_is_of_honest_clients(done: Path) -> None:
    result = Result.read(done / "work" / "fedavg-sign-flip-mean-seed0")
    honest = [value for k, value in enumerate(result.accuracy[PERSONAL].clients) if k not in result.malicious]
    assert len(honest) == 3
    run = records.read(done / "json")["fedavg-sign-flip"]["rules"]["mean"]["runs"]["0"]
    assert run["worst_tenth"] == pytest.approx(worst(honest), abs=1e-3)
    assert run[PERSONAL] == pytest.approx(sum(v for v in honest if v is not None) / 3, abs=1e-3)


def test_uploads_are_clipped_to_their_median_length_without_an_attack(done: Path) -> None:
    known = known_lengths(done / "json")
    assert sorted(known) == ["fedavg", "fedper"]  # nobody uploads anything where clients train alone
    told = records.read(done / "json")["fedper-sign-flip"]["rules"]["clip"]["config"]
    assert told["method.server.clip"] == known["fedper"]["length"] < known["fedavg"]["length"]


def test_lengths_are_those_of_the_changes() -> None:
    rule, old = Watching(), {"a": torch.zeros(2), "b": torch.ones(1)}
    uploads = {"a": torch.tensor([[3.0, 0.0], [0.0, 0.0]]), "b": torch.tensor([[5.0], [3.0]])}
    mean = rule.combine({}, old, uploads, torch.tensor([0.5, 0.5]))
    assert rule.seen == [5.0, 2.0]  # 3-4-5; 2
    assert mean["b"].tolist() == [4.0]


def test_what_is_known_is_not_run_again_and_another_seed_is(done: Path, evidence: Evidence) -> None:
    said: list[str] = []
    again = runs_in(done, evidence)
    again.say = said.append
    assert again.go()
    assert not said
    more = runs_in(done, evidence, "fedavg", "none", "mean", seeds=2)
    assert [trial.name for trial in more.missing()] == ["fedavg-none-mean-seed1"]


def test_when_time_is_up_finished_runs_stay_and_a_second_call_goes_on(evidence: Evidence, tmp_path: Path) -> None:
    first = runs_in(tmp_path, evidence, "fedavg", "none", "sign-flip", "mean")
    stop = first.stop

    def until_one_is_there(text: str) -> None:
        if "fedavg-none-mean-seed0: " in text:
            stop.seconds = 0.0

    first.say = until_one_is_there
    first.plan = Plan(evidence.model_copy(update={"stack": 1}), first.plan.work, only=first.plan.only)
    assert not first.go()
    assert list(records.read(tmp_path / "json")) == ["fedavg-none"]
    second = runs_in(tmp_path, evidence, "fedavg", "none", "sign-flip", "mean")
    assert second.go()
    assert list(records.read(tmp_path / "json")) == ["fedavg-none", "fedavg-sign-flip"]


def record(method: str, attack: str, **rules: list[float | None]) -> Record:
    """One value a seed, for all measures; None: it diverged."""

    def run(value: float | None) -> Record:
        if value is None:
            return {"status": "failed: non-finite loss in round 1, client 2"}
        return {"status": "ok", "generic": value, "benign": value + 10, "worst_tenth": value - 10, "origin": 0}

    made = {rule: {"runs": {str(seed): run(v) for seed, v in enumerate(values)}} for rule, values in rules.items()}
    return {"method": method, "attack": attack, "origins": [], "rules": made}


@pytest.fixture
def answers(evidence: Evidence) -> Answers:
    files = [
        record("fedavg", "none", mean=[50.0, 60.0, 70.0], clip=[50.0] * 3, median=[40.0] * 3),
        record("fedavg", "sign-flip", mean=[20.0, 28.0, None], clip=[30.0] * 3, median=[35.0] * 3),
        record("fedper", "none", mean=[50.0, 50.0, 50.0], clip=[50.0] * 3, median=[45.0] * 3),
        record("fedper", "sign-flip", mean=[40.0, 42.0, 44.0], clip=[45.0] * 3, median=[41.0] * 3),
    ]
    return Answers({f"{one['method']}-{one['attack']}": one for one in files}, evidence)


def test_what_an_attack_takes_is_paired_by_seed_and_divergence_is_chance(answers: Answers) -> None:
    hit = Cell("fedavg", "sign-flip", MEAN)
    assert answers.lost(hit, GENERIC) == {"0": 30.0, "1": 32.0, "2": 70.0 - CHANCE}
    assert answers.diverged(hit) == 1
    assert answers.best_over_attacks("fedavg", GENERIC) == "median"
    assert answers.best_over_attacks("fedper", GENERIC) == "clip"
    # FedPer loses 10, 8, 6: less by 20, 24, 54, with mean 32.67 and standard deviation 18.58; t(2) = 4.303
    found = answers.less_hurt("fedper", "fedavg", (MEAN, MEAN), GENERIC)
    assert found.mean == pytest.approx(32.667, abs=1e-3)
    assert found.half == pytest.approx(4.3027 * 18.5831 / math.sqrt(3), rel=1e-4)


def test_one_seed_has_no_interval() -> None:
    assert str(Estimate.over([3.0])) == "3.0"
    assert str(Estimate.over([1.0, 2.0, 3.0])) == "2.0 ± 2.5"  # 4.303 / √3


def test_the_section_says_what_the_files_hold(done: Path, evidence: Evidence) -> None:
    section = Section(done / "json", evidence)
    text = section.text()
    run = records.read(done / "json")["fedavg-sign-flip"]["rules"]["median"]["runs"]["0"]
    assert " / ".join(f"{run[m]:.0f}" for m in (GENERIC, PERSONAL, "worst_tenth")) in text
    assert "### FedPer: the body" in text
    assert "Alone" not in text  # it has no table
    assert "trains alone for as many epochs" in text
    assert section.picture.count("FedAvg: generic") == 1
    page = "before\n<!-- generated: robustness-json -->\n{}\n<!-- end -->\nafter\n"
    assert filled(page.format("old"), [section]) == page.format(text)


def test_diverged_seeds_are_shown(answers: Answers, evidence: Evidence, tmp_path: Path) -> None:
    for one in answers.records.values():
        records.write(tmp_path, one)
    text = Section(tmp_path, evidence).text()
    assert "| sign flip | 19 / 26 / 13 ✗ 1 | 30 / 40 / 20 |" in text
    assert "nothing has been run yet" in Section(tmp_path / "nothing", evidence).text()


def test_the_command_begins_in_an_empty_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--folder", str(tmp_path / "json"), "--work", str(tmp_path / "work")]
    assert main(["--plan", str(TINY), *where, "--only", "fedavg,none,clip", "--rounds", "0.5"]) == 0
    assert "all is done" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "json").iterdir()) == ["fedavg-none.json", "lengths.json"]


def test_the_command_packs_and_refuses_unknown_names(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--plan", str(TINY), "--folder", str(done / "json"), "--work", str(tmp_path)]
    assert main([*common, "--pack", str(tmp_path / "all.tgz")]) == 0
    assert "all is done" in capsys.readouterr().out
    with tarfile.open(tmp_path / "all.tgz") as packed:
        assert {"lengths.json", "fedper-none.json"} < set(packed.getnames())
    assert main([*common, "--only", "medan"]) == 2
    assert "did you mean 'median'" in capsys.readouterr().err


@pytest.mark.parametrize("file", [FILE, SMALL])
def test_the_plans_that_ship_are_valid_and_alike(file: Path) -> None:
    evidence = load(file)
    plan = Plan(evidence, Path("work"), lengths=dict.fromkeys(evidence.methods, 1.5), seeds=1)
    trials = list(plan.trials())
    assert len(trials) == 9 * 5 * 7 + 1
    assert [trial.cell.attack for trial in trials[:35]] == [NONE] * 35
    assert {trial.config.attack.fraction for trial in trials} == {0.2}
    assert trials[1].changes["method.server.clip"] == 1.5
    assert set(map(len, packs([trial.config for trial in trials], evidence.stack))) == {1, len(evidence.rules)}
