"""Stack decoding against exhaustive search, and its guarantees where that is too large."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covnmt.base.arrays import DoubleArray
from covnmt.phrase_based.bitext import concatenate_sentences
from covnmt.phrase_based.language_model import LanguageModel, count_ngram_orders, smooth_counts
from covnmt.phrase_based.nbest import PhraseHypothesis, best_translations
from covnmt.phrase_based.phrase_table import PhraseTable
from covnmt.phrase_based.phrases import DISCONTINUOUS, MONOTONE, SWAP, all_spans, hash_spans
from covnmt.phrase_based.stack import (
    DISTORTION,
    FEATURES,
    INITIAL_WEIGHTS,
    LANGUAGE_MODEL,
    ORIENTATION,
    PHRASE_FEATURES,
    StackSearch,
)
from covnmt.phrase_based.translation_options import TranslationOptions, collect_options
from covnmt.text.vocabulary import UNK_ID

WORDS, END = 8, 9  # target ids 2 to 8
ALL = 10_000  # a stack that nothing is dropped from
Path = tuple[int, ...]  # options, in the order of the target


def random_options(seed: int, length: int, model: LanguageModel) -> TranslationOptions:
    """A sentence of different words whose phrases of up to two words have random translations."""
    rng = np.random.default_rng(seed)
    ids = list(range(2, 2 + length))
    text = concatenate_sentences([ids])
    sources = np.unique(hash_spans(text.ids, all_spans(text, 2)))
    phrases = np.sort(rng.permutation(sources)[: max(1, len(sources) - 2)])
    numbers = rng.integers(1, 3, size=len(phrases))
    rows = int(numbers.sum())
    words = rng.integers(2, WORDS + 1, size=(rows, 2))
    words[rng.random(rows) < 0.5, 1] = 0
    orientation = np.log(rng.dirichlet(np.ones(3), size=rows))
    bounds = np.concatenate([[0], np.cumsum(numbers)])
    table = PhraseTable(phrases, bounds, words, -rng.exponential(size=(rows, 4)), orientation)
    return collect_options(ids, table, model, 2)


def random_model(seed: int) -> LanguageModel:
    rng = np.random.default_rng(seed)
    rows = [rng.integers(1, WORDS + 1, size=rng.integers(1, 9)).tolist() for _ in range(20)]
    return smooth_counts(count_ngram_orders(concatenate_sentences(rows), END, 3))


def paths(options: TranslationOptions, reach: int, path: Path = ()) -> Iterator[Path]:
    """Yield every order of options that covers each word once within the distortion limit."""
    spans = [(int(options.begin[s]), int(options.end[s])) for s in options.span[list(path)]]
    covered = {j for a, b in spans for j in range(a, b)}
    if len(covered) == options.length:
        yield path
        return
    last = spans[-1][1] if spans else 0
    gap = min(set(range(options.length)) - covered)
    for option, s in enumerate(options.span.tolist()):
        a, b = int(options.begin[s]), int(options.end[s])
        near = abs(a - last) <= reach and (a == gap or b - gap <= reach)
        if near and covered.isdisjoint(range(a, b)):
            yield from paths(options, reach, (*path, option))


def features(options: TranslationOptions, path: Path, model: LanguageModel) -> DoubleArray:
    """Compute the features step by step from their definitions."""
    found = np.zeros(len(FEATURES))
    history, begin, end = np.array([model.beginning]), 0, 0
    for option in path:
        s = options.span[option]
        a, b = int(options.begin[s]), int(options.end[s])
        moved = MONOTONE if a == end else SWAP if b == begin else DISCONTINUOUS
        found[PHRASE_FEATURES] += options.features[option]
        found[DISTORTION] -= abs(a - end)
        found[ORIENTATION.start + moved] += options.orientation[option, moved]
        for word in options.target_ids[option]:
            if word:
                score, history = model.step(history, np.array([word]))
                found[LANGUAGE_MODEL] += score[0]
        begin, end = a, b
    found[LANGUAGE_MODEL] += model.step(history, np.array([model.end]))[0][0]
    return found


def target_words(options: TranslationOptions, path: Path) -> tuple[int, ...]:
    return tuple(word for option in path for word in options.target_ids[option].tolist() if word)


def random_weights(seed: int) -> DoubleArray:
    rng = np.random.default_rng(seed)
    return INITIAL_WEIGHTS * rng.uniform(0.2, 3.0, size=len(INITIAL_WEIGHTS))


@given(st.integers(0, 999), st.integers(1, 4), st.integers(0, 4))
@settings(deadline=None, max_examples=60)
def test_a_stack_without_pruning_finds_the_best_translations(
    seed: int, length: int, reach: int
) -> None:
    model, weights = random_model(seed), random_weights(seed)
    options = random_options(seed, length, model)
    expected: dict[tuple[int, ...], float] = {}
    for path in paths(options, reach):
        score = float(features(options, path, model) @ weights)
        text = target_words(options, path)
        expected[text] = max(score, expected.get(text, -np.inf))
    found = best_translations(StackSearch(options, weights, model, reach, ALL), 5)
    scores = [float(np.dot(translation.features, weights)) for translation in found]
    best = sorted(expected.values(), reverse=True)[: len(scores)]
    assert scores == pytest.approx(best, abs=1e-4)
    assert [expected[translation.target_ids] for translation in found] == pytest.approx(
        best, abs=1e-4
    )
    assert len(found) == min(5, len(expected))


@given(st.integers(0, 999), st.integers(1, 12), st.integers(0, 6), st.integers(1, 20))
@settings(deadline=None, max_examples=40)
def test_translations_of_a_pruned_stack_are_valid_and_correctly_scored(
    seed: int, length: int, reach: int, size: int
) -> None:
    """Each covers every word once, keeps to the distortion limit, and reports its own features."""
    model, weights = random_model(seed), random_weights(seed)
    options = random_options(seed, length, model)
    found = best_translations(StackSearch(options, weights, model, reach, size), 3)
    assert found
    scores = [float(np.dot(translation.features, weights)) for translation in found]
    assert scores == sorted(scores, reverse=True)
    for translation in found:
        path = find_path(options, translation)
        assert translation.features == pytest.approx(
            features(options, path, model).tolist(), abs=1e-4
        )
        covered = sorted(j for p in translation.phrases for j in range(p.source, p.source_end))
        assert covered == list(range(length))
        places = [0, *(p.source_end for p in translation.phrases)]
        assert all(
            abs(p.source - end) <= reach
            for p, end in zip(translation.phrases, places, strict=False)
        )


def find_path(options: TranslationOptions, found: PhraseHypothesis) -> Path:
    """Find the options that a translation was made of."""
    path = []
    for phrase in found.phrases:
        words = list(found.target_ids[phrase.target : phrase.target_end])
        fitting = [
            option
            for option, s in enumerate(options.span.tolist())
            if (options.begin[s], options.end[s]) == (phrase.source, phrase.source_end)
            and [word for word in options.target_ids[option].tolist() if word] == words
        ]
        # options with the same words are told apart by the sum of their features
        path.append(fitting)
    return _matching(options, path, found)


def _matching(
    options: TranslationOptions, choices: list[list[int]], found: PhraseHypothesis
) -> Path:
    paths_so_far: list[Path] = [()]
    for fitting in choices:
        paths_so_far = [(*path, option) for path in paths_so_far for option in fitting]
    phrase_features = np.array(found.features)[PHRASE_FEATURES]
    return min(
        paths_so_far,
        key=lambda path: float(
            np.abs(options.features[list(path)].sum(axis=0) - phrase_features).sum()
        ),
    )


def test_score_rises_with_the_stack_size_on_this_sentence() -> None:
    model, weights = random_model(1), random_weights(1)
    options = random_options(1, 10, model)
    best = [
        float(
            np.dot(
                best_translations(StackSearch(options, weights, model, 4, size), 1)[0].features,
                weights,
            )
        )
        for size in (1, 5, 50, 500)
    ]
    assert all(b >= a - 1e-9 for a, b in pairwise(best))


def test_words_without_a_phrase_of_their_own_are_copied() -> None:
    model = random_model(2)
    text = concatenate_sentences([[2]])
    table = PhraseTable(
        hash_spans(text.ids, all_spans(text, 1)),
        np.array([0, 1]),
        np.array([[5]]),
        np.zeros((1, 4)),
        np.zeros((1, 3)),
    )
    options = collect_options([2, UNK_ID, 3], table, model, 1)
    assert options.target_ids.tolist() == [[5], [UNK_ID], [UNK_ID]]
    assert options.begin[options.span].tolist() == [0, 1, 2]
    [found] = best_translations(StackSearch(options, INITIAL_WEIGHTS, model, 0, 10), 1)
    assert found.target_ids == (5, UNK_ID, UNK_ID)
