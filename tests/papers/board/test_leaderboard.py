"""`torso leaderboard` on a made CIFAR-10: rates are chosen on validation data, and test data have no say."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import Torso

from torso.config import Config
from torso.errors import RequestError
from torso.methods import Finished, methods
from torso.nets import build
from torso.papers.board.combinations import bare, combinations, known_as
from torso.papers.board.contestants import Contestant
from torso.papers.board.definition import Axis, Board, Space, load
from torso.papers.board.leaderboard import run_leaderboard
from torso.papers.board.runs import BoardRuns
from torso.papers.board.search import entered_methods, read_found, run_search
from torso.papers.board.trials import BoardMethod, BoardPlan, later_presets, presets
from torso.papers.experiments.estimate import Rate
from torso.papers.experiments.reuse import training_key
from torso.personal import FineTune
from torso.runs.run import Stopped
from torso.runs.stages import stages

from ..heard import Heard
from ..tiny import QUICK, tiny_cifar10

SETS = (*QUICK, "data.new_clients=2", "data.min_size=1")
PART = "setting=cifar10-s2,method=fedbabu|fedrod-hyper"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tiny_cifar10(tmp_path / "data")


TUNED = Axis(key="personalize.lr", short="ft", values=(0.001, 0.01))


def _small(**changes: Any) -> Board:
    """The board with a smaller grid, where nothing else is said."""
    grid = (Axis(key="train.lr", short="lr", values=(0.03, 0.1)), TUNED)
    return load().model_copy(update={"grid": grid, **changes})


ONCE = (Axis(key="train.lr", short="lr", values=(0.1,)),)  # a grid of one point


def _plan(data: Path, board: Board) -> BoardPlan:
    return BoardPlan(board, SETS, {"cifar10": str(data)})


def _one(plan: BoardPlan, method: str = "fedbabu") -> Contestant:
    return Contestant(plan, "cifar10-s2", BoardMethod(method, (f"method.name={method}",)))


def _rows(out: str = "out") -> dict[str, dict[str, Any]]:
    rows = json.loads(Path(out, "leaderboard", "board.json").read_text())
    return {row["method"]: row for row in rows}


def test_every_preset_is_on_the_board_or_left_out_with_a_reason() -> None:
    board = load()
    named = [*board.entries, *(name for names in board.left_out.values() for name in names)]
    assert sorted(named) == sorted(methods)
    plan = BoardPlan(board)
    configs = [plan.config(setting, entry, {}) for entry in presets(board) for setting in board.settings]
    for config in configs:
        assert (config.train.rounds, config.train.local_epochs, config.train.fraction) == (50, 2, 0.125)
        assert config.data.validation == 0
    divisors = {c.method.drift.divisor for c in configs if type(c.method.drift).__name__ == "Scaffold"}  # type: ignore[attr-defined]
    assert divisors == {"momentum"}


def test_what_is_left_out_as_fine_tuned_otherwise_is_there_with_a_rate_of_the_grid() -> None:
    """FedAvg (BRM) keeps its local model, so it does not stand for FedAvg (BRM, FT), the find's nearest rival."""
    board = load()
    plan = BoardPlan(board)
    tuned = {
        bare(plan.config("cifar10-s2", entry, {}).method).but(personal=FineTune())
        for entry in presets(board)
        if "personalize.lr" in plan.points("cifar10-s2", entry)[0]
    }
    (names,) = (names for why, names in board.left_out.items() if "another rate of fine-tuning" in why)
    for name in (*names, "fedavg-brm-ft"):
        assert bare(methods[name]).but(personal=FineTune()) in tuned, name


