"""The quality and the cost of the advice of `torso advise`.

    python bench/advise.py search SETTING --data-root DIR           the fuller search: methods × rates, then three seeds
    python bench/advise.py search SETTING --only METHOD ...         one method more, where the search was run without it
    python bench/advise.py advise SETTING --rounds N --seed S       the advice, and what it reaches on test data
    python bench/advise.py study                                    adds both to docs/advise/study.json

Settings are in advise.toml, by the version of the rules that had not seen them. The fuller search is `torso
leaderboard` in these settings, with a part of its methods. Rates are chosen by personal accuracy on validation data,
and three runs at the best rates are measured on test data. The advice is run at the same seeds with all training
samples and all rounds, and measured on the same test data.

Regret: the personal accuracy of the best method of the fuller search minus that of the advice. Cost: samples that were
trained on, in rounds of FedAvg. The cost of the whole leaderboard is computed, not run: all of its methods with the
first points of its grid.

With `board` in place of SETTING the advice is run in settings of the leaderboard (`--settings A,B`; by default the four
of CIFAR, which need an accelerator). The published rows of the leaderboard are the fuller search there, and what they
cost is the cost. `--seconds` ends it between two settings. `--data-root A,B`: data sets in two folders.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import time
import tomllib
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from torso.advise.advising import advise
from torso.advise.answer import Answer, config_for
from torso.advise.arms import ArmRunner
from torso.config import Config
from torso.errors import RequestError
from torso.papers.board import definition, published, rows, runs, trials
from torso.papers.board.contestants import Contestant
from torso.papers.board.leaderboard import run_leaderboard
from torso.papers.board.runs import BoardRuns
from torso.papers.board.trials import BoardMethod, BoardPlan, presets
from torso.papers.experiments.datasets import find
from torso.papers.experiments.estimate import trained_on
from torso.parallel.together import run_together
from torso.report.statistics import student_interval
from torso.results.result import Result
from torso.runs.events import Stop
from torso.runs.job import data_of

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs" / "advise" / "study.json"
PAGE = HERE.parent / "docs" / "advise.md"
CASES = HERE.parent / "docs" / "advise" / "cases.md"
VERSION = 11
BEGIN, END = "<!-- generated: advise -->", "<!-- end -->"
SEEDS = 3
STUDY = tomllib.loads((HERE / "advise.toml").read_text("utf-8"))
SETTINGS: dict[str, list[str]] = {
    name: sets for table, some in STUDY.items() if table.startswith("version") for name, sets in some.items()
}


def sets_of(setting: str, root: str, out: Path) -> list[str]:
    made = made_in(out / "made") if setting.startswith("cancer") else ""
    said = (*STUDY["common"]["sets"], *SETTINGS[setting])
    return [text.replace("{root}", root).replace("{made}", made) for text in said]


def made_in(folder: Path) -> str:
    """Write scikit-learn's breast-cancer table as files: twelve clients, by mean radius, texture or smoothness of
    nuclei."""
    from sklearn.datasets import load_breast_cancer

    folder.mkdir(parents=True, exist_ok=True)
    table = load_breast_cancer()
    names = [*(name.replace(" ", "_") for name in table.feature_names), "client", "label"]
    for column, name in ((0, "radius"), (1, "texture"), (4, "smoothness")):
        client = np.empty(len(table.target), int)
        for number, some in enumerate(np.array_split(np.argsort(table.data[:, column], kind="stable"), 12)):
            client[some] = number
        lines = [
            ",".join([*(f"{value:g}" for value in row), f"c{who:02d}", str(table.target_names[label])])
            for row, who, label in zip(table.data, client, table.target, strict=True)
        ]
        (folder / f"cancer-{name}.csv").write_text("\n".join([",".join(names), *lines]) + "\n")
    return str(folder)


def board_of(setting: str, root: str, out: Path) -> definition.Board:
    """The leaderboard's definition with this setting in place of its own."""
    board, search = definition.load(), STUDY["search"]
    return board.model_copy(
        update={
            "validation": search["validation"],
            "measures": ("personalized", "generic"),
            "config": {"run": {"checkpoint_every": 0}},
            "settings": {setting: tuple(sets_of(setting, root, out))},
            "later": {},
            "entries": {name: board.entries[name] for name in search["methods"]},
            "follows": {},
        }
    )


