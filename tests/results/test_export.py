"""Models as files: what `torso export` and `save_model` write, what `load_model` reads, and what it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tests.conftest import Said, Torso
from tests.runs import samples
from torch import nn

import torso as library
from torso import RequestError, Result
from torso.nets import Network

LATE = ("data.new_clients=2", "personalize.lr=0.05")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made heads, one of which a newcomer has trained: the most that a file must hold."""
    path = tmp_path_factory.mktemp("runs") / "hyper"
    assert library.run(samples.tiny("fedrod-hyper", *LATE), path).ok
    return path


@pytest.fixture(scope="module")
def result(folder: Path) -> Result:
    return library.load(folder)


def answers_alike(one: nn.Module, other: nn.Module) -> bool:
    images = torch.rand(5, 1, 8, 8)
    return torch.equal(one(images), other(images))


# files


@pytest.mark.parametrize("who", ["generic", "client", "held", "newcomer"])
def test_what_is_saved_is_read_again(who: str, result: Result, tmp_path: Path) -> None:
    assert result.federation is not None
    late = int(result.federation.newcomers[0])
    net = {
        "generic": result.network,
        "client": lambda: result.network(0),
        "held": lambda: result.network(0, personal=False),
        "newcomer": lambda: result.network(late),
    }[who]()
    again = library.load_model(library.save_model(net, tmp_path / "below" / "model.safetensors"))
    assert answers_alike(again, net)
    assert again.card == net.card
    assert not again.training


@pytest.mark.parametrize("method", ["fedavg", "fedfn", "spherefed-ce", "mlp-head", "fedrod-linear", "gpfl"])
def test_every_head_is_read_again(method: str, tmp_path: Path) -> None:
    result = library.run(samples.tiny(method, "train.rounds=1"), federation=samples.digits())
    net = result.network(3)
    again = library.load_model(str(library.save_model(net, tmp_path / "m.safetensors")))
    assert answers_alike(again, net)
    assert type(again.head) is type(net.head)


def test_running_statistics_and_batch_statistics_are_kept(tmp_path: Path) -> None:
    for norm in ("running", "default"):
        sets = ("model.body=conv3", f"model.norm={norm}", "train.rounds=1", "measure.names=initial")
        net = library.run(samples.tiny("fedavg", *sets), federation=samples.digits()).network()
        again = library.load_model(library.save_model(net, tmp_path / f"{norm}.safetensors"))
        assert answers_alike(again, net)
        assert again.card is not None
        assert again.card.batch_statistics is (norm == "default")


def test_other_programs_find_plain_tensors_and_what_they_mean(result: Result, tmp_path: Path) -> None:
    net = result.network(3)
    path = library.save_model(net, tmp_path / "m.safetensors")
    assert load_file(path).keys() == {*net.state_dict(), "head.personal.mix"}
    with safe_open(path, framework="pt") as file:
        told = file.metadata()
    assert (told["method"], told["body"], told["kind"], told["torso"]) == (
        "fedrod-hyper",
        "mlp",
        "personal",
        library.__version__,
    )
    assert {key: json.loads(told[key]) for key in ("classes", "image", "client")} == {
        "classes": 10,
        "image": [1, 8, 8],
        "client": 3,
    }
    assert result.federation is not None
    assert tuple(json.loads(told["mean"])) == result.federation.input.mean
    assert tuple(json.loads(told["std"])) == result.federation.input.std


def test_a_network_that_nobody_knows_is_not_saved(result: Result, tmp_path: Path) -> None:
    assert isinstance(result.initial, Network)
    with pytest.raises(RequestError, match="has no card"):
        library.save_model(result.initial, tmp_path / "m.safetensors")
    with pytest.raises(RequestError, match="has no card"):
        result.initial.prepare(np.zeros((1, 8, 8), np.uint8))
    with pytest.raises(RequestError, match=r"m\.pt' does not end in \.safetensors"):
        library.save_model(result.network(), tmp_path / "m.pt")


