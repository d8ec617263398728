"""Names of languages, and which one a text is written in, by the bundled models' vocabularies."""

import pytest

from covnmt.model.directory import find_model
from covnmt.serve.libretranslate import language_evidence
from covnmt.serve.served_model import parse_spec
from covnmt.text.codec import SIDES, Codec
from covnmt.text.languages import (
    LanguageDetector,
    LanguageEvidence,
    language_name,
    primary_language,
)

TEXTS = [
    ("この橋は江戸時代に作られた。", "ja"),
    ("京都", "ja"),
    ("ひらがな", "ja"),
    ("申请人应于三十日内补正。", "zh"),
    ("應於2023年5月1日前依第12條申報。", "zh"),
    ("您好，世界！", "zh"),
    ("The bridge was built in the Edo period.", "en"),
    ("Hello", "en"),
]
FOREIGN = ["안녕하세요", "Привет, мир", "12 345", "😀", "", " \n"]


@pytest.fixture(scope="module")
def detector() -> LanguageDetector:
    return LanguageDetector(
        LanguageEvidence(language, Codec.load(find_model(name), side))
        for name in ("ja-en", "zh-en")
        for side, language in zip(SIDES, name.split("-"), strict=True)
    )


@pytest.mark.parametrize(("text", "language"), TEXTS)
def test_the_language_of_a_text_is_detected(
    detector: LanguageDetector, text: str, language: str
) -> None:
    best, *others = detector.detect(text)
    assert (best.language, {other.language for other in others} | {language}) == (
        language,
        {"ja", "zh", "en"},
    )
    assert best.confidence > 0.4 > max(other.confidence for other in others)


@pytest.mark.parametrize("text", FOREIGN)
def test_a_text_in_no_language_of_the_models_has_no_confidence(
    detector: LanguageDetector, text: str
) -> None:
    assert [guess.confidence for guess in detector.detect(text)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Der Hund schläft den ganzen Tag.", "de"),
        ("Guten Morgen", "de"),
        ("The dog sleeps all day.", "en"),
        ("Good morning", "en"),
        ("この橋は江戸時代に作られた。", "ja"),
    ],
)
def test_words_decide_between_languages_with_one_vocabulary(text: str, language: str) -> None:
    specs = [parse_spec(name) for name in ("ja-en", "de-en")]
    detector = LanguageDetector(evidence for spec in specs for evidence in language_evidence(spec))
    best, *others = detector.detect(text)
    assert best.language == language
    assert best.confidence > 0.4 > max(other.confidence for other in others)


def test_a_very_long_text_is_judged_by_its_beginning(detector: LanguageDetector) -> None:
    assert detector.detect("橋を作った。" * 100_000)[0].language == "ja"


def test_codes_may_have_a_country_a_script_and_upper_case() -> None:
    codes = ["ja", "JA", "ja_JP", "zh-Hant-TW", "zt", "pt-BR", "pb"]
    assert [primary_language(code) for code in codes] == ["ja", "ja", "ja", "zh", "zh", "pt", "pt"]


def test_languages_have_english_names() -> None:
    assert [language_name(code) for code in ("ja", "fy", "zu")] == [
        "Japanese",
        "Western Frisian",
        "Zulu",
    ]
    assert language_name("xx") == "xx"
