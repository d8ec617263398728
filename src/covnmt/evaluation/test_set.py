"""Load a test set and the outputs of systems, and check that they fit together.

Files of other toolkits work as they are: plain or compressed, any line ends, Pharaoh links counted
from 0 or 1, one empty line too many at the end. Whatever does not fit is an error that names file
and line.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from covnmt.base.arrays import FloatArray
from covnmt.base.errors import UserError
from covnmt.base.files import read_lines
from covnmt.evaluation.alignment_files import check_links, check_matrices, load_matrices, read_links
from covnmt.evaluation.system_output import OutputLine, read_outputs
from covnmt.metrics.alignment import GoldAlignment, Links


@dataclass(frozen=True)
class EvaluationSet:
    """Source, references and gold alignment, sentence by sentence.

    references: one list of sentences per reference set.
    gold: alignment of the words, split at white space, of source and first reference.
    deterministic: the first reference is the only right translation, as in the embedded pair;
        only then can omitted and repeated words be counted exactly.
    files: the file of each of these, for messages.
    """

    references: Sequence[Sequence[str]]
    source: Sequence[str] | None = None
    gold: Sequence[GoldAlignment] | None = None
    deterministic: bool = False
    files: Mapping[str, str] = field(default_factory=dict)

    def lengths(self) -> list[tuple[int, int]]:
        """Return the number of words of each source and first reference, split at white space."""
        assert self.source is not None
        return [
            (len(source.split()), len(reference.split()))
            for source, reference in zip(self.source, self.references[0], strict=True)
        ]


@dataclass(frozen=True)
class SystemOutput:
    """The output of one system for a test set, and what the system attended to.

    text: its translations.
    reference_attention: soft matrices of the first reference, force-decoded by the system
        (`covnmt align`); they give AER and SAER.
    links: links of any aligner for source and first reference; AER prefers them.
    reverse_links: links of the opposite direction, joined with the others.
    attention: soft matrices of the system's own output.
    output_links: links of any aligner for source and output.
    fertility: predicted fertility of each source word.
    """

    text: Sequence[str]
    reference_attention: Sequence[FloatArray] | None = None
    links: Sequence[Links] | None = None
    reverse_links: Sequence[Links] | None = None
    attention: Sequence[FloatArray] | None = None
    output_links: Sequence[Links] | None = None
    fertility: Sequence[Sequence[float]] | None = None
    files: Mapping[str, str] = field(default_factory=dict)


def combine_output_lines(
    lines: Sequence[OutputLine], reference_attention: Sequence[FloatArray] | None = None
) -> SystemOutput:
    """Combine a system's lines; attention and fertility only if all lines have them."""
    alignments = [line.alignment for line in lines if line.alignment is not None]
    fertilities = [line.fertility for line in lines if line.fertility is not None]
    n = len(lines)
    return SystemOutput(
        text=[line.text for line in lines],
        reference_attention=reference_attention,
        attention=alignments if len(alignments) == n else None,
        fertility=[f.tolist() for f in fertilities] if len(fertilities) == n else None,
    )


def load_evaluation_set(
    references: Sequence[Path],
    source: Path | None = None,
    gold: Path | None = None,
    base: Literal[0, 1] = 0,
    deterministic: bool = False,
) -> EvaluationSet:
    """Read a test set; words of the gold alignment count from `base`."""
    texts = [_drop_last_empty(list(read_lines(path))) for path in references]
    sentences = len(texts[0])
    files = {f"reference {n}": str(path) for n, path in enumerate(references, 1)}
    if source:
        files["source"] = str(source)
    if gold:
        files["gold"] = str(gold)
    return EvaluationSet(
        references=texts,
        source=_trim(list(read_lines(source)), sentences) if source else None,
        gold=_trim(read_links(gold, base), sentences) if gold else None,
        deterministic=deterministic,
        files=files,
    )


def load_output(
    hypothesis: Path,
    test_set: EvaluationSet,
    reference_attention: Path | None = None,
    links: Path | None = None,
    reverse_links: Path | None = None,
    attention: Path | None = None,
    output_links: Path | None = None,
    base: Literal[0, 1] = 0,
) -> SystemOutput:
    """Read the output of a system: text, or lines of `covnmt translate --json`.

    JSON lines also give attention and fertility. Link files have the source first and count words
    from `base`.
    """
    sentences = len(test_set.references[0])
    output = combine_output_lines(read_outputs(hypothesis, sentences))
    paths = {
        "hypothesis": hypothesis,
        "reference_attention": reference_attention,
        "links": links,
        "reverse_links": reverse_links,
        "attention": attention or (hypothesis if output.attention is not None else None),
        "output_links": output_links,
        "fertility": hypothesis if output.fertility is not None else None,
    }

    def read(path: Path | None) -> list[Links] | None:
        rows = _trim(read_links(path, base), sentences) if path else None
        return None if rows is None else [row.possible for row in rows]

    return SystemOutput(
        text=output.text,
        reference_attention=load_matrices(reference_attention) if reference_attention else None,
        links=read(links),
        reverse_links=read(reverse_links),
        attention=load_matrices(attention) if attention else output.attention,
        output_links=read(output_links),
        fertility=output.fertility,
        files={name: str(path) for name, path in paths.items() if path},
    )


