"""Analyses of spec 13 by hand: on three clients and four classes (test_accuracy.py), and on methods/tiny.py."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.methods import tiny
from tests.runs import samples
from torch import Tensor

from torso import Config, RequestError, Result, run
from torso.data import Federation
from torso.data.sources.cifar import CIFAR100
from torso.engine import Batched, OneByOne, Workspace
from torso.measure.analyses import analyse_end, analyses, class_counts, taking
from torso.measure.analyses.models import class_sums, factors
from torso.measure.analyses.similarity import mean_cosine
from torso.measure.evaluate import own_models
from torso.personal.state import State
from torso.personal.store import ClientState
from torso.runs.analyses import snapshot_of, watch_round
from torso.runs.evaluation import evaluation_of
from torso.runs.job import Simulation, simulate
from torso.runs.rounds import play_round
from torso.runs.run import Stopped

from .test_accuracy import three
from .test_mixes import SWAPPED

OF_ROUNDS = ["norms", "class_curves", "drift_variance", "regularization"]


def job_of(names: Sequence[str], method: str = "fedavg", **train: Any) -> Simulation:
    """Three clients whose rates are too small to change a bit, unless told."""
    settings = {"rounds": 2, "local_epochs": 2, "fraction": 1.0, "lr": 1e-30, "schedule": "const", **train}
    return simulate(
        Config(
            method=method,
            model={"body": "scale", "head_init": "eye", "head_bias": False},
            train=settings,
            personalize={"epochs": 0},
            measure={"analyses": list(names), "batch_size": 4},
        ),
        three(),
    )


def watched(job: Simulation, at_once: int = 1) -> tuple[dict[str, Any], State]:
    """The entries of the first round."""
    state = State.begin(job.model)
    make = Batched if at_once > 1 else OneByOne
    with make(job.net, job.federation, at_once=at_once) as engine:
        after, played = play_round(job.stage(1), state, job.roster, engine, seed=0)
        return watch_round(job, engine, state, after, played), after


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_norms_by_hand(at_once: int) -> None:
    """Head rows have lengths 1, 1, 0, 0. The clients have classes 0, 2 | 1, 3 | 0."""
    found = watched(job_of(["norms"]), at_once)[0]["norms"]
    short, long, one, wide = math.sqrt(17) / 5, math.sqrt(41) / 5, 1.0, math.sqrt(26) / 5
    by_class = {0: [short, long], 1: [wide, wide], 2: [short], 3: [one]}  # ‖f(x)‖ of the test samples

    def mean(*classes: int) -> float:
        return float(np.mean([norm for c in classes for norm in by_class[c]]))

    assert found["local_seen_weight"] == pytest.approx((0.5 + 0.5 + 1) / 3, rel=1e-5)
    assert found["local_unseen_weight"] == pytest.approx((0.5 + 0.5 + 1 / 3) / 3, rel=1e-5)
    assert found["local_seen_feature"] == pytest.approx((mean(0, 2) + mean(1, 3) + mean(0)) / 3, rel=1e-5)
    assert found["local_unseen_feature"] == pytest.approx((mean(1, 3) + mean(0, 2) + mean(1, 2, 3)) / 3, rel=1e-5)
    assert found["global_weight"] == 0.5
    assert found["global_feature"] == pytest.approx(mean(0, 1, 2, 3), rel=1e-5)


@pytest.mark.parametrize("at_once", [1, 3])
def test_class_curves_by_hand(at_once: int) -> None:
    """Right: 2 of 2 of class 0, 1 of 2 of class 1, none of 2 and 3. Seen: 2 of 3, 1 of 3, 2 of 2; unseen: 1 of 3, 2 of
    3, 1 of 4. Before the first epoch and after each of two."""
    found = watched(job_of(["class_curves"]), at_once)[0]["class_curves"]
    assert found["seen"] == pytest.approx([200 / 3] * 3, rel=1e-5)
    assert found["unseen"] == pytest.approx([100 * (1 / 3 + 2 / 3 + 1 / 4) / 3] * 3, rel=1e-5)


def test_class_curves_follow_the_epochs() -> None:
    """At rate 2 a client forgets what it does not have; before the first epoch it has not."""
    found = watched(job_of(["class_curves"], lr=2.0, momentum=0.0))[0]["class_curves"]
    assert found["unseen"][0] == pytest.approx(100 * (1 / 3 + 2 / 3 + 1 / 4) / 3, rel=1e-5)
    assert found["unseen"][2] < found["unseen"][0]
    assert found["seen"][2] > found["seen"][0]


def hands_on(names: Sequence[str], method: str = "fedavg", **train: Any) -> tuple[dict[str, Any], State]:
    task = tiny.job(method, **train)
    measure = task.config.measure.model_copy(update={"analyses": tuple(names)})
    return watched(replace(task, config=task.config.model_copy(update={"measure": measure})))


def test_drift_variance_by_hand() -> None:
    """Client 0 ends at head rows (½, 0), (−½, 0), client 1 at (0, −½), (0, ½): each of the four numbers has variance
    1/16 over the two, the body's two have none. Client 0 then has 1 of 4 test samples right, client 1 all."""
    found = hands_on(["drift_variance"])[0]["drift_variance"]
    assert found["variance"] == pytest.approx(4 / 16 / 6, rel=1e-5)
    assert found["local_generic"] == 62.5


