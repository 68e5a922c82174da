"""Adapters in peft's files: what is written is what peft names so, and what is read has to fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from torso import Config, RequestError
from torso.data.inputs import Pixels
from torso.nets import Network, bodies, body_of, build
from torso.nets.heads import LinearHead
from torso.nets.lora import Lora
from torso.results.peft_file import load_adapters, read_adapters, save_adapters
from torso.runs.job import simulate

IMAGE = Pixels(1, 8, 8)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 4)
        self.query = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.query(self.embed(x.squeeze(1))).mean(1)  # type: ignore[no-any-return]


class Wrapped(nn.Module):
    """As one wraps a model of a library: its names begin further in."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Attention()

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def _bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bodies, "wrapped", lambda channels, height, width: body_of(Wrapped(), features=4))


def net_of(seed: int = 0, **options: Any) -> Network:
    return build("wrapped", 10, IMAGE, LinearHead(), seed=seed, lora=Lora(**{"rank": 2, "alpha": 4.0, **options}))


def moved() -> Network:
    net = net_of()
    for name in net.parts["lora"]:
        net.get_parameter(name).data.add_(1)
    return net


def test_names_and_numbers_are_those_of_peft(tmp_path: Path) -> None:
    net = moved()
    folder = save_adapters(net, tmp_path / "adapter")
    tensors = load_file(folder / "adapter_model.safetensors")
    names = {f"base_model.model.query.lora_{half}.weight" for half in "AB"}
    assert tensors.keys() == names
    assert tensors["base_model.model.query.lora_A.weight"].shape == (2, 4)
    assert tensors["base_model.model.query.lora_B.weight"].shape == (4, 2)
    told = json.loads((folder / "adapter_config.json").read_text())
    assert (told["peft_type"], told["r"], told["lora_alpha"], told["target_modules"]) == ("LORA", 2, 4.0, ["query"])


def test_what_was_written_is_read_into_another_network_and_into_a_run(tmp_path: Path) -> None:
    net, x = moved(), IMAGE.example(2)
    folder = save_adapters(net, tmp_path)
    other = load_adapters(net_of(), folder)
    assert torch.equal(other.eval()(x), net.eval()(x))  # type: ignore[arg-type]
    sets = ["method.name=fedit", "model.body=wrapped", "model.lora.rank=2", "model.lora.alpha=4", "data.clients=10"]
    job = simulate(Config.load(None, [*sets, f"model.lora.weights={folder}"]))
    assert all(torch.equal(job.model[name], net.state_dict()[name]) for name in net.parts["lora"])


def test_names_of_the_whole_library_model_are_found_by_their_end(tmp_path: Path) -> None:
    folder = save_adapters(moved(), tmp_path)
    weights = folder / "adapter_model.safetensors"
    save_file({name.replace("query", "model.query"): t for name, t in load_file(weights).items()}, weights)
    load_adapters(net_of(), folder)


def test_a_name_that_other_names_end_with_is_told_as_an_expression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`peft` takes a name in a list for the end of a name, and an expression for the whole of one (re.fullmatch). With
    the list ["1"] it refuses this module: 2.1 is a Tanh."""
    inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), inner)
    monkeypatch.setitem(bodies, "wrapped", lambda channels, height, width: body_of(module, features=4))
    for targets, expected in (("module.1", "1"), ("module.*", r"1|2\.0"), ("2.0", ["2.0"])):
        folder = save_adapters(net_of(targets=(targets,)), tmp_path)
        assert json.loads((folder / "adapter_config.json").read_text())["target_modules"] == expected


def test_adapters_of_a_classifier_around_the_body_are_read_without_its_head(tmp_path: Path) -> None:
    """As `peft` writes those of AutoModelForSequenceClassification: names begin with `bert.`, and modules_to_save names
    the ends of names, so that `pre_classifier` is in the file as well."""
    net, x = moved(), IMAGE.example(2)
    folder = save_adapters(net, tmp_path)
    weights, start = folder / "adapter_model.safetensors", "base_model.model."
    held = {name.replace(start, f"{start}bert."): tensor for name, tensor in load_file(weights).items()}
    heads = {f"{start}{name}.weight": torch.zeros(3, 4) for name in ("classifier", "pre_classifier")}
    save_file({**held, **heads}, weights)
    _retell(folder, modules_to_save=["classifier", "score"])
    assert torch.equal(load_adapters(net_of(), folder).eval()(x), net.eval()(x))  # type: ignore[arg-type]
    notes: list[str] = []
    read_adapters(folder, net.state_dict(), net, "it", notes)
    assert notes == [f"it: the head of the other model ({', '.join(sorted(heads))}) is left out"]
    _retell(folder, modules_to_save=["embed"])
    with pytest.raises(RequestError, match=r"modules_to_save = \['embed'\] .* the body has such modules"):
        load_adapters(net_of(), folder)


def _retell(folder: Path, **changes: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"r": 3}, r"r = 3 in adapter_config\.json\. Expected: 2 \(model\.lora\.rank\)"),
        ({"lora_alpha": 1}, r"lora_alpha = 1 in .* Expected: 4\.0 \(model\.lora\.alpha\)"),
        ({"bias": "all"}, r"bias = 'all'"),
        ({"use_dora": True}, r"use_dora = True in .*plain LoRA layers cannot do that"),
        ({"init_lora_weights": "pissa"}, r"init_lora_weights = 'pissa' in .* belong to a body with other weights"),
        ({"alora_invocation_tokens": [1]}, r"alora_invocation_tokens = \[1\] in .*plain LoRA layers cannot do that"),
        ({"modules_to_save": "head"}, r"modules_to_save = 'head' in .*Expected: a list of names"),
        ({"peft_type": "IA3"}, r"is of 'IA3'\. Expected: peft_type = 'LORA'"),
    ],
)
def test_a_config_that_asks_for_something_else_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = save_adapters(moved(), tmp_path)
    _retell(folder, **changes)
    with pytest.raises(RequestError, match=words):
        load_adapters(net_of(), folder)


def test_tensors_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    folder = save_adapters(moved(), tmp_path)
    weights = folder / "adapter_model.safetensors"
    held = load_file(weights)
    a, b = sorted(held)
    for wrong, words in (
        ({a: held[a]}, r"lacks body\.module\.model\.query\.lora_b\.weight"),
        ({a: held[a].T.contiguous(), b: held[b]}, r"lora_a\.weight is torch\.float32 \[4, 2\]"),
        ({**held, "base_model.model.key.lora_A.weight": held[a].clone()}, r"key\.lora_A\.weight in .* is of no layer"),
        ({a: held[a] * torch.nan, b: held[b]}, r"lora_a\.weight holds NaN"),
    ):
        save_file(wrong, weights)
        with pytest.raises(RequestError, match=words):
            load_adapters(net_of(), folder)
    weights.write_bytes(b"not safetensors")
    with pytest.raises(RequestError, match=r"adapter_model\.safetensors cannot be read"):
        load_adapters(net_of(), folder)
    with pytest.raises(RequestError, match=r"adapter_config\.json cannot be read"):
        load_adapters(net_of(), tmp_path / "nowhere")
    with pytest.raises(RequestError, match=r"has no adapters\. Set model\.lora\.rank"):
        save_adapters(build("wrapped", 10, IMAGE, LinearHead()), tmp_path)
