"""What the measurements stand on: a queue on the benchmark's server, filled, then drained by one pull worker."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from s3queue import Queue, QueueSettings, Worker, connect
from s3queue.connect import StoreKind
from servers import ACCESS_KEY, REGION, SECRET_KEY

#: 300 bytes, as in other comparisons of S3 clients.
BODY = b'{"to":"ada@example.com","subject":"Your order","text":"' + b"x" * 243 + b'"}'


@dataclass(frozen=True, slots=True)
class Processed:
    """How many messages came to an end, in how many seconds from the first handler's start."""

    messages: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.messages / self.seconds


@contextmanager
def credentials() -> Iterator[None]:
    """The test servers', for as long as something is opened; other parts of the benchmark have their own."""
    known = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_DEFAULT_REGION": REGION}
    with patch.dict(os.environ, known):
        os.environ.pop("AWS_PROFILE", None)
        yield


def queue_at(endpoint: str, bucket: str, name: str = "", store: StoreKind = "direct", **settings: Any) -> Queue:
    """A queue on a test server, through the fastest store that we ship; a new one unless it is named."""
    name = name or f"ours-{uuid.uuid4().hex[:12]}"
    with credentials():
        return connect(
            f"s3://{bucket}/{name}",
            endpoint_url=endpoint,
            region=REGION,
            store=store,
            settings=QueueSettings.of(**settings),
        )


def fill(queue: Queue, messages: int, body: Any = BODY, *, threads: int = 16) -> None:
    """Enqueue this many, one object each."""
    in_threads(threads, lambda _: queue.enqueue(body), range(messages))


def drain(queue: Queue, concurrency: int) -> int:
    """Everything that is in the queue, through a pull worker whose handler does nothing; how many that were."""
    worker = Worker(queue, lambda message: None, concurrency=concurrency, sweep=False, poll_interval=0.2)
    worker.run_until_empty()
    return worker.stats()["succeeded"]


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


def in_threads(threads: int, work: Callable[[Any], object], items: Iterable[Any]) -> None:
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(work, items):
            pass


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
