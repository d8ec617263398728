"""Tokenizing scripts and signs that Moses does not know."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covnmt.text.moses import MosesTokenizer

# language, a line, its tokens; joined they are the line again
CASES = [
    ("ar", "هل ذهبتَ؟ نعم، ذهبتُ؛ ثم عدت.", "هل ذهبتَ ؟ نعم ، ذهبتُ ؛ ثم عدت ."),
    ("bn", "আমি স্কুলে যাই।", "আমি স্কুলে যাই ।"),
    ("ca", "l'home i l’amic del col·legi", "l' home i l ’ amic del col·legi"),
    ("de", "»Ja«, «Nein» und „Gut“, das 'Haus'.", "» Ja « , « Nein » und „ Gut “ , das ' Haus ' ."),
    ("en", "He said “Yes” and “No”.", "He said “ Yes ” and “ No ” ."),
    ("en", "The dogs’ tails, don’t they’ll…", "The dogs ’ tails , don ’ t they ’ ll …"),
    ("en", "He said ‘Yes’ to it.", "He said ‘ Yes ’ to it ."),
    ("en", "I ❤️ 👨‍👩‍👧‍👦 🇩🇪 family 👍🏽!", "I ❤️ 👨‍👩‍👧‍👦 🇩🇪 family 👍🏽 !"),
    ("es", "¿Cómo? ¡Bien! Dijo: «sí».", "¿ Cómo ? ¡ Bien ! Dijo : « sí » ."),
    ("fa", "می‌خواهم کتاب‌ها را؟", "می‌خواهم کتاب‌ها را ؟"),
    ("fr", "Il dit : « Bonjour ! » l’homme", "Il dit : « Bonjour ! » l ’ homme"),
    ("he", 'ד"ר בבית־הספר, צ׳ק ותפו"ח.', 'ד"ר בבית־הספר , צ׳ק ותפו"ח .'),
    ("hi", "हाँ, वह विद्यालय में पढ़ता है।", "हाँ , वह विद्यालय में पढ़ता है ।"),
    ("it", "l’amico dell'uomo", "l ’ amico dell' uomo"),
    ("km", "សួស្តី។", "សួស្តី ។"),
    ("my", "မင်္ဂလာပါ။", "မင်္ဂလာပါ ။"),
    ("nl", "zo’n auto’s", "zo ’ n auto ’ s"),
    ("ru", "Он сказал: «Да».", "Он сказал : « Да » ."),
    ("sv", "”Ja”, sa hon.", "” Ja ” , sa hon ."),
    ("th", "น้ำดื่มที่บ้านใหญ่ เขาทำงาน", "น้ำดื่มที่บ้านใหญ่ เขาทำงาน"),
    ("tr", "İstanbul'da Ali’nin evi", "İstanbul 'da Ali ’ nin evi"),
    ("uk", "м'ята й здоров’я", "м 'ята й здоров ’ я"),
    ("ur", "وہ گیا۔ کیا؟", "وہ گیا ۔ کیا ؟"),
]

LETTERS = "aeñ가กगا\u0301\u0e49\u093f\u064e\u200d "


@pytest.mark.parametrize(("language", "line", "tokens"), CASES)
def test_moses_tokens_are_joined_to_the_same_line(language: str, line: str, tokens: str) -> None:
    tokenizer = MosesTokenizer(language)
    assert tokenizer.tokenize(line) == tokens.split(" ")
    assert tokenizer.detokenize(tokens.split(" ")) == line


@pytest.mark.parametrize("line", ["Tiếng Việt, rất đẹp.", "Zoë, café", "Ελλάδα, Åland"])
def test_combining_accents_stay_with_their_letters(line: str) -> None:
    tokenizer, apart = MosesTokenizer("en"), unicodedata.normalize("NFD", line)
    tokens = tokenizer.tokenize(apart)
    assert not any(unicodedata.combining(token[0]) for token in tokens)
    assert tokenizer.detokenize(tokens) == apart


@given(st.text(st.sampled_from(LETTERS)))
def test_words_without_punctuation_are_not_split(line: str) -> None:
    assert MosesTokenizer("ko").tokenize(line) == line.split()
