"""The json files of docs/reproduction keep the results of runs that the recipes, as they stand, would make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torso.papers.experiments.provenance import changed
from torso.papers.tables.answers import Answer
from torso.papers.tables.collect import blank, collect, read, tidy
from torso.papers.tables.plan import plan
from torso.papers.tables.published import recipe


def _lines(config: dict[str, Any] | None = None, seeds: int = 1, **ours: float | None) -> list[Answer]:
    """Records of fedbabu/13 in one setting, by method: run by the recipe, or by `config`; None: diverged."""
    setting = {"shards": 2, "fraction": 0.1, "local_epochs": 10}
    runs = {
        run.config.method.name: run for run in plan(recipe("fedbabu/13"), "shards=2,fraction=0.1,local_epochs=10").runs
    }
    lines = [line for line in blank("fedbabu/13") if not line["variant"] and setting.items() <= line["setting"].items()]
    for line in lines:
        name = line["method"].lower()
        if name in ours:
            known = {"config": changed(runs[name].config) | (config or {}), "machine": {}, "versions": {}, "data": ""}
            found = ours[name]
            good = {"ours": {"mean": found, "seeds": {str(seed): found for seed in range(seeds)}}}
            line.update(known | ({"status": "failed: non-finite"} if found is None else good))
    return lines


def _broken(lines: list[Answer]) -> list[Answer]:
    """The same, where the machine failed."""
    return [{**line, "ours": None, "status": "failed: CUDA error"} if line["ours"] else line for line in lines]


def test_results_are_taken_in_and_kept_until_they_are_run_again(tmp_path: Path) -> None:
    out, folder = tmp_path / "out", tmp_path / "docs"
    (out / "fedbabu-13").mkdir(parents=True)

    def command(answers: list[Answer], left: list[str]) -> dict[str, Any]:
        (out / "fedbabu-13" / "table.json").write_text(json.dumps(answers))
        assert collect(out, folder) == {"fedbabu/13": left}
        return {
            a["method"].lower(): a["ours"] and a["ours"]["mean"] for a in read(folder)["fedbabu/13"] if "config" in a
        }

    assert command(_lines(fedavg=1.0), []) == {"fedavg": 1.0}
    assert command(_lines(fedbabu=2.0), []) == {"fedavg": 1.0, "fedbabu": 2.0}
    assert command(_lines(fedavg=3.0), []) == {"fedavg": 3.0, "fedbabu": 2.0}
    assert command(_lines(fedavg=None), []) == {"fedavg": None, "fedbabu": 2.0}  # no success of old
    assert command(_lines(fedbabu=4.0, seeds=2), []) == {"fedavg": None, "fedbabu": 4.0}
    assert command(_lines(fedbabu=9.0), ["FedBABU: 1 seed, not 2"]) == {"fedavg": None, "fedbabu": 4.0}
    broken = _broken(_lines(fedbabu=9.0, fedper=9.0))
    assert command(broken, ["FedBABU: 0 seeds, not 2"]) == {"fedavg": None, "fedbabu": 4.0, "fedper": None}
    short = _lines({"train.rounds": 1, "run.precision": "bf16"}, fedbabu=9.0)  # of `--set train.rounds=1`
    assert command(short, ["FedBABU: train.rounds = 1, not 32"]) == {"fedavg": None, "fedbabu": 4.0, "fedper": None}
    (folder / "fedbabu-13.json").write_text(json.dumps([*_lines(fedavg=3.0)[:1], *short]))
    assert tidy(folder) == {"fedbabu/13": ["FedBABU: train.rounds = 1, not 32"]}  # the recipe was another then
    assert tidy(folder) == {}


def test_what_two_tables_ask_of_one_run_is_answered_in_both(tmp_path: Path) -> None:
    """FedAvg of table 13 is the run of table 15 in which all blocks learn and travel."""

    def of_15(lines: list[Answer]) -> list[tuple[str, Any, str]]:
        (tmp_path / "fedbabu-13.json").write_text(json.dumps(lines))
        assert tidy(tmp_path) == {}
        there = [line for line in read(tmp_path).get("fedbabu/15", []) if "config" in line]
        assert all(line["table"] == "15" for line in there)
        return [(line["method"], line["ours"] and line["ours"]["mean"], line["from"]) for line in there]

    assert of_15(_lines(fedavg=1.0)) == [("FedAvg", 1.0, "fedbabu/13")]
    assert of_15(_lines(fedavg=2.0)) == [("FedAvg", 2.0, "fedbabu/13")]  # it follows
    assert of_15(_lines(fedavg=None)) == [("FedAvg", None, "fedbabu/13")]  # divergence, too
    assert of_15(_lines(fedper=1.0)) == []
    assert of_15(_broken(_lines(fedavg=1.0))) == []


def test_a_table_that_has_run_something_itself_says_that(tmp_path: Path) -> None:
    """Table 4 fine-tunes everything, which table 5 leaves to the method; the same for FedAvg."""

    def answered(name: str, mean: float) -> None:
        run = next(run for run in plan(recipe(name)).runs if wanted.items() <= changed(run.config).items())
        lines = blank(name)
        for place in run.answers:
            ours = {"mean": mean, "seeds": {"0": mean}}
            lines[place] |= {"ours": ours, "status": "ok", "config": changed(run.config), "machine": {}, "versions": {}}
        (tmp_path / f"{name.replace('/', '-')}.json").write_text(json.dumps(lines))
        assert tidy(tmp_path) == {}

    def means(name: str) -> set[float]:
        return {line["ours"]["mean"] for line in read(tmp_path)[name] if line["ours"]}

    wanted = {"method.name": "fedavg", "data.shards": 10, "train.fraction": 0.1, "train.local_epochs": 4}
    wanted |= {"personalize.part": "full"}
    answered("fedbabu/4", 7.0)
    assert (means("fedbabu/4"), means("fedbabu/5")) == ({7.0}, {7.0})
    del wanted["personalize.part"]
    answered("fedbabu/5", 8.0)
    assert (means("fedbabu/4"), means("fedbabu/5")) == ({7.0}, {8.0})


def test_a_run_that_measured_fewer_clients_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "fedbabu-13.json").write_text(json.dumps(_lines({"measure.clients": 5}, fedavg=3.0)))
    assert tidy(tmp_path) == {"fedbabu/13": ["FedAvg: measure.clients = 5, not as usual"]}
    assert read(tmp_path) == {}


def test_results_of_a_first_line_follow_it_when_it_becomes_a_second_one(tmp_path: Path) -> None:
    """Fed-RoD's tables were run with a plain Dirichlet draw, which is their second line now; nothing else moves."""
    name, wanted = "fedrod/8", {"method.name": "fedavg", "data.alpha": 0.1, "data.partition": "dirichlet-class"}
    run = next(
        run
        for run in plan(recipe(name)).runs
        if wanted.items() <= changed(run.config).items() and not run.config.data.balance
    )
    lines = [{**line} for line in blank(name) if not line["variant"]]
    for line in lines:
        if line["method"] == "FedAvg" and line["setting"]["alpha"] == 0.1:
            ours = {"mean": 60.0, "seeds": {"0": 60.0}}
            line |= {"ours": ours, "status": "ok", "config": changed(run.config), "machine": {}, "versions": {}}
    (tmp_path / "fedrod-8.json").write_text(json.dumps(lines))
    assert tidy(tmp_path) == {}
    there = [line for line in read(tmp_path)[name] if line["ours"]]
    assert {(line["method"], line["variant"], line["setting"]["alpha"]) for line in there} == {
        ("FedAvg", "plain draw", 0.1)
    }
    assert sorted(line["metric"] for line in there) == ["G-FL (GM)", "P-FL (GM)", "P-FL (PM)"]


def test_results_with_a_file_of_weights_are_taken_where_the_recipe_asks_for_one(tmp_path: Path) -> None:
    """The name of the file does not matter. Elsewhere weights are a change of the recipe."""
    run = next(
        r for r in plan(recipe("fedncm/7"), sets=("model.weights=/here/a.pth",)).runs if r.config.method.name == "ft"
    )
    lines = [line for line in blank("fedncm/7") if line["method"] == "FT"]
    ours = {"mean": 45.0, "seeds": {"0": 45.0}}
    told = {"ours": ours, "status": "ok", "config": changed(run.config), "machine": {}}
    assert told["config"]["model.weights"] == "a.pth"
    (tmp_path / "fedncm-7.json").write_text(json.dumps([{**line, **told} for line in lines]))
    (tmp_path / "fedbabu-13.json").write_text(json.dumps(_lines({"model.weights": "a.pth"}, fedavg=3.0)))
    assert tidy(tmp_path) == {"fedbabu/13": ["FedAvg: model.weights = a.pth, not as usual"]}
    (found,) = [line for line in read(tmp_path)["fedncm/7"] if line["ours"]]
    assert (found["method"], found["status"]) == ("FT", "ok")
    assert "why" not in found
