"""Int8 matrices have 7 bits where products of them could overflow."""

from pathlib import Path

import numpy as np
import pytest

from covnmt.base.config import PAPER_SYSTEMS
from covnmt.base.errors import UserError
from covnmt.base.files import write_json
from covnmt.decoding.onnx.format import (
    MANIFEST_FILE,
    WEIGHTS_FILE,
    has_exact_int8_products,
    read_manifest,
    seven_bit_matrices,
)
from tests.decoding.exported import exported
from tests.model.small import small_config, small_model


def test_seven_bit_matrices_keep_two_products_within_16_bits(tmp_path: Path) -> None:
    exported(small_model(small_config(PAPER_SYSTEMS["gru10"])).float(), tmp_path, "int8")
    manifest = read_manifest(tmp_path)
    half = seven_bit_matrices(tmp_path, manifest)
    matrices = {name for name in half if not name.endswith(".scale")}
    assert len(matrices) == len(half) / 2 >= 10
    largest = max(int(np.abs(half[name].astype(int)).max()) for name in matrices)
    assert largest == 64
    assert 2 * 255 * largest < 2**15
    stored = (tmp_path / WEIGHTS_FILE).read_bytes()
    for name, place in manifest.matrices.items():
        number = place["rows"] * place["columns"]
        whole = np.frombuffer(stored, np.int8, number, place["offset"]).reshape(half[name].shape)
        scale = np.frombuffer(stored, np.float32, place["columns"], place["scale"])
        again = half[name] * half[f"{name}.scale"]
        assert (np.abs(again - whole * scale) <= scale * 1.001).all()


@pytest.mark.parametrize("gone", ["rows", "scale"])
def test_missing_or_impossible_offsets_are_an_error(gone: str, tmp_path: Path) -> None:
    exported(small_model(small_config(PAPER_SYSTEMS["gru10"])).float(), tmp_path, "int8")
    about = read_manifest(tmp_path).model_dump()
    name = next(iter(about["matrices"]))
    for change in ({}, {gone: 10**9}):
        place = {k: v for k, v in about["matrices"][name].items() if k != gone} | change
        write_json(tmp_path / MANIFEST_FILE, about | {"matrices": {name: place}})
        with pytest.raises(UserError, match=rf"{MANIFEST_FILE}: damaged; copy it again"):
            seven_bit_matrices(tmp_path, read_manifest(tmp_path))


def test_int8_products_are_exact_on_processors_with_vnni(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert has_exact_int8_products()
    for flags, exact in [("sse2 avx2", False), ("avx2 avx512_vnni", True), ("avx_vnni", True)]:
        monkeypatch.setattr("platform.machine", lambda: "x86_64")
        monkeypatch.setattr(Path, "read_text", lambda *_, flags=flags: f"flags : {flags}")
        assert has_exact_int8_products() == exact
