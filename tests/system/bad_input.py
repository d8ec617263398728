"""Commands that cannot work: exit code 2, a message that names the place, nothing lost.

Each case begins in a directory of its own with good text (`s` and `t`, 20 lines), a trained model
(`model`) and the data it was trained on (`data`), does some damage, and gives one command. All run
in the process of the tests; some again in processes of their own, as a person would.
"""

import gzip
import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from covnmt.data.corpus import Corpus
from covnmt.data.prepare import prepare_corpus
from covnmt.model.checkpoint import load_tensors, save_tensors
from covnmt.model.directory import find_model
from covnmt.text.codec import vocabulary_fingerprint

Damage = Callable[[Path], object]
CUT_OFF = gzip.compress(b"a b c\n" * 20)[:-4]


def put(name: str, content: str | bytes) -> Damage:
    """Write a file."""
    data = content.encode() if isinstance(content, str) else content
    return lambda desk: (desk / name).write_bytes(data)


def change(name: str, edit: Callable[[bytes], bytes]) -> Damage:
    """Change a file."""
    return lambda desk: (desk / name).write_bytes(edit((desk / name).read_bytes()))


def remove(name: str) -> Damage:
    """Delete a file."""
    return lambda desk: (desk / name).unlink()


def half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def without_last_line(content: bytes) -> bytes:
    return b"".join(content.splitlines(keepends=True)[:-1])


def backwards(content: bytes) -> bytes:
    return b"".join(content.splitlines(keepends=True)[::-1])


def set_key(key: str, value: object) -> Callable[[bytes], bytes]:
    return lambda content: json.dumps({**json.loads(content), key: value}).encode()


def other_weights(desk: Path) -> None:
    save_tensors(desk / "model" / "model.safetensors", {"foreign": torch.zeros(3)}, {})


def other_data(desk: Path) -> None:
    """The same text prepared in another way, under the name of the old data."""
    settings = Corpus.open(desk / "data").report.settings
    prepare_corpus(settings.model_copy(update={"seed": 5}), desk / "data", overwrite=True)


def data_without_dev(desk: Path) -> None:
    settings = Corpus.open(desk / "data").report.settings
    prepare_corpus(settings.model_copy(update={"dev": None}), desk / "data", overwrite=True)


def other_vocabulary(desk: Path) -> None:
    shutil.copytree(desk / "model", desk / "other")
    change("other/target.vocab", backwards)(desk)
    change("other/config.json", set_key("fingerprint", vocabulary_fingerprint(desk / "other")))(
        desk
    )
    weights = desk / "other" / "model.safetensors"
    save_tensors(weights, load_tensors(weights)[0], {})


def exported_model(desk: Path) -> None:
    shutil.copytree(find_model("ja-en"), desk / "exported")


def nothing(desk: Path) -> None:
    pass


@dataclass(frozen=True)
class Case:
    """A command that cannot work, and the files, lines, keys and options that it should name."""

    command: str
    names: tuple[str, ...]
    damage: Damage = nothing
    stdin: bytes = b"x\n"
    alone: bool = False  # again in a process of its own


Refused = Callable[[Case], None]


def contents(directory: Path) -> dict[Path, str]:
    """A digest of every file."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def check(case: Case, message: str, before: dict[Path, str], desk: Path) -> None:
    """The message says what it should, and the files are what they were."""
    assert "Traceback" not in message
    unwrapped = " ".join(message.split())  # usage errors come in a frame
    assert not [part for part in case.names if part not in unwrapped], message
    after = contents(desk)
    assert before.items() <= after.items(), "something was lost"
    assert not [path for path in after if path.suffix == ".tmp"]


def bad_input_tests(cases: dict[str, Case]) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return a test of all cases, and one that runs some again in processes of their own."""

    @pytest.mark.parametrize("name", cases)
    def in_this_process(name: str, refused: Refused) -> None:
        refused(cases[name])

    @pytest.mark.parametrize("name", [name for name, case in cases.items() if case.alone])
    def in_a_process(name: str, refused_in_a_process: Refused) -> None:
        refused_in_a_process(cases[name])

    return in_this_process, in_a_process
