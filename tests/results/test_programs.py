"""ONNX and torch.export files: programs that answer as the network does, where there is no Torso."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from tests.conftest import Torso
from tests.nets.samples import SIZES
from tests.runs import samples
from torch import Tensor, nn

import torso as library
from torso import RequestError
from torso.data.inputs import Floats, Known, Pixels, Tokens
from torso.nets import Body, Network, bodies, body_of, build
from torso.nets.blocks import Chain, Fire, Residual, Subsample, Unit
from torso.nets.card import Card
from torso.nets.heads import Dual, Head, LinearHead, MlpHead, Normalized, Sphere
from torso.results import onnx_file
from torso.results.portable import Portable, example, quiet

pytestmark = pytest.mark.xdist_group("programs")  # torch's exporters and compiler take seconds to load: in one worker

BATCHES = (1, 4)
TABLE = Floats((4,), (1.0, -2.0, 0.0, 3.0), (1.0, 2.0, 0.5, 4.0))
TEXT = Tokens(6, 20, pad=1)
Case = tuple[str, Head, Known, bool]


class Odd(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.special.bessel_j0(x.flatten(1)[:, :4])


class Layered(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x.flatten(1)[:, :4], (4,))


class Asking(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)[:, :4]
        return x if x.is_meta or x.sum() > 0 else -x


@pytest.fixture
def odd() -> Iterator[None]:
    made = {"odd": Odd, "layered": Layered, "asking": Asking}
    for name, module in made.items():
        bodies[name] = lambda c, h, w, module=module: body_of(module(), 4)
    bodies["every block"] = every_block
    yield
    for name in (*made, "every block"):
        del bodies[name]


def pixels(body: str, channels: int = 3) -> Pixels:
    side = SIZES.get(body, 8)
    return Pixels(channels, side, side, (0.4,) * channels, (0.3,) * channels)


def network(body: str, head: Head, kind: Known, personal: bool = False) -> Network:
    """With weights, statistics and facts that are nowhere symmetric, so that a mix-up shows."""
    net = build(body, 3, kind, head, norm="running", seed=1).eval()
    generator = torch.Generator().manual_seed(0)
    for name, tensor in net.named_buffers():
        if tensor.is_floating_point():
            tensor.add_(torch.rand(tensor.shape, generator=generator) * (0.5 if "var" in name else 0.1))
    for parameter in net.head.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    net.personal = personal
    net.card = Card(
        *("fedavg", "somewhere", body, {"name": "linear"}, True, "running", 3, kind),
        batch_statistics=False,
        kind="personal" if personal else "generic",
        torso="0",
        class_names=("Äpfel", "birds", "cats"),
    )
    return net


def onnx_answer(path: Path, given: Tensor) -> Tensor:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: given.numpy()})[0])


def program_answer(path: Path, given: Tensor) -> Tensor:
    with quiet():
        answer: Tensor = torch.export.load(path).module()(given)
    return answer


# the table: every kind of block, layer and head


def every_block(channels: int, height: int, width: int) -> Body:
    """One of each block that bodies of images are made of: mobilenet and the ResNets are many of the same."""
    unit = partial(Unit, norm="running", bias=False)
    blocks = (
        Unit(channels, 4, 3, norm="running", pool=nn.MaxPool2d(2)),
        Chain([unit(4, 4, 3, stride=2, groups=4), unit(4, 8, 1)]),
        Residual(Chain([unit(8, 8, 3, relu=False)]), None),
        Residual(Chain([unit(8, 16, 3, stride=2, relu=False)]), Subsample(2)),
        Fire(16, 2, 4, nn.MaxPool2d(3, 2, ceil_mode=True)),
    )
    return Body(blocks, 8, pool=True)


TORCH: list[Case] = [
    ("every block", LinearHead(), Pixels(3, 32, 32, (0.4,) * 3, (0.3,) * 3), False),
    ("rod-mnist", MlpHead(), pixels("rod-mnist", 1), False),
    ("mlp", Normalized(), pixels("mlp", 1), False),
    ("mlp", Dual("hyper"), TABLE, True),
    ("embedding-mean", Dual("linear", "default"), TEXT, False),
]
ONNX: list[Case] = [
    ("every block", Dual("linear", "default"), Pixels(3, 32, 32, (0.4,) * 3, (0.3,) * 3), True),
    ("mlp", Dual("hyper"), TABLE, True),
    ("transformer", Sphere(tau=4), TEXT, False),
]


@pytest.mark.parametrize(
    ("case", "name"),
    [*((case, "m.onnx") for case in ONNX), *((case, "m.pt2") for case in TORCH)],
    ids=[*(f"{case[0]}.onnx" for case in ONNX), *(f"{case[0]}.pt2" for case in TORCH)],
)
def test_a_program_answers_as_the_network(odd: None, case: Case, name: str, tmp_path: Path) -> None:
    net = network(*case)
    path = library.save_model(net, tmp_path / name)
    for count in BATCHES:
        given = example(case[2], count, "inside")
        found = (onnx_answer if name == "m.onnx" else program_answer)(path, given)
        torch.testing.assert_close(found, net(net.prepare(given)), atol=1e-5, rtol=1e-5)


# what goes in, and what the file tells


@pytest.fixture(scope="module")
def grey(tmp_path_factory: pytest.TempPathFactory) -> tuple[Network, Path]:
    """A small network as files, with the preprocessing beside."""
    net, folder = network("mlp", LinearHead(), pixels("mlp", 1)), tmp_path_factory.mktemp("programs")
    for name in ("m.onnx", "m.pt2"):
        library.save_model(net, folder / name, preprocessing="beside")
    return net, folder


def test_preprocessing_beside_takes_what_prepare_gives(grey: tuple[Network, Path]) -> None:
    net, folder = grey
    given = net.prepare(np.random.default_rng(0).integers(0, 256, (3, 8, 8), dtype=np.uint8))
    torch.testing.assert_close(onnx_answer(folder / "m.onnx", given), net(given), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(program_answer(folder / "m.pt2", given), net(given), atol=1e-5, rtol=1e-5)


def test_the_file_tells_what_it_is_and_not_where_it_was_made(grey: tuple[Network, Path]) -> None:
    folder = grey[1]
    model = onnx.load(folder / "m.onnx")
    onnx.checker.check_model(model)
    told = {entry.key: json.loads(entry.value) for entry in model.metadata_props}
    assert list(told) == ["card", "classes", "input"]
    assert told["classes"] == ["Äpfel", "birds", "cats"]
    assert told["card"]["method"] == "fedavg"
    assert told["input"] == {"dtype": "float32", "preprocessing": "beside", "shape": ["batch", 1, 8, 8]}
    first, last = model.graph.input[0], model.graph.output[0]
    assert (first.name, last.name) == ("images", "logits")
    assert first.type.tensor_type.shape.dim[0].dim_param == last.type.tensor_type.shape.dim[0].dim_param == "batch"
    extra = {"card.json": "", "classes.json": "", "input.json": ""}
    with quiet():
        torch.export.load(folder / "m.pt2", extra_files=extra)
    assert {key.removesuffix(".json"): json.loads(text) for key, text in extra.items()} == told
    for name in ("m.onnx", "m.pt2"):
        held = (folder / name).read_bytes()
        assert b"torso/" not in held
        assert b"/site-packages" not in held


def test_programs_are_the_same_bytes_twice_and_everybody_may_read_them(grey: tuple[Network, Path]) -> None:
    net, folder = grey
    (folder / "plain").write_bytes(b"")
    for name in ("m.onnx", "m.pt2"):
        again = library.save_model(net, folder / f"again-{name}", preprocessing="beside")
        assert again.read_bytes() == (folder / name).read_bytes()
        assert again.stat().st_mode == (folder / "plain").stat().st_mode


def test_a_program_is_not_loaded_as_tensors(grey: tuple[Network, Path]) -> None:
    with pytest.raises(RequestError, match=r"is a program: onnxruntime runs it. torso.load_model reads .safetensors"):
        library.load_model(grey[1] / "m.onnx")


# what cannot be written


@pytest.mark.parametrize(
    ("body", "name", "opset", "message"),
    [
        ("odd", "m.onnx", None, r"m.onnx: ONNX has no counterpart .*bessel_j0"),
        ("layered", "m.onnx", 12, r"m.onnx: opset 12 of ONNX lacks LayerNormalization.* Accepted: --opset 20"),
        ("asking", "m.pt2", None, r"torch.export cannot follow the body 'asking': "),
    ],
)
def test_what_a_format_lacks_is_said_and_nothing_is_written(
    odd: None, body: str, name: str, opset: int | None, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    net = network(body, LinearHead(), Pixels(1, 8, 8, (0.5,), (0.5,)))
    with pytest.raises(RequestError, match=message) as refused:
        library.save_model(net, tmp_path / name, opset=opset)
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_the_extra_is_named_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "find_spec", lambda name: None if name == "onnxscript" else name)
    net = network("mlp", LinearHead(), pixels("mlp", 1))
    with pytest.raises(
        RequestError, match=r"--format onnx needs onnxscript, not installed here: pip install 'torso\[onnx\]'"
    ):
        library.save_model(net, tmp_path / "m.onnx")


def test_a_program_that_answers_otherwise_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that counts its calls: the program cannot do what it does."""
    net = network("mlp", LinearHead(), pixels("mlp", 1))
    plain, calls = Portable.forward, [0.0]

    def counting(self: Portable, samples: Tensor) -> Tensor:
        calls[0] += 1
        return plain(self, samples) + calls[0]

    monkeypatch.setattr(Portable, "forward", counting)
    with pytest.raises(RequestError, match=r"m.pt2 answers otherwise than the network: logits of 1 images differ by 1"):
        library.save_model(net, tmp_path / "m.pt2")
    assert list(tmp_path.iterdir()) == []


