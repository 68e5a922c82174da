"""One process that forks, for all tests of federations that want it (they are one group for xdist)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.federation.forked import forked_at, forking


@pytest.fixture(scope="session")
def forking_address() -> Iterator[str]:
    with forking() as address:
        yield address


@pytest.fixture(scope="module")
def forks(forking_address: str) -> Iterator[None]:
    """Servers, SuperNodes and clients of this module's tests fork from it."""
    with forked_at(forking_address):
        yield
