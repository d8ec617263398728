"""Helpers: override decoding settings, compare translations."""

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Generic, TypeVar

import numpy as np
import pytest

from covnmt.base.config import DecodeConfig
from covnmt.inference.model import Model
from covnmt.inference.translate import Translation, override_decoding

T = TypeVar("T")


def change(translator: Model, **changes: object) -> DecodeConfig:
    return override_decoding(translator.decode, changes)


class Endless(Generic[T]):
    """The same items again and again, counting how many were read."""

    def __init__(self, items: Sequence[T]) -> None:
        self.items, self.read = items, 0

    def __iter__(self) -> Iterator[T]:
        for item in cycle(self.items):
            self.read += 1
            yield item


def texts(translations: list[Translation]) -> list[str]:
    return [translation.text for translation in translations]


def assert_same(one: list[Translation], other: list[Translation]) -> None:
    assert [t.tokens for t in one] == [t.tokens for t in other]
    for a, b in zip(one, other, strict=True):
        assert a.score == pytest.approx(b.score, abs=1e-3)
        np.testing.assert_allclose(a.alignment, b.alignment, atol=1e-4)
        np.testing.assert_allclose(a.coverage, b.coverage, atol=1e-4)
        assert_same(list(a.alternatives), list(b.alternatives))
