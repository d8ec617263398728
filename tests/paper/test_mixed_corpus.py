"""Mixed text: its sources, what is held out of them, and both directions."""

from dataclasses import replace
from pathlib import Path

import pytest

from covnmt.base.errors import UserError
from covnmt.base.files import read_lines, read_parallel_lines, write_lines
from covnmt.data.corpus import Corpus
from covnmt.paper import mixed_corpus
from covnmt.paper.experiments import CHINESE_TEXT, GERMAN_TEXT, JAPANESE_TEXT, find_experiment
from covnmt.paper.mixed_corpus import MixedCorpusText, TextSource, drop_some_full_stops
from covnmt.text.codec import SIDES

NAMES = ["Anna", "Berta", "Clara", "Doris", "Emma", "Frieda", "Greta", "Hanna", "Ida", "Jana"]
PLACES = {"Garten": "garden", "Haus": "house", "Wald": "forest", "Park": "park", "Zug": "train"}
CHINESE_NAMES = {"小明": "Ming", "小红": "Hong", "老王": "Wang", "老李": "Li", "小张": "Zhang"}
CHINESE_PLACES = {"公园": "park", "学校": "school", "花园": "garden", "车站": "station"}
CHINESE_VERBS = {"唱歌": "sings", "看书": "reads", "睡觉": "sleeps", "跑步": "runs", "吃饭": "eats"}


def sentences(verb: str, translation: str) -> list[tuple[str, str]]:
    return [
        (f"{name} {verb} mit {other} im {place}.", f"{name} {translation} {other} in the {there}.")
        for name in NAMES
        for other in NAMES
        for place, there in PLACES.items()
        if name != other
    ]


def chinese_sentences(time: str, english_time: str) -> list[tuple[str, str]]:
    return [
        (f"{name}{time}在{place}{verb}。", f"{who} {does} in the {there} {english_time}.")
        for name, who in CHINESE_NAMES.items()
        for place, there in CHINESE_PLACES.items()
        for verb, does in CHINESE_VERBS.items()
    ]


