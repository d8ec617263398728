"""The commit, machine and versions behind a result."""

import pytest

from covnmt.base.provenance import code_commit, collect_provenance


def test_the_environment_variable_overrules_the_commit_of_git(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COVNMT_COMMIT", "abc1234")
    assert code_commit() == "abc1234"


def test_without_git_the_commit_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COVNMT_COMMIT", raising=False)
    monkeypatch.setenv("PATH", "")
    assert code_commit() == "unknown"


def test_provenance_has_commit_machine_and_versions() -> None:
    found = collect_provenance()
    assert set(found) == {"commit", "machine", "versions"}
    assert found["versions"]["torch"]
