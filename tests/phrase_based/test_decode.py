"""Several processes that decode: how they begin."""

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

from covnmt.base.processes import STOP_SIGNALS
from covnmt.phrase_based.decode import PooledDecoder
from covnmt.phrase_based.model import PhraseBasedModel
from covnmt.phrase_based.settings import StackSearchSettings
from covnmt.phrase_based.translate import load_weights, open_decoder_for


def held_back() -> set[int]:
    """The signals to stop that do not reach this thread."""
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, ())) & set(STOP_SIGNALS)


def test_a_stop_waits_until_they_have_begun(
    tiny_smt: PhraseBasedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is stopped while it imports ends with a traceback."""
    at_the_start: list[set[int]] = []
    start = ProcessPoolExecutor.map

    def noted(pool: ProcessPoolExecutor, work: Callable[..., Any], tasks: Any) -> Iterator[Any]:
        at_the_start.append(held_back())
        return start(pool, work, tasks)

    monkeypatch.setattr(ProcessPoolExecutor, "map", noted)
    settings = StackSearchSettings(processes=2)
    with open_decoder_for(tiny_smt, [["a"]], settings) as (decoder, _):
        assert isinstance(decoder, PooledDecoder)
        list(decoder.nbest([[2], [3]], load_weights(tiny_smt), 1, "translating"))
        assert at_the_start == [set(STOP_SIGNALS)]
        assert held_back() == set()
        assert decoder.pool.submit(held_back).result() == set()
