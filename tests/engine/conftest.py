"""Workers of the cluster, for all tests here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package")
def workers(cluster: None) -> Iterator[None]:
    """Processes that stay for the next test (`lending.Lent`); whoever comes after this folder has the room again."""
    yield
    from .lending import let_go

    let_go()