def search(setting: str, out: Path, root: str, only: str = "") -> None:
    """The fuller search. `only`: one method, which competes in `torso advise` since later than the search was run."""
    # `torso advise` advises on personal models, so the fuller search chooses rates by these alone
    for module in (runs, trials):
        vars(module)["CHOOSES"] = ("personalized",)
    vars(rows)["MEASURED"] = {name: rows.MEASURED[name] for name in ("generic", "personal")}
    board = board_of(setting, root, out)
    plan = BoardPlan(board)
    added = [BoardMethod(name, tuple(sets)) for name, sets in STUDY["search"]["entries"].items()]
    entries = [entry for entry in (*presets(board), *added) if only in ("", entry.name)]
    contestants = [Contestant(plan, setting, entry) for entry in entries]
    place = BoardRuns(out / setting)
    began, cpu = time.perf_counter(), time.process_time()
    found = run_leaderboard(contestants, place, SEEDS)
    spent: dict[str, Any] = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu}
    name = f"search-{setting}" if not only else f"added-{setting}-{only}"
    (out / f"{name}.json").write_text(json.dumps({"setting": setting, **spent, "rows": found}, indent=1))


def cost_of(rows_: list[dict[str, Any]], config: Config, clients: int) -> float:
    """The cost of the fuller search in rounds of FedAvg, as `torso advise` counts its own cost."""
    stable = ArmRunner(config, Stop(), training=np.arange(clients))
    total, train = 0.0, config.train
    tuning = clients * config.personalize.epochs / (stable.participants * train.local_epochs)
    for row in rows_:
        trainings = len({point["train.lr"] for point in row["tried"]}) + len(row["seeds"])
        measurements = len(row["tried"]) + len(row["seeds"])
        ours, fedavg = (with_clients(config.but(*sets), clients) for sets in (row["sets"], ["method.name=fedavg"]))
        total += trainings * train.rounds * trained_on(ours) / trained_on(fedavg) + measurements * tuning
    return total


def cost_of_board(config: Config, clients: int) -> float:
    """The cost of all methods of the leaderboard in this setting, without the neighbours of their best rates: a lower
    bound."""
    board = definition.load()
    plan = BoardPlan(board.model_copy(update={"settings": {"here": ()}}))
    grid = [
        {"sets": entry.sets, "tried": plan.points("here", entry), "seeds": range(SEEDS)} for entry in presets(board)
    ]
    return cost_of(grid, config, clients)


def with_clients(config: Config, clients: int) -> Config:
    return config.model_copy(update={"data": config.data.model_copy(update={"clients": clients})})


def ask(setting: str, out: Path, root: str, rounds: int, seed: int) -> None:
    """The advice at one seed, and the accuracy of it and of the best guess on test data at the seeds of the fuller
    search."""
    config = Config.load(None, [*sets_of(setting, root, out), f"run.seed={seed}"])
    began = time.process_time()
    answer = advise(config, rounds=rounds)
    spent = time.process_time() - began
    about = {"version": VERSION, "setting": setting, "seed": seed, "rounds": rounds, "cpu_seconds": spent}
    data = {**about, "test": tested(answer, config), **answer.as_json()}
    (out / f"advice-{VERSION}-{setting}-{rounds}-seed{seed}.json").write_text(json.dumps(data, indent=1))


def tested(answer: Answer, config: Config) -> dict[str, dict[str, float]]:
    """The accuracy of FedAvg and of the best other method on test data. The advice and the best guess are one of the
    two."""
    found = {"fedavg": answer.course.fedavg} | ({} if answer.best is None else {"best": answer.best})
    return {name: on_test(config_for(config, one)) for name, one in found.items()}


