"""Preparing a corpus: what is kept, what is written, what is refused, and how it is read back."""

import gzip
import hashlib
import json
import lzma
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from covnmt.errors import UserError
from covnmt.text import parts
from covnmt.text import prepare as prepare_module
from covnmt.text.corpus import Corpus, PrepareSettings, SplitName, id_type
from covnmt.text.prepare import prepare, shuffled
from covnmt.text.tokenize import TokenizerSettings

WORDS = TokenizerSettings(kind="whitespace")
SUBWORDS = TokenizerSettings(kind="sentencepiece")

TRAIN = [
    ("a b c", "x y"),
    ("a b", "x y z"),
    ("", "x"),
    ("a", " "),
    ("a a a a a a", "x"),
    ("b c a", "y x x"),
    ("a", "x x x x"),
]
DEV = [("a d", "x q"), ("", "x"), ("a " * 30, "y")]


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


def write_pairs(stem: Path, pairs: list[tuple[str, str]]) -> tuple[Path, Path]:
    source = write(Path(f"{stem}.s"), [source for source, _ in pairs])
    return source, write(Path(f"{stem}.t"), [target for _, target in pairs])


def make_settings(directory: Path, **changes: object) -> PrepareSettings:
    values: dict[str, object] = {
        "source": WORDS,
        "target": WORDS,
        "train": (write_pairs(directory / "train", TRAIN),),
        "dev": write_pairs(directory / "dev", DEV),
        "max_length": 5,
        "max_ratio": 3.0,
    }
    return PrepareSettings.model_validate(values | changes)


def decoded(corpus: Corpus, name: SplitName) -> list[tuple[str, str]]:
    """The text of a split, back from its ids."""
    split = corpus.split(name)
    source, target = corpus.codec("source"), corpus.codec("target")
    return [
        (
            source.detokenize(source.decode(split.source(i).tolist())),
            target.detokenize(target.decode(split.target(i).tolist())),
        )
        for i in range(len(split))
    ]


def test_what_is_kept_and_why_the_rest_is_not(tmp_path: Path) -> None:
    report = prepare(make_settings(tmp_path), tmp_path / "out")
    train = report.splits["train"]
    assert (train.read, train.kept) == (7, 3)
    assert train.dropped == {"empty": 2, "too_long": 1, "ratio": 1}
    assert decoded(Corpus.open(tmp_path / "out"), "train") == [TRAIN[0], TRAIN[1], TRAIN[5]]
    told = "\n".join(report.lines())
    for words in ("3 of 7 pairs", "2 with an empty side", "1 too long", "1 of too", "train", "dev"):
        assert words in told


def test_dev_pairs_are_never_dropped(tmp_path: Path) -> None:
    report = prepare(make_settings(tmp_path), tmp_path / "out")
    dev = Corpus.open(tmp_path / "out").split("dev")
    assert (report.splits["dev"].kept, len(dev)) == (3, 3)
    assert dev.source_text() == [source for source, _ in DEV]
    assert dev.target_text() == [target for _, target in DEV]
    assert dev.source_sentences.lengths().tolist() == [2, 0, 30]
    assert dev.order.tolist() == [0, 1, 2]


def test_coverage_counts_known_tokens(tmp_path: Path) -> None:
    report = prepare(make_settings(tmp_path), tmp_path / "out")
    assert report.splits["train"].coverage == {"source": 100.0, "target": 100.0}
    # of the dev source only d, of its target only q is unknown
    assert report.splits["dev"].tokens == {"source": 32, "target": 4}
    assert report.splits["dev"].coverage == {"source": round(100 * 31 / 32, 2), "target": 75.0}


def test_only_kept_pairs_count_for_the_vocabulary(tmp_path: Path) -> None:
    train = (write_pairs(tmp_path / "p", [("b", "x"), ("a a a a a a", "y")]),)
    prepare(make_settings(tmp_path, train=train), tmp_path / "out")
    corpus = Corpus.open(tmp_path / "out")
    assert corpus.codec("source").vocabulary.words == ("b",)
    assert corpus.codec("target").vocabulary.words == ("x",)


