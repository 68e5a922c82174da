"""Every published number is a run that can begin, or has a named reason why it cannot."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torso
from torso.config import Config
from torso.data.dirichlet import draw_large_enough, split
from torso.errors import RequestError
from torso.measure import measures
from torso.methods.starts import Finished, Fresh
from torso.nets import Network, build
from torso.papers.experiments.reuse import training_key
from torso.papers.pages.table import place
from torso.papers.tables.collect import blank
from torso.papers.tables.plan import lines_of, plan
from torso.papers.tables.published import PAPERS, names, recipe
from torso.papers.tables.settings import REASONS, Refusal, Wanted
from torso.personal import Personal
from torso.randomness import numpy_generator
from torso.runs.stages import stages

PUBLISHED = Path(__file__).parents[4] / "shared" / "spec" / "tables.jsonl"
ORDINARY = {"cifar10": 95}  # the partition of Fed-RoD's tables; 0 for other data
_SHAPES = {"cifar10": (10, (3, 32, 32)), "cifar100": (100, (3, 32, 32)), "fashion-mnist": (10, (1, 28, 28))}


@pytest.mark.skipif(not PUBLISHED.is_file(), reason=f"the published tables are not beside this checkout: {PUBLISHED}")
def test_the_packaged_numbers_are_the_published_ones() -> None:
    wanted: dict[str, list[dict[str, Any]]] = {}
    keys = {paper: key for key, paper in PAPERS.items()}
    for line in PUBLISHED.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        wanted.setdefault(f"{keys[record['paper']]}/{record['table'].lower()}", []).append({"note": "", **record})
    assert set(wanted) == set(names())
    for name, records in wanted.items():
        assert [vars(record) for record in recipe(name).numbers] == records, name


def test_every_number_is_a_run_or_has_a_reason() -> None:
    """Counted by hand from the tables: FedNCM needs ImageNet weights but for its random rows, and so on."""
    counted: Counter[str] = Counter()
    for name in names():
        for line in lines_of(recipe(name)):
            if line.variant:
                continue
            if isinstance(line.wanted, Refusal):
                assert line.wanted.reason in REASONS
                counted[line.wanted.reason] += 1
            else:
                assert line.wanted.measure in measures or line.wanted.measure.startswith("cost."), line
                counted["runs"] += 1
    assert counted == {
        "runs": 2779,
        "weights": 204,  # FedFN 3 and A5: 12 + 192
        "file": 46,  # FedNCM on CIFAR-10, 2, 3, 5 to 8: 23 + 9 + 2 + 4 + 4 + 4
        "data": 154,  # EMNIST: FedBABU 19, Fed-RoD 7 (24 + 45); FedNCM's other data, 2, 3, 5, 6, 8: 60 + 9 + 8 + 4 + 4
        "network": 64,  # FedFN A12: MobileNetV2
        "no result": 24,  # FedNCM 4: numbers of rounds
        "setup": 8,  # Fed-RoD 14: attacks
        "input": 3,  # FedNCM 2: CIFAR-10 at 224
    }


@cache
def _net(body: str, source: str, head: Any, init: str, bias: bool, norm: Any) -> Network:
    classes, image = _SHAPES[source]
    return build(body=body, classes=classes, input=image, head=head, head_init=init, head_bias=bias, norm=norm, seed=0)


@pytest.mark.parametrize("paper", list(PAPERS))
def test_every_run_can_begin(paper: str) -> None:
    begun: set[Any] = set()  # many runs differ in their clients alone
    for name in (name for name in names() if name.startswith(f"{paper}/")):
        for run in plan(recipe(name)).runs:
            config = run.config
            model = config.model
            net = _net(model.body, config.data.source, config.method.head, model.head_init, model.head_bias, model.norm)
            work = (config.method, config.train, config.personalize.part, net)
            if work not in begun:
                assert stages(config, net)[-1].last >= 1, run.name
                begun.add(work)
            assert config.measure.names
            asked = {answer.partition("@")[0] for answer in run.answers.values()}
            assert {a for a in asked if not a.startswith("cost.")} <= set(config.measure.names)
            if "new_before" in config.measure.names:
                assert config.data.new_clients == 50


def test_the_runs_of_a_table_have_names_of_their_own() -> None:
    for name in names():
        found = [run.name for run in plan(recipe(name), seeds=2).runs]
        assert len(set(found)) == len(found), name


def test_every_number_has_a_cell_of_its_own_in_the_papers_layout() -> None:
    for name in names():
        known = recipe(name)
        cells = Counter((place(known.rows, answer), place(known.columns, answer)) for answer in blank(name))
        assert max(cells.values()) == 1, (name, cells.most_common(1))


def _one(table: str, only: str) -> Config:
    (run,) = plan(recipe(table), only).runs
    return run.config


def test_fedbabu_is_run_as_its_paper_says() -> None:
    """Spec 2: SGD 0.1, momentum 0.9, no decay, batch 50, rate ×0.1 at half and three quarters; spec 9.2: 5 × 0.001."""
    config = _one("fedbabu/13", "method=fedbabu,shards=5,fraction=0.1,local_epochs=10")
    train, data, tuned = config.train, config.data, config.personalize
    assert (train.rounds, train.local_epochs, train.fraction, train.batch_size) == (32, 10, 0.1, 50)
    assert (train.lr, train.momentum, train.weight_decay, train.schedule) == (0.1, 0.9, 0.0, "step-half-3q")
    assert (data.source, data.partition, data.shards, data.clients, data.augment) == (
        "cifar10",
        "shards",
        5,
        100,
        "auto",
    )
    assert (tuned.epochs, tuned.lr, config.measure.names) == (5, 0.001, ("personalized",))
    assert config.model.body == "conv4"
    assert _one("fedbabu/13", "method=fedrep,shards=5,fraction=0.1,local_epochs=10").train.momentum == 0.5  # spec 4.4
    alone = _one("fedbabu/13", "method=local-only,shards=5,variant=none")
    assert alone.train.rounds * alone.train.local_epochs == 160  # spec 5.1
    assert (alone.train.batch_size, alone.train.fraction, alone.measure.names) == (10, 1.0, ("initial",))


def test_fed_rod_is_run_as_its_paper_says() -> None:
    """Spec 2: SGD 0.01 × 0.99 a round, momentum 0.9, decay 1e-5, batch 40; spec 6.3: 32 hidden units on CIFAR-10."""
    config = _one("fedrod/8", "method=fedrod-hyper,alpha=0.1,variant=none")
    train = config.train
    assert (train.lr, train.momentum, train.weight_decay, train.batch_size) == (0.01, 0.9, 1e-5, 40)
    assert (train.schedule, train.decay, train.rounds, train.local_epochs, train.fraction) == ("exp", 0.99, 100, 5, 0.4)
    assert (config.data.partition, config.data.alpha, config.data.augment) == ("dirichlet-floor", 0.1, "crop-flip-2")
    assert (config.model.body, config.model.head_bias, config.method.head.hidden) == ("rod-cifar", False, 32)
    assert set(config.measure.names) == {"generic", "generic_as_personal", "personal"}
    assert _one("fedrod/7", "method=fedrod-hyper,alpha=0.1,dataset=FMNIST,variant=none").method.head.hidden == 16
    assert (
        _one("fedrod/4", "method=fedavg,dataset=FMNIST,variant=none").train.fraction == 0.4
    )  # 20 of the 50 that train
    for name in ("SCAFFOLD", "Fed-RoD (hyper)+SCAFFOLD"):  # what it would be without diverges with this momentum
        drift = _one("fedrod/12" if "+" in name else "fedrod/8", f"method={name},alpha=0.3,variant=none").method.drift
        assert drift.divisor == "momentum"  # type: ignore[attr-defined]
    inner = _one("fedrod/8", "method=pfedme,alpha=0.1,variant=none").method.step
    assert inner.inner_lr == 0.01  # type: ignore[attr-defined]
    outer = _one("fedrod/8", "method=per-fedavg,alpha=0.1,variant=none").method.step
    assert outer.with_momentum  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("method", "original", "rounds"),
    [("scaffold", "method.drift.divisor=steps", 4), ("pfedme", "method.step.inner_lr=0.09", 1)],
)
def test_what_diverges_as_its_own_paper_has_it_trains_in_fed_rods_tables(
    method: str, original: str, rounds: int
) -> None:
    """Without BatchNorm and with momentum 0.9, on a few synthetic images of CIFAR's size."""
    few = ("data.source=synthetic", "data.synthetic.size=32", "data.synthetic.channels=3")
    short = (
        "data.synthetic.samples=160",
        "data.synthetic.test_samples=20",
        "data.clients=2",
        "data.partition=dirichlet-class",
        "data.min_size=20",
        "train.fraction=1.0",
        f"train.rounds={rounds}",
        'measure.names=["generic"]',
    )
    config = _one("fedrod/8", f"method={method},alpha=0.3,variant=none").but(*few, *short, "personalize.epochs=1")
    assert torso.run(config).ok
    assert "non-finite" in torso.run(config.but(original)).status


