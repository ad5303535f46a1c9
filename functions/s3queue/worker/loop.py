"""The event loop of a thread, for handlers and hooks that are `async`."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Awaitable
from typing import Any, TypeVar

T = TypeVar("T")


class Loop(threading.local):
    """This thread's event loop: made for the first `async` function, kept for the others, so that what they keep
    between messages (a session, a pool of connections) stays usable."""

    def __init__(self) -> None:
        self._runner: Any = None

    def run(self, awaitable: Awaitable[T]) -> T:
        if self._runner is None:
            # Not before: most queues have no `async` handler, and asyncio is a tenth of a cold start.
            import asyncio

            self._runner = asyncio.Runner()

        async def wait() -> T:
            return await awaitable

        # This call's context variables, such as the current span: a runner keeps those of its first call.
        result: T = self._runner.run(wait(), context=contextvars.copy_context())
        return result


loop = Loop()