def test_sizes_and_end_symbols(tmp_path: Path) -> None:
    report = prepare(make_settings(tmp_path, source_size=3, target_size=4), tmp_path / "out")
    corpus = Corpus.open(tmp_path / "out")
    assert corpus.codec("source").vocabulary.words == ("a",)
    assert corpus.codec("target").vocabulary.words == ("x", "y")
    split = corpus.split("train")
    assert report.rows == {"source": 4, "target": 5}
    assert (split.source_end, split.target_end) == (3, 4)
    assert split.source(0).tolist() == [2, 1, 1]


def test_the_order_is_a_shuffle_fixed_by_the_seed(tmp_path: Path) -> None:
    pairs = [(f"s{i}", f"t{i}") for i in range(50)]
    train = (write_pairs(tmp_path / "many", pairs),)
    orders = []
    for number, seed in enumerate((1, 1, 2)):
        prepare(make_settings(tmp_path, train=train, seed=seed), tmp_path / f"{number}")
        orders.append(Corpus.open(tmp_path / f"{number}").split("train").order.tolist())
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == list(range(50)) != orders[0]


def test_several_files_plain_and_compressed(tmp_path: Path) -> None:
    plain = write_pairs(tmp_path / "one", [("a", "x")])
    with gzip.open(tmp_path / "two.s.gz", "wt") as stream:
        stream.write("b\n")
    with lzma.open(tmp_path / "two.t.xz", "wt") as stream:
        stream.write("y\n")
    train = (plain, (tmp_path / "two.s.gz", tmp_path / "two.t.xz"))
    prepare(make_settings(tmp_path, train=train), tmp_path / "out")
    assert decoded(Corpus.open(tmp_path / "out"), "train") == [("a", "x"), ("b", "y")]


tokens = st.lists(st.sampled_from("abcdefg"), max_size=6).map(" ".join)


@settings(max_examples=25)  # it writes many files
@given(pairs=st.lists(st.tuples(tokens, tokens), min_size=1, max_size=40), chunk=st.integers(1, 7))
def test_every_pair_comes_back(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, str]], chunk: int
) -> None:
    directory = tmp_path_factory.mktemp("corpus")
    keep = [pair for pair in pairs if all(0 < len(side.split()) <= 4 for side in pair)]
    plan = make_settings(directory, max_length=4, max_ratio=0)
    plan = plan.model_copy(update={"train": (write_pairs(directory / "p", [*pairs, ("a", "b")]),)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "LINES_AT_A_TIME", chunk)
        patch.setattr(prepare_module, "ENDS_AT_A_TIME", chunk)
        prepare(plan, directory / "out")
    corpus = Corpus.open(directory / "out")
    assert decoded(corpus, "train") == [*keep, ("a", "b")]
    split = corpus.split("train")
    source, target = split.lengths(slice(None))
    assert source.tolist() == [len(split.source(i)) for i in range(len(split))]
    assert target.tolist() == [len(split.target(i)) for i in range(len(split))]


def test_ids_take_the_smallest_type_that_fits() -> None:
    assert np.iinfo(id_type(2**16)).max == 2**16 - 1
    assert np.iinfo(id_type(2**16 + 1)).max == 2**32 - 1


def test_a_bounded_counter_keeps_the_frequent_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "TYPES_IN_MEMORY", 20)
    counts: Counter[str] = Counter()
    largest = 0
    for number in range(500):
        parts.count(counts, ["often", f"rare{number}", "also"])
        largest = max(largest, len(counts))
    assert (counts["often"], counts["also"]) == (500, 500)
    assert largest <= 20


@pytest.mark.parametrize("joint", [False, True])
def test_sentencepiece(tmp_path: Path, joint: bool) -> None:
    pairs = [("the small cat sat", "die kleine katze sass"), ("a dog ran", "ein hund lief")] * 30
    plan = make_settings(
        tmp_path,
        source=SUBWORDS,
        target=SUBWORDS,
        train=(write_pairs(tmp_path / "p", pairs),),
        source_size=60,
        target_size=60,
        max_length=80,
        max_ratio=0,
        joint=joint,
    )
    report = prepare(plan, tmp_path / "out")
    corpus = Corpus.open(tmp_path / "out")
    assert decoded(corpus, "train") == pairs
    assert report.splits["train"].coverage == {"source": 100.0, "target": 100.0}
    same = corpus.codec("source").vocabulary == corpus.codec("target").vocabulary
    assert same == joint
    assert all(rows <= 61 for rows in report.rows.values())