def test_fedfn_is_run_as_its_paper_says() -> None:
    """Spec 2 and 8: its own rate for each method, SCAFFOLD counts the steps that momentum adds. Crops, as its base
    codes have them; the flips alone that the paper names are the second line (spec 10.6)."""
    config = _one("fedfn/2", "method=FedAvg+FN,shards=2,variant=none")
    assert (config.train.lr, config.train.rounds, config.train.local_epochs) == (0.03, 320, 15)
    assert (config.data.augment, config.measure.names, config.method.name) == ("crop-flip", ("generic",), "fedfn")
    assert _one("fedfn/2", "method=FedAvg+FN,shards=2,variant=mirrored-only") == config.but("data.augment=flip")
    scaffold = _one("fedfn/2", "method=SCAFFOLD,shards=2,variant=none").method.drift
    assert scaffold.divisor == "momentum"  # type: ignore[attr-defined]
    uneven = _one("fedfn/a8", "method=FedAvg,alpha=0.1,dataset=CIFAR10,variant=none")
    assert (uneven.data.partition, uneven.data.balance, uneven.data.min_size) == ("dirichlet-class", True, 10)
    assert {run.config.train.lr for run in plan(recipe("fedfn/a2")).runs} == {0.01, 0.03, 0.05, 0.1}


