"""The page that asks models about an image: what it answers and refuses, and how it looks in a real browser.

With TORSO_PICTURES=docs the picture that docs/predict.md shows is written there.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from io import BytesIO
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from PIL import Image

import torso
from torso import RequestError
from torso.data.inputs import Floats
from torso.nets import Network
from torso.report import try_page
from torso.report.try_command import chosen
from torso.report.try_page import TitledModel, serve

from .browser import PROGRAM, browser

PICTURES = os.environ.get("TORSO_PICTURES")
NAMES = ("ring", "bar", "dot" if PICTURES else "<b>dot</b>")
Ask = Callable[..., tuple[int, str]]

pytestmark = pytest.mark.xdist_group("browser")


def drawings(each: int) -> tuple[np.ndarray, np.ndarray]:
    """Rings, bars and dots of 12 × 12 pixels in colour, a little different each time."""
    rng, (row, column) = np.random.default_rng(0), np.mgrid[:12, :12]
    far = np.hypot(row - 5.5, column - 5.5)
    masks = [np.abs(far - 4) < 1.2, np.abs(column - 5.5) < 1.6, far < 2.5]
    labels = np.tile(np.arange(3), each)
    images = np.stack([60 + 150 * masks[label][..., None] * [1.0, 0.8, 0.3] for label in labels])
    return (images + rng.integers(0, 40, images.shape)).astype(np.uint8), labels


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("try")
    images, labels = drawings(40)
    np.savez(
        folder / "data.npz",
        **{"train_images": images, "train_labels": labels, "test_images": images[:9], "test_labels": labels[:9]},
        class_names=np.array(NAMES),
    )
    sets = ["data.source=npz", f"data.root={folder / 'data.npz'}", "data.clients=3", "data.shards=2", "train.rounds=2"]
    sets += [
        "train.fraction=1.0",
        "train.local_epochs=2",
        "train.lr=0.05",
        "personalize.lr=0.05",
        "run.workers=1",
        "measure.names=initial",
    ]
    assert torso.run(torso.Config.load(None, ["method.name=fedavg", *sets]), folder / "run").ok
    return folder / "run"


@pytest.fixture(scope="module")
def models(run: Path) -> list[TitledModel]:
    return chosen(run, None, "1", None)


@pytest.fixture
def address(models: list[TitledModel]) -> Iterator[tuple[str, int]]:
    with serve(models, 0) as server:
        Thread(target=lambda: server.serve_forever(0.02), daemon=True).start()
        yield str(server.server_address[0]), server.server_address[1]
        server.shutdown()


@pytest.fixture
def ask(address: tuple[str, int]) -> Ask:
    def call(method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, str]:
        connection = HTTPConnection(*address, timeout=20)
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    return call


def png(size: tuple[int, int] = (240, 180), which: int = 0) -> bytes:
    file = BytesIO()
    Image.fromarray(drawings(1)[0][which]).resize(size).save(file, "PNG")
    return file.getvalue()


def test_the_generic_model_stands_beside_the_personal_one(models: list[TitledModel], run: Path, tmp_path: Path) -> None:
    assert [model.title for model in models] == ["Generic", "Personal"]
    own = torso.save_model(models[1].network, tmp_path / "own.safetensors")
    generic = torso.save_model(models[0].network, tmp_path / "generic.safetensors")
    assert [model.title for model in chosen(own, None, None, None)] == ["Personal"]
    assert [model.title for model in chosen(generic, None, None, None)] == ["Generic"]
    assert [model.title for model in chosen(own, generic, None, None)] == ["Generic", "Personal"]


def test_an_image_is_answered_by_both(ask: Ask, models: list[TitledModel]) -> None:
    status, text = ask("POST", "/ask", png())
    assert status == 200
    answers = json.loads(text)["models"]
    for answer, model in zip(answers, models, strict=True):
        picture = Image.open(BytesIO(png()))
        expected = torso.predict(model.network, picture)
        assert [one["name"] for one in answer["classes"]] == [name for name, _ in expected.top(3)[0]]
        assert answer["classes"][0]["probability"] == pytest.approx(expected.top(1)[0][0][1], abs=1e-6)
        assert answer["remarks"] == ["the image was resized to 12×12 (from 240×180; the proportions changed)"]
        seen = Image.open(BytesIO(base64.b64decode(answer["seen"].partition(",")[2])))
        assert seen.size == (12, 12)


def test_what_is_no_image_is_refused(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    status, text = ask("POST", "/ask", b"GIF89a nonsense")
    assert status == 400
    assert "cannot be read" in json.loads(text)["error"]
    monkeypatch.setattr("torso.runs.user_images.MOST_PIXELS", 100)
    assert "240×180 pixels" in json.loads(ask("POST", "/ask", png())[1])["error"]
    monkeypatch.setattr(try_page, "MOST_BYTES", 10)
    assert ask("POST", "/ask", png())[0] == 413


def test_only_this_machine_and_its_own_page_are_answered(ask: Ask, address: tuple[str, int]) -> None:
    assert ask("GET", "/", Host="evil.example")[0] == 403
    assert ask("POST", "/ask", png(), Host="evil.example")[0] == 403
    own = f"http://{address[0]}:{address[1]}"
    assert ask("POST", "/ask", png(), Origin=own)[0] == 200
    for other in (
        "https://evil.example",
        "null",
        "http://127.0.0.1:1",
        f"https://{address[0]}:{address[1]}",
        "http://[x",
    ):
        assert ask("POST", "/ask", png(), Origin=other)[0] == 403, other
    assert ask("GET", "/ask")[0] == 404
    assert ask("GET", "/../../etc/passwd")[0] == 404
    assert ask("POST", "/", png())[0] == 400
    assert ask("POST", "/ask", png(), **{"Content-Length": "-1"})[0] == 400
    assert ask("PUT", "/ask", b"")[0] == 501


def test_only_models_of_images_are_shown(models: list[TitledModel]) -> None:
    from dataclasses import replace

    net: Network = models[0].network
    card = net.card
    assert card is not None
    try:
        net.card = replace(card, input=Floats((2,), (0.0, 0.0), (1.0, 1.0)))
        with pytest.raises(RequestError, match="rows of 2 numbers"):
            serve(models, 0)
    finally:
        net.card = card


@pytest.mark.skipif(PROGRAM is None, reason="no Chromium here: apt-get install chromium (Debian)")
def test_the_page_in_a_browser(address: tuple[str, int], tmp_path: Path) -> None:
    home = f"http://{address[0]}:{address[1]}/"
    with browser(tmp_path / "profile") as view:
        view.size(1100, 800)
        view.open(home)
        assert view.run("[...document.querySelectorAll('h2')].map((h) => h.textContent)") == ["Generic", "Personal"]
        _drop(view.run, png(which=2))
        view.until("document.querySelectorAll('.bars').length === 2")
        names = view.run(
            "[...document.querySelectorAll('.bars li:first-child span:first-child')].map((s) => s.textContent)"
        )
        assert set(names) <= set(NAMES)
        assert view.run("document.querySelectorAll('.bars b').length") == 0  # names are text, never HTML
        view.until("[...document.images].every((image) => image.hidden || image.naturalWidth > 0)")
        assert view.run("document.getElementById('error').hidden")
        for dark, width in ((False, 1100), (True, 1100), (False, 390)):
            view.size(width, 800, dark=dark)
            path = tmp_path / f"try-{'dark' if dark else 'light'}-{width}.png"
            view.picture(path)
            image = Image.open(path).convert("RGB")
            assert len(image.getcolors(1 << 24) or ()) > 50  # something was drawn
            if PICTURES and not dark and width == 1100:
                image.crop((0, 0, 1100, 680)).quantize(256).save(Path(PICTURES) / "try.png", optimize=True)
            assert view.run("document.documentElement.scrollWidth <= innerWidth")
        assert view.errors == []
        _drop(view.run, b"no image")
        view.until("!document.getElementById('error').hidden")
        assert "cannot be read" in view.run("document.getElementById('error').textContent")
        assert view.run("document.querySelectorAll('.bars').length") == 0
        assert all(url.startswith((home, "data:", "blob:")) for url in view.requests)


def _drop(run: Callable[[str], object], raw: bytes) -> None:
    """A file dropped on the page, as its own events tell of it."""
    run(
        f"""(() => {{
            const bytes = Uint8Array.from(atob("{base64.b64encode(raw).decode()}"), (c) => c.charCodeAt(0));
            const files = new DataTransfer();
            files.items.add(new File([bytes], "drawing.png", {{ type: "image/png" }}));
            document.dispatchEvent(new DragEvent("drop", {{ dataTransfer: files, bubbles: true, cancelable: true }}));
        }})()"""
    )
