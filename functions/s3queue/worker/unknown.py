"""until_known: repeats a step whose answer was lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from s3queue.errors import Unavailable
from s3queue.queue import Queue

T = TypeVar("T")
#: Pauses in seconds before a step with an unknown result is repeated; after the last one it is left to the sweeper.
UNKNOWN_PAUSES = (0.2, 0.8, 2.0)


def until_known(queue: Queue, step: Callable[[], T]) -> T:
    """Repeat a step while its result is unknown; the step must be safe to repeat.

    Raises:
        Unavailable: still unknown after the last pause; the sweeper takes care of it.
    """
    for pause in UNKNOWN_PAUSES:
        try:
            return step()
        except Unavailable:
            queue.clock.sleep(pause)
    return step()
