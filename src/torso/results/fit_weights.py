"""Compares pretrained weights with the network that they are for."""

from __future__ import annotations

from torch import Tensor

from torso.errors import RequestError
from torso.nets import Tensors
from torso.nets.bodies import is_old_head
from torso.nets.lora import is_adapter

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # of BatchNorm; `model.norm` may do without them
_COUNTER = "num_batches_tracked"  # files of old torch versions have none, and nothing depends on it
_MOST_NAMED = 5


def fitted_weights(held: Tensors, model: Tensors, body: str, where: str, notes: list[str]) -> Tensors:
    """The body's tensors of a file, with the dtype and device of the network's.

    Raises RequestError if some do not fit, with the shapes that were expected and found. `where` is how the message
    calls the file. A head that is left out is reported in `notes`."""
    found, old_head = _of_body(held, model, body)
    wrong = [*_misfits(found, model), *_missing(found, model)]
    if not found or wrong:
        more = f" … ({len(wrong)} in all)" if len(wrong) > _MOST_NAMED else ""
        raise RequestError(
            f"{where} does not fit model.body = {body!r}: {'; '.join(wrong[:_MOST_NAMED]) or 'it has no tensors of it'}"
            f"{more}. Give weights of this body, or change model.body"
        )
    _check_numbers(found, where)
    if old_head:
        names = f"{', '.join(sorted(old_head)[:_MOST_NAMED])}{' …' if len(old_head) > _MOST_NAMED else ''}"
        notes.append(f"{where}: the head of the pre-training ({names}) is left out")
    return {name: tensor.to(model[name], copy=True) for name, tensor in found.items()}


def _of_body(held: Tensors, model: Tensors, body: str) -> tuple[Tensors, list[str]]:
    """The tensors of the body, and the names of those that belong to the head of the pre-training."""
    found: Tensors = {}
    old_head: list[str] = []
    for name, tensor in held.items():
        inside = name.removeprefix("body.")
        if inside == name or (name not in model and name.endswith(_STATISTICS)):
            continue
        if name not in model and is_old_head(body, inside):
            old_head.append(inside.removeprefix("module."))
        else:
            found[name] = tensor
    return found, old_head


def _misfits(found: Tensors, model: Tensors) -> list[str]:
    wrong = []
    for name, tensor in found.items():
        if name not in model:
            wrong.append(f"it has {name} {list(tensor.shape)}, which the body has not")
        elif tensor.shape != model[name].shape or tensor.is_floating_point() != model[name].is_floating_point():
            wrong.append(f"{name} is {_words(tensor)}, expected {_words(model[name])}")
    return wrong


def _words(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _missing(found: Tensors, model: Tensors) -> list[str]:
    needed = (name for name in model if name.startswith("body.") and not is_adapter(name))
    missing = [name for name in needed if name not in found and not name.endswith(_COUNTER)]
    return [f"it lacks {name} {list(model[name].shape)}" for name in missing]


def _check_numbers(found: Tensors, where: str) -> None:
    for name, tensor in found.items():
        if not tensor.isfinite().all():
            raise RequestError(
                f"{where}: {name} holds NaN or infinite values. Give a body whose training did not diverge."
            )