Change = Callable[[dict[str, torch.Tensor], dict[str, str]], object]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, m: t.pop("head.generic.bias"), "lacks head.generic.bias"),
        (lambda t, m: t.pop("head.personal.mix"), "lacks head.personal.mix"),
        (lambda t, m: t.update(extra=torch.ones(1)), "holds extra, which this network does not have"),
        (lambda t, m: t.update({"head.personal.mix": torch.ones(3)}), r"head.personal.mix is torch.float32 \[3\]"),
        (lambda t, m: m.pop("std"), "is no model that torso export wrote: its metadata lack std"),
        (lambda t, m: m.update(std="[0]"), r"std = \[0.0\].*Expected: one of each per channel, std above 0"),
        (lambda t, m: m.update(mean="[0, 1]"), r"mean = \[0.0, 1.0\].*Expected: one of each per channel"),
        (lambda t, m: m.update(mean="[NaN]"), r"mean = \[nan\]"),
        (lambda t, m: m.update(classes="many"), "classes = 'many' in its metadata is no JSON"),
        (lambda t, m: m.update(classes="-1"), "classes = -1 in its metadata"),
        (lambda t, m: m.update(classes="1000000000"), "classes = 1000000000 in its metadata, but the file has"),
        (lambda t, m: m.update(image="[1, 8, 1000000000]"), "image.2 = 1000000000 in its metadata, but"),
        (lambda t, m: m.update(kind="best"), "kind = 'best' in its metadata"),
        (
            lambda t, m: m.update(body="mpl"),
            r"model.body = 'mpl' is unknown; did you mean 'mlp'.*import the plugin first",
        ),
        (lambda t, m: m.update(head='{"name": "dial"}'), "method.head = 'dial' is unknown; did you mean 'dual'"),
        (lambda t, m: m.update(classes="9"), "head.generic.bias is .* this network's is"),
    ],
)
def test_files_that_are_not_right_are_refused(change: Change, message: str, result: Result, tmp_path: Path) -> None:
    path = library.save_model(result.network(0), tmp_path / "m.safetensors")
    tensors = load_file(path)
    with safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata())
    change(tensors, metadata)
    save_file(tensors, path, metadata)
    with pytest.raises(RequestError, match=message):
        library.load_model(path)


def test_what_is_no_model_file_is_refused(folder: Path, tmp_path: Path) -> None:
    torch.save({"head.weight": torch.ones(1)}, tmp_path / "pickle.safetensors")
    with pytest.raises(RequestError, match="cannot be read as safetensors"):
        library.load_model(tmp_path / "pickle.safetensors")
    with pytest.raises(RequestError, match="cannot be read as safetensors"):
        library.load_model(tmp_path / "nothing.safetensors")
    with pytest.raises(RequestError, match=r"is a folder. .* torso.load reads the folder of a run"):
        library.load_model(folder)
    with pytest.raises(RequestError, match="is no model that torso export wrote"):
        library.load_model(max((folder / "checkpoints").glob("*.safetensors")))


# the command


