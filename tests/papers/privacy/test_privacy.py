"""The plan of private runs is accepted, a cell of it can be run, and the measured part of the page is made of files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from torso.papers.pages.privacy import BEGIN, END, Part, placed, read
from torso.papers.pretrained import records
from torso.papers.pretrained.cells import Plan
from torso.papers.pretrained.definition import load
from torso.papers.privacy.__main__ import main
from torso.papers.privacy.definition import AUDITS, FILE

SMALL = (
    *("data.source=digits", "data.clients=20", "data.partition=iid", "model.body=mlp", "measure.clients=3"),
    *("train.fraction=0.5", "train.local_epochs=1", "run.device=cpu", "data.validation=0.0"),
)


def test_every_run_of_the_plan_is_accepted_and_private_as_its_setting_says(tmp_path: Path) -> None:
    plan = Plan(load(FILE), tmp_path, roots={"cifar10": "nowhere"})
    budgets = {"none": 0, "8": 8, "2": 2, "0": 0}
    labels = set()
    for block in plan.evidence.blocks:
        for cell in plan.cells(block):
            assert (
                plan.final(cell, plan.points(cell)[0], 0).config.privacy.epsilon
                == budgets[cell.setting.rpartition("-")[2]]
            )
            assert all(trial.config.data.validation > 0 for trial in plan.tuning(cell))
            if plan.setting(cell).dataset == "CIFAR-10":
                labels.add((plan.method(cell).label, plan.setting(cell).keys["epsilon"]))
    shared = {label for label, epsilon in labels if epsilon == "8"}
    assert len(shared) == 5  # FedAvg, FedBABU, FedPer, LP, FedNCM: each with and without privacy
    assert labels == {(label, e) for label in shared for e in ("2", "8", "∞")} | {("Local only: nothing", "0")}


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One block of the plan with small data, one seed, one or two rounds."""
    folder = tmp_path_factory.mktemp("privacy")
    data = folder / "data" / "cifar10_jpeg.npz"  # that it is there is looked at; the runs read scikit-learn's digits
    data.parent.mkdir()
    data.touch()
    words = ["--only", "private", "--seeds", "1", "--rounds", "0.01", "--data-root", str(data.parent)]
    plan = folder / "plan.toml"
    text = FILE.read_text("utf-8").replace("[0.1, 0.3, 1.0]", "[0.3]").replace('"fedavg-dp", "fedbabu-dp", ', "")
    plan.write_text(text, encoding="utf-8")
    sets = [word for text in SMALL for word in ("--set", text)]
    places = ["--plan", str(plan), "--folder", str(folder / "json"), "--work", str(folder / "runs")]
    assert main([*places, *words, *sets]) == 0
    return records.read(folder / "json")


def test_a_cell_tells_what_its_privacy_cost(cells: dict[str, Any]) -> None:
    assert sorted(cells) == ["eps-2-fedper-dp", "eps-8-fedper-dp"]
    for name, budget in (("eps-2-fedper-dp", 2), ("eps-8-fedper-dp", 8)):
        spent = cells[name]["runs"]["0"]["privacy"]
        assert 0.98 * budget < spent["epsilon"] <= budget
        assert spent["clients"] == 20
    noise = [cells[f"eps-{budget}-fedper-dp"]["runs"]["0"]["privacy"]["noise"] for budget in (2, 8)]
    assert noise[0] > noise[1] > 0


def test_the_part_has_every_number_with_its_setting(cells: dict[str, Any]) -> None:
    part = Part(cells, [made_audit(False, 3.0), made_audit(True, 2.0)])
    text = part.text()
    row = next(line for line in text.splitlines() if line.startswith("| FedPer: the body |"))
    found = [f"{cells[f'eps-{e}-fedper-dp']['runs']['0']['accuracy']['personalized']:.1f}" for e in (8, 2)]
    assert [cell.strip() for cell in row.split("|")[2:4]] == found
    assert "| ε ≤ 3.00 | 1e-05 | 0.7 | ε ≥ 1.00 | ≤ 0.8: ε = 2.50 | every model | 64 × 10 | stands |" in text
    assert "**refuted**" in text
    assert set(part.pictures) == {"cifar-10-generic", "cifar-10-personalized", "audits"}
    assert "a wrong claim" in part.pictures["audits"]


def test_without_files_the_part_says_so_and_writing_it_twice_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / AUDITS).mkdir()
    text = read(tmp_path).text()
    assert text.count("Nothing has been run yet.") == 2
    page = placed("# Privacy\n\nWords.\n", text)
    assert page.startswith(f"# Privacy\n\nWords.\n\n{BEGIN}\n")
    assert placed(page, text) == page
    (tmp_path / AUDITS / "one.json").write_text(json.dumps(made_audit(False, 3.0)))
    later = placed(page.replace(END, f"{END}\n\n## After"), read(tmp_path).text())
    assert later.endswith("## After\n")
    assert "stands" in later


def made_audit(refuted: bool, claimed: float) -> dict[str, Any]:
    return {
        "claim": {"noise": 0.7, "rate": 0.2, "rounds": 5, "delta": 1e-5},
        **{"claimed": claimed, "epsilon": 1.0, "noise_at_most": 0.8, "epsilon_of_noise": 2.5, "confidence": 0.95},
        **{"sees": "all", "runs": 64, "canaries": 10, "refuted": refuted},
        "setting": {
            **{"method": "lp", "data": "digits", "model": "mlp", "clients": 200, "parameters": 2010, "device": "CPU"},
            "seconds": 20.0,
        },
    }
