"""How good is the advice of `torso advise`, and at which cost?

    python bench/advise.py search SETTING --data-root DIR           the fuller search: methods × rates, then three seeds
    python bench/advise.py advise SETTING --rounds N --seed S       the advice, and what it reaches on test data
    python bench/advise.py study                                    both for all settings → docs/advise/study.json

Settings are in advise.toml: those of [design] were looked at when rules were chosen, those of [judged] were not. The
fuller search is `torso leaderboard` in these settings, with a part of its methods; rates are chosen by personal
accuracy on validation data, and three runs at the best rates are measured on test data. The advice is run at the same
seeds with all training samples and all rounds, and measured on the same test data. Regret: the personal accuracy of the
best method of the fuller search minus that of the advice. Cost: samples that were trained on, in rounds of FedAvg; that
of the whole leaderboard counts all of its methods with the first points of its grid, and is not run.

On an accelerator `cifar` in place of SETTING runs the advice in the four settings of the leaderboard, whose own numbers
(docs/leaderboard.json) are the fuller search. `--seconds` ends it between two settings; `--data-root A,B` where the
two data sets are in two folders.
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
from torso.advise.arms import Stable
from torso.config import Config
from torso.errors import RequestError
from torso.papers.board import definition, rows, runs, trials
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
BEGIN, END = "<!-- generated: advise -->", "<!-- end -->"
SEEDS = 3
STUDY = tomllib.loads((HERE / "advise.toml").read_text("utf-8"))
SETTINGS: dict[str, list[str]] = {**STUDY["design"], **STUDY["judged"], **STUDY["fresh"]}


def sets_of(setting: str, root: str, out: Path) -> list[str]:
    made = made_in(out / "made") if setting.startswith("cancer") else ""
    said = (*STUDY["common"]["sets"], *SETTINGS[setting])
    return [text.replace("{root}", root).replace("{made}", made) for text in said]


def made_in(folder: Path) -> str:
    """scikit-learn's breast-cancer table as files: twelve clients, by the mean radius, texture or smoothness of the nuclei."""
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


def search(setting: str, out: Path, root: str) -> None:
    # `torso advise` advises on personal models, so the fuller search chooses rates by these alone
    for module in (runs, trials):
        vars(module)["CHOOSES"] = ("personalized",)
    vars(rows)["MEASURED"] = {name: rows.MEASURED[name] for name in ("generic", "personal")}
    board = board_of(setting, root, out)
    plan = BoardPlan(board)
    added = [BoardMethod(name, tuple(sets)) for name, sets in STUDY["search"]["entries"].items()]
    contestants = [Contestant(plan, setting, entry) for entry in (*presets(board), *added)]
    place = BoardRuns(out / setting)
    began, cpu = time.perf_counter(), time.process_time()
    found = run_leaderboard(contestants, place, SEEDS)
    spent: dict[str, Any] = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu}
    (out / f"search-{setting}.json").write_text(json.dumps({"setting": setting, **spent, "rows": found}, indent=1))


def cost_of(rows_: list[dict[str, Any]], config: Config, clients: int) -> float:
    """The fuller search in rounds of FedAvg: as `torso advise` counts its own."""
    stable = Stable(config, Stop(), training=np.arange(clients))
    total, train = 0.0, config.train
    tuning = clients * config.personalize.epochs / (stable.participants * train.local_epochs)
    for row in rows_:
        trainings = len({point["train.lr"] for point in row["tried"]}) + len(row["seeds"])
        measurements = len(row["tried"]) + len(row["seeds"])
        ours, fedavg = (with_clients(config.but(*sets), clients) for sets in (row["sets"], ["method.name=fedavg"]))
        total += trainings * train.rounds * trained_on(ours) / trained_on(fedavg) + measurements * tuning
    return total


def cost_of_board(config: Config, clients: int) -> float:
    """All methods of the leaderboard in this setting, without the neighbours of their best rates: at least so much."""
    board = definition.load()
    plan = BoardPlan(board.model_copy(update={"settings": {"here": ()}}))
    grid = [
        {"sets": entry.sets, "tried": plan.points("here", entry), "seeds": range(SEEDS)} for entry in presets(board)
    ]
    return cost_of(grid, config, clients)