def test_tables_that_fedfn_made_with_other_code_are_run_with_its_habits() -> None:
    """Tables 2 and A8 were made with FedNTD's code, the rest with FedBABU's (paper, appendix B; spec 2, 10.6)."""
    for name, decay, normalize in (("2", 1e-5, "statistics"), ("a8", 1e-5, "statistics"), ("a13", 0.0, "source")):
        found = {(r.config.train.weight_decay, r.config.data.normalize) for r in plan(recipe(f"fedfn/{name}")).runs}
        assert found == {(decay, normalize)}, name


def test_clients_of_a_central_model_fine_tune_in_the_batches_of_clients() -> None:
    """Spec 9.2: B = 50, ten updates an epoch, although the central model was trained in batches of 128 (spec 4.1)."""
    for run in plan(recipe("fedbabu/9")).runs:
        assert (run.config.train.batch_size, run.config.personalize.batch_size) == (128, 50)


def test_fed_rods_baselines_are_measured_as_its_paper_says() -> None:
    alone = _one("fedrod/8", "method=local-only,alpha=0.1,variant=none")
    assert alone.method.personal == Personal()  # spec 5.1: rounds × epochs, and no further visit
    assert alone.train.rounds * alone.train.local_epochs == 500
    meta = _one("fedrod/8", "method=per-fedavg,alpha=0.1,variant=none").method.personal
    assert (meta.rate, meta.factor) == ("last", 1.0)  # not the 0.001 of FedBABU's notebook
    lg = plan(recipe("fedrod/8"), "method=lg-fedavg,alpha=0.1").runs
    assert {type(run.config.method.start) for run in lg} == {Finished, Fresh}


