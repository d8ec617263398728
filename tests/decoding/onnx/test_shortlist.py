"""Shortlists: what is in them, and that a search keeps to them."""

from pathlib import Path

import numpy as np
import pytest

from covnmt.base.config import PAPER_SYSTEMS, DecodeConfig
from covnmt.base.errors import UserError
from covnmt.base.files import read_lines, write_json, write_lines
from covnmt.data.padding import pad_ids
from covnmt.decoding.engines import SearchResult
from covnmt.decoding.onnx import format as directories
from covnmt.decoding.onnx import shortlist as module
from covnmt.decoding.onnx.export import export_model
from covnmt.decoding.onnx.format import OutputLayer, Precision, read_manifest
from covnmt.decoding.onnx.runtime import OnnxEngine
from covnmt.decoding.onnx.shortlist import Shortlist, ShortlistText, build_shortlist
from covnmt.inference.model import Model
from covnmt.metrics.alignment import format_links, links_from_attention
from covnmt.text.codec import Codec
from covnmt.text.vocabulary import UNK_ID
from tests.decoding.exported import exported
from tests.decoding.onnx.test_runtime import model_of
from tests.model.small import END

PARTNERS = {2: [5, 6], 3: [7], 4: [5, 9]}
FEW = Shortlist([UNK_ID, END], PARTNERS)
EVERYTHING = Shortlist([*range(UNK_ID, END + 1)], {})
# source words, words of every list, the list
LISTS = [
    ([2], [UNK_ID, END], [UNK_ID, 5, 6, END]),
    ([4, 2, 2, END], [UNK_ID, END], [UNK_ID, 5, 6, 9, END]),
    ([8], [UNK_ID, END], [UNK_ID, END]),
    ([8], [3, UNK_ID, END, 2], [UNK_ID, 2, 3, END]),
    ([3], [7], [7]),
]


@pytest.mark.parametrize(("words", "always", "expected"), LISTS)
def test_shortlist_of_a_sentence(words: list[int], always: list[int], expected: list[int]) -> None:
    found = Shortlist(always, PARTNERS).for_source(np.array([words, words]))
    assert found.tolist() == expected


def search(directory: Path, shortlist: Shortlist | None, precision: Precision) -> SearchResult:
    model = exported(model_of(PAPER_SYSTEMS["gru10"]), directory, precision, shortlist)
    source = pad_ids([[2, 3], [4], [2, 4, 3, 3, 2]], END)
    return OnnxEngine([model], END).search(source, DecodeConfig(beam=3, nbest=2), None)


PRECISIONS: tuple[Precision, ...] = ("fp32", "int8")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_shortlist_of_all_tokens_changes_nothing(precision: Precision, tmp_path: Path) -> None:
    """Except for padding, which then has no probability."""
    everything = search(tmp_path / "list", EVERYTHING, precision)
    plain = search(tmp_path / "plain", None, precision)
    for ours, theirs in zip(everything.hypotheses, plain.hypotheses, strict=True):
        assert ours[0].token_ids == theirs[0].token_ids


@pytest.mark.parametrize("precision", PRECISIONS)
def test_only_shortlisted_tokens_are_generated(precision: Precision, tmp_path: Path) -> None:
    allowed = set(FEW.for_source(np.array([2, 3, 4])).tolist())
    for hypotheses in search(tmp_path, FEW, precision).hypotheses:
        for hypothesis in hypotheses:
            assert set(hypothesis.token_ids) <= allowed
            assert hypothesis.finished


def test_forced_decoding_uses_no_shortlist(tmp_path: Path) -> None:
    model = model_of(PAPER_SYSTEMS["gru10"])
    target = pad_ids([[8, 9, 3]], END)
    plain, listed = (
        OnnxEngine([exported(model, tmp_path / str(n), "fp32", each)], END)
        for n, each in enumerate([None, FEW])
    )
    one, other = plain.force_decode(target, target), listed.force_decode(target, target)
    np.testing.assert_allclose(one.log_probs, other.log_probs, rtol=1e-6)


def test_ensemble_uses_no_shortlist(tmp_path: Path) -> None:
    """Whether one of them has a shortlist or not."""
    model, source = model_of(PAPER_SYSTEMS["gru10"]), pad_ids([[2, 3], [4]], END)
    plain, listed = (
        exported(model, tmp_path / str(n), "fp32", each) for n, each in enumerate([None, FEW])
    )
    one, other = (
        OnnxEngine(pair, END).search(source, DecodeConfig(beam=3), None).hypotheses
        for pair in ([plain, plain], [plain, listed])
    )
    assert [each[0].token_ids for each in one] == [each[0].token_ids for each in other]


