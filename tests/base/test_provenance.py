"""Where a result came from."""

import pytest

from covnmt.base.provenance import code_commit, collect_provenance


def test_a_told_commit_overrules_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COVNMT_COMMIT", "abc1234")
    assert code_commit() == "abc1234"


def test_nothing_is_known_without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COVNMT_COMMIT", raising=False)
    monkeypatch.setenv("PATH", "")
    assert code_commit() == "unknown"


def test_every_result_says_where_it_came_from() -> None:
    found = collect_provenance()
    assert set(found) == {"commit", "machine", "versions"}
    assert found["versions"]["torch"]