def test_the_line_of_cross_entropy_is_fedavg() -> None:
    """Fed-RoD's table 3 prints FedAvg's numbers of table 2 in it."""
    made = plan(recipe("fedrod/3"), "balanced_loss=CE")
    names_of = {made.lines[i].variant: run.config.method.name for run in made.runs for i in run.answers}
    assert names_of == {"": "fedavg", "plain draw": "fedavg", "plain draw, two heads": "fedrod-hyper-ce"}
    printed = {r.metric: r.mean for r in recipe("fedrod/2").numbers if r.algorithm == "FedAvg"}
    assert {
        line.published.metric: line.published.mean for line in made.lines if "CE" in line.published.algorithm
    } == printed
    (caveat,) = (text for text in recipe("fedrod/3").caveats if "LDAM" in text)
    ldam, cdt = (_one("fedrod/3", f"balanced_loss={loss},variant=none").method.objective for loss in ("LDAM", "CDT"))
    assert f"{ldam.gamma} and {cdt.gamma} (" in caveat  # type: ignore[attr-defined]


def test_every_number_without_the_head_has_a_line_with_the_distance_of_the_code() -> None:
    for name, count in (("fedbabu/3", 36), ("fedbabu/12", 36), ("fedbabu/23", 12)):
        lines = [line for line in lines_of(recipe(name)) if line.variant]
        assert len(lines) == count, name
        assert all("measure.templates=l2" in line.wanted.sets for line in lines if isinstance(line.wanted, Wanted))


def test_one_run_answers_several_numbers() -> None:
    made = plan(recipe("fedbabu/6"), "shards=10,method=fedavg")
    (run,) = made.runs
    assert (run.config.personalize.epochs, run.config.personalize.sweep) == (5, (1, 2, 3, 4, 10, 15, 20))
    names_of = {made.lines[i].published.setting["finetune_epochs"]: name for i, name in run.answers.items()}
    assert names_of == {
        0: "initial",
        5: "personalized",
        **{epochs: f"personalized@{epochs}" for epochs in (1, 2, 3, 4, 10, 15, 20)},
    }


def test_a_number_from_a_mistake_has_a_second_line_where_the_mistake_can_be_switched_on() -> None:
    lines = lines_of(recipe("fedbabu/13"))
    assert {line.published.algorithm for line in lines if line.variant} == {"FedPer", "LG-FedAvg", "Local-only"}
    again = [line for line in lines if line.variant == "as the paper's code"]
    assert len(again) == 18
    wanted = again[0].wanted
    assert isinstance(wanted, Wanted)
    assert "method.name=fedper-reset" in wanted.sets
    runs = {run.config.method.name for run in plan(recipe("fedbabu/13"), "method=fedper").runs}
    assert runs == {"fedper", "fedper-reset"}
    assert len(plan(recipe("fedbabu/13"), "variant=none").runs) == 129
    assert len(plan(recipe("fedbabu/13"), "variant=paper-bug,method=fedper").runs) == 18


def test_a_second_line_may_be_another_measure_of_the_same_run_or_of_some_metrics_only() -> None:
    made = plan(recipe("fedbabu/13"), "method=lg-fedavg,shards=2,fraction=0.1,local_epochs=4")
    (run,) = made.runs
    answers = {made.lines[place].variant: measure for place, measure in run.answers.items()}
    assert answers == {"": "personalized", "before fine-tuning": "initial"}
    lines = [line for line in lines_of(recipe("fedbabu/12")) if line.variant]
    assert {line.published.metric for line in lines} == {"initial_without_head"}
    assert len(lines) == 36


def test_a_number_may_have_several_second_lines_and_one_of_them_may_be_asked_for() -> None:
    made = plan(recipe("fedrod/8"), "method=fedrod-hyper,alpha=0.1,metric=P-FL (PM)")
    assert [made.lines[place].variant for place in sorted(made.chosen)] == [
        "",
        "plain draw",
        "plain draw, the server's model with the client's head",
        "clients of equal size",
    ]
    evened = plan(recipe("fedrod/8"), "variant=clients-of-equal-size").runs
    assert {run.config.method.name for run in evened} == {"fedavg", "fedper", "fedrod-linear", "fedrod-hyper"}
    assert {(run.config.data.balance, run.config.data.min_size) for run in evened} == {(True, 10)}
    assert all(run.config.method.personal.mode == "local" for run in evened)