def on_test(config: Config) -> dict[str, float]:
    """Personal accuracy on test data, by seed."""
    asked = config.but('measure.names=["personalized"]')
    ends = run_together([asked.but(f"run.seed={seed}") for seed in range(SEEDS)], [None] * SEEDS)
    return {
        str(seed): end.accuracy["personalized"].mean if isinstance(end, Result) and end.ok else 0.0
        for seed, end in sorted(ends, key=lambda pair: pair[0])
    }


def study(out: Path, root: str) -> None:
    """Add the results of search and advise below `out` to docs/advise/study.json, and write the tables again."""
    data = json.loads(DOCS.read_text("utf-8"))
    data["machine"] = f"{os.cpu_count()} CPU cores"
    data["versions"] = {"torch": torch.__version__, "python": platform.python_version()}
    for setting in SETTINGS:
        if (path := out / f"search-{setting}.json").is_file():
            rows_ = json.loads(path.read_text("utf-8"))["rows"]
            config = Config.load(None, sets_of(setting, root, out))
            data["settings"][setting] = searched(rows_, config, data_of(config).clients)
    for path in sorted(out.glob("added-*.json")):
        there = json.loads(path.read_text("utf-8"))
        for row in there["rows"]:
            results = {"personal": row["personal"], "chosen": row["chosen"]}
            data["settings"][there["setting"]].setdefault("added", {})[row["method"]] = results
    cases = {(one["version"], one["setting"], one["seed"]): one for one in data["cases"]}
    for path in sorted(out.glob("advice-*.json")):
        one = json.loads(path.read_text("utf-8"))
        if one["setting"] in data["settings"]:
            key = one["version"], one["setting"], one["seed"]
            cases[key] = {"version": key[0], "setting": key[1]} | summary(one, data["settings"][key[1]])
    for path in sorted(out.glob("board-*.json")):
        there = json.loads(path.read_text("utf-8"))
        one = there["case"]
        data["settings"][one["setting"]] = there["found"]
        cases[one["version"], one["setting"], one["seed"]] = one
    data["cases"] = sorted(cases.values(), key=lambda one: (one["version"], one["setting"], one["seed"]))
    DOCS.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(filled(PAGE.read_text("utf-8"), by_version(data)), "utf-8")
    CASES.write_text(filled(CASES.read_text("utf-8"), by_case(data)), "utf-8")


def searched(rows_: list[dict[str, Any]], config: Config, clients: int) -> dict[str, Any]:
    """The results of the fuller search, and the method that it would advise: the best on validation data."""
    ok = {row["method"]: row for row in rows_ if row["status"] == "ok"}
    personal = {name: row["personal"] for name, row in ok.items()}
    held = {
        name: max(sum(one["validation"].values()) for one in row["tried"] if one["validation"])
        for name, row in ok.items()
    }
    return {
        "methods": len(rows_),
        "cost_rounds": round(cost_of(rows_, config, clients)),
        "cost_of_whole_board": round(cost_of_board(config, clients)),
        "best": max(ok, key=lambda name: personal[name]["mean"]),
        "best_on_validation": max(ok, key=lambda name: held[name]),
        "personal": personal,
        "chosen": {row["method"]: row["chosen"] for row in rows_},
    }