def write_pairs(folder: Path, name: str, pairs: list[tuple[str, str]]) -> None:
    language = folder.name.split("-")[-2]
    for side, ending in enumerate((language, "en")):
        write_lines(folder / f"{name}.{ending}", [pair[side] for pair in pairs])


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A small corpus in the layout of the published sources."""
    directory = tmp_path / "raw"
    verbs = ("wartet", "spielt", "redet", "singt")
    for source, verb in zip(GERMAN_TEXT.sources, verbs, strict=True):
        write_pairs(directory / f"{source.name}-de-en", "train-1", sentences(verb, f"{verb}s with"))
    europarl = directory / "europarl-de-en"
    write_pairs(europarl, GERMAN_TEXT.dev, sentences("sitzt", "sits with")[:5])
    write_pairs(europarl, GERMAN_TEXT.test, sentences("wartet", "wartets with")[:3])
    return directory


def test_sources_of_bundled_models_have_no_gpl_text() -> None:
    for text in (GERMAN_TEXT, JAPANESE_TEXT, CHINESE_TEXT):
        names = {source.name for source in text.sources}
        assert not names & {"wesnoth", "freeciv", "ddtp"}
        assert len(names) == len(text.sources)


def test_every_tenth_full_stop_is_dropped() -> None:
    pairs = [("Ja.", "Yes.")] * 10
    assert list(drop_some_full_stops(pairs, frozenset())) == [*pairs[:9], ("Ja", "Yes")]
    for held_out in ("Ja", "Yes"):  # without its full stop the line would be one of a test set
        assert list(drop_some_full_stops(pairs, frozenset([held_out]))) == pairs


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
    with pytest.raises(UserError, match="europarl-de-en: "):
        experiment.prepare(tmp_path, tmp_path / "prepared")
    with pytest.raises(UserError, match=r"--data.* --unpack FILE"):
        experiment.prepare(None, tmp_path / "prepared")


def test_a_missing_test_set_is_named_before_work(raw: Path, tmp_path: Path) -> None:
    (raw / "europarl-de-en" / f"{GERMAN_TEXT.test}.en").unlink()
    with pytest.raises(UserError, match=rf"{GERMAN_TEXT.test}\.en: no such file; docs/repr"):
        find_experiment("de-en").prepare(raw, tmp_path / "prepared/data")
    assert not (tmp_path / "prepared").exists()


LAWS, TALK = TextSource("laws", filtered=False), TextSource("talk", times=3, min_lexicon_score=0.5)


@pytest.fixture(scope="module")
def chinese(tmp_path_factory: pytest.TempPathFactory) -> tuple[MixedCorpusText, Path, Path]:
    """A prepared mix of two Chinese sources, with wrong pairs in the second."""
    directory = tmp_path_factory.mktemp("chinese")
    raw = directory / "raw"
    laws, talk = chinese_sentences("今天", "today"), chinese_sentences("昨天", "yesterday")
    write_pairs(raw / "laws-zh-en", "train", [*laws[2:], laws[0]])
    write_lines(raw / "laws-zh-en/train.seg.zh", ["split into words"])
    write_pairs(raw / "laws-zh-en", "dev", laws[:1])
    write_pairs(raw / "laws-zh-en", "test", laws[1:2])
    wrong = [(talk[k][0], talk[(k + 31) % len(talk)][1]) for k in range(0, 100, 25)]
    repeated = [talk[7]]
    write_pairs(raw / "talk-zh-en", "train", [*talk, *wrong, *repeated])
    text = replace(CHINESE_TEXT, sources=(LAWS, TALK), subwords=340)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixed_corpus, "HELD_OUT_EVERY", 10)
        text.prepare(raw, directory / "data")
    return text, raw, directory / "data"


def test_held_out_lines_and_wrong_pairs_are_not_trained_on(
    chinese: tuple[MixedCorpusText, Path, Path],
) -> None:
    *_, prepared = chinese
    train = [*read_parallel_lines(*(prepared.parent / f"text/train.{k}" for k in ("zh", "en")))]
    laws, talk = chinese_sentences("今天", "today"), chinese_sentences("昨天", "yesterday")
    held_out = talk[9::10]
    assert {english.rstrip(".") for _, english in train}.isdisjoint(
        english.rstrip(".") for _, english in [*laws[:2], *held_out]
    )
    assert len(train) == len(laws) - 2 + 3 * (len(talk) - len(held_out))
    assert sum(not english.endswith(".") for _, english in train) == len(train) // 10


def test_held_out_pairs_of_a_mix_are_for_dev_and_test(
    chinese: tuple[MixedCorpusText, Path, Path],
) -> None:
    _, raw, prepared = chinese
    corpus, talk = Corpus.open(prepared), chinese_sentences("昨天", "yesterday")
    test = [prepared / f"test-talk.{side}.txt" for side in SIDES]
    assert list(read_parallel_lines(*test)) == talk[19::20]
    assert corpus.split("dev").text("target")[1:] == [english for _, english in talk[9::20]]
    assert corpus.split("test").text("source") == list(read_lines(raw / "laws-zh-en/test.zh"))
    assert corpus.codec("source").settings.numerals


def test_held_out_pairs_are_there_before_the_directory_counts_as_complete(
    chinese: tuple[MixedCorpusText, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_: object, output: Path) -> None:
        assert len(list(output.glob("test-talk.*.txt"))) == 2
        raise KeyboardInterrupt

    text, raw, _ = chinese
    monkeypatch.setattr(mixed_corpus, "prepare_corpus", stop)
    with pytest.raises(KeyboardInterrupt):
        text.prepare(raw, tmp_path / "data")


def test_a_complete_mix_is_not_made_again(chinese: tuple[MixedCorpusText, Path, Path]) -> None:
    text, raw, prepared = chinese
    before = (prepared / "corpus.json").stat().st_mtime_ns
    text.prepare(raw / "missing", prepared)
    assert (prepared / "corpus.json").stat().st_mtime_ns == before