def test_lines_that_try_something_out_are_run_where_they_are_asked_for() -> None:
    """Nine configs that differ from the recipe in one setting each, of which five need no training of their own."""
    part = "alpha=0.3,method=fedavg|fedrod-linear|fedrod-hyper"
    made = plan(recipe("fedrod/8"), f"{part},variant=none|tried")
    assert len(made.runs) == 3 + 2 * 8 + 1
    assert len({training_key(run.config) for run in made.runs}) == 3 + 2 * 4
    assert not any(run.config.measure.among == "last-round" for run in plan(recipe("fedrod/8"), part, tried=False).runs)
    (one,) = plan(recipe("fedrod/8"), "variant=the-server's-generic-head,method=fedrod-hyper").runs
    assert one.config.method.personal.mode == "global-head"
    assert "tried" in one.name
    for line in recipe("fedrod/8").tried:
        (other,) = plan(
            recipe("fedrod/8"), f"{part},method=fedrod-linear,variant={line.name[7:].replace(' ', '-')}"
        ).runs
        (usual,) = plan(recipe("fedrod/8"), f"{part},method=fedrod-linear,variant=none").runs
        assert other.config == usual.config.but(*line.sets, f"measure.names={json.dumps(other.config.measure.names)}")


def test_fashion_mnist_has_a_second_line_with_dropout() -> None:
    for table in ("4", "7", "13", "16"):
        runs = plan(recipe(f"fedrod/{table}"), "variant=with-dropout").runs
        assert {(r.config.data.source, r.config.model.body) for r in runs} == {("fashion-mnist", "rod-mnist-dropout")}
        assert {r.config.data.partition for r in runs} == {"dirichlet-floor"}


def test_the_draw_of_cifar10_is_an_ordinary_one() -> None:
    """Of the first hundred, the one whose clients' mean label entropy is nearest to the average in four settings."""
    far = np.zeros(100)
    for clients, alpha in ((20, 0.1), (20, 0.3), (100, 0.1), (100, 0.3)):
        options = Config().but("data.balance=true", "data.min_size=10", f"data.alpha={alpha}").data
        rest = np.full(10, 5000 - 2 * clients)
        entropies = np.empty(100)
        for seed in range(100):
            rng = numpy_generator(seed, "partition", "dirichlet-floor")
            counts = split(draw_large_enough(options, rest, clients, rng, full=50_000 / clients), rest) + 2
            share = counts / counts.sum(0)
            entropies[seed] = -(share * np.log(share)).sum(0).mean()
        far = np.maximum(far, np.abs(entropies - entropies.mean()) / entropies.std())
    assert far.argmin() == ORDINARY["cifar10"]
    assert far[ORDINARY["cifar10"]] < 0.25
    assert far[0] > 2.3  # the draw that the recipe had before: the most skewed of all at α = 0.3


def test_fed_rods_clients_are_those_of_the_authors_code_and_a_plain_draw_in_the_second_line() -> None:
    """Floor of two images a class, equal sizes, ten drawn images at least, one partition for all seeds (spec 10.3)."""
    for name in ("1", "4", "7", "8", "9", "11", "13", "15", "16"):
        runs = plan(recipe(f"fedrod/{name}"), "variant=none", seeds=2).runs
        dealt = {(r.config.data.partition, r.config.data.floor, r.config.data.balance) for r in runs}
        assert dealt == {("dirichlet-floor", 2, True)}, name
        assert {r.config.data.min_size for r in runs} == {10}, name
        assert all(r.config.data.seed == ORDINARY.get(r.config.data.source, 0) for r in runs), name
        plain = plan(recipe(f"fedrod/{name}"), "variant=plain-draw", seeds=2).runs
        assert 2 * len(plain) >= len(runs), name
        assert {(r.config.data.partition, r.config.data.balance, r.config.data.seed) for r in plain} == {
            ("dirichlet-class", False, -1)
        }, name


