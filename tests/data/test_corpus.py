"""A prepared corpus: reading, identity, and damaged files."""

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from covnmt.base.errors import UserError
from covnmt.data.corpus import Corpus, id_dtype
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
