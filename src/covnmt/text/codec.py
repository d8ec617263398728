"""The tokenizer and vocabulary of one side of a language pair, and their files.

A directory has `source.json`, `source.vocab` and, for sentencepiece, `source.spm`; and the same for
`target`. They are copied from the prepared data into every model trained on it.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from covnmt.base.config import read_settings
from covnmt.base.errors import UserError
from covnmt.base.files import read_bytes, refuse_pipe, write_bytes, write_json
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
        settings = read_settings(directory / f"{side}.json", TokenizerSettings, REMEDY)
        spm_path = directory / f"{side}.spm" if settings.kind == "sentencepiece" else None
        path = directory / f"{side}.vocab"
        if not path.exists():
            raise UserError(f"{path}: no such file; {REMEDY}")
        refuse_pipe(path, REMEDY)
        tokenizer = build_tokenizer(settings, spm_path)
        return cls(settings, tokenizer, Vocabulary.load(path), spm_path)

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


def copy_codecs(from_directory: Path, to_directory: Path) -> None:
    """Copy the files of both sides."""
    for name, content in _read_codec_files(from_directory):
        if (from_directory / name).resolve() != (to_directory / name).resolve():
            write_bytes(to_directory / name, content)


def vocabulary_fingerprint(directory: Path) -> str:
    """Hash the files of both sides: equal hashes turn text into the same ids."""
    digest = hashlib.sha256()
    for name, content in _read_codec_files(directory):
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _read_codec_files(directory: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the files of both sides."""
    for side in SIDES:
        settings = read_settings(directory / f"{side}.json", TokenizerSettings, REMEDY)
        for ending in ["json", "vocab"] + ["spm"] * (settings.kind == "sentencepiece"):
            name = f"{side}.{ending}"
            yield name, read_bytes(directory / name, REMEDY)
