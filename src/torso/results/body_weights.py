"""Loads the weights of a pretrained body, as `model.weights` names them."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError

from torso.errors import RequestError
from torso.nets import Tensors
from torso.nets.bodies import named_weights
from torso.nets.weight_files import read_weights
from torso.results.checkpoint import newest_model
from torso.results.fit_weights import fitted_weights


def load_body(weights: str, model: Tensors, body: str, notes: list[str] | None = None) -> Tensors:
    """The tensors of a pretrained body.

    `weights` is a name that the body knows, a run folder, or a file of weights. Every tensor must fit `body`. Adapters
    may be missing: they keep their initial values. Remarks for the user are appended to `notes`."""
    where = f"model.weights = {weights!r}"
    named = named_weights(body, weights)
    held = _body_at(Path(weights), where) if named is None else {f"body.{name}": t for name, t in named.items()}
    return fitted_weights(held, model, body, where, [] if notes is None else notes)


def _body_at(path: Path, where: str) -> Tensors:
    """The tensors of the newest checkpoint, if `path` is a run folder, or those of a file."""
    if not path.is_dir():
        return read_weights(path, where)
    try:
        found = newest_model(path / "checkpoints")
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise RequestError(f"{where} cannot be read: {error}") from None
    if found is None:
        raise RequestError(f"{where} holds no checkpoint. Give the folder of a finished run.")
    return found
