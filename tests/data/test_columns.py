"""Parquet files and data sets of Hugging Face's `datasets`, all from this machine."""

from __future__ import annotations

import io
import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from torso.data import Dataset, build, load
from torso.errors import RequestError

from .samples import options

ROWS = {
    "age": [20.0, 40.0, None, 60.0] * 5,
    "city": ["Rome", "Oslo", "Rome", None] * 5,
    "state": ["ill", "well"] * 10,
    "site": ["süd", "nord"] * 10,
}


def read(root: Path, source: str = "parquet", size: int = 0, **csv: Any) -> Dataset:
    return load(options(source=source, root=str(root), size=size, csv={"label": "state", **csv}), 0)


def png(value: int, size: tuple[int, int] = (4, 3)) -> bytes:
    file = io.BytesIO()
    Image.new("L", size, value).save(file, "png")
    return file.getvalue()


def test_a_parquet_table_is_read_as_the_csv_of_its_cells(tmp_path: Path) -> None:
    pq.write_table(pa.table(ROWS), tmp_path / "t.parquet")
    lines = [",".join(ROWS)]
    lines += [",".join("" if cell is None else str(cell) for cell in row) for row in zip(*ROWS.values(), strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(lines), encoding="utf-8")
    found, same = (read(tmp_path / f"t.{kind}", kind, client="site") for kind in ("parquet", "csv"))
    assert found.input == same.input
    assert found.names == ("nord", "süd")
    assert found.class_names == ("ill", "well")
    for split, other in ((found.train, same.train), (found.test, same.test)):
        assert np.array_equal(split.samples, other.samples)
        assert np.array_equal(split.labels, other.labels)


def test_a_folder_of_parquet_files_with_images(tmp_path: Path) -> None:
    """Three files, of two splits; labels are words; each image is as bright as its row."""
    for name, rows in (("train-0", range(4)), ("train-1", range(4, 8)), ("test-0", range(8, 10))):
        table = {
            "image": [{"bytes": png(row), "path": f"{row}.png"} for row in rows],
            "label": [("cat", "dog")[row % 2] for row in rows],
            "who": [f"c{row % 3}" for row in rows],
        }
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
    found = read(tmp_path, label="label", client="who")
    assert found.train.samples[:, 0, 0, 0].tolist() == list(range(8))
    assert found.test.samples.shape == (2, 3, 4, 1)
    assert (found.class_names, found.names) == (("cat", "dog"), ("c0", "c1", "c2"))
    assert found.test.labels.tolist() == [0, 1]
    assert read(tmp_path, label="label", size=2).train.samples.shape == (8, 2, 2, 1)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"x": [1, 2], "y": [0, 1]}, "data.csv.label = 'state' is no column of .*t.parquet.*Columns: x, y"),
        ({"x": [[1], [2]], "state": ["a", "b"]}, r"column 'x' holds list<.*Expected: numbers or categories"),
        ({"i": [b"no", b"images"], "state": ["a", "b"]}, r"no image can be read: .*row 0 \(not an image\)"),
        ({"i": [png(1)] * 2, "state": ["a", None]}, "row 1: state = '' is no class of the training rows. Expected: a"),
    ],
)
def test_parquet_files_that_will_not_do(tmp_path: Path, table: dict[str, Any], message: str) -> None:
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    with pytest.raises(RequestError, match=message):
        read(tmp_path / "t.parquet")


def test_a_damaged_parquet_file_and_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"holds no .parquet files"):
        read(tmp_path)
    (tmp_path / "t.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(RequestError, match=r"t.parquet cannot be read, it may be damaged"):
        read(tmp_path / "t.parquet")


def test_a_data_set_that_was_saved_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Class names come from `ClassLabel`, even if a class has no image; images of two sizes need data.size."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "img": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog", "emu"]),
            "user": datasets.Value("string"),
        }
    )
    rows = {
        "img": [{"bytes": png(row, (4, 3 + row % 2)), "path": None} for row in range(10)],
        "label": [row % 2 for row in range(10)],
        "user": ["Ann Lee"] * 5 + ["Bo"] * 5,
    }
    whole = datasets.Dataset.from_dict(rows, features=features)
    whole.save_to_disk(str(tmp_path / "one"))
    split = {"train": whole.select(range(8)), "test": whole.select(range(8, 10))}
    datasets.DatasetDict(split).save_to_disk(str(tmp_path / "two"))
    whole.to_parquet(str(tmp_path / "mine.parquet"))
    one = read(tmp_path / "one", "hf/me/mine", 3, label="label", client="user")
    assert one.class_names == ("cat", "dog", "emu")
    assert (one.name, one.names, len(one.train), len(one.test)) == ("mine", ("Ann Lee", "Bo"), 8, 2)
    two = read(tmp_path / "two", "hf/mine", 3, label="label", client="user")
    assert two.test.samples[:, 0, 0, 0].tolist() == [8, 9]
    assert read(tmp_path / "mine.parquet", size=3, label="label").class_names == ("cat", "dog", "emu")
    with pytest.raises(RequestError, match=r"Expected: one size for all images, or data.size"):
        read(tmp_path / "one", "hf/mine", label="label")
    with pytest.raises(RequestError, match=r"data.source = 'hf/mine' \(data.root = .*nothing'\) cannot be read"):
        read(tmp_path / "nothing", "hf/mine")
    dealt = {"csv": {"client": "user"}, "partition": "by-client", "clients": 0}
    wanted = options(source="hf/mine", root=str(tmp_path / "one"), size=3, **dealt)
    federation = build(wanted, 0, torch.device("cpu"))
    assert federation.names == ("Ann Lee", "Bo")


def test_a_hub_that_cannot_be_reached_is_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The library warned ten times before the error came."""

    def unreachable(*_: object) -> None:
        logging.getLogger("huggingface_hub.utils._http").warning("Retrying in 8s [Retry 4/5].")
        raise ConnectionError("Couldn't reach 'nope' on the Hub")

    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(RequestError, match=r"data.source = 'hf/nope' cannot be read: Couldn't reach 'nope'"):
        load(options(source="hf/nope"), 0)
    assert not caplog.records


@pytest.mark.parametrize(
    ("source", "module", "extra"), [("parquet", "pyarrow", "parquet"), ("hf/mnist", "datasets", "hf")]
)
def test_what_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, module: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(RequestError, match=rf"needs {module}. Install it: pip install 'torso\[{extra}\]'"):
        read(tmp_path, source)


def test_a_name_without_a_data_set() -> None:
    with pytest.raises(RequestError, match=r"names no data set. Expected: the name of a data set of huggingface.co"):
        load(options(source="hf/"), 0)
