"""Features once: the same run as on samples, and a fixed body is asked about each sample once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.near import assert_states_near
from tests.runs.samples import Heard
from torch import Tensor, nn

from torso import Config, RequestError, Result, run
from torso.data import Federation, build
from torso.data.augment import PixelLens
from torso.engine import Batched, Workspace, features_kept
from torso.engine.base import Features
from torso.engine.feature_files import CACHE
from torso.engine.feature_space import OnFeatures
from torso.learn import features as learn_features
from torso.learn.features import features_of
from torso.measure.base import measures
from torso.nets import Body, bodies, body_of
from torso.parallel.together import run_together
from torso.runs.job import simulate

DATA = {
    **{"source": "synthetic", "synthetic": {"samples": 500, "test_samples": 200, "noise": 1.0}},
    **{"clients": 6, "partition": "dirichlet-class", "alpha": 0.5, "new_clients": 2},
}
TRAIN = {"rounds": 2, "local_epochs": 2, "fraction": 0.5, "lr": 0.1, "batch_size": 32}
HEAD = {"part": "head", "epochs": 2, "sweep": (1, 3)}
NAMES = ("initial", "personalized", "without_head", "generic", "generic_as_personal", "new_before")


class Counted(nn.Module):
    """Convolution, BatchNorm and dropout, which counts the samples that it is shown in `seen`."""

    seen = 0

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.drop = nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.Dropout(0.5)
        self.fc = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "meta":
            Counted.seen += len(x)
        return self.fc(self.changed(self.drop(self.bn(self.conv(x)).relu()[:, :, ::3, ::3].flatten(1))))  # type: ignore[no-any-return]

    def changed(self, features: Tensor) -> Tensor:
        return features


class Neighbourly(Counted):
    """A feature depends on the other samples of the batch."""

    def changed(self, features: Tensor) -> Tensor:
        return features - features.mean(dim=0)


class Doubled(Counted):
    """The same tensors and the same printed structure, another function."""

    def changed(self, features: Tensor) -> Tensor:
        return 2 * features


Doubled.__name__ = Counted.__name__


def made_of(kind: type[Counted]) -> Any:
    def make(channels: int, height: int, width: int) -> Body:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            return body_of(kind())

    return make


@pytest.fixture(autouse=True)
def _foreign_body(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(bodies, "counted", made_of(Counted))
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    features_kept._kept.clear()
    Counted.seen = 0


@pytest.fixture(scope="module")
def federation() -> Federation:
    return build(Config(data=DATA).data, 0, torch.device("cpu"))


def config(method: Any = "lp", body: str = "counted", features: str = "auto", **sections: Any) -> Config:
    given = {
        "data": DATA,
        "model": {"body": body, "norm": "default" if body == "counted" else "running"},
        "train": TRAIN,
        "personalize": HEAD,
        "measure": {"names": NAMES},
        "run": {"features": features, "workers": 1, "engine": "one-by-one"},
    }
    every = given.keys() | sections.keys()
    return Config(method=method, **{key: {**given.get(key, {}), **sections.get(key, {})} for key in every})


def assert_same(one: Result, other: Result) -> None:
    assert one.ok
    assert_states_near(one, other, model=1e-4, kept=1e-4)
    assert list(one.accuracy) == list(other.accuracy)  # tables list them in this order
    for name, found in one.accuracy.items():
        assert found.mean == pytest.approx(other.accuracy[name].mean, abs=2.0), name  # a sample or two


def samples_of(data: Federation) -> int:
    return len(data.train.labels) + len(data.test.labels)


FEW = 80  # samples with which a network is tried out before a run, and each split before its pass


@pytest.mark.parametrize("engine", ["one-by-one", "batched"])
@pytest.mark.parametrize("body", ["counted", "conv3"])
@pytest.mark.parametrize("method", ["lp", "mlp-head", "fedncm"])
def test_a_run_with_a_fixed_body_is_the_same_on_features(
    method: str, body: str, engine: str, federation: Federation
) -> None:
    """Rounds, class means, head-only fine-tuning with a sweep, measures without the head, of newcomers and of all."""
    whole = run(config(method, body, "off", run={"engine": engine}), federation=federation)
    on_samples, Counted.seen = Counted.seen, 0
    once = run(config(method, body, run={"engine": engine}), federation=federation)
    assert_same(once, whole)
    if body == "counted":
        assert samples_of(federation) < Counted.seen < samples_of(federation) + FEW
        assert on_samples > 2 * Counted.seen


def test_measures_that_train_bodies_are_taken_on_samples(federation: Federation) -> None:
    names = ("initial", "local_only", "new_after", "personalized")
    both = [
        run(
            config(features=each, measure={"names": names}, personalize={"part": "full", "epochs": 1, "sweep": ()}),
            federation=federation,
        )
        for each in ("off", "auto")
    ]
    assert_same(*both)
    assert {name for name, found in measures.items() if found.trains_body} == {
        *("local_only", "local_only_best_on_test", "new_after"),
    }


LP_FT = {"name": "lp-ft", "start": {"first": 1}}


@pytest.mark.parametrize("method", [LP_FT, "fedncm-ft", "fedper", "fedfomo", "local-only"], ids=str)
def test_a_body_that_moves_is_asked_anew(method: Any, federation: Federation) -> None:
    """Stages before and after a body moves, clients that keep parts of their own, the end of a run."""
    sections = {
        "train": {"rounds": 2, "local_epochs": 1, "lr": 0.01},
        "measure": {"every": 1, "during": ("initial", "generic")},
    }
    both = [run(config(method, features=each, **sections), federation=federation) for each in ("off", "auto")]
    assert_same(*both)


def test_a_run_is_resumed_on_features(federation: Federation, tmp_path: Path) -> None:
    run(config(train={"rounds": 1}), tmp_path / "one", federation=federation)
    resumed = run(config(), tmp_path / "one", federation=federation, resume=True)
    assert_same(resumed, run(config(features="off"), federation=federation))


def test_validation_and_own_models_on_features() -> None:
    names = ("initial", "personal", "personalized")
    sections = {"data": {**DATA, "validation": 0.2, "new_clients": 0}, "measure": {"names": names}}
    for name in ("ditto", "fedrod-hyper"):
        method = {"name": name, "train": "head"}
        assert_same(*(run(config(method, features=each, **sections)) for each in ("off", "auto")))


def test_runs_in_lockstep_share_a_pass(federation: Federation) -> None:
    """Three rates of one method: one stack of clients, one pass over the samples."""
    rates = (0.05, 0.1, 0.2)
    configs = [config(train={"lr": lr}, run={"engine": "batched"}, measure={"names": ("initial",)}) for lr in rates]
    ended = dict(run_together(configs, [None] * 3, clients=100, data=lambda _: federation))
    shown = Counted.seen
    for place, each in enumerate(configs):
        found = ended[place]
        assert isinstance(found, Result)
        assert_same(found, run(each.but("run.features=off"), federation=federation))
    assert samples_of(federation) < shown < samples_of(federation) + 3 * FEW


@dataclass(frozen=True)
class Company:
    """Work: how many clients stand in a stack, and whether it is on features."""

    def __call__(self, workspace: Workspace, clients: Sequence[int]) -> tuple[int, bool]:
        return len(clients), workspace.context.on_features


def test_clients_of_a_foreign_body_with_batch_norm_stand_in_one_stack_on_features(federation: Federation) -> None:
    job = simulate(config(), federation)
    features = Features("these", 24, torch.zeros(len(federation.train.labels), 24))
    with Batched(job.net, federation) as engine:
        assert list(engine.map(Company(), [0, 1, 2])) == [(1, False)] * 3
        assert list(engine.map(OnFeatures(Company(), features), [0, 1, 2])) == [(3, True)]


# where features are kept


def test_a_file_of_features_serves_the_next_process(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that is too large for memory is mapped into it."""
    first = run(config(features="disk"), federation=federation)
    features_kept._kept.clear()  # as in another process
    Counted.seen = 0
    monkeypatch.setattr(features_kept, "memory_left", lambda _: 0)
    assert_same(run(config(), federation=federation), first)
    assert Counted.seen < FEW


