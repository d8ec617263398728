"""Tokenizing by file pairs: in chunks, in several processes, continued after an interrupt."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covnmt.data import prepare as prepare_module
from covnmt.data import tokenize_files
from covnmt.data.corpus import Corpus
from covnmt.data.prepare import prepare_corpus

from .pairs import decoded, make_settings, write, write_pairs

tokens = st.lists(st.sampled_from("abcdefg"), max_size=6).map(" ".join)


@settings(max_examples=25)  # it writes many files
@given(pairs=st.lists(st.tuples(tokens, tokens), min_size=1, max_size=40), chunk=st.integers(1, 7))
def test_prepared_ids_decode_to_the_pairs_that_were_kept(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, str]], chunk: int
) -> None:
    directory = tmp_path_factory.mktemp("corpus")
    keep = [pair for pair in pairs if all(0 < len(side.split()) <= 4 for side in pair)]
    plan = make_settings(directory, max_length=4, max_ratio=0)
    plan = plan.model_copy(update={"train": (write_pairs(directory / "p", [*pairs, ("a", "b")]),)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenize_files, "LINES_PER_CHUNK", chunk)
        patch.setattr(prepare_module, "NUMBERS_PER_CHUNK", chunk)
        prepare_corpus(plan, directory / "out")
    corpus = Corpus.open(directory / "out")
    assert decoded(corpus, "train") == [*keep, ("a", "b")]
    split = corpus.split("train")
    source, target = split.lengths(slice(None))
    assert source.tolist() == [len(split.source[i]) for i in range(len(split))]
    assert target.tolist() == [len(split.target[i]) for i in range(len(split))]


def test_a_bounded_counter_keeps_frequent_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenize_files, "MAX_COUNTED_TOKENS", 20)
    counts: Counter[str] = Counter()
    largest = 0
    for number in range(500):
        tokenize_files.count_tokens(counts, ["often", f"rare{number}", "also"])
        largest = max(largest, len(counts))
    assert (counts["often"], counts["also"]) == (500, 500)
    assert largest <= 20


def parts_of(directory: Path, number: int, lines: int) -> tuple[tuple[Path, Path], ...]:
    pairs = [(f"a{i % 7} b{i} c", f"x y{i % 5}") for i in range(number * lines)]
    return tuple(
        write_pairs(directory / f"part{k}", pairs[k * lines : (k + 1) * lines])
        for k in range(number)
    )


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def test_the_result_depends_neither_on_workers_nor_on_the_division_into_files(
    tmp_path: Path,
) -> None:
    """Three files in one process or in two, or a single file, give the same directory."""
    train = parts_of(tmp_path, 3, 20)
    lines = [
        [line for pair in train for line in pair[side].read_text().splitlines()] for side in (0, 1)
    ]
    one = (write(tmp_path / "one.s", lines[0]), write(tmp_path / "one.t", lines[1]))
    for name, paths, workers in (("a", train, 1), ("b", train, 2), ("c", (one,), 1)):
        prepare_corpus(make_settings(tmp_path, train=paths), tmp_path / name, workers=workers)
    a, b, c = (contents(tmp_path / name) for name in "abc")
    assert a == b
    # only the digests of the text files differ
    assert a.pop("corpus.json") != c.pop("corpus.json")
    assert a == c


def test_an_interrupted_call_continues_with_the_missing_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finished files are not done again unless their text has changed."""
    plan = make_settings(tmp_path, train=parts_of(tmp_path, 4, 5))
    whole = tmp_path / "whole"
    prepare_corpus(plan, whole)
    read: list[str] = []
    plain = tokenize_files._tokenize

    def watched(pair: tokenize_files.FilePairTask) -> Any:
        read.append(pair.paths[0].stem)
        if read == ["part0", "part1", "part2"]:
            raise KeyboardInterrupt
        return plain(pair)

    monkeypatch.setattr(tokenize_files, "_tokenize", watched)
    with pytest.raises(KeyboardInterrupt):
        prepare_corpus(plan, tmp_path / "out")
    write_pairs(tmp_path / "part1", [("b9 c", "y1")] * 5)
    prepare_corpus(plan, tmp_path / "out")
    assert read == ["part0", "part1", "part2", "part1", "part2", "part3", "dev"]
    assert contents(tmp_path / "out").keys() == contents(whole).keys()
    assert not (tmp_path / "out" / ".prepare").exists()
    prepare_corpus(plan, whole, overwrite=True)
    assert contents(tmp_path / "out") == contents(whole)
