"""A prepared corpus: reading, identity, and damaged files."""

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from pydantic import ValidationError

from covnmt.base.errors import UserError
from covnmt.data import corpus as corpus_module
from covnmt.data.corpus import Corpus, id_dtype, split_files
from covnmt.data.prepare import prepare_corpus

from .pairs import DEV, SUBWORDS, make_settings, write


def test_ids_take_the_smallest_type_that_fits() -> None:
    assert np.iinfo(id_dtype(2**16)).max == 2**16 - 1
    assert np.iinfo(id_dtype(2**16 + 1)).max == 2**32 - 1


@pytest.mark.parametrize("changes", [{"target": SUBWORDS}, {"source_size": 10}])
def test_joint_sides_must_agree(tmp_path: Path, changes: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="joint needs the same"):
        make_settings(tmp_path, joint=True, **changes)


@pytest.mark.parametrize("later", [(), ("open_vocabulary",), ("joint", "max_ratio")])
def test_settings_added_later_do_not_change_the_identity(
    tmp_path: Path, later: tuple[str, ...]
) -> None:
    """It is the digest that the version without them computed from corpus.json."""
    prepare_corpus(make_settings(tmp_path, max_ratio=0.0), tmp_path / "out")
    path = tmp_path / "out" / "corpus.json"
    said = json.loads(path.read_text())
    del said["checksums"]
    for key in later:
        del said["settings"][key]
    path.write_text(json.dumps(said))
    corpus = Corpus.open(tmp_path / "out")
    assert corpus.report.settings == make_settings(tmp_path, max_ratio=0.0)
    for place in ("train", "dev", "test"):
        del said["settings"][place]
    text = json.dumps(said, separators=(",", ":"))
    assert corpus.identity() == hashlib.sha256(text.encode()).hexdigest()


def test_the_identity_of_prepared_data_never_changes(tmp_path: Path) -> None:
    """Runs know their data by this digest. If a new setting changes it, leave the setting out of
    corpus.json, and of source.json and target.json, while it has its default."""
    prepare_corpus(make_settings(tmp_path), tmp_path / "out")
    known = "9ff5105f8654b6f185ced1994a848fc30a359cfb80ea1d4ad388800a2d9928ce"
    assert Corpus.open(tmp_path / "out").identity() == known


def test_a_missing_file_is_reported_as_missing(tmp_path: Path) -> None:
    prepare_corpus(make_settings(tmp_path), tmp_path / "out")
    (tmp_path / "out" / "train.source.ids").unlink()
    with pytest.raises(UserError, match=r"train\.source\.ids: missing; make it again"):
        Corpus.open(tmp_path / "out").split("train")


DAMAGE = ["train.source.ids", "train.target.offsets.npy", "train.order.npy"]


@pytest.mark.parametrize("name", DAMAGE)
@pytest.mark.parametrize("keep", [0, 0.5, None])
def test_damaged_arrays_are_an_error_that_names_them(
    tmp_path: Path, name: str, keep: float | None
) -> None:
    plan = make_settings(tmp_path)
    prepare_corpus(plan, tmp_path / "out")
    path = tmp_path / "out" / name
    content = path.read_bytes()
    path.unlink()
    if keep is not None:
        path.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(UserError, match=re.escape(name)):
        Corpus.open(tmp_path / "out").split("train")
    with pytest.raises(UserError, match=re.escape(name)):
        prepare_corpus(plan, tmp_path / "out")


def test_truncated_text_is_an_error(tmp_path: Path) -> None:
    prepare_corpus(make_settings(tmp_path), tmp_path / "out")
    write(tmp_path / "out" / "dev.target.txt", ["x q"])
    dev = Corpus.open(tmp_path / "out").split("dev")
    assert len(dev.text("source")) == len(DEV)
    with pytest.raises(UserError, match=r"dev\.target\.txt: has 1 lines instead of 3"):
        dev.text("target")


def test_a_changed_vocabulary_is_refused(tmp_path: Path) -> None:
    prepare_corpus(make_settings(tmp_path), tmp_path / "out")
    write(tmp_path / "out" / "source.vocab", ["other", "words"])
    with pytest.raises(UserError, match="vocabularies are not those of its ids"):
        Corpus.open(tmp_path / "out")


@pytest.mark.parametrize("change", [{"version": 99}, {"splits": 3}, {"colour": "red"}])
def test_a_damaged_report_is_an_error(tmp_path: Path, change: dict[str, object]) -> None:
    prepare_corpus(make_settings(tmp_path), tmp_path / "out")
    path = tmp_path / "out" / "corpus.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=r"corpus\.json"):
        Corpus.open(tmp_path / "out")


def test_a_missing_split_is_an_error(tmp_path: Path) -> None:
    prepare_corpus(make_settings(tmp_path), tmp_path / "out")
    with pytest.raises(UserError, match="without test files"):
        Corpus.open(tmp_path / "out").split("test")


