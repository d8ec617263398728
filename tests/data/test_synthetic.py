"""The synthetic pair: its phenomena, their frequencies, and the correctness of its alignments."""

import re
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from itertools import chain, pairwise
from pathlib import Path

import pytest
from pydantic import ValidationError

from covnmt.base.errors import UserError
from covnmt.data.synthetic import (
    OBJECT_MARKER,
    SyntheticPair,
    SyntheticSettings,
    build_lexicon,
    generate_pairs,
    write_synthetic_corpus,
)

from .oracle import WORDS, translate

FIRST_HUNDRED = "a095d9bdd217a74f1ea105804a0be74cc146a91fd4fa2f14e6ec2a72e9afcf67"

# Line 84 of test.src with seed 1, worked through in docs/embedded-pair.md.
EXAMPLE = (
    "ze pize runi re zasi ro piro zako tu tu tu kinu pe vuri",
    "nagin gegik bakel weah weah weah burar miin hinar rodib roser tunosit dior "
    "hutot sigod seron eth wetetit",
    "0p11 0p17 1-0 1-1 2p6 2p16 2-17 3p13 3p14 3p15 4-13 4-14 4-15 4p16 5-12 6-8 6-9 6p10 6-11 "
    "7-10 8-3 9-4 10-5 11-2 12-7 13-6",
)

# Few words and short sentences, so that different seeds often give the same sentence.
SMALL = SyntheticSettings(nouns=5, verbs=3, mean_clauses=1, adjective=0.1, relative=0.1)


@pytest.fixture(scope="module")
def pairs() -> list[SyntheticPair]:
    return list(generate_pairs(4_000, seed=7))


# --- the stream ----------------------------------------------------------------------------------


def test_the_first_hundred_pairs_never_change() -> None:
    digest = sha256()
    for pair in generate_pairs(100, seed=1):
        digest.update(repr((pair.source, pair.target, pair.pharaoh())).encode())
    assert digest.hexdigest() == FIRST_HUNDRED


def test_the_example_in_the_documentation_is_generated() -> None:
    *_, pair = generate_pairs(84, seed=1)
    assert (" ".join(pair.source), " ".join(pair.target), pair.pharaoh()) == EXAMPLE


def test_a_longer_stream_starts_like_a_shorter_one_and_seeds_differ() -> None:
    short = list(generate_pairs(50, seed=3))
    assert list(generate_pairs(80, seed=3))[:50] == short
    assert list(generate_pairs(50, seed=4)) != short


def test_the_target_is_a_function_of_the_source() -> None:
    targets: dict[tuple[str, ...], SyntheticPair] = {}
    met_again = 0
    for seed in range(10):
        for pair in generate_pairs(2_000, seed, SMALL):
            met_again += pair.source in targets
            assert targets.setdefault(pair.source, pair) == pair
    assert met_again > 1_000


def test_no_sentence_occurs_twice() -> None:
    sources = [pair.source for pair in generate_pairs(3_000, 1, SMALL)]
    assert len(set(sources)) == len(sources)


def test_settings_with_too_few_sentences_end_with_an_error() -> None:
    never = dict.fromkeys(["past", "determiner", "adjective", "relative", "adverb", "place"], 0.0)
    tiny = SyntheticSettings(nouns=2, verbs=2, mean_clauses=1, **never)
    assert len(list(generate_pairs(8, 1, tiny))) == 8
    with pytest.raises(UserError, match="hardly more than 8"):
        list(generate_pairs(9, 1, tiny))


@pytest.mark.parametrize(
    "bad",
    [{"nouns": 1}, {"verbs": 9_999}, {"fertilities": (4,)}, {"fertilities": ()}, {"repeat": 1.0}],
)
def test_impossible_settings_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        SyntheticSettings.model_validate(bad)


# --- the alignment -------------------------------------------------------------------------------


