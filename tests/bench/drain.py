"""Our side of a comparison: a queue on the benchmark's server, filled, then drained by one pull worker."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from s3queue import Queue, QueueSettings, Worker, connect
from servers import ACCESS_KEY, REGION, SECRET_KEY


@dataclass(frozen=True, slots=True)
class Processed:
    """How many messages came to an end, in how many seconds from the first handler's start."""

    messages: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.messages / self.seconds


def queue_at(endpoint: str, bucket: str, name: str = "", **settings: Any) -> Queue:
    """A queue on a test server, through the fastest store that we ship; a new one unless it is named."""
    name = name or f"ours-{uuid.uuid4().hex[:12]}"
    # Only while it is opened: later parts of the benchmark have credentials of their own.
    with patch.dict(os.environ, AWS_ACCESS_KEY_ID=ACCESS_KEY, AWS_SECRET_ACCESS_KEY=SECRET_KEY):
        os.environ.pop("AWS_PROFILE", None)
        return connect(
            f"s3://{bucket}/{name}",
            endpoint_url=endpoint,
            region=REGION,
            store="direct",
            settings=QueueSettings.of(**settings),
        )


def fill(queue: Queue, messages: int, body: Any, *, threads: int = 16) -> None:
    """Enqueue this many, one object each."""
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(lambda _: queue.enqueue(body), range(messages)):
            pass


@contextmanager
def draining(queue: Queue, *, concurrency: int, failures: int = 0) -> Iterator[Callable[..., Processed]]:
    """Run a worker whose handler does nothing (or fails this often first).

    Yields what waits until so many messages have ended, or so many seconds since the first handler started.
    """
    started = threading.Event()
    began_at: list[float] = []

    def handler(_body: dict, context: Any) -> None:
        if not started.is_set():
            began_at.append(time.perf_counter())
            started.set()
        if context.attempt <= failures:
            raise RuntimeError("as told")

    worker = Worker(queue, handler, concurrency=concurrency)

    def ended() -> int:
        counts = worker.stats()
        return counts["succeeded"] + counts["dead"]

    def wait(messages: int, *, seconds: float) -> Processed:
        if not started.wait(60):
            raise RuntimeError(f"{queue.name}: no handler started within a minute")
        until = began_at[0] + seconds
        while (done := ended()) < messages and time.perf_counter() < until:
            time.sleep(0.002)
        return Processed(done, time.perf_counter() - began_at[0])

    worker.start()
    try:
        yield wait
    finally:
        worker.stop()
