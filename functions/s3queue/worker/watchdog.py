"""Watchdog: finds handlers that do not return, so that their messages are let go and their threads replaced."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from s3queue.documents.record import Failure
from s3queue.errors import LeaseLost
from s3queue.protocol.claim import Claim
from s3queue.queue import Queue


def stack_of(thread: int) -> traceback.StackSummary:
    """Where a thread is now, numbered as by `threading.get_ident`; empty if it has ended."""
    frame = sys._current_frames().get(thread)
    return traceback.extract_stack(frame) if frame else traceback.StackSummary()


@dataclass(slots=True, eq=False)
class Call:
    """A handler that is running."""

    claim: Claim
    #: Of a batch: the lines that the call is for.
    lines: tuple[int, ...]
    #: As `threading.get_ident` numbers it.
    thread: int
    #: By the monotonic clock: when it began, or last said that it needs more time.
    since: float
    is_given_up: bool = False

    def stack(self) -> traceback.StackSummary:
        """Where it is now; empty if its thread has ended."""
        return stack_of(self.thread)

    def failure(self, seconds: float, stack: traceback.StackSummary) -> Failure:
        where = f", last seen in {stack[-1].name} ({stack[-1].filename}:{stack[-1].lineno})" if stack else ""
        return Failure("HandlerTimeout", f"the handler did not return within handler_timeout, {seconds:g} s{where}")


class Watchdog:
    """Knows every running handler of a worker; safe for threads."""

    def __init__(self, queue: Queue, observe: Callable[[float], None] = lambda seconds: None) -> None:
        """`observe` is told how many seconds each call took, also one that returns after it was given up."""
        self._queue = queue
        self._observe = observe
        self._calls: dict[int, Call] = {}
        self._mutex = threading.Lock()

    @contextmanager
    def watch(self, claim: Claim, lines: Sequence[int] = ()) -> Iterator[None]:
        """Around a call of the handler, in its thread.

        Raises:
            LeaseLost: the handler returned after it was given up, and its claim is another thread's.
        """
        began = self._queue.clock.monotonic()
        call = Call(claim, tuple(lines), threading.get_ident(), began)
        with self._mutex:
            self._calls[call.thread] = call
        try:
            yield
        finally:
            self._observe(self._queue.clock.monotonic() - began)
            with self._mutex:
                self._calls.pop(call.thread, None)
            if call.is_given_up:
                raise LeaseLost(f"handler returned after handler_timeout: {self._queue.name}/{claim.path}") from None

    def touch(self, claim: Claim) -> None:
        """The handler of this claim says that it is alive: its time counts from now."""
        now = self._queue.clock.monotonic()
        with self._mutex:
            for call in self._calls.values():
                if call.claim is claim:
                    call.since = now

    def check(self, now: float, give_up: Callable[[Call], None]) -> None:
        """Call `give_up` for each handler that has been running for longer than `handler_timeout`, once.

        A handler that returns meanwhile waits until `give_up` has ended, and then knows.
        """
        limit = self._queue.settings.handler_timeout.total_seconds()
        with self._mutex:
            for call in [call for call in self._calls.values() if now - call.since > limit]:
                call.is_given_up = True
                del self._calls[call.thread]
                give_up(call)
