"""The local page of `torso try`: models classify an image or a text that the user gives."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from io import BytesIO
from threading import Lock
from typing import Any

import numpy as np
from PIL import Image

from torso.data.inputs import Pixels, Tokens
from torso.errors import RequestError
from torso.nets import Network
from torso.nets.network import card_of
from torso.report.local_page import LocalHandler, listen
from torso.report.page import render
from torso.report.predict_command import described
from torso.runs.predict import answers
from torso.runs.user_data import UserData, read_user_data
from torso.runs.user_images import decoded, remarks_on

MOST_BYTES = 20 * 2**20  # of an uploaded file
_SHOWN = 5  # classes that an answer lists


@dataclass(frozen=True, eq=False)
class TitledModel:
    """A model with its title on the page."""

    title: str
    network: Network

    @property
    def kind(self) -> Pixels | Tokens:
        """The kind of input that the model takes; raises RequestError if the page cannot show it."""
        card = card_of(self.network)
        if isinstance(card.input, Pixels) or (isinstance(card.input, Tokens) and card.tokenizer is not None):
            return card.input
        raise RequestError(
            f"the model takes {card.input.words}, but torso try takes only images and texts. Use torso predict."
        )


class TryModels:
    """The models of the page. They classify one image, or one text, at a time."""

    def __init__(self, models: Sequence[TitledModel]) -> None:
        self.models = models
        self.kinds = [model.kind for model in models]
        self.of_texts = isinstance(self.kinds[0], Tokens)
        if any(isinstance(kind, Tokens) != self.of_texts for kind in self.kinds):
            raise RequestError(
                "one model takes images and the other takes texts. Expected: two models of the same kind"
            )
        self._one_at_a_time = Lock()

    def ask(self, raw: bytes) -> dict[str, Any]:
        """The answers of all models for the bytes of an image file or of a text, and the image as they saw it."""
        with self._one_at_a_time:
            return {"models": [self._say(*both, raw) for both in zip(self.models, self.kinds, strict=True)]}

    def _say(self, model: TitledModel, kind: Pixels | Tokens, raw: bytes) -> dict[str, Any]:
        picture = decoded("the file", raw, kind) if isinstance(kind, Pixels) else None
        if picture is not None and isinstance(kind, Pixels):
            given = UserData(("image",), picture.pixels[None], (), remarks_on([picture], kind))
        else:
            given = read_user_data([_text(raw)], card_of(model.network))
        found = answers(model.network, given)
        (best,) = found.top(_SHOWN)
        return {
            "title": model.title,
            "classes": [{"name": name, "probability": probability} for name, probability in best],
            "remarks": list(found.remarks),
            "seen": "" if picture is None else _as_address(picture.pixels),
        }


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise RequestError("what was sent is not text in UTF-8. Expected: UTF-8") from None


def _as_address(pixels: np.ndarray) -> str:
    """An image as a data URL."""
    file = BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


class _Handler(LocalHandler):
    """Answers GET / with the page and POST /ask with the models' answers; refuses everything else."""

    booth: TryModels

    def do_GET(self) -> None:
        if not self.is_local():
            return
        if self.path != "/":
            self.answer(HTTPStatus.NOT_FOUND, "text/plain", "nothing here")
            return
        shown = [{"title": m.title, "words": described(card_of(m.network))} for m in self.booth.models]
        self.answer(
            HTTPStatus.OK,
            "text/html",
            render(
                *("try.html", "try.js", ["base.css", "try.css"]),
                models=shown,
                most=MOST_BYTES,
                of_texts=self.booth.of_texts,
            ),
        )

    def do_POST(self) -> None:
        if not self.is_local():
            return
        size = self.headers.get("Content-Length") or ""
        if self.path != "/ask" or not (size.isascii() and size.isdecimal() and len(size) < 12):
            self._refuse(HTTPStatus.BAD_REQUEST, "Send the bytes of one image, or one text, to /ask.")
        elif int(size) > MOST_BYTES:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The file is larger than {MOST_BYTES >> 20} MB.")
        else:
            self._ask(self.rfile.read(int(size)))

    def _ask(self, raw: bytes) -> None:
        try:
            found = self.booth.ask(raw)
        except RequestError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))
            return
        self.answer(HTTPStatus.OK, "application/json", json.dumps(found))

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        self.close_connection = True  # the body of the request may not have been read
        self.answer(status, "application/json", json.dumps({"error": reason}))


def serve(models: Sequence[TitledModel], port: int) -> ThreadingHTTPServer:
    """A server that is ready to `serve_forever`; port 0: any free one."""
    return listen(type("Handler", (_Handler,), {"booth": TryModels(models)}), port)
