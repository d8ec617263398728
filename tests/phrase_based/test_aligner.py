"""Aligners: accurate, repeatable with a seed, symmetrized as in `metrics.alignment`."""

import sys
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covnmt.base.errors import UserError
from covnmt.evaluation.alignment_files import read_links
from covnmt.metrics.alignment import Links, aer, symmetrize
from covnmt.phrase_based.align_files import assign_ids
from covnmt.phrase_based.aligner import (
    ALIGNER_MODELS,
    HEURISTICS,
    AlignerChain,
    WordLinks,
    align_bitext,
    list_chains,
    majority_vote,
    symmetrize_bitext,
    thot_module,
    train_chain,
)
from covnmt.phrase_based.bitext import Bitext, concatenate_sentences
from covnmt.phrase_based.settings import AlignerKind, AlignerSettings, AlignerSymmetrization

KINDS: tuple[AlignerKind, ...] = get_args(AlignerKind)


@pytest.fixture(scope="module")
def linked_text(tiny_text: Path) -> tuple[Bitext, list[Links]]:
    """The tiny training pairs and their gold links."""
    sides = (
        assign_ids(
            [line.split() for line in (tiny_text / f"train.{e}").read_text().splitlines()], {}
        )
        for e in ("src", "tgt")
    )
    return Bitext(*sides), [gold.sure for gold in read_links(tiny_text / "train.align")]


def error_rate(links: WordLinks, text: Path) -> float:
    gold = read_links(text / "train.align")
    return aer([links[n] for n in range(len(gold))], gold)


@pytest.mark.parametrize("kind", KINDS)
def test_aligner_is_much_better_than_the_diagonal(
    kind: AlignerKind, linked_text: tuple[Bitext, list[Links]], tiny_text: Path
) -> None:
    bitext, _ = linked_text
    links = align_bitext(bitext, AlignerSettings(kind=kind, samplers=1))
    gold = read_links(tiny_text / "train.align")
    lengths = zip(bitext.source.lengths(), bitext.target.lengths(), strict=True)
    diagonal = [frozenset((i * j // t, i) for i in range(t)) for j, t in lengths]
    assert error_rate(links, tiny_text) < min(0.25, aer(diagonal, gold) / 2)


def test_chain_depends_on_the_seed_and_its_number_only(
    linked_text: tuple[Bitext, list[Links]],
) -> None:
    bitext, _ = linked_text
    one, again, other, later = (
        train_chain(bitext, AlignerSettings(seed=seed), AlignerChain(False, number)).tolist()
        for seed, number in ((1, 0), (1, 0), (2, 0), (1, 1))
    )
    assert one == again
    assert one != other == later


def test_links_do_not_depend_on_the_number_of_processes(
    linked_text: tuple[Bitext, list[Links]],
) -> None:
    bitext, _ = linked_text
    one, two = (align_bitext(bitext, AlignerSettings(samplers=2), n) for n in (1, 2))
    assert vars(one).keys() == vars(two).keys()
    assert all(np.array_equal(vars(one)[name], vars(two)[name]) for name in vars(one))


def test_only_eflomal_has_several_chains() -> None:
    names = [str(chain) for chain in list_chains(AlignerSettings(samplers=2))]
    assert names == ["forward-1", "forward-2", "backward-1", "backward-2"]
    assert len(list_chains(AlignerSettings(kind="hmm", samplers=2))) == 2


# the choices of three chains for one word, and what comes of them
VOTES = [([4, 4, 4], 4), ([4, 7, 7], 7), ([7, 4, 7], 7), ([7, 4, 0], 7), ([0, 4, 0], 0)]


def test_majority_wins_and_ties_go_to_the_first_chain() -> None:
    rows = np.array([choice for choice, _ in VOTES], dtype=np.int16).T
    assert majority_vote(list(rows)).tolist() == [best for _, best in VOTES]
    assert majority_vote([rows[0]]).tolist() == rows[0].tolist()


@st.composite
def choices(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """For each target word a source word from 1 or 0, and for each source word likewise."""
    source, target = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    forward = draw(st.lists(st.integers(0, source), min_size=target, max_size=target))
    backward = draw(st.lists(st.integers(0, target), min_size=source, max_size=source))
    return forward, backward


# where several links may grow into one place, Thot takes them in another order than the metrics
EXACT: tuple[Literal["union", "intersection"], ...] = ("union", "intersection")


@given(st.lists(choices(), min_size=1, max_size=4), st.sampled_from(EXACT))
@settings(deadline=None)
def test_symmetrization_agrees_with_the_metrics(
    rows: list[tuple[list[int], list[int]]], how: Literal["union", "intersection"]
) -> None:
    bitext = Bitext(
        concatenate_sentences([b for _, b in rows]), concatenate_sentences([f for f, _ in rows])
    )
    flat = [np.array([k for row in rows for k in row[side]], dtype=np.int16) for side in (0, 1)]
    links = symmetrize_bitext(flat[0], flat[1], bitext, how)
    for n, (forward, backward) in enumerate(rows):
        one = frozenset((j - 1, i) for i, j in enumerate(forward) if j)
        other = frozenset((j, i - 1) for j, i in enumerate(backward) if i)
        assert links[n] == symmetrize(one, other, how)


@given(choices())
@settings(deadline=None)
def test_grow_diag_final_and_lies_between(row: tuple[list[int], list[int]]) -> None:
    bitext = Bitext(concatenate_sentences([row[1]]), concatenate_sentences([row[0]]))
    forward, backward = (np.array(side, dtype=np.int16) for side in row)
    links = {how: symmetrize_bitext(forward, backward, bitext, how)[0] for how in HEURISTICS}
    assert links["intersection"] <= links["grow-diag-final-and"] <= links["grow-diag-final"]
    assert links["grow-diag-final"] <= links["union"] == links["forward"] | links["backward"]


def test_every_setting_has_an_implementation() -> None:
    assert set(HEURISTICS) == set(get_args(AlignerSymmetrization))
    assert set(ALIGNER_MODELS) == set(KINDS)


def test_links_survive_saving_and_loading(tmp_path: Path) -> None:
    links = WordLinks(np.array([0, 1, 3]), np.array([2, 0, 1]), np.array([0, 2, 2, 3]))
    links.save(tmp_path / "links.npz")
    again = WordLinks.load(tmp_path / "links.npz")
    assert [again[n] for n in range(3)] == [{(0, 2), (1, 0)}, frozenset(), {(3, 1)}]


@pytest.mark.parametrize("rows", [[[2], []], [[2] * 1025, [3]]])
def test_pairs_that_thot_would_skip_are_refused(rows: list[list[int]]) -> None:
    bitext = Bitext(concatenate_sentences([[2], rows[0]]), concatenate_sentences([[3], rows[1]]))
    with pytest.raises(UserError, match=r" 1024 .* 1 of 2 "):
        train_chain(bitext, AlignerSettings(), AlignerChain(False, 0))


def test_missing_thot_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "thot.alignment", None)
    with pytest.raises(UserError, match=r"pip install .*\[smt\]"):
        thot_module("alignment")
