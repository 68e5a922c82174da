"""Rows of a table: columns by hand, missing values, the rows held out, clients by their names; what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from torso.data import build, load
from torso.data.images import Dataset, Samples
from torso.data.inputs import Floats
from torso.errors import RequestError

from .samples import options

TRAIN = """age,city,label,site
20,Rome,yes,b
40,Oslo,no,a
,Rome,no,a
60,?,yes,b
"""
TEST = """site,label,city,age
a,no,Oslo,10
b,yes,Paris,
"""


def folder(tmp_path: Path, train: str = TRAIN, test: str = TEST) -> Path:
    (tmp_path / "train.csv").write_text(train, encoding="utf-8")
    (tmp_path / "test.csv").write_text(test, encoding="utf-8")
    return tmp_path


def read(root: Path, **csv: Any) -> Dataset:
    return load(options(source="csv", root=str(root), csv={"client": "site", **csv}), 0)


def samples(split: object) -> Samples:
    assert isinstance(split, Samples)
    return split


def test_numbers_and_categories_by_hand(tmp_path: Path) -> None:
    """The mean of 20, 40 and 60 fills what is missing; categories are sorted, "" is what was missing, and Paris, which
    no training row has, is zero in all of them. Columns go by name, whatever their order in test.csv."""
    found = read(folder(tmp_path))
    assert found.input == Floats((4,), names=("age", "city=", "city=Oslo", "city=Rome"))
    assert found.train.samples.tolist() == [[20, 0, 0, 1], [40, 0, 1, 0], [40, 0, 0, 1], [60, 1, 0, 0]]
    assert found.test.samples.tolist() == [[10, 0, 1, 0], [40, 0, 0, 0]]
    assert found.train.samples.dtype == np.float32
    assert (found.classes, found.train.labels.tolist(), found.test.labels.tolist()) == (2, [1, 0, 0, 1], [0, 1])
    assert found.names == ("a", "b")
    assert samples(found.train).writers is not None
    assert samples(found.train).writers.tolist() == [1, 0, 0, 1]  # type: ignore[union-attr]


def test_missing_values_are_told(tmp_path: Path) -> None:
    found = load(options(source="csv", root=str(folder(tmp_path)), csv={"drop": ["site"]}), 0)
    assert found.remarks == (
        "data.source = 'csv': missing values were filled: age (2, mean 40), city (1, a category of their own)",
    )


def test_clients_that_the_partition_does_not_go_by_are_told(tmp_path: Path) -> None:
    wanted = options(source="csv", root=str(folder(tmp_path)), csv={"client": "site"}, partition="iid", clients=2)
    _, remark = build(wanted, 0, torch.device("cpu")).remarks
    assert remark == (
        "data.source = 'csv' names 2 clients, and data.partition = 'iid' does not use them. "
        "To use them, set data.partition = by-client"
    )


def test_a_file_of_which_nothing_can_be_held_out(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("x,label,who\n1,0,a\n2,0,b\n3,1,c\n", encoding="utf-8")
    with pytest.raises(RequestError, match=r"test: there are no samples. Expected: at least one"):
        load(options(source="csv", root=str(path), csv={"client": "who"}), 0)


def test_clients_keep_their_names_and_statistics_are_theirs(tmp_path: Path) -> None:
    """Client a has ages 40 and 40 (filled), b 20 and 60: mean 40, variance (400 + 400) / 4 = 200."""
    wanted = options(source="csv", root=str(folder(tmp_path)), csv={"client": "site"}, partition="by-client", clients=0)
    federation = build(wanted, 0, torch.device("cpu"))
    assert federation.names == ("a", "b")
    assert federation.train.sizes.tolist() == [2, 2]
    assert [federation.train.rows(k).tolist() for k in (0, 1)] == [[1, 2], [0, 3]]
    assert isinstance(federation.input, Floats)
    assert federation.input.mean == pytest.approx((40, 0.25, 0.25, 0.5))
    assert federation.input.std == pytest.approx((200**0.5, 0.1875**0.5, 0.1875**0.5, 0.5))
    assert len(federation.remarks) == 1


def test_newcomers_and_held_out_rows_have_no_say_in_the_statistics(tmp_path: Path) -> None:
    wanted = options(
        source="csv",
        root=str(folder(tmp_path)),
        csv={"client": "site"},
        partition="by-client",
        clients=0,
        new_clients=1,
    )
    federation = build(wanted, 0, torch.device("cpu"))
    assert isinstance(federation.input, Floats)
    trains = 1 - int(federation.newcomers[0])
    assert federation.input.mean[0] == pytest.approx(40)
    assert federation.input.std[0] == pytest.approx((1.0, 20.0)[trains])  # a: 40, 40 does not vary; b: 20, 60


def test_one_file_is_parted(tmp_path: Path) -> None:
    """A fifth of each client's rows, the same for every seed; a client of one row keeps it."""
    lines = [f"{row},{row % 2},{'abc'[min(row // 10, 2)]}" for row in range(21)]
    path = tmp_path / "mine.csv"
    path.write_text("\n".join(["x,label,who", *lines]), encoding="utf-8")
    found = load(options(source="csv", root=str(path), csv={"client": "who"}), 0)
    train, test = samples(found.train), samples(found.test)
    assert found.name == "mine"
    assert np.bincount(train.writers).tolist() == [8, 8, 1]  # type: ignore[arg-type]
    assert np.bincount(test.writers).tolist() == [2, 2]  # type: ignore[arg-type]
    assert sorted([*train.samples[:, 0].tolist(), *test.samples[:, 0].tolist()]) == list(range(21))
    again = load(options(source="csv", root=str(path), csv={"client": "who"}), 1)
    assert (again.test.samples == test.samples).all()
    half = load(options(source="csv", root=str(path), csv={"drop": "who", "test_share": 0.5}), 0)
    assert np.bincount(half.test.labels).tolist() == [6, 5]  # of 11 and 10 rows, by class; 5.5 to the even number


