"""The sweeper's minute: how long a sweep of a long queue takes, and how many queues one sweeper function can have.

A function of 512 MiB has 0.29 of a core, and a request takes 30 ms: CPU time is measured here, waits are counted. The
queues of one function are swept by the shipped handler over a bucket in memory, in virtual time: every request moves
the clock on. A queue with work should be looked at every two seconds, or what is due comes late.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from unittest.mock import Mock

from handlers import sweeper as handler
from s3queue.costs.workload import MIB_PER_VCPU, REQUEST_SECONDS
from s3queue.deployment import QUEUES_PER_SWEEPER, SWEEPER_MIB, SWEEPER_STAYS_SECONDS
from s3queue.queue import Queue
from s3queue.settings import QueueSettings
from s3queue.store import listing
from s3queue.stores import direct
from s3queue.stores.connections import Answer
from s3queue.stores.memory import MemoryStore
from s3queue.sweeper.sweeper import DUE_SECONDS, SWEEP_SECONDS, Sweeper
from support.counting_store import CountingStore
from support.manual_clock import ManualClock

from .growth import Scene
from .growth_memory import MESSAGES, EndlessStore
from .instruments.harness import Bench

SIZES = (100_000, 1_000_000)
SHARE = SWEEPER_MIB / MIB_PER_VCPU
#: How often an answer is read for one measurement.
PARSED = 20
QUEUES = (10, 20, QUEUES_PER_SWEEPER, 34, 50)


def run(bench: Bench) -> None:
    with bench.part("sweeping", "The sweeper's minute") as part:
        parsing = [parsed() for _ in range(bench.repetitions)]
        bench.series("a LIST of 1,000 objects, read, CPU", parsing, unit="ms")
        for size in SIZES:
            seconds, requests = _swept(size, parsing)
            passes = -(-max(seconds) // SWEEP_SECONDS)
            note = f"{requests:,} requests; {SWEEP_SECONDS:.0f} s at a time, so in {passes:.0f} sweeps"
            bench.series(f"a sweep of {size:,} messages", seconds, unit="s", note=note)
        part.raw["queues"] = {}
        for queues in QUEUES:
            looks = part.raw["queues"][queues] = looked_at(queues)
            note = f"between two looks at a queue; {looks['looks']} looks a minute, {looks['requests']} requests"
            bench.series(f"{queues} busy queues of one function", [looks["longest"]], unit="s", note=note)
        bench.note(
            f"a function has {QUEUES_PER_SWEEPER} queues at most: its role has no room for more of the longest names; "
            f"a queue with work is due every {DUE_SECONDS:.0f} s"
        )


def _swept(size: int, parsing: Sequence[float]) -> tuple[list[float], int]:
    """Seconds of a sweep in the sweeper's function, if nothing cut it short, and its requests."""
    clock = ManualClock()
    scene = Scene.of(EndlessStore(size, clock=clock), size, clock)
    seconds = []
    for parsed_ms in parsing:
        # What the bucket in memory needs to make its messages up is not the sweeper's.
        made_up = _cpu(lambda: sum(len(page.objects) for page in listing(scene.store, MESSAGES)))
        scene.store.take()
        took = _cpu(scene.sweep) - made_up
        requests = sum(scene.store.take().values())
        seconds.append(requests * REQUEST_SECONDS + (took + requests * parsed_ms / 1000) / SHARE)
    return seconds, requests


def _cpu(work: Any) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def parsed() -> float:
    """CPU-milliseconds that the functions' store needs for the answer to a LIST."""
    entries = "".join(
        f"<Contents><Key>{MESSAGES}{number:08d}</Key><LastModified>2026-11-17T15:{number % 60:02d}:00.000Z"
        "</LastModified><ETag>&quot;d41d8cd98f00b204e9800998ecf8427e&quot;</ETag><ChecksumAlgorithm>CRC32"
        "</ChecksumAlgorithm><Size>300</Size><StorageClass>STANDARD</StorageClass></Contents>"
        for number in range(1000)
    )
    head = "<EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>"
    body = f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{head}{entries}</ListBucketResult>'
    answer, at = Answer(200, {}, body.encode()), datetime.now(UTC)

    def read() -> None:
        for _ in range(PARSED):
            assert len(direct._page(direct._parsed(answer, "ListBucketResult"), at).objects) == 1000

    return _cpu(read) * 1000 / PARSED


class SlowStore(CountingStore):
    """Every request takes as long as the model takes it to."""

    def __init__(self, inner: MemoryStore, clock: ManualClock) -> None:
        super().__init__(inner)
        self._clock = clock
        self.looks: dict[str, list[float]] = {}

    def _count(self, verb: str, key: str) -> None:
        super()._count(verb, key)
        self._clock.advance(REQUEST_SECONDS)
        if verb == "list":
            self.looks.setdefault(key.partition("/")[0], []).append(self._clock.monotonic())


def looked_at(queues: int) -> dict[str, Any]:
    """The longest time between two looks at a queue, in a minute in which every one has work."""
    clock = ManualClock()
    store = SlowStore(MemoryStore("busy", clock=clock), clock)
    rounds = {}
    for number in range(queues):
        name = f"queue-{number:02d}"
        queue = Queue(store=store, name=name, settings=QueueSettings(), clock=clock, worker_id="worker")
        for _ in range(3):
            queue.enqueue({})
        # One is at work, one waits for a retry: the sweeper has to stay awake, and to look for both.
        at_work, waits, _ = (entry.key.removeprefix(f"{name}/") for entry in store.list(f"{name}/messages/").objects)
        queue.claim(at_work)
        queue.fail(queue.claim(waits), "later", retry_after=45)
        sweeper = Sweeper(queue=queue, dispatch=lambda paths: None, counts_hour=True)
        rounds[name] = handler.Round("worker", sweeper, Mock())
    store.take()
    store.looks.clear()
    now = clock.monotonic()
    handler._sweep(handler.Runtime(rounds, {}, None, clock), now + SWEEPER_STAYS_SECONDS, now + 85)
    gaps = [
        later - before
        for looks in store.looks.values()
        for before, later in zip([now, *looks], [*looks, now + SWEEPER_STAYS_SECONDS], strict=True)
    ]
    looks = min(len(looks) for looks in store.looks.values())
    return {"longest": max(gaps), "looks": looks, "requests": sum(store.take().values())}
