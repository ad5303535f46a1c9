"""The worker function without Lambda: invocations of the real attendant, told to nobody."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Any, cast

from handlers.attendant import Attendant
from handlers.doorbells import Doorbell
from s3queue import Definition, Queue

#: What infra gives a function whose handler has the default limit.
FUNCTION_SECONDS = 60.0


class Silence:
    """Telemetry that keeps everything to itself."""

    def message(self, path: str) -> AbstractContextManager[None]:
        return nullcontext()


class WorkerFunction:
    """One execution environment of a queue's function."""

    def __init__(self, queue: Queue, handler: Callable[..., Any]) -> None:
        self.queue = queue
        definition = Definition(queue.name, queue.settings)
        definition.handler(handler)
        self._attendant = Attendant(queue, definition, cast(Any, Silence()), None)

    def invoke(self, *paths: str, rung_at: datetime | None) -> dict[str, int]:
        """Answer an event of that time; None: the sweeper sent it."""
        clock = self.queue.clock
        end = clock.monotonic() + FUNCTION_SECONDS
        doorbells = [Doorbell(path=path, rung_at=rung_at) for path in paths]
        return self._attendant.answer(doorbells, lambda: end - clock.monotonic())