def test_joint_words_share_one_vocabulary(tmp_path: Path) -> None:
    prepare(make_settings(tmp_path, joint=True), tmp_path / "out")
    corpus = Corpus.open(tmp_path / "out")
    assert corpus.codec("source").vocabulary == corpus.codec("target").vocabulary
    assert set(corpus.codec("source").vocabulary.words) == set("abcxyz")


@pytest.mark.parametrize("changes", [{"target": SUBWORDS}, {"source_size": 10}])
def test_joint_sides_must_agree(tmp_path: Path, changes: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="joint needs the same"):
        make_settings(tmp_path, joint=True, **changes)


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    (output / "mine.txt").write_text("stays")
    (output / ".train.source.ids.x1.tmp").write_text("of a killed run")
    prepare(make_settings(tmp_path), output)
    sides = ("source", "target")
    files = {f"{side}.{end}" for side in sides for end in ("json", "vocab")}
    for name in ("train", "dev"):
        files |= {f"{name}.{side}.{end}" for side in sides for end in ("ids", "offsets.npy")}
    files |= {"dev.source.txt", "dev.target.txt", "train.order.npy", "corpus.json", "mine.txt"}
    assert {path.name for path in output.iterdir()} == files


def test_the_same_settings_are_reused(tmp_path: Path) -> None:
    first = prepare(make_settings(tmp_path), tmp_path / "out")
    stamp = (tmp_path / "out" / "train.source.ids").stat().st_mtime_ns
    second = prepare(make_settings(tmp_path), tmp_path / "out")
    assert (first.reused, second.reused) == (False, True)
    assert second.model_copy(update={"reused": False}) == first
    assert (tmp_path / "out" / "train.source.ids").stat().st_mtime_ns == stamp
    assert "already prepared" in second.lines()[0]


def test_the_same_text_elsewhere_is_reused(tmp_path: Path) -> None:
    prepare(make_settings(tmp_path), tmp_path / "out")
    elsewhere = tmp_path / "copy"
    elsewhere.mkdir()
    assert prepare(make_settings(elsewhere), tmp_path / "out").reused


CHANGES: list[tuple[dict[str, object], str]] = [
    ({"max_length": 4}, "max_length"),
    ({"dev": None}, "dev"),
    ({"source": TokenizerSettings(kind="characters")}, "source"),
]


@pytest.mark.parametrize(("changes", "named"), CHANGES)
def test_other_settings_are_refused(tmp_path: Path, changes: dict[str, object], named: str) -> None:
    prepare(make_settings(tmp_path), tmp_path / "out")
    with pytest.raises(UserError, match=rf"other settings or text \({named}\)"):
        prepare(make_settings(tmp_path, **changes), tmp_path / "out")
    assert not prepare(make_settings(tmp_path, **changes), tmp_path / "out", overwrite=True).reused


@pytest.mark.parametrize("later", [(), ("open_vocabulary",), ("joint", "max_ratio")])
def test_settings_that_came_later_leave_the_identity_alone(
    tmp_path: Path, later: tuple[str, ...]
) -> None:
    """It is that of the version which did not know them: a digest of all that corpus.json says."""
    prepare(make_settings(tmp_path, max_ratio=0.0), tmp_path / "out")
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


def test_data_prepared_again_are_the_same_to_a_run(tmp_path: Path) -> None:
    """Runs know their data by this digest. If a new setting changes it, leave the setting out of
    corpus.json, and of source.json and target.json, while it has its default."""
    prepare(make_settings(tmp_path), tmp_path / "out")
    known = "9ff5105f8654b6f185ced1994a848fc30a359cfb80ea1d4ad388800a2d9928ce"
    assert Corpus.open(tmp_path / "out").identity() == known