def test_translations_and_sure_links_agree_with_an_independent_translator(
    pairs: list[SyntheticPair],
) -> None:
    for pair in pairs:
        expected = translate(pair.source)
        assert pair.target == tuple(text for _, text in expected)
        assert pair.sure == {(j, i) for i, (j, _) in enumerate(expected) if j >= 0}


def test_links_are_in_range_and_sure_ones_possible(pairs: list[SyntheticPair]) -> None:
    for pair in pairs:
        assert pair.sure <= pair.possible
        for j, i in pair.possible:
            assert 0 <= j < len(pair.source)
            assert 0 <= i < len(pair.target)


def test_sure_links_of_a_source_word_are_as_many_as_its_fertility(
    pairs: list[SyntheticPair],
) -> None:
    seen = Counter[int]()
    for pair in pairs:
        links = Counter(j for j, _ in pair.sure)
        for j, text in enumerate(pair.source):
            assert links[j] == WORDS[text].fertility
            seen[links[j]] += 1
    assert set(seen) == {0, 1, 2, 3}
    shares = {fertility: number / seen.total() for fertility, number in seen.items()}
    assert shares[1] > 0.6
    assert min(shares.values()) > 0.04


def test_target_words_have_one_sure_link_and_the_marker_two_possible_ones(
    pairs: list[SyntheticPair],
) -> None:
    for pair in pairs:
        for i, text in enumerate(pair.target):
            sure = [j for j, k in pair.sure if k == i]
            possible = [WORDS[pair.source[j]].kind for j, k in pair.possible if k == i]
            if text == OBJECT_MARKER:
                assert not sure
                assert sorted(possible) == ["noun", "verb"]
            else:
                assert len(sure) == 1


def test_each_target_word_translates_one_source_word(pairs: list[SyntheticPair]) -> None:
    origin: dict[str, str] = {}
    for pair in pairs:
        for j, i in pair.sure:
            assert origin.setdefault(pair.target[i], pair.source[j]) == pair.source[j]


def test_words_that_decide_a_form_are_possible_links(pairs: list[SyntheticPair]) -> None:
    deciders = {"adjective": {"noun"}, "verb": {"past"}, "noun": {"determiner", "verb"}}
    for pair in pairs:
        origin = {i: j for j, i in pair.sure}
        for j, i in pair.possible - pair.sure:
            if i in origin:
                kind = WORDS[pair.source[origin[i]]].kind
                assert WORDS[pair.source[j]].kind in deciders[kind]
        # every untranslated word has left a trace somewhere
        traced = {j for j, _ in pair.possible}
        assert traced == set(range(len(pair.source)))


def test_pharaoh_writes_sure_and_possible_links() -> None:
    pair = SyntheticPair(("a", "b"), ("x", "y"), frozenset({(1, 0)}), frozenset({(1, 0), (0, 1)}))
    assert pair.pharaoh() == "0p1 1-0"


# --- the phenomena -------------------------------------------------------------------------------


def clauses_of(pair: SyntheticPair) -> list[tuple[str, ...]]:
    clauses: list[tuple[str, ...]] = [()]
    for text in pair.source:
        joint = WORDS[text].kind in ("connective", "subordinator")
        clauses = [*clauses, ()] if joint else [*clauses[:-1], (*clauses[-1], text)]
    return clauses


def says_a_clause_again(pair: SyntheticPair) -> bool:
    return len(set(clauses_of(pair))) < len(clauses_of(pair))


def says_a_clause_with_one_word_changed(pair: SyntheticPair) -> bool:
    clauses = [clause for clause in set(clauses_of(pair)) if len(clause) > 3]
    return any(
        len(a) == len(b) and sum(x != y for x, y in zip(a, b, strict=True)) == 1
        for k, a in enumerate(clauses)
        for b in clauses[:k]
    )


def says_a_word_twice_in_a_row(pair: SyntheticPair) -> bool:
    return any(a == b for a, b in pairwise(pair.source))


def says_a_content_word_twice(pair: SyntheticPair) -> bool:
    return any(n > 1 and WORDS[text].kind == "noun" for text, n in Counter(pair.source).items())


