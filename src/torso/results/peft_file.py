"""Saves and loads LoRA adapters in the format of Hugging Face's `peft`.

An adapter is a folder with adapter_config.json and adapter_model.safetensors. Nothing is unpickled, and `peft` need not
be installed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from torso.errors import CannotWrite, RequestError
from torso.nets import Network, Tensors
from torso.nets.lora import Lora
from torso.reading import parse_json
from torso.results.files import replace_file, write_text, writing
from torso.results.state_tensors import check_fits

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_UNSUPPORTED = (  # options that change what a plain LoRA layer computes
    *("use_dora", "use_rslora", "rank_pattern", "alpha_pattern", "fan_in_fan_out"),
    *("use_qalora", "alora_invocation_tokens", "layer_replication", "kasa_config", "monteclora_config", "arrow_config"),
)
_INITS = (None, True, False, "gaussian", "orthogonal", "eva")  # other values change the weights of the body too


def save_adapters(net: Network, folder: str | Path) -> Path:
    """Write the adapters of a network into a folder, without the frozen body and the head."""
    folder = Path(folder)
    lora = _lora_of(net)
    layers = _layers(net)
    state = net.state_dict()
    tensors = {
        f"{_PREFIX}{theirs}.lora_{half.upper()}.weight": state[f"{ours}.lora_{half}.weight"].detach().cpu().contiguous()
        for ours, theirs in layers.items()
        for half in "ab"
    }
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": net.card.body if net.card else None,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "r": lora.rank,
        "target_modules": _targets(net, layers),
        "task_type": None,
    }
    try:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / WEIGHTS, lambda temporary: save_file(tensors, temporary, {"format": "pt"}))
        write_text(folder / CONFIG, json.dumps(config, indent=2) + "\n")
    except CannotWrite as error:
        raise RequestError(str(error)) from None
    return folder


def load_adapters(net: Network, folder: str | Path) -> Network:
    """Load the adapters of a folder into a network and return it. Rank, alpha and layers must be the network's."""
    found = read_adapters(Path(folder), net.state_dict(), net, repr(str(folder)))
    net.load_state_dict(found, strict=False)
    return net


def read_adapters(folder: Path, model: Tensors, net: Network, where: str, notes: list[str] | None = None) -> Tensors:
    """The adapters of a folder, by their names in the network.

    `where` is how messages call the folder. `notes` gets a remark about tensors that are left out: the head that `peft`
    saves with the adapters of a classifier."""
    lora = _lora_of(net)
    config = _config(folder / CONFIG, where)
    for key, expected in {"r": lora.rank, "lora_alpha": lora.alpha, "bias": "none"}.items():
        if config.get(key) != expected:
            ours = {"r": "model.lora.rank", "lora_alpha": "model.lora.alpha"}.get(key, "of what Torso reads")
            raise RequestError(f"{where}: {key} = {config.get(key)!r} in {CONFIG}. Expected: {expected!r} ({ours})")
    for key in _UNSUPPORTED:
        if config.get(key):
            raise RequestError(f"{where}: {key} = {config[key]!r} in {CONFIG}: plain LoRA layers cannot do that")
    if (init := config.get("init_lora_weights")) not in _INITS:
        raise RequestError(
            f"{where}: init_lora_weights = {init!r} in {CONFIG}: these adapters belong to a body with other weights. "
            "Let peft convert them to plain LoRA: save_pretrained(…, path_initial_model_for_weight_conversion=…)"
        )
    try:
        held = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise RequestError(f"{where}: {WEIGHTS} cannot be read: {error}") from None
    held, left = _without_head(held, config.get("modules_to_save") or [], net, where)
    if left and notes is not None:
        notes.append(f"{where}: the head of the other model ({', '.join(sorted(left)[:5])}) is left out")
    layers = _layers(net)
    prefix = _prefix_of(held, layers)
    found = {_our_name(name, prefix, layers, where): tensor for name, tensor in held.items()}
    for name, tensor in found.items():
        check_fits(name, tensor, model, where)
        if not tensor.isfinite().all():
            raise RequestError(f"{where}: {name} holds NaN or infinite values")
    missing = [name for name in net.parts["lora"] if name not in found]
    if missing:
        raise RequestError(f"{where} lacks {', '.join(missing[:3])}, which this network has. Set model.lora.targets")
    return {name: tensor.to(model[name].device, copy=True) for name, tensor in found.items()}


