"""The tokenizer and vocabulary of one side of a language pair, and their files.

A directory has `source.json`, `source.vocab` and, for sentencepiece, `source.spm`; and the same for
`target`. They are copied from the prepared data into every model trained on it.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from covnmt.base.config import read_settings
from covnmt.base.errors import UserError
from covnmt.base.files import atomic_write, write_json
from covnmt.text.tokenize import Tokenizer, TokenizerSettings, build_tokenizer
from covnmt.text.vocabulary import Vocabulary

Side = Literal["source", "target"]
SIDES: tuple[Side, Side] = ("source", "target")
REMEDY = "copy it from the data directory, or make it again with `covnmt prepare`"


@dataclass(frozen=True)
class Codec:
    """Turns text of one side into tokens and ids, and back."""

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
        tokenizer = build_tokenizer(settings, spm_path)
        return cls(settings, tokenizer, Vocabulary.load(path), spm_path)

    def save(self, directory: Path, side: Side) -> None:
        """Write the files of one side."""
        write_json(directory / f"{side}.json", self.settings.model_dump(mode="json"))
        self.vocabulary.save(directory / f"{side}.vocab")
        if self.spm_path is not None:
            _copy(self.spm_path, directory / f"{side}.spm")

    def tokenize(self, line: str) -> list[str]:
        """Split a line of text into tokens."""
        return self.tokenizer.tokenize(line)

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """Turn tokens into ids, without an end symbol."""
        return self.vocabulary.encode(tokens)

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Turn ids into tokens, up to the end symbol if there is one."""
        return self.vocabulary.decode(ids)

    def detokenize(self, tokens: Sequence[str]) -> str:
        """Join tokens to a line of text."""
        return self.tokenizer.detokenize(tokens)


def copy_codecs(from_directory: Path, to_directory: Path) -> None:
    """Copy the files of both sides."""
    for path in _codec_files(from_directory):
        _copy(path, to_directory / path.name)


def vocabulary_fingerprint(directory: Path) -> str:
    """Hash the files of both sides: equal hashes turn text into the same ids."""
    digest = hashlib.sha256()
    for path in _codec_files(directory):
        content = _read_bytes(path)
        digest.update(f"{path.name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def _codec_files(directory: Path) -> list[Path]:
    paths = []
    for side in SIDES:
        settings = read_settings(directory / f"{side}.json", TokenizerSettings, REMEDY)
        endings = ["json", "vocab"] + ["spm"] * (settings.kind == "sentencepiece")
        paths += [directory / f"{side}.{ending}" for ending in endings]
    return paths


def _copy(path: Path, to: Path) -> None:
    content = _read_bytes(path)
    if path.resolve() == to.resolve():
        return
    with atomic_write(to) as stream:
        stream.write(content)


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); {REMEDY}") from None
