"""Damage to files: what transfers, disks, editors and people do to them, drawn by hypothesis.

COVNMT_FUZZ=1000 tries that many damages of each file, others in every run.
"""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from covnmt.base.errors import UserError

MANY = int(os.environ.get("COVNMT_FUZZ", "0"))
Mutation = Callable[[Random, bytes], bytes]

ODD_BYTES = (
    b"\x00",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\r",
    b"\n",
    b"\n\n",
    b"\t",
    b" ",
    b"-1",
    b"0",
    b"1e999",
    b"NaN",
    b"9" * 25,
    b"9" * 5000,
    b'"',
    b"'" * 3,
    b"[",
    b"{" * 50,
    b"[" * 5000,
    b"]]",
    b"=",
    b"#",
    b".",
    b"../..",
    b"-",
    b"p",
    "\u2028é\u0301".encode(),
    b"\xed\xa0\x80",  # half a character
    b"1-1",
    b"x",
)
ODD_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2.5,
    10**9,
    2**31,
    2**63,
    10**30,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "\x00",
    "\ud800",
    "../../x",
    "9" * 5000,
    [],
    {},
    [[]],
    [None],
    [-1, 10**12],
    {"": {}},
    {"x": [{"y": None}]},
)


def mutate_bytes(random: Random, content: bytes) -> bytes:
    """Flip bits, cut, repeat, insert or replace a few bytes; at times several of these."""
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        start = random.randrange(len(content) + 1)
        end = min(len(content), start + random.choice((1, 1, 2, 8, 40, 1000)))
        piece, odd = content[start:end], random.choice(ODD_BYTES)
        match random.choice(("flip", "cut", "drop", "repeat", "insert", "replace", "junk", "swap")):
            case "flip" if piece:
                flipped = bytes([piece[0] ^ 1 << random.randrange(8)])
                content = content[:start] + flipped + content[start + 1 :]
            case "cut":
                content = content[:start]
            case "drop":
                content = content[:start] + content[end:]
            case "repeat":
                content = content[:end] + piece * random.choice((1, 3)) + content[end:]
            case "insert":
                content = content[:start] + odd + content[start:]
            case "replace":
                content = content[:start] + odd + content[end:]
            case "junk":
                content = content[:start] + random.randbytes(end - start) + content[end:]
            case "swap":
                content = content[end:] + content[:end]
    return content


def mutate_json(random: Random, content: bytes) -> bytes:
    """Replace, remove or rename something in the tree, or damage the text."""
    if random.random() < 0.2:
        return mutate_bytes(random, content)
    tree = json.loads(content)
    for _ in range(random.choice((1, 1, 2))):
        tree = mutate_tree(random, tree)
    return json.dumps(tree).encode()


def mutate_json_lines(random: Random, content: bytes) -> bytes:
    """Do so in one line."""
    lines = content.splitlines(keepends=True)
    number = random.randrange(len(lines))
    lines[number] = mutate_json(random, lines[number]) + b"\n"
    return b"".join(lines)


def mutate_tree(random: Random, tree: Any) -> Any:
    if not tree or not isinstance(tree, dict | list) or random.random() < 0.1:
        return random.choice(ODD_VALUES)
    copy: Any = tree.copy()
    key = random.choice(list(tree)) if isinstance(tree, dict) else random.randrange(len(tree))
    match random.choice(("change", "change", "change", "remove", "add")):
        case "change":
            copy[key] = mutate_tree(random, tree[key])
        case "remove":
            del copy[key]
        case _ if isinstance(copy, dict):
            copy[str(random.choice(ODD_VALUES))[:9]] = copy[key]
        case _:
            copy.insert(key, random.choice(ODD_VALUES))
    return copy


class Reader(NamedTuple):
    """A file, how to damage it, what reads it by its path, and how often it is tried."""

    file: str
    mutate: Mutation
    read: Callable[[Path], object]
    examples: int = 20


def check_reader(reader: Reader, directory: Path) -> None:
    """Damage the file again and again; its reader succeeds or raises `UserError`."""
    path = directory / reader.file
    good = path.read_bytes()
    reader.read(path)

    @settings(
        max_examples=MANY or reader.examples,
        derandomize=not MANY,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=False))
    def check(random: Random) -> None:
        path.write_bytes(reader.mutate(random, good))
        with suppress(UserError):
            reader.read(path)

    try:
        check()
    finally:
        path.write_bytes(good)
