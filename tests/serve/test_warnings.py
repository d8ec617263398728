"""Warnings about a whole request, in every answer that has translations."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covnmt.inference.domain import DomainStatistics
from covnmt.inference.model import Model
from covnmt.inference.translate import Translation
from covnmt.serve.warnings import find_warnings

from .server import post, serving

KYOTO = DomainStatistics(name="Kyoto", source_scripts=("HAN", "KANA"))
PLAIN = Translation("寺", ("寺",), "temple", ("temple",), -1.0, (), np.zeros(0, np.float32), None)
UNUSUAL = replace(PLAIN, unusual=True)
WARNINGS = {
    "nothing": ([PLAIN], []),
    "one unusual sentence": ([UNUSUAL], ["unusual"]),
    "one of ten": ([UNUSUAL] + [PLAIN] * 9, []),
    "another script": ([replace(UNUSUAL, source="한국어")], ["script"]),
    "unfinished": ([PLAIN, replace(PLAIN, finished=False)], ["unfinished"]),
    "both": ([replace(UNUSUAL, finished=False)], ["unusual", "unfinished"]),
    "no sentence": ([], []),
}


@pytest.mark.parametrize("case", WARNINGS)
def test_warnings_are_about_all_sentences(case: str) -> None:
    translations, kinds = WARNINGS[case]
    warnings = find_warnings("ja-en", KYOTO, translations)
    assert [warning["kind"] for warning in warnings] == kinds
    assert all("sentence" in warning["message"] for warning in warnings)


def test_a_model_without_statistics_warns_of_unfinished_sentences_alone() -> None:
    assert find_warnings("mine", None, [UNUSUAL]) == []
    assert find_warnings("mine", None, [replace(UNUSUAL, finished=False)]) != []


EVERYDAY = "明日の天気はどうですか？"


def test_every_answer_warns_of_an_everyday_sentence() -> None:
    """The bundled model was trained on encyclopedia articles about Kyoto."""
    with serving({"ja-en": Path("ja-en")}) as running, running.client() as client:
        plain = post(client, text=EVERYDAY)
        html = post(client, text=f"<p>{EVERYDAY}</p>", format="html")
        usual = post(client, text="金閣寺は京都市北区にある寺院である。")
        stream = client.post("/v1/translate/stream", json={"text": EVERYDAY}).text
    done: dict[str, Any] = json.loads(stream.strip().rpartition("data: ")[2])
    for answer in (plain, html, done):
        [warning] = answer["warnings"]
        assert warning["kind"] == "unusual"
        assert "1 of 1 sentence is unlike what ja-en was trained on" in warning["message"]
    assert usual["warnings"] == []


def test_most_everyday_sentences_are_unusual_and_few_of_the_field_are() -> None:
    everyday = [
        "今日は何時に起きましたか。",
        "このシャツはいくらですか。",
        "ありがとうございます。",
        "宿題は終わったの？",
        "もう一度言ってください。",
        "会議室を予約しておいてください。",
        "サーバーが応答しません。",
        "猫がソファで寝ている。",
    ]
    field = [
        "金閣寺は京都市北区にある寺院で、足利義満により建立された。",
        "源義経は平安時代末期の武将である。",
        "本堂は江戸時代に再建された。",
        "枕草子は平安時代中期に清少納言により執筆された随筆である。",
        "二条城は京都市中京区にある江戸時代の城である。",
        "彼は後に関白となった。",
    ]
    model = Model.load("ja-en")
    assert sum(t.unusual for t in model.translate(everyday)) >= 6
    assert sum(t.unusual for t in model.translate(field)) <= 1
