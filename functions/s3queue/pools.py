"""submitted: hands work to a pool of threads, or keeps it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor


def submitted(pool: Executor, work: Callable[[], None]) -> bool:
    """Whether a thread of the pool does the work; if not, no thread can be started now, and it is the caller's.

    A pool queues its work before it starts a thread: if that fails, `submit` raises, and another thread of the pool
    still comes to it. So whoever is first does it, and nobody else.
    """
    taken = threading.Lock()

    def run() -> None:
        if taken.acquire(blocking=False):
            work()

    try:
        pool.submit(run)
    except RuntimeError:
        # The pool was closed, the interpreter ends, or it has too many threads.
        return not taken.acquire(blocking=False)
    return True
