"""Whole runs on samples that are no images: rows of a table, arrays of numbers, token sequences; and their models."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tests.conftest import Torso
from tests.near import assert_states_near

import torso as library
from torso import Config, RequestError, Result
from torso.data.inputs import Floats, Pixels, Tokens
from torso.results.same_run import fingerprint
from torso.runs.events import Listener

WHERE = ("east", "west", "north")
SHORT = {"rounds": 6, "fraction": 0.5, "local_epochs": 2, "lr": 0.1, "batch_size": 10}


@cache
def arrays() -> dict[str, Any]:
    """Two classes that a straight line tells apart, in arrays of 2×3 numbers: the first channel is high or low."""
    rng, labels = np.random.default_rng(0), np.arange(160) % 2
    samples = rng.normal(50, 5, (160, 2, 3)).astype(np.float32)
    samples[:, 0] += 10 * labels[:, None]
    return {**halves("samples", samples), **halves("labels", labels)}


@cache
def sequences() -> dict[str, Any]:
    """Sequences of 2 to 5 tokens: class 1 has ids 6 to 9 and class 0 has 1 to 4; 5 stands behind the last."""
    rng, labels = np.random.default_rng(0), np.arange(160) % 2
    ids = rng.integers(1, 5, (160, 5)) + 5 * labels[:, None]
    mask = np.arange(5) < rng.integers(2, 6, (160, 1))
    ids = np.where(mask, ids, 5)
    return {**halves("samples", ids), **halves("mask", mask.astype(np.uint8)), **halves("labels", labels)}


def halves(name: str, array: np.ndarray) -> dict[str, np.ndarray]:
    return {f"train_{name}": array[:120], f"test_{name}": array[120:]}


def table(path: Path) -> Path:
    """Three hospitals; who is old or smokes is ill; a few ages are missing."""
    rng = np.random.default_rng(0)
    lines = ["age,smokes,ward,ill,hospital"]
    for row in range(150):
        age, smokes = int(rng.integers(20, 90)), int(rng.integers(0, 2))
        ill = "yes" if age + 30 * smokes > 70 else "no"
        lines.append(f"{'' if row % 50 == 7 else age},{'ny'[smokes]},{'ABC'[row % 3]},{ill},{WHERE[row % 3]}")
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def rows(path: Path, method: str = "fedbabu", **sections: Any) -> Config:
    csv = {"label": "ill", "client": "hospital"}
    data = {"source": "csv", "root": str(table(path / "ill.csv")), "csv": csv, "partition": "by-client", "clients": 0}
    return Config(method=method, data=data, train={**SHORT, "fraction": 1.0}, **sections)


def npz(path: Path, found: dict[str, Any], body: str, *sets: str) -> Config:
    np.savez(path / "mine.npz", **found)
    data = {"source": "npz", "root": str(path / "mine.npz"), "partition": "iid", "clients": 4}
    return Config(method="fedbabu", data=data, model={"body": body}, train=SHORT).but(*sets)


class Noted(Listener):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_rows_of_a_table(tmp_path: Path) -> None:
    """Better than always the more frequent class; what was missing is told before the first round."""
    listener = Noted()
    result = library.run(rows(tmp_path), listener=listener)
    assert result.ok
    assert result.federation is not None
    assert result.federation.names == ("east", "north", "west")
    kind = result.federation.input
    assert isinstance(kind, Floats)
    assert kind.names == ("age", "smokes=n", "smokes=y", "ward=A", "ward=B", "ward=C")
    assert any(re.search(r"missing values were filled: age \(3, mean \d", note) for note in listener.notes)
    test = result.federation.test.labels
    most = 100 * max(float(test.float().mean()), 1 - float(test.float().mean()))
    assert result.accuracy["personalized"].mean > most + 10
    assert result.accuracy["generic"].mean > 0


def test_arrays_of_numbers(tmp_path: Path) -> None:
    result = library.run(npz(tmp_path, arrays(), "mlp"))
    assert result.accuracy["personalized"].mean > 80
    assert result.federation is not None
    train = arrays()["train_samples"].astype(np.float64)
    assert isinstance(result.federation.input, Floats)
    np.testing.assert_allclose(result.federation.input.mean, train.mean(axis=(0, 2)), rtol=1e-6)
    np.testing.assert_allclose(result.federation.input.std, train.std(axis=(0, 2)), rtol=1e-6)


@pytest.mark.parametrize("body", ["embedding-mean", "transformer"])
def test_token_sequences(body: str, tmp_path: Path) -> None:
    result = library.run(npz(tmp_path, sequences(), body))
    assert result.federation is not None
    assert result.federation.input == Tokens(5, 11, pad=10)
    assert result.accuracy["personalized"].mean > 80


@pytest.mark.parametrize(("found", "body"), [(arrays, "mlp"), (sequences, "transformer")])
def test_stacked_clients_learn_what_each_learns_alone(found: Any, body: str, tmp_path: Path) -> None:
    config = npz(tmp_path, found(), body, "data.clients=6", "data.partition=dirichlet-class", "data.min_size=5")
    alone = library.run(config.but("run.engine=one-by-one"))
    stacked = library.run(config.but("run.engine=batched", "run.clients_at_once=3"))
    assert_states_near(alone, stacked, model=1e-4, kept=1e-3)


def test_other_methods_take_them_too(tmp_path: Path) -> None:
    """Class means, second derivatives, control variates, samples that travel: eight bytes a sample of two numbers."""
    config = npz(
        tmp_path,
        {**arrays(), **halves("samples", np.random.default_rng(1).normal(size=(160, 2)))},
        "mlp",
        "train.rounds=2",
    )
    for method in ("fedncm", "per-fedavg", "scaffold", "fedrod-hyper", "fedrod-meta-bsm"):
        assert library.run(config.but(f"method.name={method}")).ok
    shared = library.run(config.but("method.name=fedavg", "method.meta_data=true", "data.meta_per_class=3"))
    usual = library.run(config.but("method.name=fedavg"))
    assert shared.state is not None
    assert shared.cost.bytes_down - usual.cost.bytes_down == 6 * 8 * len(shared.state.server.met)


def test_side_by_side_each_run_has_its_own_statistics(tmp_path: Path) -> None:
    """Other seeds deal other clients, and where newcomers have no say, the statistics are others, too."""
    from torso.parallel.together import run_together

    config = npz(tmp_path, arrays(), "mlp", "run.engine=batched", "data.new_clients=1", "data.clients=5")
    asked = [config.but(f"run.seed={seed}") for seed in (0, 1)]
    found = dict(run_together(asked, [tmp_path / "0", tmp_path / "1"], clients=1000))
    for place, one in enumerate(asked):
        beside = found[place]
        assert isinstance(beside, Result)
        assert_states_near(library.run(one), beside, model=1e-4, kept=1e-3)


def test_a_body_of_images_refuses_rows(tmp_path: Path) -> None:
    with pytest.raises(
        RequestError, match=r"model.body = 'conv4' takes images, and data.source = 'csv' gives rows of 6 "
    ):
        library.run(rows(tmp_path, model={"body": "conv4"}))


# models


@pytest.mark.parametrize("kind", ["rows", "numbers", "tokens"])
def test_models_out_and_in_again(kind: str, tmp_path: Path) -> None:
    """Saved, read and asked about the same test samples: the accuracy that was measured, and the same card."""
    config = {
        "rows": lambda: rows(tmp_path),
        "numbers": lambda: npz(tmp_path, arrays(), "mlp"),
        "tokens": lambda: npz(tmp_path, sequences(), "embedding-mean"),
    }[kind]()
    result = library.run(config)
    assert result.federation is not None
    net = library.load_model(library.save_model(result.network(1), tmp_path / "m.safetensors"))
    assert net.card == result.network(1).card
    assert net.card is not None
    assert net.card.input == result.federation.input
    test = result.federation.test
    own = test.rows(1)
    said = net(net.prepare(test.samples[own].numpy())).argmax(dim=1)
    accuracy = 100 * (said == test.labels[own]).float().mean().item()
    measured = result.accuracy["personalized"].clients
    assert measured is not None
    assert measured[1] == pytest.approx(accuracy, abs=1e-3)
    newcomer = result.newcomer(test.samples[own].numpy(), test.labels[own].numpy(), epochs=0)
    assert torch.equal(newcomer(newcomer.prepare(test.samples[own])), result.network()(net.prepare(test.samples[own])))
    with safe_open(tmp_path / "m.safetensors", framework="pt") as file:
        told = file.metadata()
    assert told["form"] == "2"
    assert "image" not in told
    assert json.loads(told["input"])["kind"] == ("tokens" if kind == "tokens" else "floats")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"form": "3"}, "form = 3 in its metadata. Expected: 2; is it of a newer torso"),
        ({"input": '{"kind": "voices"}'}, "input.* in its metadata"),
        ({"input": '{"kind": "floats", "sizes": [-1]}'}, r"input.sizes.0 = -1 in its metadata"),
        ({"input": '{"kind": "floats", "sizes": [1000000000]}'}, r"mean = \[\], std = \[\] for rows of 1000000000"),
        ({"input": '{"kind": "tokens", "length": 3, "vocabulary": 900000000}'}, "input.vocabulary = 900000000 in its"),
        ({"input": '{"kind": "tokens", "length": 3, "vocabulary": 9}'}, "model.body = 'mlp' takes images or arrays of"),
    ],
)
def test_files_of_other_kinds_that_are_not_right(change: dict[str, str], message: str, tmp_path: Path) -> None:
    net = library.run(npz(tmp_path, arrays(), "mlp", "train.rounds=1", 'measure.names=["initial"]')).network()
    path = library.save_model(net, tmp_path / "m.safetensors")
    with safe_open(path, framework="pt") as file:
        metadata = {**file.metadata(), **change}
    save_file(load_file(path), path, metadata)
    with pytest.raises(RequestError, match=message):
        library.load_model(path)


OLD = {
    **{"method": "fedbabu", "dataset": "mine", "body": "mlp", "head": '{"name": "linear"}', "head_bias": "true"},
    **{"norm": "default", "classes": "2", "image": "[1, 2, 2]", "mean": "[0.5]", "std": "[0.25]"},
    **{"batch_statistics": "false", "kind": "generic", "torso": "0.1.0", "client": "null"},
}


def test_a_file_from_before_other_kinds_is_read(tmp_path: Path) -> None:
    """Metadata as torso 0.1.0 wrote them. (x / 255 − 0.5) / 0.25 of 255 is 2."""
    shapes = {"body.blocks.0.linear": (200, 4), "body.blocks.1.linear": (200, 200), "head": (2, 200)}
    tensors = {f"{name}.weight": torch.ones(shape) for name, shape in shapes.items()}
    tensors |= {f"{name}.bias": torch.zeros(shape[0]) for name, shape in shapes.items()}
    save_file(tensors, tmp_path / "old.safetensors", OLD)
    net = library.load_model(tmp_path / "old.safetensors")
    assert net.card is not None
    assert net.card.input == Pixels(1, 2, 2, (0.5,), (0.25,))
    x = net.prepare(np.full((1, 2, 2), 255, np.uint8))
    assert x.tolist() == [[[[2.0, 2.0], [2.0, 2.0]]]]
    assert net(x).tolist() == [[8.0 * 200 * 200] * 2]
    again = library.save_model(net, tmp_path / "new.safetensors")
    with safe_open(again, framework="pt") as file:
        told = file.metadata()
    assert {key: json.loads(value) if key in ("mean", "std", "image") else value for key, value in told.items()} == {
        **OLD,
        **{"image": [1, 2, 2], "mean": [0.5], "std": [0.25]},
    }


def test_configs_from_before_other_kinds_describe_the_same_run() -> None:
    """The fingerprint of the defaults as torso 0.1.0 wrote it into checkpoints; another key makes another run."""
    before = "0168c2786a6a5fad3d4ea4c5eceefd343d7f002eaed815c1d4647f92f685446b"
    assert fingerprint(Config()) == before
    assert fingerprint(Config(data={"csv": {"label": "y"}})) != before


def test_export_and_the_page(torso: Torso, tmp_path: Path) -> None:
    library.run(rows(tmp_path), tmp_path / "run")
    assert torso("export", str(tmp_path / "run"), "--clients", "all", "--generic", "--out", "models").status == 0
    page = Path("models/README.md").read_text(encoding="utf-8")
    assert "samples: float32 [n, 6]" in page
    assert "in this order: age, smokes=n, smokes=y, ward=A, ward=B, ward=C" in page
    assert page.count("in this order: age") == 1
    assert torso("export", str(tmp_path / "run"), "--format", "torch-export", "--out", "programs").status == 0
    told = Path("programs/README.md").read_text(encoding="utf-8")  # the program standardises, and needs the order, too
    assert "in this order: age, smokes=n, smokes=y, ward=A, ward=B, ward=C.\n`smokes=n` is 1 in a row of this" in told
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    found: dict[str, Any] = {"samples": np.array([[80, 0, 1, 1, 0, 0], [20, 1, 0, 1, 0, 0]])}
    exec(code.replace('"generic', '"models/generic'), found)
    assert found["classes"].shape == (2,)
    new = {"samples": np.array([[80.0, 0, 1, 1, 0, 0], [20, 1, 0, 1, 0, 0]]), "labels": np.array([1, 0])}
    np.savez("new.npz", **new)
    assert torso("export", str(tmp_path / "run"), "--new", "new.npz", "--out", "later").status == 0
    assert library.load_model("later/newcomer.safetensors").card is not None
