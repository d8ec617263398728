"""Fixtures for the tests of downloads and corpora."""

from collections.abc import Iterator

import pytest

from tests.data.site import Site, serve


@pytest.fixture
def site() -> Iterator[Site]:
    """A server on this machine: nothing reaches the network."""
    with serve() as site:
        yield site
