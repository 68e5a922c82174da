"""A body as an encoder (`model.encoder`), a network that never learns and makes features for another network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from torso.data.wants import Wants
from torso.errors import RequestError
from torso.nets.bodies import bodies, wants_of

AUTO, RANDOM = "auto", "random"


@contextmanager
def messages_name_encoder() -> Iterator[None]:
    """A context in which error messages name `model.encoder` instead of `model.body`.

    An encoder is looked up and built by the same functions as a body, whose messages name the body."""
    try:
        yield
    except RequestError as error:
        message = _of_encoder(str(error))
        if message == str(error):
            raise
        raise type(error)(message) from None


def weights_of(name: str, word: str) -> str:
    """`model.encoder_weights` with "auto" resolved. "": the weights are drawn."""
    if word == RANDOM:
        return ""
    if word != AUTO:
        return word
    with messages_name_encoder():
        known: tuple[str, ...] = tuple(getattr(bodies[name], "words", ()))
    if not known:
        raise RequestError(
            f"model.encoder = {name!r} comes without trained weights, and an encoder never learns. Set "
            f"model.encoder_weights to a file or a run folder, or to {RANDOM}: features of random weights"
        )
    return "DEFAULT" if "DEFAULT" in known else known[0]


def wants_of_encoder(name: str, weights: str) -> Wants:
    """What an encoder expects of samples. The learning rate is 0: an encoder does not learn."""
    with messages_name_encoder():
        found = wants_of(name, weights)
    return replace(found, by=_of_encoder(found.by), lr=0.0)


def _of_encoder(text: str) -> str:
    return text.replace("model.body", "model.encoder").replace("model.weights", "model.encoder_weights")