def check_evaluation_inputs(test_set: EvaluationSet, output: SystemOutput) -> None:
    """Raise on the first thing that does not fit."""
    _check_counts(test_set, output)
    _check_references(test_set)
    _check_fertility(output)
    if test_set.source is not None:
        _check_words(test_set, output)
    elif test_set.gold is not None:
        raise UserError("a gold alignment needs the source text too, to check its links against")
    if (
        output.reverse_links is not None
        and output.links is None
        and output.reference_attention is None
    ):
        raise UserError(
            f"{output.files.get('reverse_links', 'reverse_links')}: links of the opposite way "
            "need links of the usual direction; give --links or --forced too"
        )


def _check_words(test_set: EvaluationSet, output: SystemOutput) -> None:
    """Raise on links or matrices of the reference outside the words of their sentences."""
    lengths = test_set.lengths()
    output_lengths = [
        (source, len(line.split())) for (source, _), line in zip(lengths, output.text, strict=True)
    ]
    if test_set.gold is not None:
        name = test_set.files.get("gold", "gold alignment")
        check_links(test_set.gold, lengths, name)
        if not any(alignment.possible for alignment in test_set.gold):
            raise UserError(f"{name}: no links in it")
    for part, links, fits in (
        ("links", output.links, lengths),
        ("reverse_links", output.reverse_links, lengths),
        ("output_links", output.output_links, output_lengths),
    ):
        rows = [GoldAlignment(row, row) for row in links] if links is not None else []
        check_links(rows, fits[: len(rows)], output.files.get(part, part))
    if output.reference_attention is not None:
        check_matrices(
            output.reference_attention,
            lengths,
            output.files.get("reference_attention", "reference_attention"),
        )


def _check_fertility(output: SystemOutput) -> None:
    """Raise if fertility and attention have different numbers of source words."""
    if output.attention is None or output.fertility is None:
        return
    for number, (matrix, row) in enumerate(zip(output.attention, output.fertility, strict=True), 1):
        if len(row) != matrix.shape[1]:
            raise UserError(
                f"{output.files.get('fertility', 'fertility')}, sentence {number}: {len(row)} "
                f"source words, but {output.files.get('attention', 'attention')} has "
                f"{matrix.shape[1]}"
            )


def _check_counts(test_set: EvaluationSet, output: SystemOutput) -> None:
    parts: dict[str, Sequence[Any] | None] = {
        **{f"reference {n}": lines for n, lines in enumerate(test_set.references, 1)},
        "source": test_set.source,
        "gold": test_set.gold,
        "hypothesis": output.text,
        "reference_attention": output.reference_attention,
        "links": output.links,
        "reverse_links": output.reverse_links,
        "attention": output.attention,
        "output_links": output.output_links,
        "fertility": output.fertility,
    }
    files = {**test_set.files, **output.files}
    first = files.get("reference 1", "reference 1")
    expected = len(test_set.references[0])
    if not expected:
        raise UserError(f"{first}: empty; there is nothing to compare with")
    for name, rows in parts.items():
        if rows is not None and len(rows) != expected:
            raise UserError(
                f"{files.get(name, name)} has {len(rows)} sentences but {first} has {expected}; "
                "they must match line by line"
            )


def _check_references(test_set: EvaluationSet) -> None:
    for n, lines in enumerate(test_set.references, 1):
        for number, line in enumerate(lines, 1):
            if not line.strip():
                name = test_set.files.get(f"reference {n}", f"reference {n}")
                raise UserError(
                    f"{name}, line {number}: empty reference; remove the sentence from all files"
                )


def _drop_last_empty(lines: list[str]) -> list[str]:
    return lines[:-1] if lines and not lines[-1].strip() else lines


def _trim(rows: list[Any], sentences: int) -> list[Any]:
    """Drop one empty line too many at the end; check_evaluation_inputs finds any other."""
    empty = ("", GoldAlignment(frozenset(), frozenset()))
    return rows[:-1] if len(rows) == sentences + 1 and rows[-1] in empty else rows
