"""The calibration of a model's omission check, made from its dev set."""

import random
import shutil
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from covnmt.base.errors import UserError
from covnmt.base.files import write_lines
from covnmt.data.lexicon import Lexicon, train_lexicon
from covnmt.data.padding import PaddedIds
from covnmt.decoding.engines import Engine, ForcedDecoding
from covnmt.inference.calibrate import calibrate, calibrate_model, lexicon_from_files
from covnmt.inference.calibration import Calibration, log_odds
from covnmt.inference.domain import DomainStatistics
from covnmt.inference.forced_decoding import ForcedDecoder
from covnmt.inference.omissions import OmissionChecker
from covnmt.inference.translate import Translation
from covnmt.text.codec import Codec
from covnmt.text.tokenize import TokenizerSettings, WhitespaceTokenizer
from covnmt.text.vocabulary import Vocabulary

WORDS = [first + second for first in "abcdefghij" for second in "vwxyz"]
CODEC = Codec(
    TokenizerSettings(kind="whitespace"), WhitespaceTokenizer(), Vocabulary((*WORDS, ",", "。"))
)


class SameWord:
    """Attends to the source word that is the same; a word that the source lacks costs 5 nats."""

    device = "cpu"

    def force_decode(self, source: PaddedIds, target: PaddedIds) -> ForcedDecoding:
        same = (target.ids[:, :, None] == source.ids[:, None, :]) & source.mask[:, None, :]
        log_probs = np.where(same.any(axis=2), -0.1, -5.0) * target.mask
        return ForcedDecoding(
            same.astype(np.float32),
            log_probs.sum(axis=1).astype(np.float32),
            None,
            log_probs.astype(np.float32),
        )


def copied_pairs(count: int) -> list[tuple[str, str]]:
    """Return lines of two clauses with a translation that repeats them."""
    rng = random.Random(1)
    lines = []
    for _ in range(count):
        words = rng.sample(WORDS, 8)
        lines.append(" ".join([*words[:4], ",", *words[4:], "。"]))
    return [(line, line) for line in lines]


def new_checker(lexicon: Lexicon | None, calibration: Calibration | None = None) -> OmissionChecker:
    decoder = ForcedDecoder(cast(Engine, SameWord()), CODEC, CODEC)
    return OmissionChecker(decoder, lexicon, calibration)


@pytest.mark.parametrize("has_lexicon", [True, False])
def test_a_calibrated_check_finds_omissions_and_passes_complete_lines(has_lexicon: bool) -> None:
    pairs = copied_pairs(80)
    lexicon = train_lexicon(pairs) if has_lexicon else None
    calibration = calibrate(new_checker(lexicon), pairs, DomainStatistics())
    assert all(each.examples[1] > 10 for each in (calibration.parts, calibration.words))
    checker = new_checker(lexicon, calibration)
    source = "ax bx cx dx , ay by cy dy 。"
    missing = ["ax bx cx dx 。", source, "ax bx cx dx , ay by dy 。", "ez dz ey dy cz ex bz 。"]
    clause, complete, word, other = checker.reports(
        [(source, text) for text in missing], words=True
    )
    assert [(each.text, each.kind) for each in clause.omissions] == [("ay by cy dy 。", "clause")]
    assert not complete.omissions
    assert [each.text for each in word.omissions] == ["cy"]
    assert min(each.incomplete for each in (clause, word)) > 0.5 > complete.incomplete
    assert other.unrelated > 0.5 > max(each.unrelated for each in (clause, complete, word))


@pytest.mark.parametrize(("unrelated", "has_parts", "omitted"), [(0.3, True, 4), (0.7, False, 8)])
def test_the_words_of_a_pair_without_listed_parts_count_as_omitted(
    unrelated: float, has_parts: bool, omitted: int
) -> None:
    """With --min-probability 0.2, a pair that is hardly unrelated is reported with its parts."""
    pairs = copied_pairs(80)
    checker = new_checker(None, calibrate(new_checker(None), pairs, DomainStatistics()))
    assert checker.calibration
    fixed = checker.calibration.unrelated.model_copy(
        update={"weights": (0.0,) * 5, "bias": float(log_odds(unrelated))}
    )
    checker.calibration = checker.calibration.model_copy(update={"unrelated": fixed})
    source = "ax bx cx dx , ay by cy dy 。"
    [report] = checker.reports([(source, "ax bx cx dx 。")], min_probability=0.2)
    assert report.is_unrelated
    assert (bool(report.omissions), report.omitted) == (has_parts, omitted)


def test_parts_have_words_and_are_not_the_whole_line() -> None:
    checker = new_checker(None)
    pair = checker.read_pair(("ax bx , cx dx 。 。 ay by 。", "ax"))
    parts = checker.candidate_parts(pair)
    assert range(6, 7) in pair.source.sentences
    assert parts
    assert range(6, 7) not in parts
    assert checker.candidate_parts(checker.read_pair(("ax bx 。", "ax"))) == []


def test_a_lexicon_is_learned_from_files_as_the_model_reads_them(tmp_path: Path) -> None:
    paths = tmp_path / "source", tmp_path / "target"
    for path in paths:
        write_lines(path, ["ax   bx\u200b", "bx cx", ""] * 5)
    lexicon = lexicon_from_files([paths], CODEC, CODEC)
    assert sorted(lexicon.source.ids) == ["ax", "bx", "cx"]


def test_pairs_that_cannot_be_used_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    few = tmp_path / "few.src", tmp_path / "few.tgt"
    for count, message in ((10, "10 pairs are too few"), (60, "no parts to omit")):
        for path in few:
            write_lines(path, ["new words here we go"] * count)
        with pytest.raises(UserError, match=message):
            calibrate_model(model, few)
    assert Calibration.load(model) is None


def test_words_that_stand_more_often_than_what_they_translate_may_not_repeat() -> None:
    checker = new_checker(train_lexicon(copied_pairs(80)))

    def repeated(source: str, text: str) -> list[int]:
        tokens = tuple(text.split())
        words = tuple(source.split())
        made = Translation(
            source=source,
            source_tokens=words,
            text=text,
            tokens=tokens,
            score=0.0,
            blocks=(np.zeros((len(tokens), len(words)), np.float32),),
            coverage=np.zeros(len(words), np.float32),
            fertility=None,
        )
        return sorted(set(range(len(tokens))) - checker.may_repeat(made))

    assert repeated("ax bx , cx 。", "ax bx , ax , 。") == [0, 3]
    assert repeated("ax bx , ax 。", "ax bx , ax , 。") == []
    checker.lexicon = None
    assert repeated("ax", "ax , ax ,") == [0, 2]