def test_output_layer_has_seven_bits_on_older_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported(model_of(PAPER_SYSTEMS["gru10"]), tmp_path, "int8", FEW)
    layers = []
    for exact in (True, False):
        monkeypatch.setattr(directories, "has_exact_int8_products", lambda exact=exact: exact)
        layers.append(OutputLayer.load(tmp_path, read_manifest(tmp_path)).inputs(np.array([3, 5])))
    whole, less = (each["output.W"] * each["output.scale"] for each in layers)
    assert np.abs(layers[1]["output.W"].astype(int)).max() <= 64
    np.testing.assert_allclose(less, whole, atol=1.01 * layers[0]["output.scale"].max())


def test_saved_shortlist_loads_again(tmp_path: Path) -> None:
    FEW.save(tmp_path / "list.json")
    assert Shortlist.load(tmp_path / "list.json", END + 1) == FEW
    for content in ({"always": [7]}, {"always": [END + 1], "partners": {}}):
        write_json(tmp_path / "list.json", content)
        with pytest.raises(UserError, match="not a shortlist; export the model anew"):
            Shortlist.load(tmp_path / "list.json", END + 1)


@pytest.fixture(scope="module")
def linked(
    tiny_text: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> ShortlistText:
    """The test set with the model's own links."""
    sides = tiny_text / "test.src", tiny_text / "test.tgt"
    pairs = zip(*map(read_lines, sides), strict=True)
    links = tmp_path_factory.mktemp("links") / "test.links"
    found = Model.load(tiny_model).align(pairs)
    write_lines(links, (format_links(links_from_attention(pair.matrix)) for pair in found))
    return ShortlistText(*sides, links)


def codecs(directory: Path) -> tuple[Codec, Codec]:
    return Codec.load(directory, "source"), Codec.load(directory, "target")


# target words of every list, partners at most, the partners of a and b
COUNTED = [
    (0, 9, {2: [3, 2, 4], 3: [3]}),
    (0, 1, {2: [3], 3: [3]}),
    (1, 1, {2: [2], 3: []}),
    (2, 9, {2: [4], 3: []}),
]


@pytest.mark.parametrize(("frequent", "most", "partners"), COUNTED)
def test_most_linked_tokens_become_partners(
    frequent: int,
    most: int,
    partners: dict[int, list[int]],
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, target = codecs(tiny_model)
    a, b = source.vocabulary.tokens[:2]
    x, y, z = target.vocabulary.tokens[:3]
    write_lines(tmp_path / "s", [f"{a} {b}", f"{a}", f"{b}"])
    write_lines(tmp_path / "t", [f"{x} {y} {z}", f"{y} {y}", f"{x}"])
    write_lines(tmp_path / "l", ["0-0 0-1 1-1 0-2", "0-0", ""])
    monkeypatch.setattr(module, "MAX_FREQUENT", frequent)
    monkeypatch.setattr(module, "MAX_PARTNERS", most)
    found = build_shortlist(ShortlistText(*(tmp_path / name for name in "stl")), (source, target))
    assert found.partners == partners
    assert found.always == sorted([UNK_ID, target.vocabulary.end_id, *[3, 2][:frequent]])


@pytest.mark.parametrize(
    ("line", "reason"), [("0-9", "a link to a token beyond the end"), ("x", "'x' is not a link")]
)
def test_wrong_link_names_file_and_line(
    line: str, reason: str, tiny_model: Path, tmp_path: Path
) -> None:
    write_lines(tmp_path / "s", ["a"])
    write_lines(tmp_path / "l", [line])
    text = ShortlistText(tmp_path / "s", tmp_path / "s", tmp_path / "l")
    told = f"l, line 1: {reason}.*make the links with `covnmt align`"
    with pytest.raises(UserError, match=told):
        build_shortlist(text, codecs(tiny_model))


def test_text_without_links_is_an_error(tiny_model: Path, tmp_path: Path) -> None:
    """A shortlist without partners would leave only frequent tokens."""
    write_lines(tmp_path / "s", ["a"])
    write_lines(tmp_path / "l", [""])
    text = ShortlistText(tmp_path / "s", tmp_path / "s", tmp_path / "l")
    with pytest.raises(UserError, match="l: no links in it"):
        build_shortlist(text, codecs(tiny_model))


def test_export_with_shortlist_translates(
    tiny_model: Path, tiny_text: Path, linked: ShortlistText, tmp_path: Path
) -> None:
    """The vocabulary is small, so the shortlist has everything and translations are the same."""
    export_model(tiny_model, tmp_path / "list", "fp32", linked)
    lines = list(read_lines(tiny_text / "test.src"))
    found = Model.load(tmp_path / "list").translate(lines)
    wanted = Model.load(tiny_model).translate(lines)
    assert [t.tokens for t in found] == [t.tokens for t in wanted]
    (tmp_path / "list" / "shortlist.json").unlink()
    with pytest.raises(UserError, match=r"shortlist\.json: no such file"):
        Model.load(tmp_path / "list")