def names(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def test_the_generic_model_where_nothing_is_said(torso: Torso, folder: Path, result: Result) -> None:
    said = torso("export", str(folder), "--out", "models")
    assert said.status == 0, said.err
    assert re.fullmatch(r"models: 1 model, \d\.\d\d MB\. Use: models/README\.md\n", said.out)
    assert names("models") == ["README.md", "generic.safetensors"]
    assert answers_alike(library.load_model("models/generic.safetensors"), result.network())


def test_some_clients_and_all_of_them(torso: Torso, folder: Path, result: Result) -> None:
    said = torso("export", str(folder), "--client", "3", "--generic", "--out", "one", "--json")
    assert json.loads(said.out) == {
        "page": "one/README.md",
        "models": ["one/generic.safetensors", "one/client-3.safetensors"],
        "calibrated": [],
    }
    assert answers_alike(library.load_model("one/client-3.safetensors"), result.network(3))
    assert torso("export", str(folder), "--clients", "all", "--out", "all").status == 0
    assert len(names("all")) == 10 + 1
    assert torso("export", str(folder), "--clients", "0,3", "--held", "--out", "held").status == 0
    assert answers_alike(library.load_model("held/client-3.safetensors"), result.network(3, personal=False))


def test_somebody_new(torso: Torso, folder: Path, result: Result) -> None:
    assert result.federation is not None
    train = result.federation.train
    images, labels = train.samples[:60].numpy(), train.labels[:60].numpy()
    np.savez("new.npz", images=images, labels=labels)
    assert torso("export", str(folder), "--new", "new.npz", "--out", "later").status == 0
    assert names("later") == ["README.md", "newcomer.safetensors"]
    assert answers_alike(library.load_model("later/newcomer.safetensors"), result.newcomer(images, labels))
    assert torso("export", str(folder), "--new", "new.npz", "--epochs", "0", "--out", "once").status == 0
    assert answers_alike(library.load_model("once/newcomer.safetensors"), result.newcomer(images, labels, epochs=0))


def test_the_page_beside_the_models_works_as_written(torso: Torso, folder: Path, result: Result) -> None:
    assert torso("export", str(folder), "--clients", "all", "--generic", "--out", "models").status == 0
    page = Path("models/README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert result.federation is not None
    found: dict[str, Any] = {"images": result.federation.test.samples[:4].numpy()}
    exec(code.replace('"generic', '"models/generic'), found)
    assert found["classes"].shape == (4,)
    assert found["answers"] == [str(place) for place in found["classes"].tolist()]
    assert "11 files: generic.safetensors, client-0.safetensors" in page
    for word in ("body | `mlp`", "head | `dual", "gives 200 features", "images of 8×8", "(relu): ReLU"):
        assert word in page
    assert "uint8 [n, 8, 8, 1]" in page
    assert "BatchNorm | none" in page
    assert "uses the statistics of the batch" not in page


def test_batch_statistics_are_calibrated_or_warned_of(torso: Torso) -> None:
    """Before: as the run measured them, in batches. After: a calibrated network that answers a single image."""
    sets = ("model.body=conv3", "train.rounds=1", "measure.names=personalized", "personalize.lr=0.05")
    done = library.run(samples.tiny("fedavg", *sets), "run", federation=samples.digits())
    said = torso("export", "run", "--clients", "0", "--out", "models", "--json")
    (told,) = json.loads(said.out)["calibrated"]
    assert done.federation is not None
    train, test = done.federation.train, done.federation.test
    assert (told["model"], told["samples"], told["batch"]) == ("client-0", len(train.rows(0)), 128)
    assert told["before"] == pytest.approx(done.accuracy["personalized"].clients[0])
    net = library.load_model("models/client-0.safetensors")
    assert net.card is not None
    assert (net.card.norm, net.card.batch_statistics, net.card.calibrated) == ("running", False, len(train.rows(0)))
    one_by_one = torch.cat([net(net.prepare(test.samples[row])) for row in test.rows(0)]).argmax(dim=1)
    right = (one_by_one == test.labels[test.rows(0)]).float().mean().item()
    assert told["after"] == pytest.approx(100 * right)
    assert answers_alike(net, library.calibrated(done.network(0), train.samples[train.rows(0)]))
    assert "calibrated after training" in Path("models/README.md").read_text(encoding="utf-8")

    said = torso("export", "run", "--clients", "0", "--norm", "batch", "--out", "kept")
    assert "calibrated" not in said.out
    assert answers_alike(library.load_model("kept/client-0.safetensors"), done.network(0))
    assert "model.norm=running" in Path("kept/README.md").read_text(encoding="utf-8")


def test_the_generic_model_is_calibrated_on_all_that_train_and_a_newcomer_on_its_own(torso: Torso) -> None:
    sets = ("model.body=conv3", "train.rounds=1", "measure.names=new_before", "data.new_clients=2")
    done = library.run(samples.tiny("fedavg", *sets), "run")
    assert done.federation is not None
    train = done.federation.train
    np.savez("new.npz", images=train.samples[:30].numpy(), labels=train.labels[:30].numpy())
    said = torso("export", "run", "--generic", "--new", "new.npz", "--epochs", "0", "--out", "models")
    trained = sum(len(train.rows(client)) for client in done.job.roster.training)
    assert f"generic: BatchNorm calibrated on {trained} training samples. Test accuracy " in said.out
    assert said.out.endswith("newcomer: BatchNorm calibrated on 30 training samples.\n")


# the files


def test_two_exports_are_the_same_bytes_and_everybody_may_read_them(result: Result, tmp_path: Path) -> None:
    """Metadata have an order of their own in every process, so the order in the file is looked at, too."""
    net = result.network(3)
    paths = [library.save_model(net, tmp_path / name) for name in ("a.safetensors", "b.safetensors")]
    first, second = (path.read_bytes() for path in paths)
    assert first == second
    header = json.loads(first[8 : 8 + int.from_bytes(first[:8], "little")])
    assert list(header["__metadata__"]) == sorted(header["__metadata__"])
    (tmp_path / "plain").write_bytes(b"")
    assert paths[0].stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_requests_that_are_wrong_write_nothing(torso: Torso, folder: Path) -> None:
    def refused(*words: str) -> Said:
        said = torso("export", str(folder), "--out", "models", *words)
        assert said.status == 2
        assert not Path("models").exists()
        return said

    assert (
        "--clients '3,x' is no list of clients. Accepted: all, or numbers from 0 to 9" in refused("--clients=3,x").err
    )
    assert "client = 10 does not exist. Accepted: 0 to 9" in refused("--generic", "--client", "10").err
    assert "--epochs 2 is only for a new client" in refused("--epochs", "2").err
    np.savez("wrong.npz", pictures=np.zeros((1, 8, 8), np.uint8))
    assert "wrong.npz has no images, labels (it has pictures)" in refused("--new", "wrong.npz").err
    assert "'.' is a folder. torso personalize RUN --data . takes" in refused("--new", ".").err
    assert "run.device = 'tpu' cannot be used here" in refused("--device", "tpu").err
    assert "--format 'onx' is unknown. Accepted: safetensors, onnx, torch-export" in refused("--format=onx").err
    assert "--preprocessing 'out' is unknown. Accepted: inside, beside" in refused("--preprocessing=out").err
    assert "--norm 'none' is unknown. Accepted: calibrated, batch" in refused("--norm=none").err
    assert "--opset 12 is of ONNX. Add --format onnx" in refused("--opset=12").err
    assert "--opset 99 is unknown here. Accepted: 1 to " in refused("--opset=99", "--format=onnx").err
    Path("full").mkdir()
    Path("full/mine").write_text("", encoding="utf-8")
    said = torso("export", str(folder), "--out", "full")
    assert (said.status, names("full")) == (2, ["mine"])
    assert "--out 'full' is not empty" in said.err
    assert "is not the folder of one run" in torso("export", "full", "--out", "models").err
