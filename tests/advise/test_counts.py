"""What counts tell, worked out by hand; files of counts, right and wrong; samples dealt with them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from torso.advise import evidence
from torso.advise.counts import read_counts
from torso.advise.parts import only, parts_of
from torso.advise.stand_in import dealt, scaled
from torso.advise.traits import traits_of
from torso.config import Config
from torso.errors import RequestError
from torso.papers.board import published
from torso.runs.job import data_of


def test_traits_by_hand() -> None:
    """Client 0 has class 0 alone, client 1 class 1 alone; together both are equal: each is ½ away from that."""
    apart = traits_of(np.array([[4, 0], [0, 4]]))
    assert (apart.shift, apart.effective_classes, apart.missing) == (0.5, 1.0, 0.5)
    alike = traits_of(np.array([[2, 2], [3, 3]]))
    assert (alike.shift, alike.effective_classes, alike.missing) == (0.0, 2.0, 0.0)
    assert (alike.clients, alike.classes, alike.samples) == (2, 2, 10)
    assert (alike.smallest, alike.median, alike.largest) == (4, 5.0, 6)


def test_traits_of_unequal_clients_by_hand() -> None:
    """All: 6 of class 0, 2 of class 1: ¾ and ¼. Client 0 (½, ½) is ¼ away; client 1 (1, 0) is ¼ away."""
    assert traits_of(np.array([[2, 2], [4, 0]])).shift == 0.25


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "text", "clients", "classes"),
    [
        ("a.csv", "1,2\n3,0\n", (), ()),
        ("a.csv", "cat,dog\n1,2\n3,0\n", (), ("cat", "dog")),
        ("a.csv", "x,1,2\ny,3,0\n", ("x", "y"), ()),
        ("a.csv", "client,cat,dog\nx,1,2\ny,3,0\n\n", ("x", "y"), ("cat", "dog")),
        ("a.csv", ",cat,dog\n7,1,2\n8,3,0\n", ("7", "8"), ("cat", "dog")),
        ("a.json", "[[1, 2], [3, 0]]", (), ()),
        ("a.json", '{"x": [1, 2], "y": [3, 0]}', ("x", "y"), ()),
        ("a.json", '{"x": {"cat": 1, "dog": 2}, "y": {"cat": 3}}', ("x", "y"), ("cat", "dog")),
    ],
)
def test_files_of_counts(
    tmp_path: Path, name: str, text: str, clients: tuple[str, ...], classes: tuple[str, ...]
) -> None:
    found = read_counts(write(tmp_path / name, text))
    assert found.counts.tolist() == [[1, 2], [3, 0]]
    assert (found.clients, found.classes) == (clients, classes)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "", "is empty"),
        ("a.csv", "1,2\n3\n", "client 1 has 1 classes, the first client 2"),
        ("a.csv", "1,2\n3,-4\n", "client 1 has '-4' samples of a class"),
        ("a.csv", "1,2\n0,0\n", "client 1 has no samples"),
        ("a.csv", "1,2\n", "has 1 × 2 counts"),
        ("a.json", "{", "is not JSON"),
        ("a.json", "3", "holds int"),
        ("a.json", "[[1, 2], 3]", "client 1 is 3"),
        ("a.json", "[[1, 2], [1.5, 2]]", "client 1 has 1.5 samples"),
        ("a.json", '{"x": [1, true], "y": [1, 2]}', "client 'x' has True samples"),
    ],
)
def test_files_that_are_no_counts(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(RequestError) as error:
        read_counts(write(tmp_path / name, text))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be read: No such file"):
        read_counts(tmp_path / "no.csv")


def test_counts_are_scaled_to_what_a_stand_in_has() -> None:
    """Class 0 wants 20 and has 10, class 1 wants 20 and has 40: all counts are halved."""
    counts, scale = scaled(np.array([[10, 0], [10, 20]]), np.array([10, 40]))
    assert (counts.tolist(), scale) == ([[5, 0], [5, 10]], 0.5)
    assert scaled(np.array([[1, 0], [2, 3]]), np.array([9, 9]))[1] == 1.0


def test_a_stand_in_is_dealt_with_the_counts(tmp_path: Path) -> None:
    table = read_counts(write(tmp_path / "a.csv", "x,9,0,4\ny,0,20,1\n"))
    found, scale = dealt(Config(), table)
    assert scale == 1
    assert found.class_counts.tolist() == [[9, 0, 4], [0, 20, 1]]
    assert (found.clients, found.classes, found.names) == (2, 3, ("x", "y"))
    assert len(set(found.train.order.tolist())) == 34  # nobody shares a sample


def test_stand_ins_that_do_not_fit(tmp_path: Path) -> None:
    many = read_counts(write(tmp_path / "a.json", json.dumps([[1] * 11] * 2)))
    with pytest.raises(RequestError, match="11 classes, and the stand-in 'digits' has 10"):
        dealt(Config(), many)
    few = read_counts(write(tmp_path / "b.json", "[[1, 0], [100000, 100000]]"))
    with pytest.raises(RequestError, match="leaves client 0 without samples"):
        dealt(Config(), few)


def test_no_sample_is_in_two_parts() -> None:
    federation = data_of(Config(data={"clients": 10}))
    parts = parts_of(federation, 0)
    whole, every = federation.train, parts.federations
    assert (parts.share, len(every)) == (0.2, 3)
    for client in range(10):
        everything = set(whole.rows(client).tolist())
        held = [everything - set(one.train.rows(client).tolist()) for one in every]
        assert sum(map(len, held)) == len(set.union(*held)) == int(0.6 * len(everything) + 1e-9)  # no sample twice
        assert [one.test.sizes[client] for one in every] == [len(those) for those in held]
        for one, those in zip(every, held, strict=True):  # nobody trains on what it is tested on
            tested = one.test.samples[one.test.rows(client)].flatten(1).sum()
            assert tested == whole.samples[sorted(those)].flatten(1).sum()


def test_clients_without_samples_to_spare_are_refused() -> None:
    federation = data_of(Config(data={"clients": 700, "partition": "iid"}))
    with pytest.raises(RequestError, match="clients have at most 2 training samples"):
        parts_of(federation, 0)


def test_some_clients_train_alone_and_the_others_do_not() -> None:
    federation = data_of(Config(data={"clients": 10}))
    some = only(federation, np.array([2, 5]))
    assert some.roster.training.tolist() == [2, 5]
    assert some.clients == 10


def test_the_evidence_is_that_of_the_leaderboard() -> None:
    """`python -m torso.advise.evidence` writes it."""
    assert evidence.make(published.read()["board"]) == evidence.evidence()


def test_the_nearest_settings_of_the_leaderboard() -> None:
    two_classes = np.zeros((10, 10), dtype=np.int64)
    for client in range(10):
        two_classes[client, [client, (client + 1) % 10]] = 250
    (first, _) = evidence.nearest(traits_of(two_classes))
    assert first["setting"] == "cifar10-s2"