def test_regularization_of_local_models_by_hand() -> None:
    """w̄ = ¼·W₀ + ¾·W₁. ‖W₀ − w̄‖² = 4·(3/8)², ‖W₁ − w̄‖² = 4·(1/8)²; both losses are log(1 + 1/e)."""
    found = hands_on(["regularization"])[0]["regularization"]
    assert found["distance"] == pytest.approx(0.25 * 4 * (3 / 8) ** 2 + 0.75 * 4 * (1 / 8) ** 2, rel=1e-5)
    assert found["loss"] == pytest.approx(math.log(1 + 1 / math.e), rel=1e-5)


def test_regularization_of_ditto_is_of_its_own_models() -> None:
    """Held back by λ = 0.75, Ditto's models stay nearer to the generic one than the local models of FedAvg do."""
    found, after = hands_on(["regularization"], "ditto", local_epochs=3)
    apart = [
        sum(float((own[n] - after.model[n]).square().sum()) for n in own) * share
        for own, share in ((after.clients[0].own, 0.25), (after.clients[1].own, 0.75))
    ]
    assert found["regularization"]["distance"] == pytest.approx(sum(apart), rel=1e-5)
    local = hands_on(["regularization"], local_epochs=3)[0]["regularization"]
    assert found["regularization"]["distance"] < 0.9 * local["distance"]


def test_entries_of_rounds_become_lists() -> None:
    entries = {2: {"norms": {"a": 3.0}}, 1: {"norms": {"a": None}, "class_curves": {"seen": [1.0, 2.0]}}}
    assert taking.joined_entries(entries) == {
        "norms": {"rounds": [1, 2], "a": [None, 3.0]},
        "class_curves": {"rounds": [1], "seen": [[1.0, 2.0]], "epochs": [0, 1]},
    }


# the trained federation


def test_four_factors_by_hand() -> None:
    """Class 0 has features (1, 0) and (0, 1), so a prototype on the diagonal; class 1 has (2, 0); class 2 none."""
    features, labels = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1, 0])
    found = factors(torch.tensor([[0.0, 3.0], [1.0, 0.0], [-1.0, 0.0]]), class_sums(features, labels, 3))
    half = pytest.approx(math.sqrt(0.5), rel=1e-5)
    assert found["weight_similarity"] == [[1, 0, 0], [0, 1, -1], [0, -1, 1]]
    assert found["inter_class"][0][1] == half
    assert found["inter_class"][2] == [None, None, None]
    assert found["intra_class"] == [half, 1.0, None]
    assert found["alignment"] == [half, 1.0, None]
    summary = found["summary"]
    assert summary["weight_similarity"] == pytest.approx(-1 / 3, rel=1e-5)
    assert summary["inter_class"] == half
    assert summary["intra_class"] == summary["alignment"] == pytest.approx((1 + math.sqrt(0.5)) / 2, rel=1e-5)


@pytest.mark.parametrize("method", ["fedavg", "fedfn"])
def test_four_factors_of_a_run(method: str) -> None:
    """As one would write it for one model: prototypes are means of features, of length one under FedFN."""
    result = run(samples.tiny(method, "measure.names=[]", "measure.analyses=four_factors"), federation=samples.digits())
    net, test = result.network().eval(), samples.digits().test
    with torch.no_grad():
        features = net.features(seen(samples.digits(), test.samples))
    if method == "fedfn":
        features = features / features.norm(dim=1, keepdim=True)
    found = result.analyses["four_factors"]
    for c in (0, 7):
        mine = features[test.labels == c]
        prototype = mine.mean(dim=0)
        assert found["intra_class"][c] == pytest.approx(
            float(F.cosine_similarity(mine, prototype[None]).mean()), abs=1e-4
        )
        row = result.generic["head.weight"][c]
        assert found["alignment"][c] == pytest.approx(float(F.cosine_similarity(row, prototype, dim=0)), abs=1e-4)


