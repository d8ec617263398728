"""Preparing a corpus: dropped pairs, files, reuse, and errors."""

import gzip
import lzma
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from covnmt.base.errors import UserError
from covnmt.base.files import lock_directory
from covnmt.data import prepare as prepare_module
from covnmt.data.corpus import Corpus
from covnmt.data.prepare import prepare_corpus, shuffled_numbers
from covnmt.text.tokenize import TokenizerSettings
from covnmt.text.vocabulary import UNK_ID

from .pairs import DEV, SUBWORDS, TRAIN, decoded, make_settings, write_pairs


def test_unsuitable_training_pairs_are_dropped_and_counted_by_reason(tmp_path: Path) -> None:
    report = prepare_corpus(make_settings(tmp_path), tmp_path / "out")
    train = report.splits["train"]
    assert (train.read, train.kept) == (7, 3)
    assert train.dropped == {"empty": 2, "too_long": 1, "ratio": 1}
    assert decoded(Corpus.open(tmp_path / "out"), "train") == [TRAIN[0], TRAIN[1], TRAIN[5]]
    told = "\n".join(report.lines())
    for words in (
        "3 of 7 pairs",
        "2 with an empty side",
        "1 too long",
        "1 beyond the length",
        "train",
        "dev",
    ):
        assert words in told


def test_dev_pairs_are_never_dropped(tmp_path: Path) -> None:
    report = prepare_corpus(make_settings(tmp_path), tmp_path / "out")
    dev = Corpus.open(tmp_path / "out").split("dev")
    assert (report.splits["dev"].kept, len(dev)) == (3, 3)
    assert dev.text("source") == [source for source, _ in DEV]
    assert dev.text("target") == [target for _, target in DEV]
    assert dev.source.lengths().tolist() == [2, 0, 30]
    assert dev.order.tolist() == [0, 1, 2]


def test_a_dev_set_may_have_empty_lines(tmp_path: Path) -> None:
    plan = make_settings(tmp_path, dev=write_pairs(tmp_path / "blank", [("", "x"), ("", "")]))
    prepare_corpus(plan, tmp_path / "out")
    dev = Corpus.open(tmp_path / "out").split("dev")
    assert [len(dev.source[i]) for i in range(2)] == [0, 0]
    assert dev.target.lengths().tolist() == [1, 0]


def test_coverage_counts_known_tokens(tmp_path: Path) -> None:
    report = prepare_corpus(make_settings(tmp_path), tmp_path / "out")
    assert report.splits["train"].percent_known == {"source": 100.0, "target": 100.0}
    # of the dev source only d, of its target only q is unknown
    assert report.splits["dev"].tokens == {"source": 32, "target": 4}
    assert report.splits["dev"].percent_known == {"source": round(100 * 31 / 32, 2), "target": 75.0}


def test_only_kept_pairs_count_for_the_vocabulary(tmp_path: Path) -> None:
    train = (write_pairs(tmp_path / "p", [("b", "x"), ("a a a a a a", "y")]),)
    prepare_corpus(make_settings(tmp_path, train=train), tmp_path / "out")
    corpus = Corpus.open(tmp_path / "out")
    assert corpus.codec("source").vocabulary.tokens == ("b",)
    assert corpus.codec("target").vocabulary.tokens == ("x",)


def test_vocabulary_sizes_count_the_end_symbol(tmp_path: Path) -> None:
    report = prepare_corpus(make_settings(tmp_path, source_size=3, target_size=4), tmp_path / "out")
    corpus = Corpus.open(tmp_path / "out")
    assert corpus.codec("source").vocabulary.tokens == ("a",)
    assert corpus.codec("target").vocabulary.tokens == ("x", "y")
    split = corpus.split("train")
    assert report.vocabulary_sizes == {"source": 4, "target": 5}
    assert (split.source_end_id, split.target_end_id) == (3, 4)
    assert split.source[0].tolist() == [2, 1, 1]


def test_the_order_is_a_shuffle_fixed_by_the_seed(tmp_path: Path) -> None:
    pairs = [(f"s{i}", f"t{i}") for i in range(50)]
    train = (write_pairs(tmp_path / "many", pairs),)
    orders = []
    for number, seed in enumerate((1, 1, 2)):
        prepare_corpus(make_settings(tmp_path, train=train, seed=seed), tmp_path / f"{number}")
        orders.append(Corpus.open(tmp_path / f"{number}").split("train").order.tolist())
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == list(range(50)) != orders[0]