def swaps_clauses(pair: SyntheticPair) -> bool:
    return any(WORDS[text].kind == "subordinator" for text in pair.source)


def has_relative_clause(pair: SyntheticPair) -> bool:
    return any(WORDS[text].kind == "relative" for text in pair.source)


def splits_a_translation(pair: SyntheticPair) -> bool:
    spans = [[i for k, i in pair.sure if k == j] for j in range(len(pair.source))]
    return any(span and max(span) - min(span) >= len(span) for span in spans)


def uses_a_second_sense(pair: SyntheticPair) -> bool:
    return any(
        pair.target[i] in WORDS[pair.source[j]].forms[1]
        for j, i in pair.sure
        if WORDS[pair.source[j]].kind == "noun" and len(WORDS[pair.source[j]].forms) == 2
    )


RATES = [  # share of sentences
    (says_a_clause_again, 0.10, 0.30),
    (says_a_clause_with_one_word_changed, 0.10, 0.30),
    (says_a_word_twice_in_a_row, 0.10, 0.40),
    (says_a_content_word_twice, 0.25, 0.60),
    (swaps_clauses, 0.10, 0.40),
    (has_relative_clause, 0.30, 0.60),
    (splits_a_translation, 0.30, 0.70),
    (uses_a_second_sense, 0.03, 0.20),
]


@pytest.mark.parametrize(("occurs", "low", "high"), RATES, ids=[row[0].__name__ for row in RATES])
def test_every_phenomenon_occurs_at_a_sensible_rate(
    pairs: list[SyntheticPair],
    occurs: Callable[[SyntheticPair], bool],
    low: float,
    high: float,
) -> None:
    assert low < sum(map(occurs, pairs)) / len(pairs) < high


def test_word_order_differs_locally_and_at_a_distance(pairs: list[SyntheticPair]) -> None:
    steps = Counter[str]()
    for pair in pairs:
        order = [j for _, j in sorted((i, j) for j, i in pair.sure)]
        for before, after in pairwise(order):
            steps["back"] += after < before
            steps["far"] += abs(after - before) > 5
            steps["all"] += 1
    assert 0.3 < steps["back"] / steps["all"] < 0.5
    assert 0.05 < steps["far"] / steps["all"] < 0.2


@pytest.mark.parametrize("kind", ["adjective", "verb"])
def test_both_forms_of_inflected_words_are_common(pairs: list[SyntheticPair], kind: str) -> None:
    inflected = [{word.forms[k][-1] for word in build_lexicon()[kind]} for k in (0, 1)]
    targets = Counter(chain(*(pair.target for pair in pairs)))
    first, second = (sum(targets[text] for text in forms) for forms in inflected)
    assert 0.25 < second / (first + second) < 0.75


def test_lengths_have_a_long_tail(pairs: list[SyntheticPair]) -> None:
    lengths = sorted(len(pair.source) for pair in pairs)
    assert lengths[0] == 3
    assert 55 < lengths[-1] <= 60
    assert 15 < sum(lengths) / len(lengths) < 20
    assert 0.07 < sum(length > 40 for length in lengths) / len(lengths) < 0.13


def test_frequencies_follow_zipf_and_mandelbrot(pairs: list[SyntheticPair]) -> None:
    counts = Counter(chain(*(pair.source for pair in pairs)))
    nouns = [counts[word.text] for word in build_lexicon()["noun"]]
    first, hundredth = sum(nouns[:5]) / 5, sum(nouns[95:105]) / 10
    # 1 / (rank + 2.7), for ranks about 3 and 100
    assert 0.7 < first / hundredth / (102.7 / 5.7) < 1.3


# --- the lexicon ---------------------------------------------------------------------------------


def test_the_languages_have_a_few_hundred_words_each_and_share_none() -> None:
    source = [word.text for word in chain(*build_lexicon().values())]
    target = {text for word in WORDS.values() for form in word.forms for text in form}
    assert len(set(source)) == len(source)
    assert 200 < len(source) < 300
    assert 300 < len(target) < 450
    assert not target & set(source)
    assert all(re.fullmatch("[a-z]+", text) for text in {*source, *target, OBJECT_MARKER})