def damage(folder: Path) -> None:
    content = bytearray(folder.read_bytes())
    content[-5] ^= 255
    folder.write_bytes(content)


@pytest.mark.parametrize("what", ["content", "end", "about", "body"])
def test_a_file_that_is_damaged_or_of_another_function_is_made_anew(
    what: str, federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(config(features="disk"), federation=federation)
    files = sorted((tmp_path / "cache" / "features").glob("*/features.npy"))
    assert len(files) == 2
    if what == "content":
        damage(files[0])
    elif what == "end":
        files[0].write_bytes(files[0].read_bytes()[:1000])
    elif what == "about":
        (files[0].parent / "about.json").write_text("[]")
    else:
        monkeypatch.setitem(bodies, "counted", made_of(Doubled))
    features_kept._kept.clear()
    heard = Heard()
    again = run(config(features="disk"), federation=federation, listener=heard)
    assert sum("computed again" in note for note in heard.notes) == (2 if what == "body" else 1)
    assert_same(again, run(config(features="off"), federation=federation))
    assert len(sorted((tmp_path / "cache" / "features").iterdir())) == 2  # and nothing half-written


def test_other_weights_are_other_files(federation: Federation, tmp_path: Path) -> None:
    for seed in (0, 1):
        run(config(body="mlp", features="disk", run={"seed": seed}), federation=federation)
    assert len(sorted((tmp_path / "cache" / "features").iterdir())) == 4


def test_a_cache_that_cannot_be_written_is_refused(federation: Federation, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(CACHE, str(tmp_path / "file"))
    with pytest.raises(RequestError, match=r"run.features = 'disk': '.*file/features' cannot be written: Not a dir"):
        run(config(features="disk"), tmp_path / "run", federation=federation)
    assert not (tmp_path / "run").exists()


# where features are not fixed


def test_a_feature_that_is_no_function_of_its_sample_is_computed_every_time(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(bodies, "counted", made_of(Neighbourly))
    heard = Heard()
    assert run(config(), federation=federation, listener=heard).ok
    assert sum("features are computed every time" in note for note in heard.notes) == 1
    assert Counted.seen > 2 * samples_of(federation)


def test_statistics_of_the_batch_are_seen_beforehand(federation: Federation) -> None:
    both = [
        run(config(body="conv3", features=each, model={"norm": "batch"}), federation=federation)
        for each in ("off", "auto")
    ]
    assert_same(*both)


def test_augmented_images_are_looked_at_anew_and_that_is_said(federation: Federation) -> None:
    """Rounds and fine-tuning crop and mirror at random; measures do not."""
    augmented, heard = replace(federation, augment="crop-flip"), Heard()
    whole = run(config(features="off", data={"augment": "crop-flip"}), federation=augmented)
    once = run(config(data={"augment": "crop-flip"}), federation=augmented, listener=heard)
    assert_same(once, whole)
    (said,) = (note for note in heard.notes if "augment" in note)
    assert "With data.augment = none they are computed once: about 2 times less work" in said


def test_memory_that_runs_out_makes_batches_smaller(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    job = simulate(config(), federation)
    lens = federation.input.lens(federation.device)
    assert isinstance(lens, PixelLens)
    usual, sizes = learn_features.apply, []

    def tight(net: Any, tensors: Any, inputs: Tensor) -> Any:
        sizes.append(inputs.shape[1])
        if inputs.shape[1] > 20:
            raise torch.OutOfMemoryError("no")
        return usual(net, tensors, inputs)

    whole = features_of(job.net, job.model, federation.test.samples[:50], lens, 64)
    monkeypatch.setattr(learn_features, "apply", tight)
    torch.testing.assert_close(features_of(job.net, job.model, federation.test.samples[:50], lens, 64), whole)
    assert sizes == [50, 25, 13, 13, 13, 11]


@pytest.mark.parametrize("where", ["auto", "disk"])
def test_adapters_of_another_scale_have_other_features(where: Any, federation: Federation) -> None:
    """The same tensors, printed alike, and answers so near that a look at a few samples cannot tell them apart."""

    def features(alpha: float) -> Tensor:
        lora = {"body": "conv3", "norm": "running", "lora": {"rank": 2, "alpha": alpha}}
        job = simulate(config("fedit", "conv3", model=lora), federation)
        model = {n: torch.full_like(t, 1e-3) if "lora_b" in n else t for n, t in job.model.items()}
        with Batched(job.net, federation) as engine:
            found = features_kept.FeatureCache(job.net, federation, where, print).of(engine, model, ["test"])
        if where == "disk":
            features_kept._kept.clear()
        assert found is not None
        assert found.test is not None
        return found.test.clone()

    assert torch.equal(features(16.0), features(16.0))
    assert not torch.equal(features(16.0), features(17.0))


def test_what_is_neither_printed_nor_in_the_state_makes_other_features(federation: Federation, tmp_path: Path) -> None:
    """A layer's number and a buffer of no state_dict: a change that a look at a few samples might take for rounding."""

    def made(factor: float, shift: float) -> Any:
        def make(channels: int, height: int, width: int) -> Body:
            torch.manual_seed(1)
            module = Scaled()
            module.factor = factor
            module.shift += shift
            return body_of(module)

        return make

    for number, (factor, shift) in enumerate([(1.0, 0.0), (1.001, 0.0), (1.0, 0.001), (1.0, 0.0)]):
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(bodies, "counted", made(factor, shift))
            features_kept._kept.clear()
            run(config("fedncm", features="disk", measure={"names": ("initial",)}), federation=federation)
        files = len(list((tmp_path / "cache" / "features").iterdir()))
        assert files == min(number + 1, 3)


class Scaled(Counted):
    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.factor = 1.0
        self.register_buffer("shift", torch.zeros(()), persistent=False)

    def changed(self, features: Tensor) -> Tensor:
        return self.factor * features + self.shift
