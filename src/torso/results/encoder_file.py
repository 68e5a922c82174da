"""The file of a frozen encoder. All models of a folder that use the same encoder share one file."""

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
from torso.nets.encoder import messages_name_encoder
from torso.nets.weight_files import read_weights
from torso.results.body_weights import load_body
from torso.results.files import replace_file

PREFIX = "encoder-"


def encoder_name(card: EncoderCard) -> str:
    """The file name, which depends on the encoder's weights."""
    return f"{PREFIX}{card.digest[:12]}.safetensors"


def is_encoder(path: Path) -> bool:
    return path.name.startswith(PREFIX)


def write_encoder(encoder: Encoder, card: EncoderCard, folder: Path) -> Path:
    """Write the encoder's file into a folder, unless it is there already. Returns its path."""
    path = folder / encoder_name(card)
    if not path.exists():
        tensors = {name: tensor.cpu().contiguous() for name, tensor in encoder.tensors.items()}
        replace_file(path, lambda temporary: save_file(tensors, temporary))
    return path


def read_encoder(card: Card, folder: Path) -> Encoder:
    """The encoder of a model that was read from this folder.

    It is read from its file there. If that file is missing, it is built from its name and its pretrained weights.
    Weights other than those that the model was trained with are refused."""
    about = card.encoder
    assert about is not None
    path = folder / encoder_name(about)
    try:
        if path.is_file():
            found = _with(about, card.input, read_weights(path, repr(str(path))), repr(str(path)))
        else:
            found = build_encoder(about.body, about.weights, card.input)
    except RequestError as error:
        if path.is_file():
            raise
        missing = f"{str(path)!r} is not there, and the encoder's own weights cannot be had"
        raise RequestError(f"{missing}: {error}") from None
    if found.digest != about.digest:
        where = repr(str(path)) if path.is_file() else f"model.encoder_weights = {about.weights!r}, found here,"
        raise RequestError(
            f"{where} has other weights ({found.digest[:12]}) than the encoder that the model was trained with "
            f"({about.digest[:12]}). Put {path.name} beside the model: torso export wrote it"
        )
    return found


def build_encoder(name: str, weights: str, kind: Input, seed: int = 0) -> Encoder:
    """Build an encoder from the name of its body and the name of its weights ("": drawn from the seed)."""
    with messages_name_encoder():
        net = _network(name, kind, seed)
        tensors = net.state_dict()
        if weights:
            tensors = tensors | load_body(weights, tensors, name)
        return _frozen(net, tensors)


def _with(card: EncoderCard, kind: Input, tensors: Tensors, where: str) -> Encoder:
    """The encoder that a card describes, with the tensors of a file."""
    with messages_name_encoder():
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
