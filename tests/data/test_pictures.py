"""Images in all forms that users pass become [n, H, W, C], and none is misread."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from torso import RequestError
from torso.data.inputs import Pixels
from torso.data.pictures import as_stored

COLOUR, GREY = Pixels(3, 4, 5), Pixels(1, 4, 5)
RGB = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3), dtype=np.uint8)
L = np.ascontiguousarray(RGB[..., 0])


@pytest.mark.parametrize(
    ("kind", "given", "wanted"),
    [
        (COLOUR, RGB, RGB),
        (COLOUR, torch.from_numpy(RGB), RGB),
        (COLOUR, RGB.transpose(0, 3, 1, 2), RGB),
        (COLOUR, RGB[0], RGB[:1]),
        (COLOUR, RGB[0].transpose(2, 0, 1), RGB[:1]),
        (COLOUR, torch.from_numpy(RGB[0]).permute(2, 0, 1), RGB[:1]),
        (COLOUR, [RGB[0], torch.from_numpy(RGB[1])], RGB),
        (COLOUR, Image.fromarray(RGB[0]), RGB[:1]),
        (COLOUR, [Image.fromarray(image) for image in RGB], RGB),
        (COLOUR, [Image.fromarray(RGB[0]), RGB[1]], RGB),
        (COLOUR, Image.fromarray(L[0]), np.stack([L[:1]] * 3, axis=-1)),
        (GREY, L, L[..., None]),
        (GREY, L[0], L[:1, ..., None]),
        (GREY, L[0][..., None], L[:1, ..., None]),
        (GREY, L[:1], L[:1, ..., None]),
        (GREY, L[:, None], L[..., None]),
        (GREY, [L[0], L[1]], L[..., None]),
        (GREY, Image.fromarray(L[1]), L[1:, ..., None]),
        (GREY, L.tolist(), L[..., None]),
    ],
)
def test_forms_that_are_taken(kind: Pixels, given: Any, wanted: np.ndarray[Any, Any]) -> None:
    found = np.asarray(as_stored(kind, given))
    assert found.shape == wanted.shape
    assert (found == wanted).all()


def test_a_photo_is_turned_upright() -> None:
    """Orientation 6: the camera lay on its side, and the picture is to be turned by 90 degrees clockwise."""
    photo = Image.fromarray(RGB[0].transpose(1, 0, 2)[::-1])  # as stored: turned the other way
    exif = photo.getexif()
    exif[0x0112] = 6
    photo.info["exif"] = exif.tobytes()
    assert (as_stored(COLOUR, photo)[0] == RGB[0]).all()


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (COLOUR, Image.new("RGB", (7, 4)), r"the image is 7×4 \(width × height\). Expected: 5×4.*resize\(\(5, 4\)\)"),
        (COLOUR, [RGB[0], Image.new("L", (4, 5))], "image 1 is 4×5"),
        (COLOUR, Image.new("F", (5, 4)), "more than 8 bits per pixel"),
        (COLOUR, [RGB[0], L[0]], r"image 1 is uint8 \[4, 5\]. Expected: uint8 \(0 to 255\), \[4, 5, 3\]"),
        (COLOUR, [RGB[0] / 255], "image 0 is float64"),
        (Pixels(3, 3, 3), np.zeros((3, 3, 3), np.uint8), "its channels may be its first or its last dimension"),
        (Pixels(5, 4, 5), Image.new("RGB", (5, 4)), "is a Pillow image. Expected: an array"),
    ],
)
def test_forms_that_are_refused(kind: Pixels, given: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        as_stored(kind, given)


@pytest.mark.parametrize("given", [L[0], RGB[0, :3], RGB[None], np.zeros((2, 5, 4, 3), np.uint8)])
def test_what_fits_no_form_is_left_for_the_message_of_its_kind(given: np.ndarray[Any, Any]) -> None:
    with pytest.raises(RequestError, match="images are "):
        COLOUR.accept("images", as_stored(COLOUR, given))
