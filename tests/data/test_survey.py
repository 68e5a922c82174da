"""The counts and findings of a survey, compared with values by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from torso.data.image_files import Broken
from torso.data.survey import Inventory, survey


def inventory(rows: str, **changes: Any) -> Inventory:
    """`a0x a1y! b0x`: client a, class 0, content x; `!`: for testing."""
    words = rows.split()
    clients = sorted({word[0] for word in words})
    found = {
        "labels": np.array([int(word[1]) for word in words]),
        "clients": np.array([clients.index(word[0]) for word in words]),
        "test": np.array([word.endswith("!") for word in words]),
        "digests": [word[2].encode() for word in words],
        "names": words,
        "class_names": tuple(f"c{n}" for n in range(1 + max(int(word[1]) for word in words))),
        "client_names": tuple(clients),
    }
    return Inventory(**{**found, **changes})


def test_counts_by_client_and_class() -> None:
    found = survey(inventory("a0q a0r a1s b1t b1u!"))
    assert found.train == ((2, 1), (0, 1))
    assert found.test == ((0, 0), (0, 1))
    assert (found.samples, found.clients, found.classes) == (5, ("a", "b"), ("c0", "c1"))


def test_duplicates_by_what_they_cross() -> None:
    """x: two clients; y: train and test of one client; z: two classes of one client; w: twice the same place."""
    found = survey(inventory("a0x b0x a0y a0y! b0z b1z a1w a1w b1v! a0u!"))
    counts = {kind: (those.groups, those.samples) for kind, those in found.duplicates.items()}
    assert counts == {
        "between_clients": (1, 2),
        "between_train_and_test": (1, 2),
        "between_classes": (1, 2),
        "in_all": (4, 8),
    }
    assert found.duplicates["between_train_and_test"].examples == (("a0y", "a0y!"),)
    assert "The same content is in train and test, so accuracy is too high (once, 2 samples), such as a0y = a0y!." in (
        found.findings
    )


@pytest.mark.parametrize(
    ("rows", "changes", "said"),
    [
        ("a0q b0r b1s! b1t b1u", {}, "Clients with one class: a. "),
        ("a0q a1r a1s b0t b0u b1v", {"parted": False}, "There is no test part."),
        ("a0q a0r a1s b0t", {}, "Classes with one sample: c1. "),
        ("a0q a1r! b0s b0t!", {}, "Classes in test only: c1. A run refuses them"),
        ("a1q b1r!", {}, "Classes without a sample: c0. "),
        ("a0q a1r b0s!", {}, "Classes without a test sample: c1. "),
        ("a0q b0r! b1s!", {}, "Clients without a training sample: b. "),
        ("a0q a1r a0s!", {}, "There is one client, a. "),
        ("a0q b0r", {}, "There is one class, c0. "),
        ("a0q a1r", {"client_names": ()}, "The data name no clients. "),
        ("a0q a1r", {"parted": False}, "There is no test part. No class has a sample to spare: add some."),
        ("a0q a0r", {"parted": False}, "There is no test part. A part of each client is held out to test on."),
        (
            "a0q a0r a0r",
            {"parted": False},
            "The same content is there several times (once, 2 samples), such as a0r = a0r.",
        ),
        (
            "a0q a1r",
            {"sizes": [(4, 5), (6, 7)]},
            "Images have 2 sizes, from 5×4 to 7×6; 1 are 5×4. They need data.size.",
        ),
        ("a0q a1r", {"grey": np.array([True, False])}, "Grey and colour are mixed: 1 grey, 1 colour. "),
        ("a0q a1r", {"broken": (Broken("x.jpg", "cut"),)}, "cannot be read: 1. A run leaves them out: x.jpg (cut)."),
    ],
)
def test_what_is_odd_is_said(rows: str, changes: dict[str, Any], said: str) -> None:
    assert any(said in finding for finding in survey(inventory(rows, **changes)).findings)


def test_nothing_is_said_of_good_data() -> None:
    assert survey(inventory("a0q a1r a0s! a1t! b0u b1v b0w! b1x!")).findings == ()
