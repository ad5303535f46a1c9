"""The event loop of a thread, for handlers and hooks that are `async`."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

T = TypeVar("T")


class Loop(threading.local):
    """This thread's event loop: made for the first `async` function, kept for the others, so that what they keep
    between messages (a session, a pool of connections) stays usable.

    A thread whose loop is running, such as that of an `async` test, cannot run a second one: another thread does it,
    and this one waits.
    """

    def __init__(self) -> None:
        self._runner: Any = None
        #: One thread, with a loop of its own.
        self._beside: ThreadPoolExecutor | None = None

    def run(self, awaitable: Awaitable[T]) -> T:
        # Not before: most queues have no `async` handler, and asyncio is a tenth of a cold start.
        import asyncio

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            return self._run_beside(awaitable)
        if self._runner is None:
            self._runner = asyncio.Runner()

        async def wait() -> T:
            return await awaitable

        # This call's context variables, such as the current span: a runner keeps those of its first call.
        result: T = self._runner.run(wait(), context=contextvars.copy_context())
        return result

    def _run_beside(self, awaitable: Awaitable[T]) -> T:
        if self._beside is None:
            from concurrent.futures import ThreadPoolExecutor

            self._beside = ThreadPoolExecutor(1, "s3queue-loop")
        return self._beside.submit(contextvars.copy_context().run, self.run, awaitable).result()


loop = Loop()