def with_clients(config: Config, clients: int) -> Config:
    return config.model_copy(update={"data": config.data.model_copy(update={"clients": clients})})


def ask(setting: str, out: Path, root: str, rounds: int, seed: int) -> None:
    """The advice at one seed, and what it and its challenger reach on test data at the seeds of the fuller search."""
    config = Config.load(None, [*sets_of(setting, root, out), f"run.seed={seed}"])
    began = time.process_time()
    answer = advise(config, rounds=rounds)
    spent = time.process_time() - began
    found = answer.as_json()
    reached = tested(answer, config)
    data = {"setting": setting, "seed": seed, "rounds": rounds, "cpu_seconds": spent, "test": reached, **found}
    (out / f"advice-{setting}-{rounds}-seed{seed}.json").write_text(json.dumps(data, indent=1))


def tested(answer: Answer, config: Config) -> dict[str, dict[str, float]]:
    """What the advice reaches on test data, and what is compared with it: FedAvg, or the challenger."""
    reached = {"advice": on_test(answer.config)}
    other = answer.challenger if answer.stay else answer.course.fedavg
    if other is not None:
        reached["challenger" if answer.stay else "fedavg"] = on_test(config_for(config, other))
    return reached


def on_test(config: Config) -> dict[str, float]:
    """Personal accuracy on test data, by seed."""
    asked = config.but('measure.names=["personalized"]')
    ends = run_together([asked.but(f"run.seed={seed}") for seed in range(SEEDS)], [None] * SEEDS)
    return {
        str(seed): end.accuracy["personalized"].mean if isinstance(end, Result) and end.ok else 0.0
        for seed, end in sorted(ends, key=lambda pair: pair[0])
    }


def searched(setting: str, out: Path) -> dict[str, Any] | None:
    """What the fuller search has found; of one that was stopped, the methods that are finished."""
    path, part = out / f"search-{setting}.json", out / setting / "leaderboard" / "board.json"
    if path.is_file():
        return {"rows": json.loads(path.read_text("utf-8"))["rows"], "complete": True}
    if not part.is_file():
        return None
    done = [row for row in json.loads(part.read_text("utf-8")) if len(row["seeds"]) == SEEDS]
    return {"rows": done, "complete": False} if done else None


def study(out: Path, root: str) -> None:
    """docs/advise/study.json, and the table of docs/advise.md, from what search and advise have left in `out`."""
    settings = {}
    for setting in SETTINGS:
        full = searched(setting, out)
        advice = [json.loads(one.read_text("utf-8")) for one in sorted(out.glob(f"advice-{setting}-*.json"))]
        if full is None or not advice:
            continue
        config = Config.load(None, sets_of(setting, root, out))
        clients = data_of(config).clients
        personal = {row["method"]: row["personal"] for row in full["rows"] if row["personal"]}
        ok = {row["method"] for row in full["rows"] if row["status"] == "ok"}
        best = max(ok, key=lambda name: personal[name]["mean"])
        costs = cost_of(full["rows"], config, clients), cost_of_board(config, clients)
        settings[setting] = {
            "judged": setting in STUDY["judged"],
            "search": {
                "methods": len(full["rows"]),
                "complete": full["complete"],
                "cost_rounds": round(costs[0]),
                "cost_of_whole_board": round(costs[1]),
                "best": best,
                "personal": personal,
                "chosen": {row["method"]: row["chosen"] for row in full["rows"]},
            },
            "advice": [summary(one, personal, best, costs) for one in advice],
        }
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    data = {"machine": f"{os.cpu_count()} CPU cores", "versions": versions, "settings": settings}
    DOCS.parent.mkdir(exist_ok=True)
    DOCS.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(filled(PAGE.read_text("utf-8"), data), "utf-8")


