"""Crew: the threads of a pull worker that run handlers, as many as are wanted, and a new one for each that hangs."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterable

from s3queue.clock import Clock

_log = logging.getLogger(__name__)
#: How long one thread is waited for before it is looked whether that thread was replaced.
JOIN_SECONDS = 0.2


def start_lasting(
    name: str, target: Callable[[], None], should_stop: Callable[[], bool], pause: Callable[[], None]
) -> threading.Thread:
    """Start a thread that runs `target` again if it ends by an error: no thread of a worker ends alone, since the
    others would go on without it, and nobody would notice.
    """

    def run() -> None:
        while True:
            try:
                return target()
            except Exception:
                _log.exception("unexpected error in a thread, continuing: %s", name)
                if should_stop():
                    return
                pause()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def join_all(threads: Callable[[], Iterable[threading.Thread]], timeout: float | None, clock: Clock) -> bool:
    """Wait until all of them have ended, also those that come meanwhile; False if that takes longer than `timeout`."""
    until = None if timeout is None else clock.monotonic() + timeout
    while running := [thread for thread in threads() if thread.is_alive()]:
        left = JOIN_SECONDS if until is None else until - clock.monotonic()
        if left <= 0:
            return False
        running[0].join(min(left, JOIN_SECONDS))
    return True


class Crew:
    """Starts and counts the threads. One that is not wanted any more ends when it next asks; safe for threads."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        """`work` runs in each thread, and returns once `goes_on` is False."""
        self._name = name
        self._work = work
        self._numbers = itertools.count()
        self._wanted = 0
        #: Thread number as `threading.get_ident` gives it → the thread. Without those that were replaced.
        self._members: dict[int, threading.Thread] = {}
        self._changed = threading.Condition()

    def resize(self, wanted: int) -> None:
        """Start threads until there are so many; surplus ones end after their present message."""
        with self._changed:
            self._wanted = wanted
            for _ in range(wanted - len(self._members)):
                self._start(None)

    def replace(self, thread: int, first: Callable[[], None]) -> None:
        """This thread hangs: it is not waited for any more. Another one takes its place, and does `first` first."""
        with self._changed:
            self._members.pop(thread, None)
            self._start(first)
            self._changed.notify_all()

    def goes_on(self) -> bool:
        """Whether the calling thread is still wanted; if not, it has to end."""
        with self._changed:
            if len(self._members) > self._wanted:
                self._members.pop(threading.get_ident(), None)
            return threading.get_ident() in self._members

    def is_member(self) -> bool:
        """Whether the calling thread was not replaced."""
        return threading.get_ident() in self._members

    def __len__(self) -> int:
        return len(self._members)

    def wait(self, seconds: float) -> None:
        """Until a thread has ended or was replaced, but not longer than this."""
        with self._changed:
            self._changed.wait(seconds)

    def threads(self) -> list[threading.Thread]:
        with self._changed:
            return list(self._members.values())

    def _start(self, first: Callable[[], None] | None) -> None:
        is_known = threading.Event()

        def run() -> None:
            is_known.wait()
            try:
                if first:
                    first()
                self._work()
            finally:
                with self._changed:
                    self._members.pop(threading.get_ident(), None)
                    self._changed.notify_all()

        thread = threading.Thread(target=run, name=f"{self._name}-{next(self._numbers)}", daemon=True)
        thread.start()
        assert thread.ident is not None
        self._members[thread.ident] = thread
        is_known.set()