def test_the_caveats_say_whose_own_model_is_not_tuned_and_at_which_rate_newcomers_train() -> None:
    board = load()
    plan = BoardPlan(board)
    own, new = (
        next(text for text in board.caveats if said in text) for said in ("own model (columns personal", "new clients")
    )
    words = set(re.split(r"[ ,.:]+", own))
    for entry in presets(board):
        tuned = "personalize.lr" in plan.points("cifar10-s2", entry)[0]
        assert tuned != (entry.name in words), entry.name
    config = plan.config("cifar10-s2", presets(board)[0], {"train.lr": 0.3})
    stage = stages(config, build("conv4", 10, (3, 32, 32), config.method.head, seed=0))[-1]
    assert stage.rate(stage.last) == pytest.approx(0.3 / 100)
    assert (config.personalize.epochs, config.train.local_epochs) == (5, 2)
    assert all("train.lr / 100" in text and "5 epochs" in text for text in (own, new))
    assert "2 epochs" in own


def test_a_budget_is_a_budget_and_every_method_learns_at_the_grids_rates() -> None:
    """LG-FedAvg's FedAvg rounds count; pFedMe's inner steps have a rate of their own, which follows train.lr."""
    plan = BoardPlan(load())
    for entry in presets(load()):
        config = plan.config("cifar10-s2", entry, {"train.lr": 0.03})
        stage = stages(config, build("conv4", 10, (3, 32, 32), config.method.head, seed=0))[-1]
        assert stage.last == 50, entry.name
        own = config.method.step
        assert getattr(own, "inner_lr", 0.03) == 0.03, f"{entry.name} learns at {own}"
    short = BoardPlan(load(), ("train.rounds=10",)).config("cifar10-s2", presets(load())[6], {})
    assert (short.method.name, short.method.start) == ("lg-fedavg", Finished(first=8, rounds=0.2))


def test_a_rate_that_a_method_does_not_use_is_not_tried() -> None:
    plan = BoardPlan(load())
    tuned, kept = (_one(plan, name).tuning for name in ("fedavg", "fedrod-hyper"))
    assert [len(tuned), len(kept)] == [6, 3]
    assert len({training_key(trial.config) for trial in tuned}) == 3  # the second rate trains nothing
    assert [dict(trial.point) for trial in kept] == [{"train.lr": 0.03}, {"train.lr": 0.1}, {"train.lr": 0.3}]
    every = BoardPlan(load(), ("personalize.part=head",))
    assert len(_one(every, "fedrod-hyper").tuning) == 6  # then its own model is fine-tuned after all


def test_the_board_chooses_by_validation_and_judges_by_test(torso: Torso, data: Path) -> None:
    words = ("leaderboard", "--only", PART, "--seeds", "2", "--data-root", str(data), "--out", "out")
    said = torso(*words, sets=SETS)
    assert said.status == 0, said.err
    assert "best known" in said.out
    rows = _rows()
    for name, row in rows.items():
        tried = [{key: value for key, value in one.items() if key != "validation"} for one in row["tried"]]
        assert len(tried) >= {"fedbabu": 6, "fedrod-hyper": 3}[name]
        assert load().untried(row["chosen"], tried) == []
        best = max(row["tried"], key=lambda one: sum(one["validation"].values()))
        assert row["chosen"] == {key: value for key, value in best.items() if key != "validation"}
        short = "-".join(
            f"{s}{row['chosen'][k]:g}" for k, s in {"train.lr": "lr", "personalize.lr": "ft"}.items() if k in best
        )
        folder = Path("out/leaderboard") / f"cifar10-s2-{name}-{short}-seed1"
        result = json.loads((folder / "result.json").read_text())
        assert row["personal"]["seeds"]["1"] == pytest.approx(result["accuracy"]["personalized"]["mean"], abs=1e-4)
        assert row["new_client"]["seeds"]["1"] == pytest.approx(result["accuracy"]["new_after"]["mean"], abs=1e-4)
        worst = min(result["accuracy"]["personalized"]["clients"])  # a tenth of eight clients is one
        assert row["worst_tenth"]["seeds"]["1"] == pytest.approx(worst, abs=1e-4)
        assert Config.load(folder / "config.toml").data.validation == 0
    validation = [path.parent for path in Path("out/leaderboard").glob("*-validation/config.toml")]
    assert {Config.load(path / "config.toml").data.validation for path in validation} == {0.1}
    assert not any((path / "checkpoints").exists() for path in validation)
    nobody = ("run.engine=ray", "run.ray.address=127.0.0.1:1")  # is asked for nothing, since nothing is left to run
    again = torso(*words, "--json", sets=(*SETS, *nobody))
    assert json.loads(again.out) == list(rows.values())
    assert again.err == ""


