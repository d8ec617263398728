"""Files of links and of soft matrices are read back unchanged; errors name file and line."""

from pathlib import Path

import numpy as np
import pytest

from covnmt.base.errors import UserError
from covnmt.evaluation.alignment_files import (
    check_links,
    check_matrices,
    load_matrices,
    read_links,
    save_matrices,
)


@pytest.mark.parametrize("bad", ["0", "0-", "a-b", "0-1-2", "-1-0", "0_0", "0-0,1-1", "٣-٤"])
def test_malformed_links_name_file_and_line(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "x.align"
    path.write_text(f"0-0\n0-0 {bad}\n", "utf-8")
    with pytest.raises(UserError, match=r"x\.align, line 2: "):
        read_links(path)


def test_word_zero_is_an_error_in_a_file_that_counts_from_one(tmp_path: Path) -> None:
    path = tmp_path / "x.align"
    path.write_text("1-1\n0-1\n")
    with pytest.raises(UserError, match="line 2: link 0-1"):
        read_links(path, index_base=1)


def test_windows_line_ends_and_empty_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.align"
    path.write_bytes(b"0-0 1-1\r\n\r\n0p0\r\n")
    assert [len(row.possible) for row in read_links(path)] == [2, 0, 1]


@pytest.mark.parametrize("outside", [(3, 0), (0, 2)])
def test_links_outside_the_sentence_name_line_and_link(outside: tuple[int, int]) -> None:
    rows = [frozenset({(2, 1)}), frozenset({outside})]
    check_links(rows[:1], [(3, 2)], "gold")
    with pytest.raises(UserError, match=rf"gold, line 2: link {outside[0]}-{outside[1]}"):
        check_links(rows, [(3, 2), (3, 2)], "gold")


def test_saved_matrices_are_loaded_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "soft.npz"
    matrices = [np.random.default_rng(k).random((k, 12 - k), np.float32) for k in range(12)]
    save_matrices(path, matrices)
    loaded = load_matrices(path)
    assert len(loaded) == 12
    for before, after in zip(matrices, loaded, strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(
    ("value", "key", "where"),
    [
        ([[0.5]], "1", r"soft\.npz: "),
        ([0.5], "0", r"soft\.npz, sentence 1: "),
        ([["x"]], "0", r"soft\.npz, sentence 1: "),
        ([[float("nan")]], "0", r"soft\.npz, sentence 1: "),
        ([[-0.5]], "0", r"soft\.npz, sentence 1: "),
        ([[{}]], "0", r"soft\.npz: "),
    ],
)
def test_bad_matrices_name_file_or_sentence(
    tmp_path: Path, value: object, key: str, where: str
) -> None:
    path = tmp_path / "soft.npz"
    arrays = {key: np.asarray(value)}
    np.savez(path, **arrays)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=where):
        load_matrices(path)


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 cut short"])
def test_damaged_files_of_matrices_are_reported_without_pickle_advice(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "soft.npz"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"soft\.npz: ") as raised:
        load_matrices(path)
    assert "pickle" not in str(raised.value)
    np.save(tmp_path / "one.npy", np.zeros((2, 2)))
    with pytest.raises(UserError, match=r"one\.npy: "):
        load_matrices(tmp_path / "one.npy")


def test_matrices_of_another_shape_name_the_sentence() -> None:
    soft = [np.zeros((2, 3), np.float32), np.zeros((3, 3), np.float32)]
    with pytest.raises(UserError, match=r"soft, sentence 2: a matrix of 3 .* by 3 "):
        check_matrices(soft, [(3, 2), (3, 2)], "soft")