def filled(page: str, data: dict[str, Any]) -> str:
    """The page with its tables made from the study."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables(data)}\n{END}{after}"


def tables(data: dict[str, Any]) -> str:
    lines = [
        "| setting | methods searched | best of the search | FedAvg | training alone | cost of the search, rounds "
        "| of the whole leaderboard |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, found in data["settings"].items():
        full = found["search"]
        reached = {method: f"{value['mean']:.1f}" for method, value in full["personal"].items()}
        best = f"{full['best']} {reached[full['best']]}"
        methods = f"{full['methods']}{'' if full['complete'] else ' (stopped)'}"
        lines.append(
            f"| {name} | {methods} | {best} | {reached['fedavg']} | {reached.get('local-only', '–')} | "
            f"{full['cost_rounds']:,} | {full['cost_of_whole_board']:,} |"
        )
    cases = [(version_of(found), name, one) for name, found in data["settings"].items() for one in found["advice"]]
    cases = sorted([*first_version(), *cases], key=lambda case: case[0])
    lines += ["", *_HEAD, *(line_of(*case) for case in cases), ""]
    for version in sorted({case[0] for case in cases}):
        lines += summed(version, [(name, one) for number, name, one in cases if number == version])
    return "\n".join(lines)


def version_of(found: dict[str, Any]) -> int:
    """Which version of the rules was judged there: settings of [design] were unseen by the second one."""
    return 3 if found["judged"] else 2


def first_version() -> list[tuple[int, str, dict[str, Any]]]:
    """The cases of the first version, as they were kept."""
    kept = json.loads(DOCS.with_name("first.json").read_text("utf-8"))["settings"]
    cases = []
    for name, found in kept.items():
        for one in found["advice"]:
            reached = {who: fmean(by_seed.values()) for who, by_seed in one["test"].items()}
            real = round(reached["challenger"] - reached["advice"], 4) if "challenger" in reached else None
            shares = {"share_of_search": one["share_of_cost"], "share_of_board": None, "gain_on_test": real}
            cases.append((1, name, {**one, **shares}))
    return cases


_HEAD = (
    "| version | setting | seed | advice | personal accuracy | regret | regret of FedAvg of the search "
    "| gain predicted | gain on test data | share of the search's cost | of the whole leaderboard's |",
    "|---|---|---|---|---|---|---|---|---|---|---|",
)


def line_of(version: int, name: str, one: dict[str, Any]) -> str:
    """A row of the table: one case."""
    over, real = one["gain_over_fedavg"], one["gain_on_test"]
    interval = f"{over['mean']:+.1f} [{over['low']:+.1f}, {over['high']:+.1f}]" if over else "failed"
    advice = "stay with FedAvg" if one["stay"] else one["advice"]
    predicted = f"{one['challenger']}: {interval}" if one["stay"] else interval
    shares = (one[key] for key in ("share_of_search", "share_of_board"))
    cells = [
        f"{version}",
        name,
        f"{one['seed']}",
        advice,
        f"{one['personal']:.1f}",
        f"{one['regret']:+.1f}",
        f"{one['regret_of_fedavg']:+.1f}",
        predicted,
        "–" if real is None else f"{real:+.1f}",
        *("–" if share is None else f"{100 * share:.1f} %" for share in shares),
    ]
    return f"| {' | '.join(cells)} |"


def summed(version: int, cases: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """Mean and largest regret, with Student's interval over settings, and how many intervals cover."""
    regrets, fedavg = ([one[key] for _, one in cases] for key in ("regret", "regret_of_fedavg"))
    by_setting = [fmean(one["regret"] for name, one in cases if name == setting) for setting in dict(cases)]
    _, low, high = student_interval(by_setting)
    said = f" (95 % interval over the {len(by_setting)} settings: {low:+.1f} to {high:+.1f})" if low is not None else ""
    known = [one for _, one in cases if one["gain_on_test"] is not None and one["gain_over_fedavg"]]
    inside = [one for one in known if _covers(one["gain_over_fedavg"], one["gain_on_test"])]
    small = sum(regret <= 1 for regret in regrets)
    return [
        f"- Version {version}, n = {len(cases)}: mean regret {fmean(regrets):.2f} points{said}, largest "
        f"{max(regrets):.2f}; at most 1 point in {small} of {len(cases)}. FedAvg of the search: {fmean(fedavg):.2f}. "
        f"The gain on test data is inside of its interval in {len(inside)} of {len(known)}.",
    ]


def _covers(over: dict[str, Any], real: float) -> bool:
    return over["low"] is not None and bool(over["low"] <= real <= over["high"])