def summary(one: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """The summary of a case: regrets of the advice and of the best guess, in points, and shares of the cost."""
    reached = {name: fmean(by_seed.values()) for name, by_seed in one["test"].items()}
    best, fedavg = (found["personal"][name]["mean"] for name in (found["best"], "fedavg"))
    over = one["gain_over_fedavg"]
    guess = reached["best"] if over is not None and over["mean"] > 0 else reached["fedavg"]
    kept = ("seed", "rounds", "advice", "stay", "rates", "guess", "best", "gain_over_fedavg", "gain_over_alone", "test")
    return {
        **{name: one[name] for name in kept},
        "regret": round(best - reached["fedavg" if one["stay"] else "best"], 4),
        "regret_of_guess": round(best - guess, 4),
        "regret_of_fedavg": round(best - fedavg, 4),
        "gain_on_test": round(reached["best"] - reached["fedavg"], 4) if "best" in reached else None,
        "cost_rounds": round(one["cost"]["rounds"]),
        "share_of_search": round(one["cost"]["rounds"] / found["cost_rounds"], 4),
        "share_of_board": round(one["cost"]["rounds"] / found["cost_of_whole_board"], 4),
        "cpu_seconds": round(one["cpu_seconds"], 1),
    }


def filled(page: str, table: str) -> str:
    """The page with its generated part."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def by_version(data: dict[str, Any]) -> str:
    """A row for each version of the rules, on settings that the version had not seen."""
    lines = [
        "| version | settings | n | mean regret of the advice | largest | mean of the best guess "
        "| of FedAvg of the search | of the search's best on validation data | share of the leaderboard's cost "
        "| gain inside of its interval |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for version in sorted({one["version"] for one in data["cases"]}):
        cases = [one for one in data["cases"] if one["version"] == version]
        regrets = [one["regret"] for one in cases]
        guesses = [one["regret_of_guess"] for one in cases if one["regret_of_guess"] is not None]
        shares = [one["share_of_board"] for one in cases if one["share_of_board"] is not None]
        known = [one for one in cases if one["gain_on_test"] is not None and one["gain_over_fedavg"]]
        inside = sum(_covers(one["gain_over_fedavg"], one["gain_on_test"]) for one in known)
        cells = [
            f"{version}",
            f"{len({one['setting'] for one in cases})}",
            f"{len(cases)}",
            f"{fmean(regrets):.2f}{_between([(one['setting'], one['regret']) for one in cases])}",
            f"{max(regrets):.1f}",
            f"{fmean(guesses):.2f}" if len(guesses) == len(cases) else "–",
            f"{fmean(one['regret_of_fedavg'] for one in cases):.2f}",
            _of_validation([data["settings"][one["setting"]] for one in cases]),
            f"{100 * min(shares):.1f} to {100 * max(shares):.1f} %" if shares else "–",
            f"{inside} of {len(known)}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _of_validation(found: list[dict[str, Any]]) -> str:
    """The mean regret of the method that the fuller search itself would choose, without test data."""
    if any(one["best_on_validation"] is None for one in found):
        return "–"
    personal = [(one["personal"][one["best"]], one["personal"][one["best_on_validation"]]) for one in found]
    return f"{fmean(best['mean'] - chosen['mean'] for best, chosen in personal):.2f}"


def _between(regrets: list[tuple[str, float]]) -> str:
    """Student's 95 % interval over settings."""
    names = dict.fromkeys(name for name, _ in regrets)
    _, low, high = student_interval([fmean(value for name, value in regrets if name == one) for one in names])
    return "" if low is None else f" [{low:.1f}, {high:.1f}]"


def _covers(over: dict[str, Any], real: float) -> bool:
    return over["low"] is not None and bool(over["low"] <= real <= over["high"])


def by_case(data: dict[str, Any]) -> str:
    """The settings, and every case."""
    lines = [
        "| setting | methods | best of the search | best on validation data | FedAvg | training alone "
        "| cost of the search, rounds | of the whole leaderboard |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, found in data["settings"].items():
        personal = {method: f"{value['mean']:.1f}" for method, value in found["personal"].items()}
        both = [found["best"], found["best_on_validation"]]
        named = ["–" if one is None else f"{one} {personal[one]}" for one in both]
        whole = found["cost_of_whole_board"]
        cells = [name, f"{found['methods']}", *named, *(personal.get(one, "–") for one in ("fedavg", "local-only"))]
        cells += [f"{found['cost_rounds']:,}", "–" if whole is None else f"{whole:,}"]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *_HEAD, *(line_of(one) for one in data["cases"])]
    return "\n".join(lines)


_HEAD = (
    "| version | setting | seed | advice | regret | best of the others | regret of the best guess "
    "| regret of FedAvg of the search | gain predicted | gain on test data | share of the leaderboard's cost |",
    "|---|---|---|---|---|---|---|---|---|---|---|",
)


def line_of(one: dict[str, Any]) -> str:
    """A row of the table: one case."""
    over = one["gain_over_fedavg"]
    cells = [
        f"{one['version']}",
        one["setting"],
        f"{one['seed']}",
        "stay with FedAvg" if one["stay"] else one["advice"],
        f"{one['regret']:+.1f}",
        one["best"] or "failed",
        "–" if one["regret_of_guess"] is None else f"{one['regret_of_guess']:+.1f}",
        f"{one['regret_of_fedavg']:+.1f}",
        f"{over['mean']:+.1f} [{over['low']:+.1f}, {over['high']:+.1f}]" if over else "failed",
        "–" if one["gain_on_test"] is None else f"{one['gain_on_test']:+.1f}",
        "–" if one["share_of_board"] is None else f"{100 * one['share_of_board']:.1f} %",
    ]
    return f"| {' | '.join(cells)} |"


def on_board(names: list[str], out: Path, root: str, rounds: int, seed: int, seconds: float) -> None:
    """Run the advice in settings of the leaderboard, whose published rows are the fuller search. A setting that fails
    does not end the others. No setting begins if less time is left than the longest one took."""
    plan = BoardPlan(definition.load(), roots=found_in(root.split(",")))
    began, longest = time.perf_counter(), 0.0
    for setting in names:
        start = time.perf_counter()
        if start - began + longest > seconds:
            print(f"{setting}: no time left", flush=True)
            continue
        try:
            found, one = in_setting(setting, plan, rounds, seed)
        except Exception as error:  # the others are still worth their time
            print(f"{setting}: {type(error).__name__}: {error}", flush=True)
            continue
        longest = max(longest, time.perf_counter() - start)
        path = out / f"board-{VERSION}-{setting}-{rounds}-seed{seed}.json"
        path.write_text(json.dumps({"found": found, "case": one}, indent=1))
        print("\n".join([*_HEAD, line_of(one)]), f"{time.perf_counter() - start:.0f} s", flush=True)


def found_in(folders: list[str]) -> dict[str, str]:
    """Source → its folder, for the sources that are in one of the folders."""
    found: dict[str, str] = {}
    for source, folder in itertools.product(("cifar10", "cifar100", "csv"), folders):
        with contextlib.suppress(RequestError):
            found.setdefault(source, find(source, Path(folder)))
    return found


def in_setting(setting: str, plan: BoardPlan, rounds: int, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rows of one setting of the leaderboard, and the advice against all of them."""
    config = plan.config(setting, presets(plan.board)[0], {}, f"run.seed={seed}")
    began = time.process_time()
    answer = advise(config, rounds=rounds)
    spent = time.process_time() - began
    there = [row for row in published.read()["board"] if row["setting"] == setting and row["personal"]]
    found = searched(there, config, config.data.clients - config.data.new_clients)
    found["cost_of_whole_board"] = found["cost_rounds"]  # these rows are the board, neighbours of the best rates too
    about = {"rounds": rounds, "seed": seed, "cpu_seconds": spent, "test": tested(answer, config), **answer.as_json()}
    return found, {"version": VERSION, "setting": setting} | summary(about, found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["search", "advise", "study"])
    parser.add_argument("setting", nargs="?", choices=[*SETTINGS, "board"])
    parser.add_argument("--settings", default=",".join(definition.load().settings), help="of the board: A,B")
    parser.add_argument("--out", type=Path, default=Path("runs/advise"))
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--rounds", type=int, default=700)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="of the search: one method")
    parser.add_argument("--seconds", type=float, default=3600.0, help="of the board")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    if asked.what == "study":
        study(asked.out, asked.data_root)
    elif asked.what == "search":
        search(asked.setting, asked.out, asked.data_root, asked.only)
    elif asked.setting == "board":
        on_board(asked.settings.split(","), asked.out, asked.data_root, asked.rounds, asked.seed, asked.seconds)
    else:
        ask(asked.setting, asked.out, asked.data_root, asked.rounds, asked.seed)


if __name__ == "__main__":
    main()