def test_other_labels_of_the_test_data_change_no_choice(data: Path, tmp_path: Path) -> None:
    """Every label of the test set is replaced by the next class: had the choice looked at it, it would be another."""
    ours = run_leaderboard([_one(_plan(data, _small()))], BoardRuns(tmp_path / "ours"), seeds=1)[0]
    spoiled = tmp_path / "spoiled"
    spoiled.mkdir()
    arrays = dict(np.load(data / "cifar10_jpeg.npz"))
    arrays["test_labels"] = (arrays["test_labels"] + 1) % 10
    np.savez(spoiled / "cifar10_jpeg.npz", **arrays)
    theirs = run_leaderboard([_one(_plan(spoiled, _small()))], BoardRuns(tmp_path / "theirs"), seeds=1)[0]
    assert theirs["tried"] == ours["tried"]
    assert theirs["chosen"] == ours["chosen"]
    assert theirs["generic"] != ours["generic"]  # while what is judged does look at it


def test_a_stopped_board_goes_on_and_rates_of_fine_tuning_train_nothing(data: Path, tmp_path: Path) -> None:
    plan, first, second = _plan(data, _small()), Heard(rounds=3), Heard()  # stops in the second run
    with pytest.raises(Stopped, match="with 1 runs finished"):
        run_leaderboard([_one(plan)], BoardRuns(tmp_path, first, first.stop), seeds=1)
    (row,) = run_leaderboard([_one(plan)], BoardRuns(tmp_path, second, second.stop), seeds=1)
    assert row["status"] == "ok"
    assert [done for _, done in first.begun] == [0, 0]
    assert [done for _, done in second.begun] == [1, 2, 2, 0]  # resumed, two siblings without a round, the judged one
    third = Heard()
    more = run_leaderboard([_one(plan)], BoardRuns(tmp_path, third), seeds=2)
    assert [name.rpartition("-")[2] for name, _ in third.begun] == ["seed1"]
    assert run_leaderboard([_one(plan)], BoardRuns(tmp_path), seeds=1) == more  # a seed that was run stays