def test_other_text_is_refused(tmp_path: Path) -> None:
    prepare(make_settings(tmp_path), tmp_path / "out")
    plan = make_settings(tmp_path)
    write_pairs(tmp_path / "train", [*TRAIN, ("a", "x")])
    with pytest.raises(UserError, match=r"\(train\)"):
        prepare(plan, tmp_path / "out")


def parts_of(directory: Path, number: int, lines: int) -> tuple[tuple[Path, Path], ...]:
    pairs = [(f"a{i % 7} b{i} c", f"x y{i % 5}") for i in range(number * lines)]
    return tuple(
        write_pairs(directory / f"part{k}", pairs[k * lines : (k + 1) * lines])
        for k in range(number)
    )


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def test_workers_and_parts_make_no_difference(tmp_path: Path) -> None:
    """Three files, by one process or by two, or as one file: the same directory."""
    train = parts_of(tmp_path, 3, 20)
    lines = [
        [line for pair in train for line in pair[side].read_text().splitlines()] for side in (0, 1)
    ]
    one = (write(tmp_path / "one.s", lines[0]), write(tmp_path / "one.t", lines[1]))
    for name, paths, workers in (("a", train, 1), ("b", train, 2), ("c", (one,), 1)):
        prepare(make_settings(tmp_path, train=paths), tmp_path / name, workers=workers)
    a, b, c = (contents(tmp_path / name) for name in "abc")
    assert a == b
    # which files the text came from is all that differs
    assert a.pop("corpus.json") != c.pop("corpus.json")
    assert a == c


def test_an_interrupted_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that were done are not done again, unless their text has changed."""
    plan = make_settings(tmp_path, train=parts_of(tmp_path, 4, 5))
    whole = tmp_path / "whole"
    prepare(plan, whole)
    read: list[str] = []
    plain = parts._token_pairs

    def watched(paths: tuple[Path, Path], *tokenizers: Any) -> Any:
        read.append(paths[0].stem)
        if read == ["part0", "part1", "part2"]:
            raise KeyboardInterrupt
        return plain(paths, *tokenizers)

    monkeypatch.setattr(parts, "_token_pairs", watched)
    with pytest.raises(KeyboardInterrupt):
        prepare(plan, tmp_path / "out")
    write_pairs(tmp_path / "part1", [("b9 c", "y1")] * 5)
    prepare(plan, tmp_path / "out")
    assert read == ["part0", "part1", "part2", "part1", "part2", "part3", "dev"]
    assert contents(tmp_path / "out").keys() == contents(whole).keys()
    assert not (tmp_path / "out" / ".prepare").exists()
    prepare(plan, whole, overwrite=True)
    assert contents(tmp_path / "out") == contents(whole)


@pytest.mark.parametrize("number", [1, 5, 100])
@pytest.mark.parametrize("at_once", [3, 7, 1000])
def test_large_shuffles(
    number: int, at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In piles on disk where there are many; every number once, the seed decides."""
    monkeypatch.setattr(prepare_module, "SHUFFLED_AT_ONCE", at_once)
    monkeypatch.setattr(prepare_module, "ENDS_AT_A_TIME", 10)

    def order(seed: int) -> list[int]:
        return [int(i) for part in shuffled(number, seed, tmp_path) for i in part]

    assert sorted(order(1)) == list(range(number))
    assert order(1) == order(1)
    assert (order(1) == order(2)) == (number == 1)
    assert not list(tmp_path.iterdir())


