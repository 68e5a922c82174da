"""The cache of decoded images: it never returns those of other files, and its failure never stops a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from torso.caches import CACHE
from torso.data import decoded as module
from torso.data.array_files import ArrayFile
from torso.data.decoded import decoded

SHAPE = (3, 4, 4, 3)
Encoded = tuple[NDArray[np.uint8], ...]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_LEAST_BYTES", 1)
    return tmp_path / "cache" / "decoded"


class Decoder:
    """A decoder whose pixels are the first byte of the file; it counts its calls."""

    def __init__(self) -> None:
        self.asked = 0

    def of(self, encoded: Encoded) -> Callable[[], NDArray[np.uint8]]:
        def decode() -> NDArray[np.uint8]:
            self.asked += 1
            return np.full(SHAPE, encoded[0][0], np.uint8)

        return decode


def look(decoder: Decoder, *content: int) -> int:
    encoded = (np.array(content, np.uint8),)
    found = decoded(encoded, SHAPE, decoder.of(encoded))
    assert (found.shape, found.dtype) == (SHAPE, np.uint8)
    assert (found == content[0]).all()
    found[0] = 1  # the caller may write into its array; other readers do not see it
    return decoder.asked


def test_the_second_time_nothing_is_decoded(cache: Path) -> None:
    decoder = Decoder()
    assert [look(decoder, 7, 8), look(decoder, 7, 8)] == [1, 1]
    assert look(decoder, 7, 9) == 2  # one byte of the file has changed
    assert look(decoder, 7, 8) == 2
    assert len(list(cache.iterdir())) == 2


def test_another_version_of_the_decoder_is_another_file(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = Decoder()
    look(decoder, 7)
    monkeypatch.setattr(module, "_decoder", lambda: ("0.0", "9"))
    assert look(decoder, 7) == 2


@pytest.mark.parametrize("what", ["content", "end", "about", "shape"])
def test_a_damaged_file_is_made_anew(what: str, cache: Path) -> None:
    decoder = Decoder()
    look(decoder, 7)
    (file,) = cache.glob("*/pixels.npy")
    whole = file.read_bytes()
    if what == "content":
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 255]))
    elif what == "end":
        file.write_bytes(whole[:-5])
    elif what == "about":
        (file.parent / "about.json").write_text("[]")
    else:
        np.save(file, np.zeros((2, 2), np.uint8))
    assert [look(decoder, 7), look(decoder, 7)] == [2, 2]
    assert [path.name for path in cache.iterdir()] == [file.parent.name]  # no incomplete folder is left


def test_a_pickle_in_its_place_is_not_opened(cache: Path) -> None:
    decoder = Decoder()
    look(decoder, 7)
    (file,) = cache.glob("*/pixels.npy")
    np.save(file, np.array([{"a": 1}], object), allow_pickle=True)
    assert look(decoder, 7) == 2


def test_a_folder_that_cannot_be_written_costs_the_cache_alone(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(CACHE, str(tmp_path / "file" / "cache"))
    decoder = Decoder()
    assert [look(decoder, 7), look(decoder, 7)] == [1, 2]


@pytest.mark.parametrize("where", ["reserve", "keep"])
def test_a_full_disk_costs_the_cache_alone(where: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    target = "torso.data.array_files._reserve" if where == "reserve" else "torso.data.array_files.NewArray.keep"
    monkeypatch.setattr(target, full)
    decoder = Decoder()
    assert [look(decoder, 7), look(decoder, 7)] == [1, 2]
    assert not list(cache.iterdir())


def test_the_cache_is_bounded_and_the_least_recently_used_leave_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = Decoder()
    look(decoder, 1)
    (first,) = cache.iterdir()
    monkeypatch.setattr(module, "MOST_BYTES", 2 * sum(file.stat().st_size for file in first.iterdir()) + 143)
    look(decoder, 2)
    (second,) = set(cache.iterdir()) - {first}
    for age, folder in enumerate((second, first)):
        os.utime(folder, (1000 + age, 1000 + age))
    left = cache / ".new-left"  # left by a process that was killed while it wrote
    left.mkdir()
    os.utime(left, (0, 0))
    look(decoder, 3)
    kept = set(cache.iterdir())
    assert len(kept) == 2
    assert kept & {first, second, left} == {first}


def test_small_and_huge_arrays_are_not_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = Decoder()
    monkeypatch.setattr(module, "MOST_BYTES", 2 * 144 - 1)
    assert [look(decoder, 7), look(decoder, 7)] == [1, 2]
    monkeypatch.setattr(module, "MOST_BYTES", 2**20)
    monkeypatch.setattr(module, "_LEAST_BYTES", 145)
    assert look(decoder, 7) == 3
    assert not cache.exists()


def test_two_processes_may_write_the_same_file(cache: Path) -> None:
    """The second process finds the complete file of the first under the same name, and keeps it."""
    file = ArrayFile(cache / "name", "pixels.npy", np.uint8, (4,))
    both = [file.new(), file.new()]
    for new in both:
        new.array[:] = 5
        new.keep()
    found, wrong = file.read()
    assert found is not None, wrong
    assert found.tolist() == [5] * 4
    assert [path.name for path in cache.iterdir()] == ["name"]