@pytest.mark.parametrize(
    ("cells", "word"),
    [
        ([*map(str, range(23)), "abc"], "abc"),
        ([f"{row},5" for row in range(24)], "0,5"),
        ([*map(str, range(23)), "inf"], "inf"),
        (["no", "yes"] * 12, ""),
        ([*map(str, range(24))], ""),
    ],
)
def test_a_column_of_numbers_with_a_word_in_it_is_told(cells: list[str], word: str, tmp_path: Path) -> None:
    """It silently became a category for each number."""
    for suffix, rows in (("train", cells), ("test", cells[:4])):
        lines = [f'"{cell}";{place % 2}' for place, cell in enumerate(rows)]
        (tmp_path / f"{suffix}.csv").write_text("\n".join(["age;label", *lines]), encoding="utf-8")
    how = {"delimiter": ";"}
    said = " ".join(load(options(source="csv", root=str(tmp_path), csv=how), 0).remarks)
    assert ("is no number" in said) == bool(word)
    assert not word or f"because {word!r} in line {cells.index(word) + 2} is no number" in said
    meant = load(options(source="csv", root=str(tmp_path), csv={**how, "categorical": "age"}), 0).remarks
    assert not any("is no number" in text for text in meant)


def test_an_id_and_another_encoding_are_told(tmp_path: Path) -> None:
    """24 patients, 4 held out: the other 20 names become 20 features, which tell nothing about other patients."""
    path = tmp_path / "mine.csv"
    lines = ["who,age,label", *(f"p{row} Zoë,{row},{row % 2}" for row in range(24))]
    path.write_text("\n".join(lines), encoding="utf-8")
    (said,) = load(options(source="csv", root=str(path)), 0).remarks
    assert "who has another value in each of the 20 training rows" in said
    assert said.endswith("data.csv.drop=who")
    path.write_text("\n".join(lines), encoding="latin-1")
    with pytest.raises(RequestError, match=r"mine.csv is not text in UTF-8 \(byte 0xeb at place 19\).*saved as UTF-8"):
        load(options(source="csv", root=str(path)), 0)


