"""The encoder of models as a file beside them: there is one, however many models stand on it."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save_file

from torso import nets
from torso.data.inputs import Input
from torso.engine.feature_files import body_digest
from torso.errors import RequestError
from torso.learn.encoder import Encoder
from torso.learn.features import goes_by_batch
from torso.nets import Network, Tensors
from torso.nets.card import Card, EncoderCard
from torso.nets.encoder import spoken_of_encoder
from torso.nets.weight_files import read_weights
from torso.results.body_weights import load_body
from torso.results.files import replace_file

PREFIX = "encoder-"


def encoder_name(card: EncoderCard) -> str:
    """The name of the file: other weights have another."""
    return f"{PREFIX}{card.digest[:12]}.safetensors"


def is_encoder(path: Path) -> bool:
    return path.name.startswith(PREFIX)


def write_encoder(encoder: Encoder, card: EncoderCard, folder: Path) -> Path:
    """The file in a folder, unless it is there."""
    path = folder / encoder_name(card)
    if not path.exists():
        tensors = {name: tensor.cpu().contiguous() for name, tensor in encoder.tensors.items()}
        replace_file(path, lambda temporary: save_file(tensors, temporary))
    return path


def read_encoder(card: Card, folder: Path) -> Encoder:
    """The encoder of a model in a folder: from the file beside it, or as its name says where that file has been left
    behind. Other weights than those that the model was trained with are refused."""
    about = card.encoder
    assert about is not None
    path = folder / encoder_name(about)
    try:
        if path.is_file():
            found = _with(about, card.input, read_weights(path, repr(str(path))), repr(str(path)))
        else:
            found = made_encoder(about.body, about.weights, card.input)
    except RequestError as error:
        said = f"{str(path)!r} is not there, and the encoder's own weights cannot be had" * (not path.is_file())
        raise RequestError(f"{said + ': ' if said else ''}{error}") from None
    if found.digest != about.digest:
        whose = repr(str(path)) if path.is_file() else f"model.encoder_weights = {about.weights!r}, found here,"
        raise RequestError(
            f"{whose} has other weights ({found.digest[:12]}) than the encoder that the model was trained with "
            f"({about.digest[:12]}). Put {path.name} beside the model: torso export wrote it"
        )
    return found


def made_encoder(name: str, weights: str, kind: Input, seed: int = 0) -> Encoder:
    """An encoder by its names; without `weights` they are drawn from the seed."""
    with spoken_of_encoder():
        net = _network(name, kind, seed)
        drawn = net.state_dict()
        return _frozen(net, drawn | (load_body(weights, drawn, name) if weights else {}))


def _with(card: EncoderCard, kind: Input, tensors: Tensors, where: str) -> Encoder:
    """The encoder that a card names, with the tensors of a file."""
    with spoken_of_encoder():
        net = _network(card.body, kind)
    wanted = {name: tensor.shape for name, tensor in net.state_dict().items() if name.startswith("body.")}
    if wanted != {name: tensor.shape for name, tensor in tensors.items()}:
        raise RequestError(f"{where} does not hold the tensors of model.encoder = {card.body!r}")
    return _frozen(net, tensors)


def _network(name: str, kind: Input, seed: int = 0) -> Network:
    net = nets.build(name, 2, kind, nets.LinearHead(), seed=seed)
    if goes_by_batch(net):
        raise RequestError(
            f"model.body = {name!r}: its BatchNorm goes by the batch, so a feature depends on the other samples of its "
            "batch. Expected: a body without BatchNorm, or with running statistics"
        )
    return net.requires_grad_(False)


def _frozen(net: Network, tensors: Tensors) -> Encoder:
    held = {name: tensor.detach() for name, tensor in tensors.items() if name.startswith("body.")}
    return Encoder(net, held, body_digest(held))