def test_a_row_names_the_machines_of_all_its_seeds(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _plan(data, _small(grid=ONCE))
    for seeds, device in enumerate(("a large one", "a small one"), start=1):
        monkeypatch.setattr(
            "torso.papers.experiments.provenance.machine", lambda config, device=device: {"device": device}
        )
        (row,) = run_leaderboard([_one(plan)], BoardRuns(tmp_path), seeds=seeds)
    assert row["machine"] == {"device": "a large one, then a small one"}


def test_the_neighbours_of_the_best_are_tried_until_there_are_none(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accuracy as if 0.3 were the best rate, which lies beyond the grid: 0.3 follows from 0.1, and 1 from 0.3."""
    peak = {0.003: 1.0, 0.03: 3.0, 0.1: 4.0, 0.3: 5.0, 1.0: 2.0}
    monkeypatch.setattr(BoardRuns, "validation", lambda _, trial: {"generic": peak[trial.point["train.lr"]]})
    axis = Axis(key="train.lr", short="lr", values=(0.03, 0.1), beyond=(0.003, 0.3, 1.0))
    plan, heard = _plan(data, _small(grid=(axis,))), Heard()
    (row,) = run_leaderboard([_one(plan)], BoardRuns(tmp_path, heard), seeds=1)
    assert [one["train.lr"] for one in row["tried"]] == [0.03, 0.1, 0.3, 1.0]
    assert row["chosen"] == {"train.lr": 0.3}
    assert [name.rpartition("-")[2] for name, _ in heard.begun] == ["validation"] * 4 + ["seed0"]
    again = Heard()
    assert run_leaderboard([_one(plan)], BoardRuns(tmp_path, again), seeds=1) == [row]
    assert again.begun == []
    with pytest.raises(ValueError, match=r"beyond = \[0.1\] has to be outside"):
        Axis(key="train.lr", short="lr", values=(0.03, 0.3), beyond=(0.1,))


def test_neighbours_are_one_step_away_on_one_axis() -> None:
    board = load()
    full = [{"train.lr": rate, "personalize.lr": tuned} for rate in (0.03, 0.1, 0.3) for tuned in (0.001, 0.01)]
    assert board.untried({"train.lr": 0.1, "personalize.lr": 0.001}, full) == []
    assert board.untried({"train.lr": 0.3, "personalize.lr": 0.01}, full) == [
        {"train.lr": 1.0, "personalize.lr": 0.01},
        {"train.lr": 0.3, "personalize.lr": 0.1},
    ]
    assert board.untried({"train.lr": 3.0}, [{"train.lr": 1.0}, {"train.lr": 3.0}]) == []


def test_what_diverges_counts_as_nothing_and_is_not_tried_with_another_fine_tuning(data: Path, tmp_path: Path) -> None:
    grid = (Axis(key="train.lr", short="lr", values=(1e30, 0.1)), TUNED)
    heard = Heard()
    (row,) = run_leaderboard([_one(_plan(data, _small(grid=grid)))], BoardRuns(tmp_path, heard), seeds=1)
    assert [one["validation"] is None for one in row["tried"]] == [True, True, False, False]
    assert row["chosen"]["train.lr"] == 0.1
    assert len(heard.begun) == 4  # once at 1e30, twice at 0.1, and the judged one
    never = (Axis(key="train.lr", short="lr", values=(1e30,)),)
    (row,) = run_leaderboard([_one(_plan(data, _small(grid=never)))], BoardRuns(tmp_path), seeds=1)
    assert (row["status"], row["chosen"]) == ("failed: diverged at every point of the grid", None)


def test_the_board_keeps_what_other_commands_have_found(data: Path, tmp_path: Path) -> None:
    plan = _plan(data, _small(grid=ONCE))
    for method in ("fedavg", "fedbabu"):
        whole = {("cifar10-s2", "fedavg"), ("cifar10-s2", "fedbabu")}
        run_leaderboard([_one(plan, method)], BoardRuns(tmp_path), 1, whole)
    assert list(_rows(str(tmp_path))) == ["fedavg", "fedbabu"]
    run_leaderboard([_one(plan, "fedbabu")], BoardRuns(tmp_path), 1)
    assert list(_rows(str(tmp_path))) == ["fedbabu"]  # what is no longer on the board goes


def test_combinations_that_a_preset_has_are_not_called_new() -> None:
    found = combinations(BoardPlan(load()))
    assert len(found) == 32 + 8
    assert not [one for one in found if one.refused]
    new = {one.entry.name for one in found if not one.known_as}
    assert len(new) == 22
    assert {"fn-all-balanced-dyn", "fn-body-ce-free", "dual-linear-dyn"} <= new
    named = {one.entry.name: one.known_as for one in found if one.known_as}
    assert named["fedavg-brm-ft"] == "fedavg-brm-ft"  # an entry of the board, so that its runs are the board's
    assert known_as(methods["fedprox"].but(personal=methods["ditto"].personal)) == "fedprox"  # own models differ
    assert named["fedrod-hyper-scaffold"] == "fedrod-hyper-scaffold"  # with another divisor
    assert known_as(methods["fedprox"].but(server=methods["fedavgm"].server)) == ""


def _space(**axes: Mapping[str, tuple[str, ...]]) -> Space:
    return Space(axes={name: dict(choices) for name, choices in axes.items()})


def _searched(plan: BoardPlan, out: Path, head: str) -> dict[str, Any]:
    whole = combinations(plan)
    some = [one for one in whole if not one.refused and one.axes["head"] == head]
    settings = plan.board.search.settings
    return run_search([Contestant(plan, s, one.entry, one) for one in some for s in settings], whole, BoardRuns(out))


def test_the_search_enters_what_is_new_once_all_has_been_tried(data: Path, tmp_path: Path) -> None:
    space = _space(
        head={"linear": (), "fn": ("method.head=normalized",)},
        objective={"ce": (), "balanced": ("method.objective=balanced-softmax",)},
        server={"mean": (), "bad": ("method.server=apart", "method.drift=proximal")},
    )
    plan = _plan(data, _small(grid=ONCE, search=load().search.model_copy(update={"spaces": (space,), "best": 1})))
    part = _searched(plan, tmp_path, "fn")
    assert (part["complete"], part["left"], part["entered"], len(part["ranked"])) == (False, 4, [], 2)
    whole = _searched(plan, tmp_path, "linear")
    assert whole["complete"]
    assert whole == read_found(tmp_path / "leaderboard")
    assert len(whole["refused"]) == 4
    assert "there is no model for method.drift" in whole["refused"][0]["why"]
    new = [row["method"] for row in whole["ranked"] if not row["known_as"]]
    assert [row["name"] for row in whole["entered"]] == new[:1] == ["fn-balanced-mean"]
    assert {row["known_as"] for row in whole["tried"]} == {"", "fedavg", "fedavg-brm-ft", "fedfn"}
    heard = Heard()
    (entry,) = entered_methods(whole)
    (row,) = run_leaderboard([Contestant(plan, "cifar10-s2", entry)], BoardRuns(tmp_path, heard), seeds=1)
    assert row["new"]
    assert row["personal"]["mean"] > 0
    assert [name.rpartition("-")[2] for name, _ in heard.begun] == ["seed0"]  # it was tuned in the search


OWN = """
from torso.learn.drift import Proximal
from torso.methods import Method, methods
from torso.methods.catalogue import fedper

@methods.register("mine")
def mine() -> Method:
    return fedper.but(drift=Proximal(0.1))
"""


@pytest.mark.parametrize("more", [(), ("--processes", "2")])
def test_a_method_of_the_users_own_competes(torso: Torso, data: Path, more: tuple[str, ...]) -> None:
    Path("contender.py").write_text(OWN)
    part = "setting=cifar10-s2,method=mine"
    words = ("leaderboard", "--plugin", "contender", "--only", part, "--seeds", "1", "--data-root", str(data))
    try:
        said = torso(*words, *more, "--out", "out", sets=SETS)
    finally:
        methods.pop("mine", None)
        sys.modules.pop("contender", None)
    assert said.status == 0, said.err
    assert list(_rows()) == ["mine"]


def test_a_dry_run_counts_and_estimates(torso: Torso, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "torso.papers.experiments.estimate.rate_of", lambda _: Rate("a device", {"conv4": (1e5, 1e6)}, known=True)
    )
    told = json.loads(torso("leaderboard", "--dry-run", "--json").out)
    counted = {key: told[key] for key in ("contestants", "choosing", "judged", "trainings", "measurements")}
    fine_tuned = 4 * (64 - 22)  # twenty-two methods have nothing to fine-tune
    assert counted == {
        "contestants": 4 * 64,
        "choosing": 4 * 64 * 3 + fine_tuned * 3,
        "judged": 4 * 64 * 3,
        "trainings": 4 * 63 * 6,  # FedAvg (BRM, FT) is FedAvg (BRM), fine-tuned
        "measurements": fine_tuned * 3 + 4 * 6,
    }
    assert told["seconds"] > 0
    said = torso("leaderboard", "--search", "--dry-run", "--only", "head=fn,drift=dyn", "--device", "cpu")
    assert "24 trainings, 24 more measurements" in said.out  # 4 combinations, 2 settings, 3 rates
    assert not Path("runs").exists()


def test_a_setting_that_has_not_been_run_is_run_where_it_is_named(
    torso: Torso, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "torso.papers.experiments.estimate.rate_of", lambda _: Rate("a device", {"conv4": (1e5, 1e6)}, known=True)
    )
    words = ("leaderboard", "--dry-run", "--json", "--set", "model.body=conv4", "--set", "model.weights=")
    told = json.loads(torso(*words, "--only", "setting=cifar100-pretrained,method=lp5-ft|fedavg").out)
    assert told["contestants"] == 2
    assert any(name.startswith("cifar100-pretrained-lp5-ft") for name in told["runs"])
    refused = torso(*words, "--only", "setting=cifar10-s2,method=lp5-ft")
    assert refused.status == 2
    board = load()
    entry = next(one for one in later_presets(board, "cifar100-pretrained") if one.name == "lp5-ft")
    start = BoardPlan(board, ("model.body=conv4",)).config("cifar100-pretrained", entry, {}).method.start
    assert isinstance(start, Finished)
    assert start.first == 5  # and 15 of its own


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--only", "setting=cifar10-s3"), "Values of setting in the leaderboard: cifar10-s2, cifar10-dir0.3"),
        (("--only", "shards=2"), "the leaderboard has no key 'shards'. Its keys: setting, method"),
        (("--only", "method"), "--only 'method' is not KEY=VALUE. Keys of the leaderboard: setting, method"),
        (("--search", "--only", "setting=cifar100-s10"), "matches nothing"),
        (("--only", "method=fedavg-ft"), "matches nothing"),
        (("--only", "setting=cifar100-lite0"), "cifar100-lite0-frozen"),  # separate settings are offered, too
        (("--set", "train.lr=0.2"), "the leaderboard sets train.lr itself"),
        (("--set", "data.validation=0.5"), "the leaderboard sets data.validation itself"),
        (("--set", "train.rounds=many"), "train.rounds = 'many'"),
        (("--device", "cuda:77"), "run.device = 'cuda:77' cannot be used here"),
        (("--only", "setting=cifar100-s10", "--data-root", "nowhere"), "none of cifar-100-python"),
    ],
)
def test_a_wrong_request_is_refused_and_leaves_nothing(torso: Torso, words: tuple[str, ...], said: str) -> None:
    found = torso("leaderboard", *words, "--out", "out")
    assert found.status == 2
    assert said in " ".join(found.err.split())
    assert not Path("out").exists()


def test_a_file_in_the_place_of_out_is_told(torso: Torso, data: Path) -> None:
    Path("out").write_text("")
    found = torso("leaderboard", "--only", "setting=cifar10-s2", "--data-root", str(data), "--out", "out")
    assert found.status == 2
    assert "--out 'out/leaderboard' cannot be written: " in " ".join(found.err.split())


def test_a_damaged_find_and_a_wrong_board_are_told(torso: Torso, tmp_path: Path) -> None:
    (tmp_path / "out" / "leaderboard").mkdir(parents=True)
    (tmp_path / "out" / "leaderboard" / "found.json").write_text('{"entered": [{"name": "x"}]}')
    found = torso("leaderboard", "--out", "out")
    assert found.status == 2
    assert "is not what `torso leaderboard --search` writes" in " ".join(found.err.split())
    text = Path(load.__wrapped__.__globals__["FILE"]).read_text()
    for old, new, said in (
        ("fedfr = []", "fedfrr = []", "the preset 'fedfrr' is unknown"),
        ("validation = 0.1", "validation = 1.5", "validation = 1.5"),
        ("best = 3", "best = 3\nworst = 1", "search.worst is not a key"),
        ('"train.lr"\n\n# Every', '"train.rate"\n\n# Every', "follows.pfedme"),
        ('settings = ["cifar10-s2"', 'settings = ["cifar10-s9"', "search.settings has 'cifar10-s9'"),
    ):
        (tmp_path / "b.toml").write_text(text.replace(old, new, 1))
        with pytest.raises(RequestError, match=said):
            load.__wrapped__(tmp_path / "b.toml")
