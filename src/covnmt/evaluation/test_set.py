"""Load a test set and the outputs of systems, and check that they fit together.

Files of other toolkits work as they are: plain or compressed, any line ends, Pharaoh links counted
from 0 or 1, one empty line too many at the end. Whatever does not fit is an error that names file
and line.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from covnmt.base.errors import UserError
from covnmt.base.files import read_lines
from covnmt.evaluation.alignment_files import check_links, check_matrices, load_matrices, read_links
from covnmt.evaluation.system_output import (
    SystemOutput,
    combine_output_lines,
    drop_blank_last_row,
    read_outputs,
)
from covnmt.metrics.alignment import GoldAlignment, Links


@dataclass(frozen=True)
class EvaluationSet:
    """Source, references and gold alignment, sentence by sentence.

    references: one list of sentences per reference set.
    gold: alignment of the words, split at white space, of source and first reference.
    unique_reference: the first reference is the only right translation, as in the embedded pair;
        only then can omitted and repeated words be counted exactly.
    files: the file of each of these, for messages.
    """

    references: Sequence[Sequence[str]]
    source: Sequence[str] | None = None
    gold: Sequence[GoldAlignment] | None = None
    unique_reference: bool = False
    files: Mapping[str, str] = field(default_factory=dict)


def load_evaluation_set(
    references: Sequence[Path],
    source: Path | None = None,
    gold: Path | None = None,
    index_base: Literal[0, 1] = 0,
    unique_reference: bool = False,
) -> EvaluationSet:
    """Read a test set; words of the gold alignment count from `index_base`."""
    texts = [list(read_lines(path)) for path in references]
    texts = [drop_blank_last_row(lines, len(lines) - 1) for lines in texts]
    sentences = len(texts[0])
    paths = {f"reference {n}": path for n, path in enumerate(references, 1)}
    paths |= {name: path for name, path in (("source", source), ("gold", gold)) if path}
    return EvaluationSet(
        references=texts,
        source=drop_blank_last_row(list(read_lines(source)), sentences) if source else None,
        gold=drop_blank_last_row(read_links(gold, index_base), sentences) if gold else None,
        unique_reference=unique_reference,
        files={name: str(path) for name, path in paths.items()},
    )


def load_output(
    hypothesis: Path,
    test_set: EvaluationSet,
    reference_attention: Path | None = None,
    links: Path | None = None,
    reverse_links: Path | None = None,
    attention: Path | None = None,
    output_links: Path | None = None,
    index_base: Literal[0, 1] = 0,
) -> SystemOutput:
    """Read the output of a system: text, or lines of `covnmt translate --json`.

    JSON lines also give attention and fertility. Link files have the source first and count words
    from `index_base`.
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
        return (
            [g.possible for g in drop_blank_last_row(read_links(path, index_base), sentences)]
            if path
            else None
        )

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
    files = {**test_set.files, **output.files}
    _check_counts(test_set, output, files)
    for n, lines in enumerate(test_set.references, 1):
        for number, line in enumerate(lines, 1):
            if not line.strip():
                raise UserError(
                    f"{_name(files, f'reference {n}')}, line {number}: empty reference; remove "
                    "the sentence from all files"
                )
    if output.attention is not None and output.fertility is not None:
        pairs = zip(output.attention, output.fertility, strict=True)
        for number, (matrix, fertility) in enumerate(pairs, 1):
            if len(fertility) != matrix.shape[1]:
                raise UserError(
                    f"{_name(files, 'fertility')}, sentence {number}: {len(fertility)} source "
                    f"words, but {_name(files, 'attention')} has {matrix.shape[1]}"
                )
    if test_set.source is not None:
        _check_words(test_set, test_set.source, output, files)
    elif test_set.gold is not None:
        raise UserError("a gold alignment needs the source text too, to check its links against")
    if (
        output.reverse_links is not None
        and output.links is None
        and output.reference_attention is None
    ):
        raise UserError(
            f"{_name(files, 'reverse_links')}: links of the opposite way need links of the usual "
            "direction; give --links or --reference-attention too"
        )


def _name(files: Mapping[str, str], part: str) -> str:
    """Return how messages name a part of the test set or output."""
    return files.get(part, part)


def _check_counts(test_set: EvaluationSet, output: SystemOutput, files: Mapping[str, str]) -> None:
    """Raise on the first part that has not one row per sentence of the first reference."""
    parts: dict[str, Sequence[Any] | None] = {
        **{f"reference {n}": lines for n, lines in enumerate(test_set.references, 1)},
        "source": test_set.source,
        "gold": test_set.gold,
        "hypothesis": output.text,
        **{name: rows for name, rows in vars(output).items() if name not in ("text", "files")},
    }
    first, expected = _name(files, "reference 1"), len(test_set.references[0])
    if not expected:
        raise UserError(f"{first}: empty; there is nothing to compare with")
    for part, rows in parts.items():
        if rows is not None and len(rows) != expected:
            raise UserError(
                f"{_name(files, part)} has {len(rows)} sentences but {first} has {expected}; "
                "they must match line by line"
            )


def _check_words(
    test_set: EvaluationSet, source: Sequence[str], output: SystemOutput, files: Mapping[str, str]
) -> None:
    """Raise on links or matrices outside the words of their sentences, split at white space."""

    def lengths(target: Sequence[str]) -> list[tuple[int, int]]:
        pairs = zip(source, target, strict=True)
        return [(len(words.split()), len(line.split())) for words, line in pairs]

    reference_lengths = lengths(test_set.references[0])
    if test_set.gold is not None:
        name, links = _name(files, "gold"), [row.possible for row in test_set.gold]
        check_links(links, reference_lengths, name)
        if not any(links):
            raise UserError(f"{name}: no links in it")
    for part, part_links, part_lengths in (
        ("links", output.links, reference_lengths),
        ("reverse_links", output.reverse_links, reference_lengths),
        ("output_links", output.output_links, lengths(output.text)),
    ):
        if part_links is not None:
            check_links(part_links, part_lengths, _name(files, part))
    if output.reference_attention is not None:
        name = _name(files, "reference_attention")
        check_matrices(output.reference_attention, reference_lengths, name)
