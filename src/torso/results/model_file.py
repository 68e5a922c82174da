"""Trained networks as files, one network in each, with a card that says what it is. Nothing is ever unpickled.

Safetensors files hold tensors, and `load_model` reads them again. ONNX and torch.export files hold programs for others.
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

_SIDE = 4096  # pixels: a small network may look at large images
_FORM = "2"  # of the metadata for samples that are no images; those of images have no form, as all had before it
SUFFIX = ".safetensors"
FORMATS = {"safetensors": SUFFIX, "onnx": onnx_file.SUFFIX, "torch-export": program_file.SUFFIX}
"""The formats of models by name, with how their files end."""
_TEXTS = {"method", "dataset", "body", "norm", "kind", "torso", "form", "tokenizer_file", "answers"}
"""Words as they are; everything else is JSON."""
_NEWER = {"class_names", "calibrated", "lora", "tokenizer_file", "encoder", "answers"}
"""In the metadata where there is something to tell; older files have none."""


def save_model(
    net: Network, path: str | Path, *, preprocessing: Preprocessing = "inside", opset: int | None = None
) -> Path:
    """Write a network that came out of a run. The end of the path says how:

    `.safetensors`: plain tensors, which `load_model` reads again; `.onnx`: a program for onnxruntime and others (needs
    the extra `onnx`); `.pt2`: a torch.export program for PyTorch. A program needs no Torso and takes any number of
    samples. With the preprocessing "inside" it takes images as uint8 [n, H, W, C], or numbers as they were measured;
    "beside": what `net.prepare` gives. `opset`: of ONNX. The encoder of a model lies in a file of its own beside it,
    one for all models of a folder; programs hold it."""
    path, card = Path(path), card_of(net)
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
    """The network that `save_model` or `torso export` wrote: an nn.Module in evaluation mode, on the CPU.

    A body or head that a plugin registers needs the plugin imported first; `model` is a module like the one that was
    handed to `torso.run`, where one was."""
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
    """What the file holds, the same bytes for the same model: safetensors writes metadata in any order."""
    plain = save(tensors, metadata)
    size = int.from_bytes(plain[:8], "little")
    header = json.loads(plain[8 : 8 + size])
    about = {key: metadata[key] for key in sorted(metadata)}
    places = {name: header[name] for name in sorted(tensors, key=lambda name: header[name]["data_offsets"])}
    text = json.dumps({"__metadata__": about, **places}, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8
    return len(text).to_bytes(8, "little") + text + plain[8 + size :]


def _metadata(card: Card) -> dict[str, str]:
    tree = asdict(card)
    if isinstance(card.input, Pixels):
        del tree["input"]
        tree |= {"image": card.input.shape, "mean": card.input.mean, "std": card.input.std}
    else:
        tree["form"] = _FORM
    told = {key: value for key, value in tree.items() if value or key not in _NEWER}
    return {key: value if key in _TEXTS else json.dumps(value) for key, value in told.items()}


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
    form, known = metadata.get("form"), {field.name for field in fields(Card)}
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
    """The kind of input that metadata without a form tell of."""
    if not isinstance(image, list) or len(image) != 3:
        raise RequestError(f"{str(path)!r}: image = {image!r} in its metadata. Expected: [channels, height, width]")
    channels, height, width = image
    return {"kind": "pixels", "channels": channels, "height": height, "width": width, "mean": mean, "std": std}


def _check_sizes(path: Path, card: Card, tensors: Tensors) -> None:
    """Before anything of that size is made: no dimension of a network is larger than the number of its weights."""
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
    """Every tensor of the network must be there and fit, and nothing else."""
    weights = net.state_dict()
    told = {name: torch.empty(shape, device="meta") for name, shape in net.told.items() if personal}
    for name, tensor in tensors.items():
        check_fits(name, tensor, {**weights, **told}, repr(str(path)))
    needed = [*weights, *(name for name in told if name not in net.may_lack)]
    missing = [name for name in needed if name not in tensors]
    if missing:
        raise RequestError(f"{str(path)!r} lacks {', '.join(missing[:5])}, which this network has.")
