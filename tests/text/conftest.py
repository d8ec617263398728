"""What the tests of downloads and corpora share."""

from collections.abc import Iterator

import pytest

from tests.text.site import Site, serve


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A server on this machine: nothing reaches the network."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serve() as site:
        yield site
