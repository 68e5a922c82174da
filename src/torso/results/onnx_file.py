"""Writes a trained network as an ONNX file, which onnxruntime and other programs run without PyTorch and Torso."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from torso.errors import RequestError
from torso.nets import Network
from torso.nets.network import card_of
from torso.results.files import replace_file
from torso.results.portable import (
    OUTPUT,
    Preprocessing,
    check_answers,
    export_program,
    first_line,
    program_metadata,
    quiet,
)

SUFFIX = ".onnx"
OPSET = 20
_NEEDED = ("onnx", "onnxscript", "onnxruntime")


def check_can_write(opset: int | None) -> None:
    """Raise RequestError if a package is missing on this machine, or if its ONNX does not know the opset."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise RequestError(f"--format onnx needs {', '.join(missing)}, not installed here: pip install 'torso[onnx]'")
    import onnx

    newest = onnx.defs.onnx_opset_version()
    if opset is not None and not 1 <= opset <= newest:
        raise RequestError(f"--opset {opset} is unknown here. Accepted: 1 to {newest}; {OPSET} is the default")


def write_onnx(net: Network, path: Path, preprocessing: Preprocessing = "inside", opset: int | None = None) -> None:
    """Convert the network, check that onnxruntime returns the same logits, and write the file.

    The metadata have the entries of `program_metadata`: card, classes and input."""
    check_can_write(opset)
    card = card_of(net)
    model = _converted(export_program(net, preprocessing), card.input.noun, path.name, opset or OPSET)
    _tidy(model, program_metadata(card, preprocessing))
    try:
        made = model.SerializeToString(deterministic=True)
    except ValueError as error:  # a file of this format has at most 2 GiB
        raise RequestError(f"{path.name} cannot be written as one ONNX file: {first_line(error)}") from None
    with quiet():
        check_answers(net, preprocessing, path.name, _runner(made, path.name))
    replace_file(path, lambda temporary: temporary.write_bytes(made))


def _converted(program: ExportedProgram, noun: str, name: str, opset: int) -> Any:
    """The program as an ONNX ModelProto of exactly this opset."""
    with quiet() as heard:
        try:
            found = torch.onnx.export(
                program, dynamo=True, verbose=False, opset_version=opset, input_names=[noun], output_names=[OUTPUT]
            )
        except Exception as error:  # the exporter raises exceptions of many types
            raise RequestError(f"{name}: ONNX has no counterpart of this network: {_reason(error)}") from error
    assert found is not None
    model = found.model_proto
    if _opset(model) != opset:
        lacks = re.findall(r"No Previous Version of (\w+) exists", "\n".join(heard))
        why = f"{lacks[0]}, which this network needs" if lacks else "what this network needs"
        raise RequestError(f"{name}: opset {opset} of ONNX lacks {why}. Accepted: --opset {OPSET}, the default")
    return model


def _opset(model: Any) -> int:
    return next(int(entry.version) for entry in model.opset_import if not entry.domain)


def _reason(error: BaseException) -> str:
    """The first line of the innermost exception, which names the operator that cannot be exported."""
    inner = error
    while inner.__cause__ is not None:
        inner = inner.__cause__
    return first_line(inner)


def _tidy(model: Any, metadata: dict[str, str]) -> None:
    """Remove debug information with paths of this machine, name the free dimension `batch`, and add metadata."""
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.initializer, *graph.input, *graph.output):
        del part.metadata_props[:]
        part.doc_string = ""
    del graph.value_info[:]
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    for key, text in metadata.items():
        model.metadata_props.add(key=key, value=text)


def _runner(made: bytes, name: str) -> Any:
    """A function that runs the model with onnxruntime: prepared samples → logits."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        session = onnxruntime.InferenceSession(made, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise RequestError(f"{name}: onnxruntime does not take it: {first_line(error)}") from error

    def answer(samples: Tensor) -> Tensor:
        given = session.get_inputs()[0].name
        return torch.from_numpy(session.run([OUTPUT], {given: samples.numpy()})[0])

    return answer