def test_training_files_plain_or_compressed_are_concatenated(tmp_path: Path) -> None:
    plain = write_pairs(tmp_path / "one", [("a", "x")])
    with gzip.open(tmp_path / "two.s.gz", "wt") as stream:
        stream.write("b\n")
    with lzma.open(tmp_path / "two.t.xz", "wt") as stream:
        stream.write("y\n")
    train = (plain, (tmp_path / "two.s.gz", tmp_path / "two.t.xz"))
    prepare_corpus(make_settings(tmp_path, train=train), tmp_path / "out")
    assert decoded(Corpus.open(tmp_path / "out"), "train") == [("a", "x"), ("b", "y")]


@pytest.mark.parametrize("joint", [False, True])
def test_sentencepiece_models_are_trained_per_side_or_jointly(tmp_path: Path, joint: bool) -> None:
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
    report = prepare_corpus(plan, tmp_path / "out")
    corpus = Corpus.open(tmp_path / "out")
    assert decoded(corpus, "train") == pairs
    assert report.splits["train"].percent_known == {"source": 100.0, "target": 100.0}
    same = corpus.codec("source").vocabulary == corpus.codec("target").vocabulary
    assert same == joint
    assert all(rows <= 61 for rows in report.vocabulary_sizes.values())


def test_joint_sides_share_one_vocabulary(tmp_path: Path) -> None:
    prepare_corpus(make_settings(tmp_path, joint=True), tmp_path / "out")
    corpus = Corpus.open(tmp_path / "out")
    assert corpus.codec("source").vocabulary == corpus.codec("target").vocabulary
    assert set(corpus.codec("source").vocabulary.tokens) == set("abcxyz")


