"""A trained network as a program that needs no Torso: preprocessing and network in one graph, for any batch size.

n samples.
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
TOLERANCE = 1e-5  # times the largest logit, or 1: how far a written program may be from the network
_TRIED = (1, 2, 5)  # batch sizes that a program is tried with before it is kept
_TRACES = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node")  # paths of this machine, say

_TALKERS = ("torch.onnx", "torch.export", "torch.fx", "onnxscript", "onnx_ir")  # loggers


class Portable(nn.Module):
    """The network as one function of one tensor, samples as the card says: stored ones where the preprocessing is
    inside (images uint8 [n, H, W, C], numbers as they were measured), prepared ones where it is beside. An encoder
    before the network is a part of it."""

    mean: Tensor
    std: Tensor

    def __init__(self, net: Network, input: Known, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.encoder = _encoder(net)
        self.net, self.pixels = copy.deepcopy(net).eval().requires_grad_(False), isinstance(input, Pixels)
        self.constants = preprocessing == "inside" and isinstance(input, Pixels | Floats)
        if self.constants and isinstance(input, Pixels | Floats):
            scale, rank = (255, 3) if self.pixels else (1, len(input.shape))
            shape = (1, -1, *[1] * (rank - 1))
            for name, values, other in (("mean", input.mean, 0.0), ("std", input.std, 1.0)):
                found = values or (other,) * input.shape[0]
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
    """An encoder with its weights: samples become features, standardised as the network wants them."""

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
    """Samples to try a program with, as it takes them; always the same."""
    if preprocessing == "inside" and isinstance(input, Pixels):
        pixels = torch.Generator().manual_seed(samples)
        return torch.randint(
            256, (samples, input.height, input.width, input.channels), generator=pixels, dtype=torch.uint8
        )
    return input.example(samples)


def traced(net: Network, preprocessing: Preprocessing) -> ExportedProgram:
    """The graph of the network in evaluation mode for any number of samples, without any trace of where it was made."""
    module, input = Portable(net, card_of(net).input, preprocessing), card_of(net).input
    given = example(input, 3, preprocessing)
    try:
        with plain_path(), quiet(), torch.no_grad():
            program = torch.export.export(module, (given,), dynamic_shapes={"samples": {0: Dim("batch")}})
    except Exception as error:  # torch.export raises what it likes
        raise RequestError(f"torch.export cannot follow {_kind(net)}: {first_line(error)}") from error
    for part in program.graph_module.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:
                for key in _TRACES:
                    node.meta.pop(key, None)
    program.example_inputs = None
    return program


def about(card: Card, preprocessing: Preprocessing) -> dict[str, str]:
    """What stands in the metadata of a program, as JSON: the card, the names of the classes in the order of the logits,
    and what goes in."""
    kind = card.input
    inside = preprocessing == "inside" and isinstance(kind, Pixels | Floats)
    takes = {
        "preprocessing": preprocessing,
        "dtype": str(kind.stored if inside else kind.given).removeprefix("torch."),
        "shape": [
            "batch",
            *((kind.height, kind.width, kind.channels) if inside and isinstance(kind, Pixels) else kind.shape),
        ],
    }
    told = {key: value for key, value in asdict(card).items() if value or key != "tokenizer_file"}
    parts = {"card": told, "classes": list(card.names), "input": takes}
    return {key: json.dumps(value, sort_keys=True, ensure_ascii=False) for key, value in sorted(parts.items())}


def check_answers(net: Network, preprocessing: Preprocessing, what: str, answer: Callable[[Tensor], Tensor]) -> None:
    """Refuse a program that does not answer as the network does, for one sample and for several."""
    input = card_of(net).input
    module = Portable(net, input, preprocessing)
    for samples in _TRIED:
        given = example(input, samples, preprocessing)
        with torch.no_grad():
            wanted = module(given)
        try:
            found = answer(given)
        except Exception as error:  # whatever runs it may raise anything
            raise RequestError(f"{what} does not run on {samples} {input.noun}: {first_line(error)}") from error
        apart = float((found - wanted).abs().max()) if found.shape == wanted.shape else float("inf")
        if not apart <= TOLERANCE * max(1.0, float(wanted.abs().max())):
            raise RequestError(
                f"{what} answers otherwise than the network: logits of {samples} {input.noun} differ by {apart:.2g}"
            )


@contextmanager
def quiet() -> Iterator[list[str]]:
    """Inside, what the exporters say on the way is not printed; the list has what was logged."""
    heard: list[str] = []
    handler = _Hear(heard)
    loggers = [logging.getLogger(name) for name in _TALKERS]
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


class _Hear(logging.Handler):
    def __init__(self, heard: list[str]) -> None:
        super().__init__()
        self.heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        reason = record.exc_info[1] if record.exc_info else None
        self.heard.append(record.getMessage() if reason is None else first_line(reason))


def first_line(error: BaseException) -> str:
    """The first line of what an exception says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _kind(net: Network) -> str:
    return f"the body {card_of(net).body!r}"
