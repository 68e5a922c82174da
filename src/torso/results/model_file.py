"""Saves and loads trained networks, one per file, with a card in the metadata that describes it. Nothing is unpickled.

Safetensors files have tensors, and `load_model` reads them again. ONNX and torch.export files have programs that other
software runs.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from torso import nets
from torso.data.inputs import Pixels, Tokens
from torso.errors import CannotWrite, RequestError, TorsoError
from torso.learn.encoder import Encoder
from torso.methods import method_from_config
from torso.nets import Network, Tensors
from torso.nets.card import Card
from torso.nets.given import forget_model, register_model
from torso.nets.network import card_of
from torso.reading import parse_json
from torso.results import onnx_file, program_file
from torso.results.encoder_file import read_encoder, write_encoder
from torso.results.files import replace_file, writing
from torso.results.portable import Preprocessing
from torso.results.state_tensors import check_fits

_SIDE = 4096  # pixels: a small network may take large images
_FORM = "2"  # version of the metadata for samples other than images; for images there is none, as in older files
SUFFIX = ".safetensors"
FORMATS = {"safetensors": SUFFIX, "onnx": onnx_file.SUFFIX, "torch-export": program_file.SUFFIX}
"""The formats of models by name, with their file suffixes."""
_TEXTS = {"method", "dataset", "body", "norm", "kind", "torso", "form", "tokenizer_file", "answers"}
"""Entries of the metadata that are plain text; all others are JSON."""
_NEWER = {"class_names", "calibrated", "lora", "tokenizer_file", "encoder", "answers"}
"""Entries of the metadata that are left out if empty; older files do not have them."""


def save_model(
    net: Network, path: str | Path, *, preprocessing: Preprocessing = "inside", opset: int | None = None
) -> Path:
    """Write a network of a run to a file. The suffix of the path selects the format:

    - `.safetensors`: plain tensors, which `load_model` reads again;
    - `.onnx`: a program for onnxruntime and other runtimes (needs the extra `onnx`);
    - `.pt2`: a torch.export program for PyTorch.

    A program does not need Torso and takes any number of samples. With preprocessing "inside" it takes images as uint8
    [n, H, W, C], or numbers as they were measured; with "beside" it takes what `net.prepare` returns. `opset` is that
    of ONNX. The frozen encoder of a model is written into a second file in the same folder, one for all models there;
    programs contain it."""
    path = Path(path)
    card = card_of(net)
    if path.suffix not in FORMATS.values():
        raise RequestError(
            f"{str(path)!r} does not end in {SUFFIX}, .onnx or .pt2. Example: {path.with_suffix(SUFFIX)}"
        )
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == onnx_file.SUFFIX:
            onnx_file.write_onnx(net, path, preprocessing, opset)
        elif path.suffix == program_file.SUFFIX:
            program_file.write_program(net, path, preprocessing)
        else:
            tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in net.contents().items()}
            replace_file(path, lambda temporary: temporary.write_bytes(_file(tensors, _metadata(card))))
            if isinstance(net.encoder, Encoder) and card.encoder is not None:
                write_encoder(net.encoder, card.encoder, path.parent)
    except CannotWrite as error:
        raise RequestError(str(error)) from None
    return path


def load_model(path: str | Path, model: Any = None) -> Network:
    """Load a network that `save_model` or `torso export` wrote: an nn.Module in evaluation mode, on the CPU.

    If a plugin registers its body or head, import the plugin first. If a module was given to `torso.run`, give a module
    of the same architecture as `model`."""
    path = Path(path)
    card, tensors = _read(path)
    _check_sizes(path, card, tensors)
    given = None if model is None else register_model(model, card.body)
    try:
        head = method_from_config({"head": card.head}).head
        net = nets.build(
            card.body, card.classes, card.taken, head, head_bias=card.head_bias, norm=card.norm, lora=card.lora
        )
    except TorsoError as error:
        raise RequestError(f"{str(path)!r}: {error} (A plugin's network: import the plugin first.)") from None
    finally:
        if given is not None:
            forget_model(given)
    personal = card.kind != "generic"
    _check(path, tensors, net, personal)
    net.fill(tensors, personal)
    net.card = card
    net.encoder = None if card.encoder is None else read_encoder(card, path.parent)
    return net.eval()


def _file(tensors: Tensors, metadata: dict[str, str]) -> bytes:
    """The bytes of the file, always the same for the same model.

    The header is rewritten with sorted metadata, since safetensors writes metadata in any order."""
    plain = save(tensors, metadata)
    size = int.from_bytes(plain[:8], "little")
    header = json.loads(plain[8 : 8 + size])
    sorted_metadata = {key: metadata[key] for key in sorted(metadata)}
    entries = {name: header[name] for name in sorted(tensors, key=lambda name: header[name]["data_offsets"])}
    tree = {"__metadata__": sorted_metadata, **entries}
    text = json.dumps(tree, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the tensors start at a multiple of 8 bytes
    return len(text).to_bytes(8, "little") + text + plain[8 + size :]


def _metadata(card: Card) -> dict[str, str]:
    """The card as metadata of a safetensors file."""
    tree = asdict(card)
    if isinstance(card.input, Pixels):
        del tree["input"]
        tree |= {"image": card.input.shape, "mean": card.input.mean, "std": card.input.std}
    else:
        tree["form"] = _FORM
    kept = {key: value for key, value in tree.items() if value or key not in _NEWER}
    return {key: value if key in _TEXTS else json.dumps(value) for key, value in kept.items()}


def _read(path: Path) -> tuple[Card, Tensors]:
    if path.is_dir():
        raise RequestError(f"{str(path)!r} is a folder. Give a {SUFFIX} file; torso.load reads the folder of a run.")
    if path.suffix in (onnx_file.SUFFIX, program_file.SUFFIX):
        runs = "onnxruntime" if path.suffix == onnx_file.SUFFIX else "torch.export.load"
        raise RequestError(f"{str(path)!r} is a program: {runs} runs it. torso.load_model reads {SUFFIX} files.")
    try:
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            return _card(path, file.metadata() or {}), {name: file.get_tensor(name) for name in names}
    except (OSError, SafetensorError) as error:
        raise RequestError(f"{str(path)!r} cannot be read as safetensors: {error}") from None


def _card(path: Path, metadata: dict[str, str]) -> Card:
    """The card of a file, from its metadata."""
    form = metadata.get("form")
    known = {field.name for field in fields(Card)}
    if form is None:  # images
        known = known - {"input"} | {"image", "mean", "std"}
    elif form != _FORM:
        raise RequestError(f"{str(path)!r}: form = {form} in its metadata. Expected: {_FORM}; is it of a newer torso?")
    missing = sorted(known - metadata.keys() - _NEWER)
    if missing:
        raise RequestError(
            f"{str(path)!r} is no model that torso export wrote: its metadata lack {', '.join(missing)}."
        )
    tree: dict[str, Any] = {}
    for key in known & metadata.keys():
        try:
            tree[key] = metadata[key] if key in _TEXTS else parse_json(metadata[key])
        except ValueError:
            raise RequestError(f"{str(path)!r}: {key} = {metadata[key]!r} in its metadata is no JSON.") from None
    if form is None:
        tree["input"] = _pixels(path, tree.pop("image"), tree.pop("mean"), tree.pop("std"))
    try:
        return TypeAdapter(Card).validate_json(json.dumps(tree), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"] if step not in ("pixels", "floats", "tokens"))
        raise RequestError(f"{str(path)!r}: {where} = {first['input']!r} in its metadata: {first['msg']}.") from None
    except RequestError as error:
        raise RequestError(f"{str(path)!r}: {error}") from None


def _pixels(path: Path, image: Any, mean: Any, std: Any) -> dict[str, Any]:
    """The kind of input of metadata without a form, which is images."""
    if not isinstance(image, list) or len(image) != 3:
        raise RequestError(f"{str(path)!r}: image = {image!r} in its metadata. Expected: [channels, height, width]")
    channels, height, width = image
    return {"kind": "pixels", "channels": channels, "height": height, "width": width, "mean": mean, "std": std}


def _check_sizes(path: Path, card: Card, tensors: Tensors) -> None:
    """Refuse a card whose sizes exceed the number of weights, before a network of that size is allocated."""
    values = sum(tensor.numel() for tensor in tensors.values())
    options = {f"head.{key}": value for key, value in card.head.items() if isinstance(value, int)}
    options |= {} if card.lora is None else {"lora.rank": card.lora.rank}
    what = "image" if isinstance(card.taken, Pixels) else "input"
    sizes = {"classes": card.classes, **options, **{f"{what}.{i}": side for i, side in enumerate(card.taken.shape)}}
    if isinstance(card.taken, Tokens):
        sizes["input.vocabulary"] = card.taken.vocabulary
    for name, size in sizes.items():
        if size > max(values, _SIDE):
            raise RequestError(f"{str(path)!r}: {name} = {size} in its metadata, but the file has {values} weights.")


def _check(path: Path, tensors: Tensors, net: Network, personal: bool) -> None:
    """Refuse a file that lacks a tensor of the network, has one that does not fit, or has an unknown one."""
    weights = net.state_dict()
    extra = {name: torch.empty(shape, device="meta") for name, shape in net.client_facts.items() if personal}
    for name, tensor in tensors.items():
        check_fits(name, tensor, {**weights, **extra}, repr(str(path)))
    needed = [*weights, *(name for name in extra if name not in net.optional_facts)]
    missing = [name for name in needed if name not in tensors]
    if missing:
        raise RequestError(f"{str(path)!r} lacks {', '.join(missing[:5])}, which this network has.")