def test_no_working_files_remain(tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    (output / "mine.txt").write_text("stays")
    (output / ".train.source.ids.x1.tmp").write_text("of a killed run")
    prepare_corpus(make_settings(tmp_path), output)
    sides = ("source", "target")
    files = {f"{side}.{end}" for side in sides for end in ("json", "vocab")}
    for name in ("train", "dev"):
        files |= {f"{name}.{side}.{end}" for side in sides for end in ("ids", "offsets.npy")}
    files |= {"dev.source.txt", "dev.target.txt", "train.order.npy", "corpus.json", "mine.txt"}
    assert {path.name for path in output.iterdir()} == files


def test_preparing_again_with_the_same_settings_does_nothing(tmp_path: Path) -> None:
    first = prepare_corpus(make_settings(tmp_path), tmp_path / "out")
    stamp = (tmp_path / "out" / "train.source.ids").stat().st_mtime_ns
    second = prepare_corpus(make_settings(tmp_path), tmp_path / "out")
    assert (first.reused, second.reused) == (False, True)
    assert second.model_copy(update={"reused": False}) == first
    assert (tmp_path / "out" / "train.source.ids").stat().st_mtime_ns == stamp
    assert "already prepared" in second.lines()[0]


def test_the_same_text_at_another_path_is_reused(tmp_path: Path) -> None:
    prepare_corpus(make_settings(tmp_path), tmp_path / "out")
    elsewhere = tmp_path / "copy"
    elsewhere.mkdir()
    assert prepare_corpus(make_settings(elsewhere), tmp_path / "out").reused


CHANGES: list[tuple[dict[str, object], str]] = [
    ({"max_length": 4}, "max_length"),
    ({"dev": None}, "dev"),
    ({"source": TokenizerSettings(kind="characters")}, "source.kind"),
]


@pytest.mark.parametrize(("changes", "named"), CHANGES)
def test_other_settings_are_refused(tmp_path: Path, changes: dict[str, object], named: str) -> None:
    prepare_corpus(make_settings(tmp_path), tmp_path / "out")
    with pytest.raises(UserError, match=rf"other settings \({named}\b"):
        prepare_corpus(make_settings(tmp_path, **changes), tmp_path / "out")
    assert not prepare_corpus(
        make_settings(tmp_path, **changes), tmp_path / "out", overwrite=True
    ).reused


def test_other_text_is_refused(tmp_path: Path) -> None:
    prepare_corpus(make_settings(tmp_path), tmp_path / "out")
    plan = make_settings(tmp_path)
    write_pairs(tmp_path / "train", [*TRAIN, ("a", "x")])
    with pytest.raises(UserError, match=r"\(train\)"):
        prepare_corpus(plan, tmp_path / "out")


@pytest.mark.parametrize("number", [1, 5, 100])
@pytest.mark.parametrize("at_once", [3, 7, 1000])
def test_shuffles_larger_than_memory_are_complete_and_seeded(
    number: int, at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through files on disk: every number once, in an order that depends on the seed."""
    monkeypatch.setattr(prepare_module, "SHUFFLED_IN_MEMORY", at_once)
    monkeypatch.setattr(prepare_module, "NUMBERS_PER_CHUNK", 10)

    def order(seed: int) -> list[int]:
        return [int(i) for part in shuffled_numbers(number, seed, tmp_path) for i in part]

    assert sorted(order(1)) == list(range(number))
    assert order(1) == order(1)
    assert (order(1) == order(2)) == (number == 1)
    assert not list(tmp_path.iterdir())


def test_shuffles_larger_than_memory_are_uniform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All 24 orders of four numbers are about equally frequent."""
    monkeypatch.setattr(prepare_module, "SHUFFLED_IN_MEMORY", 2)
    orders = Counter(
        tuple(np.concatenate(list(shuffled_numbers(4, k, tmp_path)))) for k in range(2400)
    )
    assert len(orders) == 24
    # a hundred each; a chi-squared of 23 degrees of freedom is above 60 once in 30,000 times
    assert sum((times - 100) ** 2 / 100 for times in orders.values()) < 60


def test_a_failed_call_leaves_no_complete_directory(tmp_path: Path) -> None:
    prepare_corpus(make_settings(tmp_path), tmp_path / "out")
    plan = make_settings(tmp_path)
    (tmp_path / "train.t").write_bytes(b"x\n\xff\n")
    with pytest.raises(UserError, match="not UTF-8"):
        prepare_corpus(plan, tmp_path / "out", overwrite=True)
    with pytest.raises(UserError, match="not a prepared corpus"):
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
def test_unsuitable_text_is_an_error(tmp_path: Path, contents: list[bytes], message: str) -> None:
    paths = (tmp_path / "bad.s", tmp_path / "bad.t")
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        prepare_corpus(make_settings(tmp_path, train=(paths,)), tmp_path / "out")


def test_missing_text_is_an_error(tmp_path: Path) -> None:
    missing = (tmp_path / "none.s", tmp_path / "none.t")
    with pytest.raises(UserError, match=r"none\.s: no such file"):
        prepare_corpus(make_settings(tmp_path, train=(missing,)), tmp_path / "out")


def test_a_file_as_output_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(UserError, match=r"cannot be written \(File exists\)"):
        prepare_corpus(make_settings(tmp_path), tmp_path / "out")


def test_a_directory_that_another_prepare_writes_is_refused(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    with (
        lock_directory(tmp_path / "out"),
        pytest.raises(UserError, match="out: another covnmt command is writing to it"),
    ):
        prepare_corpus(settings, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())
    assert not prepare_corpus(settings, tmp_path / "out").reused


def open_text(directory: Path) -> tuple[tuple[Path, Path], ...]:
    """Words 0 to 1999 twice and 2000 to 2499 once, on the source side; one word on the other."""
    words = [*range(2000), *range(2500)]
    lines = [" ".join(map(str, words[i : i + 5])) for i in range(0, len(words), 5)]
    return (write_pairs(directory / "open", [(line, "a a a") for line in lines]),)


def test_words_seen_once_train_the_unknown_word_where_all_would_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = make_settings(tmp_path, train=open_text(tmp_path))
    report = prepare_corpus(settings, tmp_path / "out")
    assert report.vocabulary_sizes == {"source": 2003, "target": 4}
    assert (
        np.count_nonzero(Corpus.open(tmp_path / "out").split("train").source.ids == UNK_ID) == 500
    )
    said = capsys.readouterr().err
    assert "source: the vocabulary would hold every training word" in said
    assert "500 words that occur once become unknown words (--min-count 1 keeps them)" in said
    assert "target: " not in said  # a closed language
    assert prepare_corpus(settings, tmp_path / "out").reused


@pytest.mark.parametrize(
    ("changes", "size"),
    [({"min_count": 1}, 2503), ({"min_count": 2}, 2003), ({"source_size": 2400}, 2401)],
)
def test_words_seen_once_are_kept_where_asked_or_where_others_are_unknown(
    tmp_path: Path, changes: dict[str, int], size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = make_settings(tmp_path, train=open_text(tmp_path), target_size=4, **changes)
    assert prepare_corpus(settings, tmp_path / "out").vocabulary_sizes["source"] == size
    assert "left out" not in capsys.readouterr().err


def test_min_count_that_leaves_no_word_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no source word occurs 99 times: lower --min-count"):
        prepare_corpus(make_settings(tmp_path, min_count=99), tmp_path / "out")
