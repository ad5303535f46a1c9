"""AsyncQueue: what a producer on an event loop awaits. `Queue` has all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from s3queue.documents.record import Record
    from s3queue.protocol.status import Status


class _Waiting(Protocol):
    """The same calls, for threads."""

    @property
    def enqueue(self) -> Callable[..., str]: ...
    @property
    def enqueue_many(self) -> Callable[..., list[str]]: ...
    @property
    def status(self) -> Callable[[str], Status]: ...
    @property
    def cancel(self) -> Callable[[str], Record]: ...


class AsyncQueue:
    """Calls to await. Each runs in a thread, up to 32 of them at a time, so that the loop goes on.

    A task that is cancelled, say by a time-out, does not take a call back that has begun: whether it took effect is
    unknown. With a `dedup_id` or a `name`, calling again is safe.
    """

    __slots__ = ()

    async def aenqueue(self: _Waiting, body: Any, **options: Any) -> str:
        """`enqueue`, without blocking the event loop: same options, result and errors."""
        # Here: most processes have no event loop, and asyncio is a tenth of a cold start.
        from .async_calls import in_thread

        return await in_thread(self.enqueue, body, **options)

    async def aenqueue_many(self: _Waiting, bodies: Iterable[Any], **options: Any) -> list[str]:
        """`enqueue_many`, without blocking the event loop. The bodies are iterated over in another thread."""
        from .async_calls import in_thread

        return await in_thread(self.enqueue_many, bodies, **options)

    async def astatus(self: _Waiting, path: str) -> Status:
        """`status`, without blocking the event loop."""
        from .async_calls import in_thread

        return await in_thread(self.status, path)

    async def acancel(self: _Waiting, path: str) -> Record:
        """`cancel`, without blocking the event loop."""
        from .async_calls import in_thread

        return await in_thread(self.cancel, path)