@pytest.mark.parametrize("table", ["fedbabu/5", "fedbabu/13"])
def test_local_only_has_a_line_with_each_clients_best_epoch_of_the_same_training(table: str) -> None:
    """Spec 5.1. In a run of its own, so that the fair line costs and is what it was without it."""
    fair, best = plan(recipe(table), "method=local-only,shards=10").runs  # in the order in which they train
    assert (fair.config.measure.names, best.config.measure.names) == (("initial",), ("local_only_best_on_test",))
    assert training_key(fair.config) == training_key(best.config)
    assert (fair.name, best.name) == ("local-only-s10-seed0", "local-only-paper-bug-s10-seed0")
    assert plan(recipe(table), "method=local-only,shards=10,variant=none").runs == (fair,)


def test_what_is_best_on_test_data_answers_nothing_but_second_lines() -> None:
    asked = {
        (bool(line.variant), line.published.algorithm)
        for name in names()
        for line in lines_of(recipe(name))
        if isinstance(line.wanted, Wanted) and "on_test" in line.wanted.measure
    }
    assert asked == {(True, "Local-only")}


def test_a_part_of_a_table_has_the_configs_and_names_of_the_whole() -> None:
    whole = {run.name: run.config for run in plan(recipe("fedbabu/12")).runs}
    part = plan(recipe("fedbabu/12"), "shards=2|5,metric=initial_with_head").runs
    assert len(part) == 24  # not the variants, which are of the other metric
    assert all(whole[run.name] == run.config for run in part)


def test_runs_that_train_alike_stand_next_to_each_other() -> None:
    runs = plan(recipe("fedbabu/13"), seeds=2).runs
    alike = [(r.config.method.name, r.config.train.local_epochs, r.config.train.rounds) for r in runs]
    changes = sum(a != b for a, b in pairwise(alike))
    assert changes == len(set(alike)) - 1


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("fedbabu/8", "table 'fedbabu/8' is unknown"),
        ("fedbabu/99", "fedbabu/ has 1, 2, 3"),
        ("fedbub/1", "did you mean 'fedbabu/1'"),
        ("nothing", "papers: fedbabu, fedrod, fedncm, fedfn"),
    ],
)
def test_an_unknown_table_is_refused_with_what_there_is(table: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        recipe(table)


@pytest.mark.parametrize(
    ("only", "said"),
    [
        ("shards=3", "Values of shards in fedbabu/13: 10, 5, 2"),
        ("shard=2", "has no key 'shard'. Its keys: clients"),
        ("shards=2,method=fedfn", "no record is left at 'method=fedfn'"),
        ("fast", "--only 'fast' is not KEY=VALUE. Keys of"),
    ],
)
def test_a_filter_that_matches_nothing_is_refused_with_what_would(only: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        plan(recipe("fedbabu/13"), only)


def test_fedncm_is_run_with_a_file_of_weights_where_its_data_are_here() -> None:
    """Spec 7: SqueezeNet 1.1 at 224 pixels; random rows are not meant. Without the file they have a reason."""
    for table, runs in (("2", 8), ("3", 9), ("5", 2), ("6", 4), ("7", 4)):
        made = plan(recipe(f"fedncm/{table}"), sets=("model.weights=PATH",))
        assert len(made.runs) == runs
        models = {(r.config.model.body, r.config.model.weights, r.config.method.name == "random") for r in made.runs}
        assert models == {("squeezenet", "PATH", False)}
        assert {r.config.data.size for r in made.runs} <= {0, 224}
        assert not any(r.config.model.weights for r in plan(recipe(f"fedncm/{table}")).runs)
    few = plan(recipe("fedncm/7"), sets=("model.weights=PATH",)).runs[0].config
    assert (few.data.per_class, few.data.clients, few.train.fraction) == (9, 5, 1.0)


def test_the_page_counts_the_tables_that_can_be_run() -> None:
    every = [plan(recipe(name)) for name in names()]
    page = (Path(__file__).parents[3] / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert f"numbers of {len(every)} tables of four papers" in page
    assert f"{sum(bool(made.runs) for made in every)} of them can be run" in page
