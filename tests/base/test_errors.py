"""The commands that messages name: they must work where the reader is."""

import json
from importlib import metadata
from pathlib import Path

import pytest

from covnmt.base import errors
from covnmt.base.errors import install_command


class Distribution:
    def __init__(self, url: str | None) -> None:
        self.url = url

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return json.dumps({"url": self.url}) if self.url else None


def test_in_a_checkout_extras_are_installed_from_it() -> None:
    checkout = Path(__file__).parents[2]
    assert install_command("train") == f"pip install -c constraints.txt '.[train]' in {checkout}"


@pytest.mark.parametrize(
    ("url", "command"),
    [
        (None, "pip install 'covnmt[serve]'"),
        ("https://example.org/covnmt.whl", "pip install 'covnmt[serve]'"),
        ("file://{}/my%20clone", "pip install -c constraints.txt '.[serve]' in {}/my clone"),
        ("file://{}/covnmt.whl", "pip install '{}/covnmt.whl[serve]'"),
        ("file://{}/gone.whl", "pip install 'covnmt[serve]'"),
    ],
)
def test_elsewhere_extras_are_installed_from_where_covnmt_came_from(
    url: str | None, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my clone").mkdir()
    (tmp_path / "my clone/constraints.txt").touch()
    (tmp_path / "covnmt.whl").touch()
    monkeypatch.setattr(errors, "CHECKOUT", tmp_path)
    found = Distribution(url and url.format(tmp_path))
    monkeypatch.setattr(metadata, "distribution", lambda name: found)
    assert install_command("serve") == command.format(tmp_path)