def test_both_forms_of_a_word_are_equally_long() -> None:
    assert all(len(form) == word.fertility for word in WORDS.values() for form in word.forms)


def test_the_seed_of_the_language_changes_the_words_and_the_seed_of_the_corpus_does_not() -> None:
    assert build_lexicon(SyntheticSettings(language=2)) != build_lexicon()
    sources = [
        set(chain(*(pair.source for pair in generate_pairs(3_000, seed)))) for seed in (1, 2)
    ]
    assert sources[0] == sources[1] == set(WORDS)


# --- files ---------------------------------------------------------------------------------------


def read(directory: Path, name: str) -> list[str]:
    return (directory / name).read_text("utf-8").splitlines()


def test_a_written_corpus_has_all_files(tmp_path: Path) -> None:
    write_synthetic_corpus(tmp_path / "new", seed=5, train=300, dev=20, test=30)
    pairs = list(generate_pairs(350, seed=5))
    parts = {"test": pairs[:30], "dev": pairs[30:50], "train": pairs[50:]}
    for part, expected in parts.items():
        columns = [read(tmp_path / "new", f"{part}.{end}") for end in ("src", "tgt", "align")]
        assert columns[0] == [" ".join(pair.source) for pair in expected]
        assert columns[1] == [" ".join(pair.target) for pair in expected]
        assert columns[2] == [pair.pharaoh() for pair in expected]
    names = {path.name for path in (tmp_path / "new").iterdir()}
    assert names - {f"{part}.{end}" for part in parts for end in ("src", "tgt", "align")} == {
        "lexicon.tsv",
        "README.txt",
    }


def test_test_sentences_are_in_neither_train_nor_dev(tmp_path: Path) -> None:
    write_synthetic_corpus(tmp_path, train=1_000, dev=200, test=200, settings=SMALL)
    train, dev, test = (set(read(tmp_path, f"{part}.src")) for part in ("train", "dev", "test"))
    assert not test & (train | dev)
    assert not dev & train
    assert len(test) == 200


def test_test_and_dev_do_not_change_with_the_size_of_train(tmp_path: Path) -> None:
    write_synthetic_corpus(tmp_path / "small", train=10, dev=10, test=10)
    write_synthetic_corpus(tmp_path / "large", train=50, dev=10, test=10)
    for name in ("test.src", "test.tgt", "dev.align"):
        assert read(tmp_path / "small", name) == read(tmp_path / "large", name)


def test_the_lexicon_file_has_every_word(tmp_path: Path) -> None:
    write_synthetic_corpus(tmp_path, train=1, dev=1, test=1)
    header, *rows = (line.split("\t") for line in read(tmp_path, "lexicon.tsv"))
    assert header == ["word", "translations", "fertility", "class", "group"]
    assert [row[0] for row in rows] == list(WORDS)
    for text, translations, fertility, kind, group in rows:
        word = WORDS[text]
        assert [tuple(form.split()) for form in translations.split("|")] == list(word.forms)
        assert (int(fertility), kind) == (word.fertility, word.kind)
        assert group == (str(word.group) if kind in ("noun", "verb") else "-")


def test_the_readme_has_seed_and_settings(tmp_path: Path) -> None:
    write_synthetic_corpus(tmp_path, seed=12, train=3, dev=2, test=1, settings=SMALL)
    text = (tmp_path / "README.txt").read_text("utf-8")
    seed, settings = re.findall(r"Seed (\d+), settings (.*)", text)[0]
    assert int(seed) == 12
    assert SyntheticSettings.model_validate_json(settings) == SMALL
    assert "3 training sentences, 2 development, 1 test" in text


def test_an_empty_split_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="dev and train: ask for at least one"):
        write_synthetic_corpus(tmp_path / "new", train=0, dev=-1, test=5)
    assert not (tmp_path / "new").exists()