def summary(one: dict[str, Any], personal: dict[str, Any], best: str, costs: tuple[float, float]) -> dict[str, Any]:
    reached = {name: fmean(by_seed.values()) for name, by_seed in one["test"].items()}
    kept = ("rounds", "seed", "advice", "stay", "rates", "challenger", "gain_over_fedavg", "gain_over_alone")
    named = reached.get("challenger") if one["stay"] else reached["advice"]
    fedavg = reached["advice"] if one["stay"] else reached.get("fedavg")
    real = None if named is None or fedavg is None else round(named - fedavg, 4)
    return {
        **{name: one[name] for name in kept},
        "judged_rounds": one["judged"]["rounds"],
        "judged_seeds": len(one["judged"]["seeds"]),
        "test": one["test"],
        "personal": round(reached["advice"], 4),
        "regret": round(personal[best]["mean"] - reached["advice"], 4),
        "regret_of_fedavg": round(personal[best]["mean"] - personal["fedavg"]["mean"], 4),
        "gain_on_test": real,
        "cost_rounds": round(one["cost"]["rounds"]),
        "share_of_search": round(one["cost"]["rounds"] / costs[0], 4),
        "share_of_board": round(one["cost"]["rounds"] / costs[1], 4),
        "cpu_seconds": round(one["cpu_seconds"], 1),
    }


def cifar(out: Path, root: str, rounds: int, seed: int, seconds: float) -> None:
    """The advice in the four settings of the leaderboard; needs an accelerator. A setting that fails does not end the
    others, and none begins where less time is left than the longest one took."""
    board = definition.load()
    plan = BoardPlan(board, roots=found_in(root.split(",")))
    began, longest = time.perf_counter(), 0.0
    for setting in board.settings:
        start = time.perf_counter()
        if start - began + longest > seconds:
            print(f"{setting}: no time left", flush=True)
            continue
        try:
            one = in_cifar(setting, plan, rounds, seed)
        except Exception as error:  # the others are still worth their time
            print(f"{setting}: {type(error).__name__}: {error}", flush=True)
            continue
        longest = max(longest, time.perf_counter() - start)
        (out / f"cifar-{setting}-{rounds}-seed{seed}.json").write_text(json.dumps(one, indent=1))
        print("\n".join([*_HEAD, line_of(3, setting, one)]), f"{time.perf_counter() - start:.0f} s", flush=True)


def found_in(folders: list[str]) -> dict[str, str]:
    """Source → where it is, of those that are in one of the folders."""
    found: dict[str, str] = {}
    for source, folder in itertools.product(("cifar10", "cifar100"), folders):
        with contextlib.suppress(RequestError):
            found.setdefault(source, find(source, Path(folder)))
    return found


def in_cifar(setting: str, plan: BoardPlan, rounds: int, seed: int) -> dict[str, Any]:
    """The advice in one setting of the leaderboard, against all of its rows."""
    config = plan.config(setting, presets(plan.board)[0], {}, f"run.seed={seed}")
    answer = advise(config, rounds=rounds)
    every = json.loads((HERE.parent / "docs" / "leaderboard.json").read_text("utf-8"))["board"]
    there = [row for row in every if row["setting"] == setting and row["personal"] and row["status"] == "ok"]
    personal = {row["method"]: row["personal"] for row in there}
    best = max(personal, key=lambda name: personal[name]["mean"])
    cost = cost_of(there, config, config.data.clients - config.data.new_clients)
    test = tested(answer, config)
    found = {"rounds": rounds, "seed": seed, "cpu_seconds": 0.0, "test": test, **answer.as_json()}
    whole = {"tournament": found["tournament"], "judged": found["judged"]}
    return {"setting": setting, "best": best, **summary(found, personal, best, (cost, cost)), **whole}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["search", "advise", "study"])
    parser.add_argument("setting", nargs="?", choices=[*SETTINGS, "cifar"])
    parser.add_argument("--out", type=Path, default=Path("runs/advise"))
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3600.0, help="of cifar")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    if asked.what == "study":
        study(asked.out, asked.data_root)
    elif asked.what == "search":
        search(asked.setting, asked.out, asked.data_root)
    elif asked.setting == "cifar":
        cifar(asked.out, asked.data_root, asked.rounds, asked.seed, asked.seconds)
    else:
        ask(asked.setting, asked.out, asked.data_root, asked.rounds, asked.seed)


if __name__ == "__main__":
    main()
