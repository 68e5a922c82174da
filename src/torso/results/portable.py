"""Turns a trained network into a program that does not need Torso: preprocessing and network in one graph.

A program takes any batch size. Shapes: n samples.
"""

from __future__ import annotations

import copy
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import asdict
from typing import Literal

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from torso.data.inputs import Floats, Known, Pixels
from torso.errors import RequestError
from torso.fast import plain_path
from torso.learn.encoder import Encoder
from torso.nets import Network
from torso.nets.card import Card, EncoderCard
from torso.nets.network import card_of

Preprocessing = Literal["inside", "beside"]
PREPROCESSINGS: tuple[Preprocessing, ...] = ("inside", "beside")
OUTPUT = "logits"
TOLERANCE = 1e-5  # largest accepted difference of logits, times the largest logit or 1
_TRIED = (1, 2, 5)  # batch sizes with which a program is checked before it is written
_TRACES = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node")  # debug data: paths and so on

_LOGGERS = ("torch.onnx", "torch.export", "torch.fx", "onnxscript", "onnx_ir")  # silenced by `quiet`


class Portable(nn.Module):
    """The network, its frozen encoder and its preprocessing as one module of one tensor.

    With preprocessing "inside" it takes samples as they are stored: images as uint8 [n, H, W, C], numbers as they were
    measured. With "beside" it takes prepared samples."""

    mean: Tensor
    std: Tensor

    def __init__(self, net: Network, input: Known, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.encoder = _encoder(net)
        self.net = copy.deepcopy(net).eval().requires_grad_(False)
        self.pixels = isinstance(input, Pixels)
        self.constants = preprocessing == "inside" and isinstance(input, Pixels | Floats)
        if self.constants and isinstance(input, Pixels | Floats):
            scale, rank = (255, 3) if self.pixels else (1, len(input.shape))
            shape = (1, -1, *[1] * (rank - 1))
            for name, values, default in (("mean", input.mean, 0.0), ("std", input.std, 1.0)):
                found = values or (default,) * input.shape[0]
                self.register_buffer(name, (torch.tensor(found) * scale).view(shape))

    def forward(self, samples: Tensor) -> Tensor:
        if self.constants:
            samples = samples.permute(0, 3, 1, 2).float() if self.pixels else samples
            samples = (samples - self.mean) / self.std
        if self.encoder is not None:
            samples = self.encoder(samples)
        logits: Tensor = self.net(samples)
        return logits


class _Encoding(nn.Module):
    """A frozen encoder as a module: samples → standardised features, which the network takes."""

    mean: Tensor
    std: Tensor

    def __init__(self, encoder: Encoder, card: EncoderCard) -> None:
        super().__init__()
        self.net = copy.deepcopy(encoder.net).eval()
        self.net.load_state_dict({**self.net.state_dict(), **encoder.tensors})
        self.register_buffer("mean", torch.tensor(card.mean))
        self.register_buffer("std", torch.tensor(card.std))

    def forward(self, samples: Tensor) -> Tensor:
        return (self.net.features(samples) - self.mean) / self.std


def _encoder(net: Network) -> nn.Module | None:
    card = card_of(net).encoder
    if card is None:
        return None
    assert isinstance(net.encoder, Encoder)
    return _Encoding(net.encoder, card)


def example(input: Known, samples: int, preprocessing: Preprocessing) -> Tensor:
    """Example samples in the form that a program takes; always the same for the same arguments."""
    if preprocessing == "inside" and isinstance(input, Pixels):
        pixels = torch.Generator().manual_seed(samples)
        return torch.randint(
            256, (samples, input.height, input.width, input.channels), generator=pixels, dtype=torch.uint8
        )
    return input.example(samples)


def export_program(net: Network, preprocessing: Preprocessing) -> ExportedProgram:
    """The graph of the network in evaluation mode, for any number of samples, without paths of this machine."""
    input = card_of(net).input
    module = Portable(net, input, preprocessing)
    given = example(input, 3, preprocessing)
    try:
        with plain_path(), quiet(), torch.no_grad():
            program = torch.export.export(module, (given,), dynamic_shapes={"samples": {0: Dim("batch")}})
    except Exception as error:  # torch.export raises exceptions of many types
        raise RequestError(f"torch.export cannot follow {_kind(net)}: {first_line(error)}") from error
    for part in program.graph_module.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:
                for key in _TRACES:
                    node.meta.pop(key, None)
    program.example_inputs = None
    return program


def program_metadata(card: Card, preprocessing: Preprocessing) -> dict[str, str]:
    """The metadata of a program, as JSON by key.

    `card`: the card. `classes`: their names, in the order of the logits. `input`: what the program takes."""
    kind = card.input
    inside = preprocessing == "inside" and isinstance(kind, Pixels | Floats)
    shape = (kind.height, kind.width, kind.channels) if inside and isinstance(kind, Pixels) else kind.shape
    takes = {
        "preprocessing": preprocessing,
        "dtype": str(kind.stored if inside else kind.given).removeprefix("torch."),
        "shape": ["batch", *shape],
    }
    entries = {key: value for key, value in asdict(card).items() if value or key != "tokenizer_file"}
    parts = {"card": entries, "classes": list(card.names), "input": takes}
    return {key: json.dumps(value, sort_keys=True, ensure_ascii=False) for key, value in sorted(parts.items())}


def check_answers(net: Network, preprocessing: Preprocessing, what: str, answer: Callable[[Tensor], Tensor]) -> None:
    """Raise RequestError if a program's logits differ from the network's, for one sample or for several.

    `answer` runs the program; `what` is its name in messages."""
    input = card_of(net).input
    module = Portable(net, input, preprocessing)
    for samples in _TRIED:
        given = example(input, samples, preprocessing)
        with torch.no_grad():
            wanted = module(given)
        try:
            found = answer(given)
        except Exception as error:  # a runtime may raise any exception
            raise RequestError(f"{what} does not run on {samples} {input.noun}: {first_line(error)}") from error
        apart = float((found - wanted).abs().max()) if found.shape == wanted.shape else float("inf")
        if not apart <= TOLERANCE * max(1.0, float(wanted.abs().max())):
            raise RequestError(
                f"{what} answers otherwise than the network: logits of {samples} {input.noun} differ by {apart:.2g}"
            )


@contextmanager
def quiet() -> Iterator[list[str]]:
    """Suppress the output of exporters in the block. Yields a list to which their log messages are appended."""
    heard: list[str] = []
    handler = _ListHandler(heard)
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [(logger.propagate, logger.handlers) for logger in loggers]
    for logger in loggers:
        logger.propagate, logger.handlers = False, [handler]
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield heard
    finally:
        for logger, (propagates, handlers) in zip(loggers, before, strict=True):
            logger.propagate, logger.handlers = propagates, handlers


class _ListHandler(logging.Handler):
    """Appends the messages of a logger to a list."""

    def __init__(self, heard: list[str]) -> None:
        super().__init__()
        self.heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        reason = record.exc_info[1] if record.exc_info else None
        self.heard.append(record.getMessage() if reason is None else first_line(reason))


def first_line(error: BaseException) -> str:
    """The type of an exception and the first line of its message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _kind(net: Network) -> str:
    return f"the body {card_of(net).body!r}"
