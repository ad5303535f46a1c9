"""The buffered producer: single messages from eight threads, until each is durable.

Against `enqueue` from as many threads, and PGMQ's `send` over as many connections, in turns. A message of the buffer is
durable when its future has a result; every fiftieth is timed, from the call of `enqueue` on. At full speed the threads
push until the buffer holds them back; paced, they send what a busy web service might.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from s3queue import Queue
from s3queue.costs.prices import MILLION, requests_cost
from s3queue.flow.buffer import LINGER_SECONDS
from s3queue.store import ObjectStore, Written
from support.s3_servers import fresh_bucket, s3_client, seaweedfs_server

from .batches import pgmq_server
from .instruments.harness import Bench, Part
from .instruments.scene import in_threads, queue_at
from .peers.postgres import Postgres

THREADS = 8
#: Of one repetition: five of them are the million of the goal.
MESSAGES, PACED, SINGLES = 200_000, 20_000, 2_000
#: Messages/s of all threads together.
PACE = 4_000
TIMED_EVERY = 50
FASTER = 20


def run(bench: Bench) -> None:
    with bench.part("buffer", "The buffered producer: singles from eight threads") as part, ExitStack() as stack:
        endpoint = stack.enter_context(seaweedfs_server())
        bucket = fresh_bucket(s3_client(endpoint))
        server = stack.enter_context(pgmq_server(bench))
        found = Found()
        with bench.console.status("messages/s") as status:
            for turn in range(bench.repetitions):
                status.update(f"messages/s: {turn + 1} of {bench.repetitions}")
                steps: list[Callable[[], None]] = [
                    lambda: found.full.append(_buffered(queue_at(endpoint, bucket), MESSAGES)),
                    lambda: found.singles.append(_singles(queue_at(endpoint, bucket))),
                    lambda: found.paced.append(_buffered(queue_at(endpoint, bucket), PACED, pace=PACE)),
                ]
                if server:
                    steps.append(lambda: found.sends.append(_sends(server)))
                for step in steps if turn % 2 else reversed(steps):
                    step()
        _show(bench, part, found)


@dataclass(frozen=True, slots=True)
class Buffered:
    """One run of the buffer."""

    per_second: float
    #: Until durable, in milliseconds, of those that were timed.
    waits: list[float]
    #: The PUTs of the same run.
    puts: list[float]
    objects: int
    messages: int


@dataclass(slots=True)
class Found:
    full: list[Buffered] = field(default_factory=list)
    paced: list[Buffered] = field(default_factory=list)
    singles: list[float] = field(default_factory=list)
    sends: list[float] = field(default_factory=list)


def _show(bench: Bench, part: Part, found: Found) -> None:
    full = [one.per_second for one in found.full]
    bench.pair(
        "messages/s, full speed",
        list(zip(full, found.singles, strict=True)),
        f"enqueue, {THREADS} threads",
        unit="/s",
        goal=FASTER,
    )
    if found.sends:
        against = f"PGMQ, send, {THREADS} connections"
        bench.pair("messages/s, full speed", list(zip(full, found.sends, strict=True)), against, unit="/s")
    for what, runs in (("full speed", found.full), (f"{PACE:,} a second", found.paced)):
        linger = LINGER_SECONDS * 1000
        bench.series(f"until durable, {what}, p50", [_percentile(one.waits, 50) for one in runs], unit="ms")
        pairs = [(_percentile(one.waits, 99), linger + 2 * _percentile(one.puts, 99)) for one in runs]
        against = f"{linger:g} ms of linger and two PUTs (p99)"
        bench.pair(f"until durable, {what}, p99", pairs, against, unit="ms", better="less", goal=1)
        objects = [one.messages / one.objects for one in runs]
        bench.series(f"messages per object, {what}", objects, unit="")
        dollars = [MILLION * requests_cost(puts=one.objects) / one.messages for one in runs]
        bench.series(f"S3's price to enqueue a million, {what}", dollars, unit="$", note="$5 by enqueue")
    part.raw["puts, ms"] = [[round(one, 3) for one in run.puts] for run in found.full]


def _percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def _body(number: int) -> dict[str, Any]:
    return {"number": number, "payload": "x" * 100}


class _TimedPuts:
    """A store that notes how long each PUT takes."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.took: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put(self, *given: Any, **options: Any) -> Written:
        began = time.perf_counter()
        try:
            return self._store.put(*given, **options)
        finally:
            self.took.append((time.perf_counter() - began) * 1000)


def _buffered(queue: Queue, messages: int, pace: float = 0.0) -> Buffered:
    store = _TimedPuts(queue.store)
    queue = Queue(store=store, name=queue.name)  # type: ignore[arg-type]
    waits: list[float] = []
    each = messages // THREADS
    began = time.perf_counter()
    with queue.buffer() as buffer:

        def send() -> None:
            for number in range(each):
                if pace:
                    time.sleep(max(0.0, began + number * THREADS / pace - time.perf_counter()))
                called = time.perf_counter()
                future = buffer.enqueue(_body(number))
                if number % TIMED_EVERY == 0:
                    future.add_done_callback(_noting(waits, called))

        threads = [threading.Thread(target=send) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    took = time.perf_counter() - began
    return Buffered(messages / took, waits, store.took, len(store.took), messages)


def _noting(waits: list[float], called: float) -> Callable[[Future[Any]], None]:
    return lambda _: waits.append((time.perf_counter() - called) * 1000)


def _singles(queue: Queue) -> float:
    began = time.perf_counter()
    in_threads(THREADS, lambda number: queue.enqueue(_body(number)), range(SINGLES))
    return SINGLES / (time.perf_counter() - began)


def _sends(server: Postgres) -> float:
    import psycopg

    name = f"q{uuid.uuid4().hex[:12]}"
    with ExitStack() as stack:
        connections = [stack.enter_context(psycopg.connect(server.address, autocommit=True)) for _ in range(THREADS)]
        connections[0].execute("SELECT pgmq.create(%s)", (name,))

        def send(connection: Any) -> None:
            for number in range(SINGLES // THREADS):
                connection.execute("SELECT pgmq.send(%s, %s::jsonb)", (name, json.dumps(_body(number))))

        began = time.perf_counter()
        in_threads(THREADS, send, connections)
        took = time.perf_counter() - began
        connections[0].execute("SELECT pgmq.drop_queue(%s)", (name,))
    return SINGLES / took
