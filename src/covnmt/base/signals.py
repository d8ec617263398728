"""Raise KeyboardInterrupt at SIGINT and SIGTERM, also where Python would lose it."""

import _thread
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
SECONDS_UNTIL_RETRY = 0.02
# Modules in whose calls KeyboardInterrupt may become another error.
CANNOT_RAISE = ("importlib._bootstrap", "pydantic.")

_will_retry = False


def stop_on_signals() -> None:
    """Raise KeyboardInterrupt in the main thread at SIGINT and SIGTERM.

    Python's own handler loses it in three places. Modules written in C turn it into an ImportError
    while they are imported, which their importers may catch, and pydantic into a SchemaError: the
    signal waits until they end. And Python ignores what finalizers and weak references' callbacks
    raise: the signal is sent again.

    SIGINT stays ignored where it was, as in commands that a shell starts in the background.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _interrupt)
    sys.unraisablehook = _retry_after_unraisable


def _interrupt(number: int, frame: FrameType | None) -> None:
    if _can_raise(frame):
        raise KeyboardInterrupt
    _retry(number)


def _can_raise(frame: FrameType | None) -> bool:
    while frame:
        if str(frame.f_globals.get("__name__")).startswith(CANNOT_RAISE):
            return False
        frame = frame.f_back
    return True


def _retry_after_unraisable(unraisable: Any) -> None:
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        _retry(signal.SIGTERM)
    else:
        sys.__unraisablehook__(unraisable)


def _retry(number: int) -> None:
    """Send the signal to the main thread again, a little later."""
    global _will_retry
    if not _will_retry:
        _will_retry = True
        # not threading.Thread: its locks may be held where the signal came
        _thread.start_new_thread(_send_later, (number,))


def _send_later(number: int) -> None:
    global _will_retry
    time.sleep(SECONDS_UNTIL_RETRY)
    _will_retry = False
    signal.pthread_kill(threading.main_thread().ident or 0, number)


@contextmanager
def handled_signals(handle: Callable[[int], None]) -> Iterator[None]:
    """Call a function with the number of each SIGINT and SIGTERM instead of raising.

    A signal that is ignored stays ignored, and a handler that is not Python's (None) in place.
    Outside the main thread, where Python allows no handlers, nothing changes.
    """
    main = threading.current_thread() is threading.main_thread()
    handlers = {
        number: signal.signal(number, lambda number, _: handle(number))
        for number in STOP_SIGNALS
        if main and signal.getsignal(number) not in (signal.SIG_IGN, None)
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def recorded_signals() -> Iterator[list[int]]:
    """Record SIGINT and SIGTERM instead of raising KeyboardInterrupt wherever they come.

    For commands that look for them: a process that is stopped while it starts another one may wait
    for that one without end.
    """
    received: list[int] = []
    with handled_signals(received.append):
        yield received


@contextmanager
def defer_signals() -> Iterator[None]:
    """Hold back SIGINT and SIGTERM until the end of this block.

    Processes started in it hold them back until they unblock them: one that is stopped while it
    starts would print a traceback.
    """
    received: list[int] = []
    try:
        with handled_signals(received.append):
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # for new processes
            try:
                yield
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    finally:
        for late in received:
            signal.raise_signal(late)
