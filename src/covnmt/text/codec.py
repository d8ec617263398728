"""The tokenizer and vocabulary of one side of a language pair, and their files.

A directory has `source.json`, `source.vocab` and, for sentencepiece, `source.spm`; and the same for
`target`. They are copied from the prepared data into every model trained on it.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from covnmt.base.config import parse_settings, read_settings
from covnmt.base.files import read_bytes, write_bytes, write_json
from covnmt.text.tokenize import Tokenizer, TokenizerSettings, build_tokenizer, clean_line
from covnmt.text.vocabulary import Vocabulary

Side = Literal["source", "target"]
SIDES: tuple[Side, Side] = ("source", "target")
REMEDY = "copy it from the data directory, or make it again with `covnmt prepare`"


@dataclass(frozen=True)
class Codec:
    """The tokenizer and vocabulary of one side."""

    settings: TokenizerSettings
    tokenizer: Tokenizer
    vocabulary: Vocabulary
    spm_path: Path | None = None

    @classmethod
    def load(cls, directory: Path, side: Side) -> "Codec":
        """Read the files of one side."""
        return cls._parse(directory, side, *_read_side(directory, side))

    @classmethod
    def _parse(
        cls, directory: Path, side: Side, settings: TokenizerSettings, files: dict[str, bytes]
    ) -> "Codec":
        name = f"{side}.spm"
        spm_path = directory / name if name in files else None
        tokenizer = build_tokenizer(settings, spm_path, files.get(name))
        name = f"{side}.vocab"
        return cls(settings, tokenizer, Vocabulary.parse(files[name], directory / name), spm_path)

    def save(self, directory: Path, side: Side) -> None:
        """Write the files of one side."""
        write_json(directory / f"{side}.json", self.settings.model_dump(mode="json"))
        self.vocabulary.save(directory / f"{side}.vocab")
        if self.spm_path is not None:
            write_bytes(directory / f"{side}.spm", read_bytes(self.spm_path))

    def tokenize(self, line: str) -> list[str]:
        """Clean a line of text and split it into tokens."""
        return self.tokenizer.tokenize(clean_line(line, self.settings))

    def encode(self, line: str) -> list[int]:
        """Turn a line of text into token ids."""
        return self.vocabulary.encode(self.tokenize(line))

    def detokenize(self, tokens: Sequence[str]) -> str:
        """Join tokens to a line of text."""
        return self.tokenizer.detokenize(tokens)


class CodecPair(NamedTuple):
    """Both sides of a directory."""

    source: Codec
    target: Codec
    fingerprint: str  # see `vocabulary_fingerprint`

    @classmethod
    def load(cls, directory: Path) -> "CodecPair":
        """Read the files of both sides, each once."""
        sides = [_read_side(directory, side) for side in SIDES]
        source, target = (
            Codec._parse(directory, side, *read) for side, read in zip(SIDES, sides, strict=True)
        )
        return cls(source, target, _fingerprint(files for _, files in sides))


def stored_languages(directory: Path) -> tuple[str, str] | None:
    """Return the languages of both sides; None if they are the same.

    Without --source-language and --target-language both are `en`, which says nothing.
    """
    source, target = (
        read_settings(directory / f"{side}.json", TokenizerSettings, REMEDY).language
        for side in SIDES
    )
    return (source, target) if source != target else None


def copy_codecs(from_directory: Path, to_directory: Path) -> None:
    """Copy the files of both sides."""
    for side in SIDES:
        for name, content in _read_side(from_directory, side)[1].items():
            if (from_directory / name).resolve() != (to_directory / name).resolve():
                write_bytes(to_directory / name, content)


def vocabulary_fingerprint(directory: Path) -> str:
    """Hash the files of both sides: equal hashes turn text into the same ids."""
    return _fingerprint(_read_side(directory, side)[1] for side in SIDES)


def _fingerprint(sides: Iterable[dict[str, bytes]]) -> str:
    digest = hashlib.sha256()
    for files in sides:
        for name, content in files.items():
            digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _read_side(directory: Path, side: Side) -> tuple[TokenizerSettings, dict[str, bytes]]:
    """Read the files of one side; return its settings, and the content of all by name."""
    path = directory / f"{side}.json"
    files = {path.name: read_bytes(path, REMEDY)}
    settings = parse_settings(files[path.name], path, TokenizerSettings, REMEDY)
    for ending in ["vocab"] + ["spm"] * (settings.kind == "sentencepiece"):
        name = f"{side}.{ending}"
        files[name] = read_bytes(directory / name, REMEDY)
    return settings, files