def prepare(directory: Path) -> Path:
    prepare_corpus(make_settings(directory), directory / "out")
    return directory / "out"


def without_checksums(directory: Path) -> None:
    """As an older version made it."""
    path = directory / "corpus.json"
    content = json.loads(path.read_text())
    del content["checksums"]
    path.write_text(json.dumps(content))


def read_all(directory: Path) -> None:
    """Open all that training and scoring read."""
    corpus = Corpus.open(directory)
    corpus.split("train")
    dev = corpus.split("dev")
    dev.text("source")
    dev.text("target")


DATA_FILES = [*split_files("train"), *split_files("dev"), "corpus.json", "target.vocab"]


@pytest.mark.parametrize("name", DATA_FILES)
def test_every_flipped_bit_is_refused(tmp_path: Path, name: str) -> None:
    """In a file of text a flip may also make bytes that are not UTF-8."""
    path = prepare(tmp_path) / name
    content = path.read_bytes()
    random = np.random.default_rng(len(content))
    read_all(path.parent)
    for bit in random.choice(8 * len(content), min(24, 8 * len(content)), replace=False):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        if name == "corpus.json" and loads(bytes(flipped)) == json.loads(content):
            continue  # white space
        with pytest.raises(UserError, match=re.escape(path.parent.name)):
            read_all(path.parent)
    path.write_bytes(content)
    read_all(path.parent)


def loads(content: bytes) -> object:
    try:
        return json.loads(content.decode())
    except ValueError:
        return None


def array_of(path: Path) -> npt.NDArray[Any]:
    """Map an array of a corpus, to be changed in place."""
    if path.suffix == ".npy":
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r+")
        return array
    return np.memmap(path, "<u2", "r+")


@pytest.mark.parametrize("name", ["train.source.ids", "dev.target.ids"])
@pytest.mark.parametrize("value", [0, 6, 60_000])
def test_ids_out_of_range_are_refused_without_checksums(
    tmp_path: Path, name: str, value: int
) -> None:
    """Padding and the end symbol, id 6 of both sides here, are not in files."""
    directory = prepare(tmp_path)
    assert Corpus.open(directory).report.vocabulary_sizes == {"source": 6, "target": 6}
    without_checksums(directory)
    read_all(directory)
    array_of(directory / name)[1] = value
    with pytest.raises(UserError, match=rf"{name}: damaged \(ids outside of 1 to"):
        read_all(directory)


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("train.source.offsets.npy", 0, 1),
        ("train.source.offsets.npy", 1, 999),
        ("dev.target.offsets.npy", 1, -1),
        ("train.order.npy", 0, 77),
        ("train.order.npy", 0, -1),
    ],
)
def test_offsets_and_order_out_of_range_are_refused_without_checksums(
    tmp_path: Path, name: str, place: int, value: int
) -> None:
    directory = prepare(tmp_path)
    without_checksums(directory)
    array_of(directory / name)[place] = value
    with pytest.raises(UserError, match=rf"{name}: damaged"):
        read_all(directory)


def test_order_that_repeats_a_pair_is_refused_without_checksums(tmp_path: Path) -> None:
    directory = prepare(tmp_path)
    without_checksums(directory)
    order = array_of(directory / "train.order.npy")
    order[0] = order[1]
    with pytest.raises(UserError, match=r"train\.order\.npy: damaged \(not each pair once\)"):
        read_all(directory)


def test_offsets_that_fall_between_two_chunks_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = prepare(tmp_path)
    without_checksums(directory)
    monkeypatch.setattr(corpus_module, "ENTRIES_PER_CHUNK", 2)
    read_all(directory)
    offsets = array_of(directory / "dev.source.offsets.npy")
    assert offsets.tolist() == [0, 2, 2, 32]
    offsets[1:3] = 5, 4
    with pytest.raises(UserError, match="not increasing"):
        read_all(directory)


def test_corpus_without_checksums_opens_with_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = prepare(tmp_path)
    known = Corpus.open(directory).identity()
    assert not capsys.readouterr().err
    without_checksums(directory)
    corpus = Corpus.open(directory)
    assert corpus.identity() == known
    note = capsys.readouterr().err
    assert "made by an older covnmt, without checksums" in note
    assert "covnmt prepare --overwrite" in note


def test_pipe_in_place_of_an_array_is_refused_at_once(tmp_path: Path) -> None:
    directory = prepare(tmp_path)
    for name in ("train.order.npy", "train.source.ids", "source.vocab"):
        content = (directory / name).read_bytes()
        (directory / name).unlink()
        os.mkfifo(directory / name)
        with pytest.raises(UserError, match=re.escape(name)):
            read_all(directory)
        (directory / name).unlink()
        (directory / name).write_bytes(content)
