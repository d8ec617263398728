"""The mixed corpus of German and English: which pairs are kept, and both directions."""

from pathlib import Path

import pytest

from covnmt.base.errors import UserError
from covnmt.base.files import write_lines
from covnmt.data.corpus import Corpus
from covnmt.paper.experiments import find_experiment
from covnmt.paper.mixed_corpus import (
    DEV,
    EUROPARL,
    SOURCES,
    TEST,
    drop_some_full_stops,
    filter_pairs,
    may_be_translations,
)
from covnmt.text.codec import SIDES

NAMES = ["Anna", "Berta", "Clara", "Doris", "Emma", "Frieda", "Greta", "Hanna", "Ida", "Jana"]
PLACES = {"Garten": "garden", "Haus": "house", "Wald": "forest", "Park": "park", "Zug": "train"}


def sentences(verb: str, translation: str) -> list[tuple[str, str]]:
    return [
        (f"{name} {verb} mit {other} im {place}.", f"{name} {translation} {other} in the {there}.")
        for name in NAMES
        for other in NAMES
        for place, there in PLACES.items()
        if name != other
    ]


def write_pairs(folder: Path, name: str, pairs: list[tuple[str, str]]) -> None:
    for side, language in enumerate(("de", "en")):
        write_lines(folder / f"{name}.{language}", [pair[side] for pair in pairs])


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A small corpus in the layout of the published sources."""
    directory = tmp_path / "raw"
    for source, verb in zip(SOURCES, ("wartet", "spielt", "redet", "singt"), strict=True):
        write_pairs(directory / source, "train-1", sentences(verb, f"{verb}s with"))
    write_pairs(directory / EUROPARL, DEV, sentences("sitzt", "sits with")[:5])
    write_pairs(directory / EUROPARL, TEST, sentences("wartet", "wartets with")[:3])
    return directory


@pytest.mark.parametrize(
    ("german", "english", "kept"),
    [
        ("Das ist ein Haus.", "This is a house.", True),
        ("Am 3. Mai kamen 1.200 Gäste.", "On May 3, 1,200 guests came.", True),
        ("Am 3. Mai kamen 1.200 Gäste.", "On May 3, 1,300 guests came.", False),
        ("Ist das ein Haus?", "This is a house.", False),
        ("This is not the house.", "This is not a house.", False),
        ("Das ist nicht das Haus.", "Das ist nicht ein Haus.", False),
        ("OpenGL", "OpenGL", False),
        ("...", "!!!", False),
        ("Ja.", "This sentence says much more than the other one does.", False),
    ],
)
def test_only_likely_translations_are_kept(german: str, english: str, kept: bool) -> None:
    assert may_be_translations(german, english) == kept


def test_repeated_pairs_and_lines_of_test_sets_are_dropped() -> None:
    pairs = [("Guten Tag.", "Hello."), ("guten tag.", "hello."), ("Ein Test.", "A test.")]
    assert list(filter_pairs(pairs, frozenset(["A test."]))) == [("Guten Tag.", "Hello.")]


def test_every_tenth_full_stop_is_dropped() -> None:
    found = list(drop_some_full_stops([("Ja.", "Yes.")] * 10))
    assert found == [("Ja.", "Yes.")] * 9 + [("Ja", "Yes")]


def test_both_directions_have_the_same_pairs_and_vocabulary(raw: Path, tmp_path: Path) -> None:
    directories = {name: tmp_path / name / "data" for name in ("de-en", "en-de")}
    for name, prepared in directories.items():
        for _ in range(2):  # the second time there is nothing to do
            find_experiment(name).prepare(raw, prepared)
    forward, backward = (Corpus.open(directory) for directory in directories.values())
    lines = 4 * len(sentences("", "")) - 3
    for one, other in zip(SIDES, reversed(SIDES), strict=True):
        train, reverse = forward.split("train"), backward.split("train")
        assert len(train) == len(reverse) == lines
        assert (getattr(train, one).ids == getattr(reverse, other).ids).all()
        assert forward.split("test").text(one) == backward.split("test").text(other)
    assert (directories["de-en"] / "source.vocab").read_text("utf-8") == (
        directories["en-de"] / "source.vocab"
    ).read_text("utf-8")
    assert forward.codec("source").settings.language == "de"
    assert backward.codec("source").settings.language == "en"


def test_a_missing_source_is_named(tmp_path: Path) -> None:
    experiment = find_experiment("de-en")
    with pytest.raises(UserError, match=f"{EUROPARL}: "):
        experiment.prepare(tmp_path, tmp_path / "prepared")
    with pytest.raises(UserError, match=r"--data.* --unpack FILE"):
        experiment.prepare(None, tmp_path / "prepared")
