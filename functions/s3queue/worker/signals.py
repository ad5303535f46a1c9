"""Signals: SIGTERM and SIGINT let a worker stop gracefully."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_log = logging.getLogger(__name__)


@contextmanager
def stopping_on_signal(stopping: threading.Event, queue: str) -> Iterator[None]:
    """Within, both signals set the event; afterwards they do what they did before. For the main thread."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        _log.info("stopping after running handlers: %s: %s received", queue, signal.Signals(number).name)
        stopping.set()

    previous = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