# the command


ELSEWHERE = """
import json, sys

class NoTorso:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torso":
            raise ImportError("there is no torso here")

sys.meta_path.insert(0, NoTorso())
import numpy as np
images = np.load("images.npy")
found = []
for code in json.load(open("codes.json")):
    names = {"images": images}
    exec(code, names)
    found.append(np.asarray(names["logits"]))
assert "torso" not in sys.modules
np.savez("said.npz", *found)
"""


def test_a_process_without_torso_does_what_the_page_says(torso: Torso) -> None:
    """A client of a run with batch statistics: calibrated, in all formats; the page's code runs as it stands."""
    sets = ("model.body=conv3", "train.rounds=1", "measure.names=initial")
    done = library.run(samples.tiny("fedavg", *sets), "run", federation=samples.digits())
    said = torso(
        "export", "run", "--client", "3", "--format", "safetensors,onnx", "--format", "torch-export", "--out", "m"
    )
    assert said.status == 0, said.err
    assert said.out.startswith("m: 1 model in 3 files, ")
    assert sorted(path.name for path in Path("m").iterdir()) == [
        *("README.md", "client-3.onnx", "client-3.pt2", "client-3.safetensors"),
    ]
    page = Path("m/README.md").read_text(encoding="utf-8")
    codes = [part.partition("```")[0] for part in page.split("```python\n")[1:]]
    Path("m/codes.json").write_text(json.dumps([code for code in codes if "import torso" not in code]), "utf-8")
    assert done.federation is not None
    images = done.federation.test.samples[:7].numpy()
    np.save("m/images.npy", images)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    subprocess.run([sys.executable, "-I", "-c", ELSEWHERE], cwd="m", env=environment, check=True, timeout=120)
    net = library.load_model("m/client-3.safetensors")
    wanted = net(net.prepare(images)).detach().numpy()
    found: Any = np.load("m/said.npz")
    assert len(found.files) == 2
    for name in found.files:
        assert np.abs(found[name] - wanted).max() < 1e-5


def test_an_export_that_fails_on_the_way_leaves_nothing(torso: Torso, odd: None) -> None:
    """The safetensors file of the model is written before torch.export refuses."""
    sets = ("model.body=asking", "run.clients_at_once=1", "train.rounds=1", "measure.names=initial")
    library.run(samples.tiny("fedavg", *sets), "run", federation=samples.digits())
    for out in ("new", "there"):
        if out == "there":
            Path(out).mkdir()
        said = torso("export", "run", "--format", "safetensors,torch-export", "--out", out)
        assert said.status == 2
        assert "torch.export cannot follow the body 'asking'" in said.err
        assert Path(out).exists() is (out == "there")
    assert list(Path("there").iterdir()) == []