def _lora_of(net: Network) -> Lora:
    if net.body.lora is None:
        raise RequestError("the network has no adapters. Set model.lora.rank, or choose a method such as fedit")
    return net.body.lora


def _config(path: Path, where: str) -> dict[str, Any]:
    try:
        config = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RequestError(f"{where}: {path.name} cannot be read: {error}") from None
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        kind = config.get("peft_type") if isinstance(config, dict) else type(config).__name__
        raise RequestError(f"{where}: {path.name} is of {kind!r}. Expected: peft_type = 'LORA'")
    return config


def _layers(net: Network) -> dict[str, str]:
    """The layers with adapters: name in the network → name in the module that a user of `peft` would load.

    The latter has no `body.` and no names of wrappers with a single child before it."""
    ours = [name.removesuffix(".lora_a.weight") for name in net.parts["lora.a"]]
    wrapped = "body."
    while wrapped == "body." or not hasattr(net.get_submodule(wrapped[:-1]), "config"):
        inside = [name for name, child in net.get_submodule(wrapped[:-1]).named_children() if _has_weights(child)]
        if len(inside) != 1 or isinstance(net.get_submodule(wrapped + inside[0]), nn.ModuleList):
            break
        if f"{wrapped}{inside[0]}" in ours:
            break
        wrapped += f"{inside[0]}."
    return {name: name.removeprefix(wrapped) for name in ours}


def _targets(net: Network, layers: Mapping[str, str]) -> list[str] | str:
    """The `target_modules` by which `peft` finds the layers.

    `peft` takes a list of names as suffixes. If the name of another module ends the same way (`1` and `3.1`), this is a
    regular expression for the whole names instead."""
    ours, theirs = next(iter(layers.items()))
    inside = net.get_submodule(ours.removesuffix(theirs).rstrip("."))
    others = [name for name, _ in inside.named_modules() if name not in layers.values()]
    names = sorted(layers.values())
    if any(other.endswith(f".{name}") for other in others for name in names):
        return "|".join(map(re.escape, names))
    return names


def _has_weights(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _without_head(held: Tensors, saved: Any, net: Network, where: str) -> tuple[Tensors, list[str]]:
    """The tensors of a file without those of `modules_to_save`, and the names of the latter.

    None of these modules may be a part of the body, which is frozen. As in `peft`, names are suffixes: `classifier`
    includes `pre_classifier`."""
    if not isinstance(saved, list) or not all(isinstance(name, str) for name in saved):
        raise RequestError(f"{where}: modules_to_save = {saved!r} in {CONFIG}. Expected: a list of names")
    ends = tuple(saved)

    def inside(names: Collection[str]) -> list[str]:
        return [name for name in names if any(part.endswith(ends) for part in name.split("."))]

    if ends and inside(net.base):
        raise RequestError(
            f"{where}: modules_to_save = {saved} in {CONFIG}: the body has such modules, and is frozen here"
        )
    left = inside(held) if ends else []
    return {name: tensor for name, tensor in held.items() if name not in left}, left


def _path(name: str) -> tuple[str, str]:
    """The layer of a tensor in a file, and the half of its adapter: `lora_A` or `lora_B`."""
    path, _, half = name.removeprefix(_PREFIX).removesuffix(".weight").rpartition(".")
    return path, half


def _prefix_of(held: Collection[str], layers: Mapping[str, str]) -> str:
    """The common prefix of all layers in a file whose model contained the body as a module, such as `bert.`."""
    paths = {_path(name)[0] for name in held}
    first = min(paths, default="")
    for theirs in layers.values():
        prefix = first.removesuffix(f".{theirs}") + "."
        if all(path.startswith(prefix) and path.removeprefix(prefix) in layers.values() for path in paths):
            return prefix
    return ""


def _our_name(name: str, prefix: str, layers: Mapping[str, str], where: str) -> str:
    """The name in the network of a tensor of the file: that of the only layer whose name ends like the file's."""
    path, half = _path(name)
    path = path.removeprefix(prefix)
    fits = [ours for ours in layers if f".{ours}".endswith(f".{path}")]
    if half not in ("lora_A", "lora_B") or len(fits) != 1:
        raise RequestError(f"{where}: {name} in {WEIGHTS} is of no layer that has an adapter here")
    return f"{fits[0]}.{half.lower()}.weight"
