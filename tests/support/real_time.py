"""For the tests of threads, which run under this machine's clock: nothing here depends on how fast it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from s3queue import Queue, QueueSettings
from s3queue.stores.memory import MemoryStore
from support.counting_store import CountingStore

#: For what must happen, however busy the machine is.
PATIENCE = 60.0


def real_queue(**settings: Any) -> Queue:
    """A queue in memory under this machine's clock."""
    options = {"retry_jitter": False} | settings
    return Queue(store=CountingStore(MemoryStore()), name="orders", settings=QueueSettings.of(**options))


def eventually(fact: Callable[[], Any]) -> None:
    give_up_at = time.monotonic() + PATIENCE
    while not fact():
        assert time.monotonic() < give_up_at, "it never happened"
        time.sleep(0.01)