def seen(federation: Federation, images: Tensor) -> Tensor:
    mean, std = (torch.tensor(c).view(1, -1, 1, 1) for c in (federation.input.mean, federation.input.std))
    return (images.permute(0, 3, 1, 2).float() / 255 - mean) / std


@pytest.mark.parametrize("at_once", [1, 2])
def test_the_cross_client_matrix_by_hand(at_once: int) -> None:
    """Client 0's own model is right once, of class 1, which is two thirds of client 1; the others hold the first model,
    whose P-FL is ⅔, ⅖ and 1 by the mixes of clients 0, 1 and 2 (test_mixes.py)."""
    job = job_of(["cross_client"], "ditto")
    state = State.begin(job.model, {0: ClientState(own={"head.weight": SWAPPED})})
    make = Batched if at_once > 1 else OneByOne
    with make(job.net, job.federation, at_once=at_once) as engine:
        found = analyse_end(["cross_client"], snapshot_of(job, state, engine))["cross_client"]
    assert found["clients"] == [0, 1, 2]
    for row, expected in zip(found["accuracy"], [[0.0, 40.0, 0.0], *[[200 / 3, 40.0, 100.0]] * 2], strict=True):
        assert row == pytest.approx(expected, rel=1e-5)


def test_the_mean_cosine_needs_no_pairs() -> None:
    """Unit vectors at 0°, 90° and 180°: cosines 0, 0 and −1."""
    total = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]).sum(dim=0)
    assert mean_cosine(total, 3) == pytest.approx(-1 / 3)
    assert math.isnan(mean_cosine(total, 1))


def test_layer_similarity_is_that_of_clients_fine_tuned_one_by_one() -> None:
    sets = ("measure.names=[]", "measure.analyses=layer_similarity", "personalize.lr=0.05", "personalize.epochs=20")
    config = samples.tiny("fedavg", *sets, "train.rounds=1", "data.clients=5")
    result = run(config)
    assert result.state is not None
    found = result.analyses["layer_similarity"]
    assert found["epochs"] == list(range(1, 21))
    job = simulate(config)
    workspace, how = Workspace.at(job.net, job.federation), evaluation_of(job, job.plan[0], result.state)
    tuned = [
        {
            epochs: {n: t.clone() for n, t in model.items()}
            for epochs, model in own_models(workspace, [k], held, how, [1, 20])
        }
        for k in range(5)
        for held in [workspace.models(result.generic, [k])]
    ]
    for epochs, (place, layer) in itertools.product((1, 20), enumerate(found["layers"])):
        flat = [model[epochs][layer].flatten() for model in tuned]
        pairs = [float(F.cosine_similarity(a, b, dim=0)) for a, b in itertools.combinations(flat, 2)]
        assert found["cosine"][epochs - 1][place] == pytest.approx(np.mean(pairs), abs=1e-4)
    assert found["cosine"][19][-1] < found["cosine"][0][-1] < 1  # heads drift apart


def test_layer_similarity_needs_fine_tuning() -> None:
    with pytest.raises(RequestError, match=r"measure\.analyses = 'layer_similarity'.*'ditto' has none"):
        simulate(samples.tiny("ditto", "measure.analyses=layer_similarity"), samples.digits())