def test_numbers_may_be_categories_and_labels_are_sorted_as_numbers(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("zip;label\n10;9\n9;10\n10;10\n9;9\n", encoding="utf-8-sig")  # as a spreadsheet may write it
    found = load(options(source="csv", root=str(path), csv={"categorical": "zip", "delimiter": ";"}), 0)
    assert isinstance(found.input, Floats)
    assert found.input.names == ("zip=10", "zip=9")
    whole = np.concatenate([found.train.labels, found.test.labels])
    assert sorted(whole.tolist()) == [0, 0, 1, 1]
    rows = np.concatenate([found.train.samples, found.test.samples])
    assert rows.sum(axis=1).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("train", "csv", "message"),
    [
        ("", {}, "train.csv has no rows. Expected: a .csv file with a line of column names"),
        ("age,label\n", {}, "train.csv has no rows"),
        ("age,age,label\n1,2,3\n", {}, "has two columns 'age'"),
        ("age,label\n1,2\n1\n", {}, r"train.csv, line 3 has 1 fields and line 1 names 2 columns.*data.csv.delimiter"),
        (
            TRAIN,
            {"label": "lable"},
            "data.csv.label = 'lable' is no column of .*; did you mean 'label'.* Columns: age, city",
        ),
        (TRAIN, {"client": "who"}, "data.csv.client = 'who' is no column"),
        (TRAIN, {"drop": ["age", "town"]}, "data.csv.drop = 'town' is no column"),
        (TRAIN, {"drop": ["age", "city", "site"], "client": ""}, "has no column beside age, city, label, site"),
        (TRAIN.replace("20", "x").replace("40", "y"), {}, None),  # then age is a column of categories
        (TRAIN.replace("yes", ""), {}, "train.csv, line 2: 'label' is empty. Expected: a class in every row"),
        (TRAIN.replace("yes", "maybe"), {}, "test.csv, line 3: label = 'yes' is not a class of the training rows"),
        (
            "age,label,site,city\n,0,a,Oslo\n,1,b,Rome\n,0,a,Oslo\n",
            {},
            "column 'age' has no value in the training rows.*drop",
        ),
        (
            "age,label,site,city\n" + "".join(f"1,{n},a,Oslo\n" for n in range(20)),
            {},
            "each of the 20 rows of .* has a different class",
        ),
        ('age,label\n1,"2\n', {"client": ""}, "train.csv cannot be read, it may be damaged"),
    ],
)
def test_tables_that_will_not_do(tmp_path: Path, train: str, csv: dict[str, Any], message: str | None) -> None:
    root = folder(tmp_path, train)
    if message is None:
        assert read(root, **csv).train.samples.shape == (4, 7)
        return
    with pytest.raises(RequestError, match=message):
        read(root, **csv)


def test_test_rows_that_will_not_do(tmp_path: Path) -> None:
    with pytest.raises(
        RequestError, match=r"test.csv, line 2: age = 'old' is no number, and the column has only numbers"
    ):
        read(folder(tmp_path, test=TEST.replace("10", "old")))
    with pytest.raises(RequestError, match=r"test.csv has no column 'city'. Expected: the columns of"):
        read(folder(tmp_path, test="site,label,age\na,no,1\n"))
    (tmp_path / "test.csv").unlink()
    with pytest.raises(RequestError, match=r"test.csv does not exist. Expected: a .csv file"):
        read(tmp_path)
    many = "\n".join(["name,label", *(f"n{row},{row % 2}" for row in range(2002))])
    (tmp_path / "many.csv").write_text(many, encoding="utf-8")
    with pytest.raises(RequestError, match=r"column 'name' has \d+ different values, such as 'n\d+'.*data.csv.drop"):
        load(options(source="csv", root=str(tmp_path / "many.csv")), 0)


def test_only_images_are_augmented(tmp_path: Path) -> None:
    root = str(folder(tmp_path))
    with pytest.raises(
        RequestError, match=r"data.augment = 'flip' is for images, and data.source = 'csv' gives rows of"
    ):
        build(options(source="csv", root=root, augment="flip", clients=2, partition="iid"), 0, torch.device("cpu"))
    with pytest.raises(RequestError, match=r"data.size = 64 is for images, and the data are"):
        build(options(source="csv", root=root, size=64), 0, torch.device("cpu"))


def test_a_column_of_image_files_is_no_column_of_categories(tmp_path: Path) -> None:
    rows = "\n".join(f"pics/{n}.PNG,{n % 2},s" for n in range(8))
    path = tmp_path / "list.csv"
    path.write_text(f"image,label,site\n{rows}\n", encoding="utf-8")
    with pytest.raises(RequestError, match=r"column 'image' names image files, such as 'pics/.\.PNG'.*CLIENT/CLASS"):
        read(path)


def test_another_delimiter_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"has ';' between its fields, and data.csv.delimiter = ','"):
        read(folder(tmp_path, TRAIN.replace(",", ";"), TEST.replace(",", ";")))