def test_large_shuffles_are_fair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All 24 orders of four numbers come about equally often."""
    monkeypatch.setattr(prepare_module, "SHUFFLED_AT_ONCE", 2)
    orders = Counter(tuple(np.concatenate(list(shuffled(4, k, tmp_path)))) for k in range(2400))
    assert len(orders) == 24
    # a hundred each; a chi-squared of 23 degrees of freedom is above 60 once in 30,000 times
    assert sum((times - 100) ** 2 / 100 for times in orders.values()) < 60


def test_a_failed_run_is_not_taken_for_a_whole_one(tmp_path: Path) -> None:
    prepare(make_settings(tmp_path), tmp_path / "out")
    plan = make_settings(tmp_path)
    (tmp_path / "train.t").write_bytes(b"x\n\xff\n")
    with pytest.raises(UserError, match="not UTF-8"):
        prepare(plan, tmp_path / "out", overwrite=True)
    with pytest.raises(UserError, match="no prepared corpus"):
        Corpus.open(tmp_path / "out")


BAD_INPUT = [
    ([b"a\nb\n", b"x\n"], "ends after line 1"),
    ([b"", b""], "are empty"),
    ([b"a\n", b""], "ends after line 0"),
    ([b"a\n\xc3\n", b"x\ny\n"], r"bad\.s, line 2: not UTF-8"),
    (
        [b"a b c d e f\n\n", b"x\nx\n"],
        r"no training pair is left \(1 with an empty side, 1 too long\)",
    ),
]


@pytest.mark.parametrize(("contents", "message"), BAD_INPUT)
def test_bad_input(tmp_path: Path, contents: list[bytes], message: str) -> None:
    paths = (tmp_path / "bad.s", tmp_path / "bad.t")
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        prepare(make_settings(tmp_path, train=(paths,)), tmp_path / "out")


def test_missing_input(tmp_path: Path) -> None:
    missing = (tmp_path / "none.s", tmp_path / "none.t")
    with pytest.raises(UserError, match=r"none\.s: cannot be read"):
        prepare(make_settings(tmp_path, train=(missing,)), tmp_path / "out")


def test_an_output_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(UserError, match="cannot be written to"):
        prepare(make_settings(tmp_path), tmp_path / "out")


DAMAGE = ["train.source.ids", "train.target.offsets.npy", "train.order.npy"]


@pytest.mark.parametrize("name", DAMAGE)
@pytest.mark.parametrize("keep", [0, 0.5, None])
def test_damaged_arrays(tmp_path: Path, name: str, keep: float | None) -> None:
    plan = make_settings(tmp_path)
    prepare(plan, tmp_path / "out")
    path = tmp_path / "out" / name
    content = path.read_bytes()
    path.unlink()
    if keep is not None:
        path.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(UserError, match=re.escape(name)):
        Corpus.open(tmp_path / "out").split("train")
    with pytest.raises(UserError, match=re.escape(name)):
        prepare(plan, tmp_path / "out")


def test_text_that_was_cut_off(tmp_path: Path) -> None:
    prepare(make_settings(tmp_path), tmp_path / "out")
    write(tmp_path / "out" / "dev.target.txt", ["x q"])
    dev = Corpus.open(tmp_path / "out").split("dev")
    assert len(dev.source_text()) == len(DEV)
    with pytest.raises(UserError, match=r"dev\.target\.txt: has 1 lines instead of 3"):
        dev.target_text()


def test_another_vocabulary(tmp_path: Path) -> None:
    prepare(make_settings(tmp_path), tmp_path / "out")
    write(tmp_path / "out" / "source.vocab", ["other", "words"])
    with pytest.raises(UserError, match="vocabularies are not those of its ids"):
        Corpus.open(tmp_path / "out")


@pytest.mark.parametrize("change", [{"version": 99}, {"splits": 3}, {"colour": "red"}])
def test_damaged_report(tmp_path: Path, change: dict[str, object]) -> None:
    prepare(make_settings(tmp_path), tmp_path / "out")
    path = tmp_path / "out" / "corpus.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=r"corpus\.json"):
        Corpus.open(tmp_path / "out")


def test_a_split_that_is_not_there(tmp_path: Path) -> None:
    prepare(make_settings(tmp_path), tmp_path / "out")
    with pytest.raises(UserError, match="without test files"):
        Corpus.open(tmp_path / "out").split("test")


def test_a_dev_set_of_empty_lines(tmp_path: Path) -> None:
    plan = make_settings(tmp_path, dev=write_pairs(tmp_path / "blank", [("", "x"), ("", "")]))
    prepare(plan, tmp_path / "out")
    dev = Corpus.open(tmp_path / "out").split("dev")
    assert [len(dev.source(i)) for i in range(2)] == [0, 0]
    assert dev.target_sentences.lengths().tolist() == [1, 0]
