"""Sentence splitting and joining."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covnmt.text.sentences import split_into_sentences

# text, its sentences
CASES = [
    ("", []),
    (" \n ", []),
    ("One.", ["One."]),
    ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
    ("a line\nanother\r\n\n  a third", ["a line", "another", "a third"]),
    ("He said “No.” She left.", ["He said “No.”", "She left."]),
    ("Dr. Who met J. Smith.", ["Dr. Who met J. Smith."]),
    ("about 3.5 or so. and on", ["about 3.5 or so. and on"]),
    ("今日は。明日は！", ["今日は。", "明日は！"]),
    ("今日は。 iPhone は！ b", ["今日は。", "iPhone は！", "b"]),
    ("「行く。」と言った。はい", ["「行く。」と言った。", "はい"]),
    ("「来る。」との文や「行く。」などの文", ["「来る。」との文や「行く。」などの文"]),
    ("寺（山にある。）は古い。寺（谷の。）の門", ["寺（山にある。）は古い。", "寺（谷の。）の門"]),
    ("「行く。」「はい。」その後、「来た。」", ["「行く。」", "「はい。」", "その後、「来た。」"]),
    ("「行く。」ところが「来た。」のちに", ["「行く。」", "ところが「来た。」", "のちに"]),
    ("「（寺。）」山", ["「（寺。）」", "山"]),
    ("期限(逾期不受理。)應補正。", ["期限(逾期不受理。)", "應補正。"]),
    ("Wait... What?! Yes", ["Wait...", "What?!", "Yes"]),
    (". . .", [".", ".", "."]),
    ("هل ذهبت؟ نعم، ذهبت. ثم عدت.", ["هل ذهبت؟", "نعم، ذهبت.", "ثم عدت."]),
    ("क्या है? हाँ, है। वह गया।फिर आया॥ अन्त", ["क्या है?", "हाँ, है।", "वह गया।", "फिर आया॥", "अन्त"]),
    ('"वह गया।" उसने कहा। "हाँ।"', ['"वह गया।"', "उसने कहा।", '"हाँ।"']),
    ("وہ گیا۔ کیا؟ ہاں۔", ["وہ گیا۔", "کیا؟", "ہاں۔"]),
    ("Am 13. Oktober, z. B. im 19. Jahrhundert.", ["Am 13. Oktober, z. B. im 19. Jahrhundert."]),
    ("Siehe Nr. 5 bzw. Seite 13. Er kam.", ["Siehe Nr. 5 bzw. Seite 13.", "Er kam."]),
    ("Es sind 3 Mio. Euro bzw. 2 Mrd. Yen. Gut.", ["Es sind 3 Mio. Euro bzw. 2 Mrd. Yen.", "Gut."]),
    ("Siehe §§ 12 ff. BGB (vgl. Abs. 2). Gut.", ["Siehe §§ 12 ff. BGB (vgl. Abs. 2).", "Gut."]),
    ("See e.g. Rome (cf. Fig. 3). Go on.", ["See e.g. Rome (cf. Fig. 3).", "Go on."]),
    (
        "He said no. Look at no. 5 of this Art. It",
        ["He said no.", "Look at no. 5 of this Art.", "It"],
    ),
    ("„Ja.“ »Nein.« Dann", ["„Ja.“", "»Nein.«", "Dann"]),
    ("« Oui. » Il part ! « Non. » « Si »", ["« Oui. »", "Il part !", "« Non. »", "« Si »"]),
    ("¿Cómo estás? ¡Bien! «Sí.» Vale.", ["¿Cómo estás?", "¡Bien!", "«Sí.»", "Vale."]),
    ("19. yüzyıl. İyi mi? Ilık.", ["19. yüzyıl.", "İyi mi?", "Ilık."]),
]


@pytest.mark.parametrize(("text", "sentences"), CASES)
def test_text_is_split_into_sentences(text: str, sentences: list[str]) -> None:
    assert list(split_into_sentences(text).sentences) == sentences


def test_joining_keeps_the_layout() -> None:
    layout = split_into_sentences("  One. Two.\n\n\tThree\n")
    assert layout.join(["Eins.", "Zwei.", "Drei"]) == "  Eins. Zwei.\n\n\tDrei\n"
    assert split_into_sentences("One. Two.").join(["Eins.", "Zwei."]) == "Eins. Zwei."


def test_joined_sentences_get_spaces_where_the_target_language_has_them() -> None:
    layout = split_into_sentences("今日は。明日は。")
    assert layout.join(["Today.", "Tomorrow."]) == "Today. Tomorrow."
    assert layout.join(["今天。", "明天。"]) == "今天。明天。"
    assert layout.join(["他说：“去。”", "明天。"]) == "他说：“去。”明天。"
    assert layout.join(["आज।", "कल।"]) == "आज। कल।"
    assert layout.join(["오늘.", "내일."]) == "오늘. 내일."
    assert layout.join(["اليوم؟", "غدا"]) == "اليوم؟ غدا"


@given(st.text(st.sampled_from("aB .!?。！।»」”\n\t\u2028'")))
def test_joining_the_sentences_restores_the_text(text: str) -> None:
    layout = split_into_sentences(text)
    rebuilt = layout.gaps[0]
    for sentence, gap in zip(layout.sentences, layout.gaps[1:], strict=True):
        assert sentence == sentence.strip() != ""
        assert "\n" not in sentence
        rebuilt += sentence + gap
    assert rebuilt == text


def test_splitting_a_megabyte_is_fast() -> None:
    for unit in (" ", "。", "।", ". ", " »", "\n", "a", '"', ".”"):
        split_into_sentences(unit * (1_000_000 // len(unit)))
