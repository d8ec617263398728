"""Text of another kind than a model was trained on is counted, and warned of once."""

from dataclasses import replace

import numpy as np
import pytest

from covnmt.inference.domain import (
    DomainMonitor,
    DomainStatistics,
    has_foreign_script,
    script_of,
    usual_scripts,
)
from covnmt.inference.translate import Translation
from covnmt.text.vocabulary import Vocabulary

LAWS = DomainStatistics(name="laws", source_scripts=("HAN",), max_unknown=0.1, max_rank=1.5)
VOCABULARY = Vocabulary(("a", "b", "c", "d", "e", "f"))


@pytest.mark.parametrize(
    ("character", "script"),
    [("法", "HAN"), ("ひ", "KANA"), ("é", "LATIN"), ("1", ""), ("。", "")],
)
def test_scripts_of_characters(character: str, script: str) -> None:
    assert script_of(character) == script


def test_usual_scripts_are_those_of_many_letters() -> None:
    assert usual_scripts(["京都はいい" * 100, "a"]) == ("KANA", "HAN")


@pytest.mark.parametrize(
    ("line", "is_foreign"),
    [
        ("法律第12条", False),
        ("これは法律です", True),
        ("law", True),
        ("法律法律law", True),
        ("12.", False),
    ],
)
def test_lines_in_another_script_are_foreign(line: str, is_foreign: bool) -> None:
    assert has_foreign_script(line, ("HAN",)) == is_foreign
    assert not has_foreign_script(line, ())


def test_rare_and_unknown_tokens_are_unusual() -> None:
    assert not LAWS.has_rare_tokens(["a", "b"], VOCABULARY)
    assert LAWS.has_rare_tokens(["e", "f"], VOCABULARY)
    assert LAWS.has_rare_tokens(["a", "a", "new"], VOCABULARY)
    assert LAWS.has_rare_tokens(["a", "a", "<0xE9>"], VOCABULARY)
    assert not LAWS.has_rare_tokens([], VOCABULARY)


def test_a_translation_of_low_probability_is_unusual() -> None:
    usual = DomainStatistics(min_own_log_prob=-1.0)
    nothing = np.zeros(0, np.float32)
    made = Translation("a b", ("a", "b"), "x y", ("x", "y"), -9.0, (), nothing, None)
    for log_prob, length_penalty, is_unusual in (
        (-2.9, 1.0, False),  # over two tokens and the end symbol
        (-3.1, 1.0, True),
        (-1.9, 0.0, False),  # over two tokens
        (-2.1, 0.0, True),
    ):
        translation = replace(made, log_prob=log_prob)
        assert usual.is_unusual(translation, VOCABULARY, length_penalty) == is_unusual


def test_the_file_and_what_is_counted_are_named() -> None:
    monitor = DomainMonitor(LAWS, "zh-en", "a.txt", "sentence")
    monitor.add("法律", True)
    message = monitor.message()
    assert message is not None
    assert message.startswith("a.txt: 1 of 1 sentence is unlike what zh-en")


def monitored(*lines: tuple[str, bool]) -> str | None:
    monitor = DomainMonitor(LAWS, "zh-en")
    for line, is_unusual in lines:
        monitor.add(line, is_unusual)
    return monitor.message()


def test_many_unusual_lines_are_counted_in_one_warning() -> None:
    message = monitored(*[("法律", True)] * 3, ("法律", False), ("---", True))
    assert message is not None
    assert message.startswith("3 of 4 lines are unlike what zh-en was trained on (laws)")


def test_a_few_unusual_lines_are_no_reason_to_warn() -> None:
    assert monitored(*[("法律", False)] * 19, ("法律", True)) is None
    assert monitored() is None


def test_another_script_is_named() -> None:
    message = monitored(("これはひらがなです", False))
    assert message is not None
    assert "1 of 1 line is in Kana script" in message
    assert "it reads Han" in message