def test_tsne_places_test_samples_and_knows_superclasses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of them, where there are more than it places."""
    monkeypatch.setattr("torso.measure.analyses.models._MOST_POINTS", 90)
    above = tuple(c // 5 for c in range(10))
    federation = replace(samples.digits(), superclasses=above)
    sets = ("measure.names=[]", "measure.analyses=tsne", "train.rounds=1")
    found, again = (run(samples.tiny("fedavg", *sets), federation=federation).analyses["tsne"] for _ in range(2))
    assert len(federation.test.labels) > 90
    assert found == again
    assert len(found["x"]) == len(found["y"]) == len(found["label"]) == 90
    assert found["label"] == federation.test.labels[federation.test_order].tolist()[:90]
    assert found["coarse"] == [above[label] for label in found["label"]]
    assert "coarse" not in run(samples.tiny("fedavg", *sets), federation=samples.digits()).analyses["tsne"]


def test_cifar100_has_twenty_superclasses_of_five() -> None:
    assert np.bincount(CIFAR100.superclasses).tolist() == [5] * 20
    people = [2, 11, 35, 46, 98]  # baby, boy, girl, man, woman
    assert [c for c, above in enumerate(CIFAR100.superclasses) if above == 14] == people


# runs


def test_every_run_counts_its_classes_and_nothing_else_unasked(tmp_path: Path) -> None:
    result = run(samples.tiny(), tmp_path / "run", federation=samples.digits())
    counts = result.analyses["class_counts"]
    assert set(result.analyses) == {"class_counts"}
    assert np.array(counts).sum() == len(samples.digits().train.order)
    assert (
        counts[3] == np.bincount(samples.digits().train.labels[samples.digits().train.rows(3)], minlength=10).tolist()
    )
    assert all("analyses" not in line for line in samples.history_of(tmp_path / "run"))


def test_too_many_clients_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking, "MOST_CLIENTS", 9)
    job = simulate(samples.tiny(), samples.digits())
    with OneByOne(job.net, job.federation) as engine:
        assert class_counts(engine, job.roster) == {}
        monkeypatch.setattr(taking, "MOST_CLIENTS", 10)
        assert np.array(class_counts(engine, job.roster)["class_counts"]).shape == (10, 10)
        assert class_counts(engine, replace(job.roster, counts_are_known=False)) == {}


EVERY = ("measure.analyses=" + ",".join(OF_ROUNDS), "measure.analyses_every=3", "measure.names=[]")


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run(samples.tiny("fedavg", *EVERY), tmp_path_factory.mktemp("runs") / "run", federation=samples.digits())


def test_analyses_json_has_the_shapes_of_the_contract(analysed: Result) -> None:
    assert analysed.folder is not None
    tree = json.loads((analysed.folder / "analyses.json").read_text())
    assert tree == dict(analysed.analyses) == dict(Result.read(analysed.folder).analyses)
    assert set(tree) == {"class_counts", *OF_ROUNDS}
    for name in OF_ROUNDS:
        assert tree[name]["rounds"] == [3, 4]  # every third, and the last
        assert all(len(values) == 2 for key, values in tree[name].items() if key != "epochs")
    assert tree["class_curves"]["epochs"] == [0, 1]
    assert set(tree["norms"]) == {"rounds"} | {
        f"{whose}_{what}" for whose in ("local_seen", "local_unseen", "global") for what in ("weight", "feature")
    }


def test_looking_changes_no_bit_of_the_training(analysed: Result) -> None:
    plain = run(samples.tiny("fedavg", "measure.names=[]"), federation=samples.digits())
    assert plain.state is not None
    assert analysed.state is not None
    assert samples.bits(plain.state) == samples.bits(analysed.state)


def test_what_was_seen_before_a_stop_is_there_after_it(analysed: Result, tmp_path: Path) -> None:
    config, folder, watcher = samples.tiny("fedavg", *EVERY), tmp_path / "run", samples.StopAfter(3)
    with pytest.raises(Stopped):
        run(config, folder, listener=watcher, stop=watcher.stop, federation=samples.digits())
    assert run(config, folder, resume=True, federation=samples.digits()).analyses == analysed.analyses


@pytest.mark.parametrize("method", ["fedper", "fedrod-hyper", "fedfomo", "local-only", "scaffold", "pfedme"])
def test_every_kind_of_method_can_be_looked_at(method: str) -> None:
    sets = (
        "measure.names=[]",
        "train.rounds=1",
        f"measure.analyses={','.join(set(analyses) - {'tsne', 'layer_similarity'})}",
    )
    result = run(samples.tiny(method, *sets), federation=samples.digits())
    assert result.status == "ok"
    assert set(result.analyses) == {"class_counts", *analyses} - {"tsne", "layer_similarity"}
    json.dumps(result.analyses, allow_nan=False)


def test_an_unknown_analysis_is_told_which_there_are() -> None:
    with pytest.raises(RequestError, match=r"measure\.analyses = 'norm' is unknown.*norms"):
        samples.tiny("fedavg", "measure.analyses=norm")
