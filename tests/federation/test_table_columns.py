"""Tables of clients: columns in any order, and categories that only some of them have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from torso.config import Config, CsvConfig, DataConfig
from torso.data import Floats
from torso.data.inputs import Moments
from torso.data.table_columns import Column, merged_columns, rearranged_features
from torso.errors import RequestError
from torso.federation.agreement import Agreement, agree, joined_later, server_federation, site_federation
from torso.federation.notice import what_columns_tell
from torso.federation.site_data import SiteData, read_site, read_test
from torso.runs.job import simulate

CPU = torch.device("cpu")
HOW = CsvConfig(label="state")
ROWS = [  # hospital, age, smokes, city, state
    ("north", 30, "no", "Oslo", "well"),
    ("north", 50, "yes", "Oslo", "ill"),
    ("south", 70, "no", "Rome", "ill"),
    ("south", 20, "no", "Bari", "well"),
    ("south", 60, "yes", "Oslo", "ill"),
]
FEATURES = ("age", "smokes=no", "smokes=yes", "city=Bari", "city=Oslo", "city=Rome")
ORDERS = {"north": (1, 2, 3, 4), "south": (4, 3, 1, 2)}
NAMES = ("hospital", "age", "smokes", "city", "state")


Rows = Sequence[tuple[object, ...]]


def write(folder: Path, order: tuple[int, ...], train: Rows, test: Rows) -> Path:
    """A folder with train.csv and test.csv that has these columns of the rows."""
    folder.mkdir()
    for name, rows in (("train", train), ("test", test)):
        lines = [[NAMES[place] for place in order], *([row[place] for place in order] for row in rows)]
        (folder / f"{name}.csv").write_text("\n".join(",".join(map(str, line)) for line in lines))
    return folder


@pytest.fixture
def sites(tmp_path: Path) -> dict[str, SiteData]:
    """Two hospitals. A test row of the north has a city that only the south trains on, and one that nobody does."""
    mine = {name: [row for row in ROWS if row[0] == name] for name in ORDERS}
    tests = {"north": [("north", 40, "no", "Rome", "well"), ("north", 44, "no", "Lima", "ill")], "south": mine["south"]}
    return {
        name: read_site(write(tmp_path / name, order, mine[name], tests[name]), DataConfig(csv=HOW), name)
        for name, order in ORDERS.items()
    }


def agreed(sites: dict[str, SiteData]) -> Agreement:
    return agree([(site.description(name), site.moments) for name, site in sites.items()], DataConfig())


def test_clients_agree_on_the_categories_of_all(sites: dict[str, SiteData]) -> None:
    """What is told comes from training rows: the north does not say that a test row is of Lima."""
    assert sites["north"].description("north").columns == (
        Column("age"),
        Column("smokes", ("no", "yes")),
        Column("city", ("Oslo",)),
    )
    agreement = agreed(sites)
    assert agreement.refused == {}
    assert isinstance(agreement.input, Floats)
    assert agreement.input.names == FEATURES
    north, south = (site_federation(sites[name], agreement, n, CPU) for n, name in enumerate(ORDERS))
    assert north.train.samples.tolist() == [[30, 1, 0, 0, 1, 0], [50, 0, 1, 0, 1, 0]]
    assert south.train.samples.tolist() == [[70, 1, 0, 0, 0, 1], [20, 1, 0, 1, 0, 0], [60, 0, 1, 0, 1, 0]]
    assert north.test.samples.tolist() == [[40, 1, 0, 0, 0, 1], [44, 1, 0, 0, 0, 0]]  # Rome; Lima is 0 in all


def test_standardisation_and_features_are_those_of_one_table(sites: dict[str, SiteData], tmp_path: Path) -> None:
    """The same rows in one file, simulated: the same features, mean and std, to the last bit."""
    root = write(tmp_path / "all", (0, 1, 2, 3, 4), ROWS, ROWS)
    table = DataConfig(
        source="csv", root=str(root), csv=CsvConfig(label="state", client="hospital"), partition="by-client", clients=0
    )
    simulated = simulate(Config(data=table, train={"batch_size": 2}))
    assert agreed(sites).input == simulated.federation.input
    parts = [site_federation(sites[name], agreed(sites), n, CPU).train.samples for n, name in enumerate(ORDERS)]
    assert torch.equal(simulated.federation.train.samples, torch.cat(parts))


def test_a_client_that_comes_later_and_a_server_that_tests_have_the_columns_of_the_others(
    sites: dict[str, SiteData], tmp_path: Path
) -> None:
    agreement = agreed(sites)
    row = [("east", 33, "no", "Kyiv", "ill"), ("east", 34, "yes", "Rome", "well")]
    late = read_site(write(tmp_path / "east", (4, 3, 2, 1), row, row), DataConfig(csv=HOW), "east")
    found = joined_later(agreement, late.description("east"), late.moments)
    assert isinstance(found, Agreement)
    assert found.remarks[-1] == "east joined later, and the model does not know its 'city=Kyiv'"
    assert site_federation(late, found, 2, CPU).train.samples.tolist() == [[33, 1, 0, 0, 0, 0], [34, 0, 1, 0, 0, 1]]
    test = read_test(tmp_path / "east" / "test.csv", DataConfig(csv=HOW))
    rows = server_federation(test, agreement, CPU).test.samples.tolist()
    assert sorted(rows) == [[33, 1, 0, 0, 0, 0], [34, 0, 1, 0, 0, 1]]


@pytest.mark.parametrize(
    ("order", "rows", "reason"),
    [
        ((1, 2, 4), ROWS, "it lacks column 'city'. Expected: the same columns at all clients, in any order"),
        ((0, 1, 2, 3, 4), ROWS, r"it alone has column 'hospital'. .*data.csv.drop=COLUMN leaves one out"),
        (
            (1, 2, 3, 4),
            [*ROWS, ("x", "old", "no", "Oslo", "ill")],
            r"its column 'age' holds categories \('20', '30', .*'old'\), that of others numbers\. "
            r"Expected: numbers at all clients; or categories at all, by --set data\.csv\.categorical=age",
        ),
    ],
)
def test_other_columns_are_refused_and_named(
    sites: dict[str, SiteData], tmp_path: Path, order: tuple[int, ...], rows: Rows, reason: str
) -> None:
    import re

    odd = read_site(write(tmp_path / "x", order, rows, rows), DataConfig(csv=HOW), "x")
    agreement = agreed({**sites, "x": odd})
    assert agreement.names == ("north", "south")
    assert re.search(reason, agreement.refused["x"])
    later = joined_later(agreed(sites), odd.description("x"), odd.moments)
    assert isinstance(later, str)
    assert re.search(reason, later)
    with pytest.raises(RequestError, match=r"the test set of the server: .*column"):
        server_federation(odd, agreed(sites), CPU)


def test_columns_that_do_not_make_the_features_are_refused(sites: dict[str, SiteData]) -> None:
    north = sites["north"].description("north")
    for columns in (
        north.columns[:2],
        (*north.columns[:2], Column("city", ("Rome",))),
        (*north.columns, Column("age")),
    ):
        lie = north.model_copy(update={"columns": columns})
        found = agree(
            [(lie, sites["north"].moments), (sites["south"].description("south"), sites["south"].moments)], DataConfig()
        )
        assert "its columns do not make its features" in found.refused["north"]


def test_a_column_that_tells_rows_apart_is_not_told(tmp_path: Path) -> None:
    """24 ages and one typing error: 25 words in 25 rows. 12 wards in 25 rows are categories."""
    rows = [("x", 20 + n if n else "old", "no", f"ward {n % 12}", "ill") for n in range(25)]
    folder = write(tmp_path / "x", (1, 2, 3, 4), rows, rows)
    with pytest.raises(RequestError, match=r"column 'age' has 25 different values in 25 .*data\.csv\.drop=age"):
        read_site(folder, DataConfig(csv=HOW), "x")
    found = read_site(folder, DataConfig(csv=HOW.model_copy(update={"drop": ("age",)})), "x")
    assert what_columns_tell(found.told.columns) == (
        "What the server is told of the columns: smokes (no); "
        "city (ward 0, ward 1, ward 10, ward 11, ward 2, ward 3, ward 4, ward 5, ward 6, ward 7, … 12 in all)"
    )


def test_two_spellings_of_a_category_are_said(sites: dict[str, SiteData], tmp_path: Path) -> None:
    rows = [("east", 33, "No", "Oslo", "ill"), ("east", 44, "yes", "Oslo", "well")]
    east = read_site(write(tmp_path / "east", (1, 2, 3, 4), rows, rows), DataConfig(csv=HOW), "east")
    remark = "column 'smokes': 'No', 'no' are taken for different. Spell them alike if they are one"
    assert agreed({**sites, "east": east}).remarks == (remark,)


def test_a_column_of_numbers_may_be_called_like_a_category() -> None:
    """`city=Rome` with numbers beside a column `city`: each keeps its own place."""
    mine = (Column("city", ("Oslo",)), Column("city=Rome"))
    all_of = merged_columns([mine, (Column("city=Rome"), Column("city", ("Rome",)))])
    assert all_of == (Column("city", ("Oslo", "Rome")), Column("city=Rome"))
    assert rearranged_features(np.array([[1.0, 7.0]]), mine, all_of).tolist() == [[1, 0, 7]]


def test_sums_of_a_category_that_a_client_does_not_have_are_zero(sites: dict[str, SiteData]) -> None:
    """By hand: of 5 training rows, one is of Bari: mean 0.2, std 0.4."""
    input = agreed(sites).input
    assert isinstance(input, Floats)
    place = FEATURES.index("city=Bari")
    assert (round(input.mean[place], 12), round(input.std[place], 12)) == (0.2, 0.4)
    whole = [site_federation(sites[name], agreed(sites), n, CPU).train.samples.numpy() for n, name in enumerate(ORDERS)]
    assert (input.mean, input.std) == Moments.over(whole).mean_and_std()
