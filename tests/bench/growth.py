"""Growth: what the queue's operations cost with 100 to 1,000,000 messages waiting, and how much memory they take.

CPU and requests on a bucket that makes its messages up, where only our own code costs anything; time on SeaweedFS, up
to 10,000 messages, because filling it takes longer than measuring. The slope is the exponent of growth between the
second and the last size in a log-log plot: 0 is flat, 1 a straight line.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from s3queue.clock import Clock, SystemClock
from s3queue.connect import open_store
from s3queue.dashboard.api import build
from s3queue.dashboard.resolver import Resolver
from s3queue.queue import Queue
from s3queue.settings import QueueSettings
from s3queue.store import ObjectStore
from s3queue.sweeper.sweeper import Sweeper
from support.api_calls import event
from support.counting_store import CountingStore
from support.manual_clock import ManualClock
from support.s3_servers import ACCESS_KEY, REGION, fresh_bucket, s3_client, seaweedfs_server

from .growth_memory import BODY, MESSAGES, QUEUE, EndlessStore
from .growth_partition import Partition
from .instruments import plot
from .instruments.harness import Bench, Part
from .instruments.scene import credentials

IN_MEMORY = (100, 1_000, 10_000, 100_000, 1_000_000)
IN_PARTITION = (10_000, 100_000, 1_000_000)
ON_A_SERVER = (100, 1_000, 10_000)
DRAINED = (1_000, 10_000, 100_000)
LINES = (10_000, 100_000, 1_000_000)
PLOT = Path("build/bench/growth.svg")
CLAIMED = 100
#: A measurement is repeated within a repetition until it took this long: most take microseconds.
LONG_ENOUGH_SECONDS = 0.1
FILLERS = 16


@dataclass(frozen=True, slots=True)
class Scene:
    """A queue with so many messages waiting, all of them old enough to be the sweeper's business."""

    size: int
    store: CountingStore
    queue: Queue
    app: Resolver

    @classmethod
    def of(cls, inner: ObjectStore, size: int, clock: Clock) -> Scene:
        store = CountingStore(inner)
        settings = QueueSettings.of(rescue_after=1)
        queue = Queue(store=store, name=QUEUE, settings=settings, clock=clock)
        clock.sleep(3)
        scene = cls(size, store, queue, build(store, defined={QUEUE: settings}, discover=False))
        scene.sweep()
        return scene

    def claim(self) -> Callable[[], None]:
        claims = self.queue.claim_next(CLAIMED)
        assert len(claims) == CLAIMED, len(claims)

        def give_back() -> None:
            for claim in claims:
                self.queue.release(claim)

        return give_back

    def stats(self) -> None:
        assert self.queue.stats().pending == self.size

    def sweep(self) -> None:
        """By a new sweeper, which finds an orphan in every message."""
        sweeper = Sweeper(queue=self.queue, dispatch=lambda paths: None)
        report = sweeper.sweep()
        assert report.complete
        assert report.stats
        assert report.stats.pending == self.size

    def look_at_due(self) -> None:
        Sweeper(queue=self.queue, dispatch=lambda paths: None).sweep_due()

    def ask(self, address: str, **query: str) -> None:
        answer = self.app.answer(event("GET", address, query=query), None)
        assert answer["statusCode"] == 200, answer

    def operations(self) -> dict[str, Callable[[], Any]]:
        messages = f"/api/queues/{QUEUE}/messages"
        middle = f"messages/{self.size // 2:08d}"
        return {
            f"claim of {CLAIMED}": self.claim,
            "stats": self.stats,
            "sweep": self.sweep,
            "sweep, between two": self.look_at_due,
            "dashboard: overview": lambda: self.ask("/api/queues"),
            "dashboard: messages": lambda: self.ask(messages, state="pending"),
            "dashboard: one message": lambda: self.ask(f"/api/queues/{QUEUE}/message", path=middle),
        }


def run(bench: Bench) -> None:
    with bench.part("growth", "Growth: cost and memory by the number of messages") as part:
        costs = _in_memory(bench, part)
        _in_a_partition(bench, part)
        _on_a_server(bench, part)
        memory = _memory(bench, part)
        plot.growth(costs, memory, PLOT)
        bench.note("a batch is one PUT, so whoever enqueues it holds its bytes once")


def _in_memory(bench: Bench, part: Part) -> dict[str, dict[int, float]]:
    """CPU-milliseconds, by operation and size; the median of the repetitions."""
    measured = _measure(bench, IN_MEMORY, time.process_time, _memory_scene)
    part.raw["in memory"] = measured
    for what, sizes in measured.items():
        _row(bench, f"{what}, CPU", sizes, IN_MEMORY[1:])
    return {what: {size: _median(found["ms"]) for size, found in sizes.items()} for what, sizes in measured.items()}


def _in_a_partition(bench: Bench, part: Part) -> None:
    measured = _measure(bench, IN_PARTITION, time.process_time, Partition.of)
    part.raw["in a partition"] = measured
    for what, sizes in measured.items():
        _row(bench, f"{what}, CPU", sizes, IN_PARTITION)


def _on_a_server(bench: Bench, part: Part) -> None:
    with seaweedfs_server() as endpoint:
        client = s3_client(endpoint)

        def scene(size: int) -> Scene:
            bucket = fresh_bucket(client)
            with credentials():
                store, _ = open_store(f"s3://{bucket}", endpoint_url=endpoint, region=REGION, store="direct")
            with ThreadPoolExecutor(FILLERS) as pool:
                list(pool.map(lambda number: store.put(f"{MESSAGES}{number:08d}", BODY), range(size)))
            return Scene.of(store, size, SystemClock())

        measured = _measure(bench, ON_A_SERVER, time.perf_counter, scene)
    part.raw["on SeaweedFS"] = measured
    for what, sizes in measured.items():
        _row(bench, f"{what}, on SeaweedFS", sizes, ON_A_SERVER[1:])


def _memory_scene(size: int) -> Scene:
    clock = ManualClock()
    return Scene.of(EndlessStore(size, clock=clock), size, clock)


#: What was done → with how many messages → milliseconds of every repetition, and requests by verb.
Measured = dict[str, dict[int, dict[str, Any]]]
Timer = Callable[[], float]


class Measurable(Protocol):
    """So many messages, and what can be done to them."""

    @property
    def size(self) -> int: ...
    @property
    def store(self) -> CountingStore: ...
    def operations(self) -> dict[str, Callable[[], Any]]: ...


def _measure(bench: Bench, sizes: Sequence[int], clock: Timer, scene: Callable[[int], Measurable]) -> Measured:
    measured: Measured = {}
    scenes = [scene(size) for size in sizes]
    # Size after size within a repetition: a slope is taken from measurements that were made side by side.
    for turn in range(bench.repetitions):
        for made in scenes:
            with bench.console.status(f"{made.size:,} messages: {turn + 1} of {bench.repetitions}"):
                for what, operation in made.operations().items():
                    found = measured.setdefault(what, {}).setdefault(made.size, {"ms": []})
                    took, found["requests"] = _mean(operation, clock, made.store)
                    found["ms"].append(took * 1000)
    return measured


def _mean(operation: Callable[[], Any], clock: Timer, store: CountingStore) -> tuple[float, dict[str, int]]:
    total, times = 0.0, 0
    requests: dict[str, int] = {}
    while total < LONG_ENOUGH_SECONDS:
        store.take()
        began = clock()
        undo = operation()
        total, times = total + clock() - began, times + 1
        requests = store.take()
        if undo:
            undo()
    return total / times, requests


def _row(bench: Bench, what: str, sizes: dict[int, dict[str, Any]], ends: Sequence[int]) -> None:
    first, last = ends[0], ends[-1]
    slopes = [slope(first, a, last, b) for a, b in zip(sizes[first]["ms"], sizes[last]["ms"], strict=True)]
    said = " → ".join(
        f"{_median(sizes[size]['ms']):,.3g} ms, {sum(sizes[size]['requests'].values())} requests"
        for size in (first, last)
    )
    bench.series(what, slopes, unit="slope", note=f"{said} ({first:,} → {last:,})")


def _memory(bench: Bench, part: Part) -> dict[str, dict[int, float]]:
    """MiB at the highest, beyond what was there before the first message."""
    found: dict[str, dict[int, float]] = {}
    with seaweedfs_server() as endpoint:
        client = s3_client(endpoint)
        found["a worker that drains it"] = {size: _child(endpoint, "drain", size) for size in DRAINED}
        for size in LINES:
            # A process each: what one of them frees, the other would use.
            url = f"s3://{fresh_bucket(client)}/{QUEUE}"
            for what, doing in (("enqueue", "a batch of so many lines, enqueued"), ("process", "the same, processed")):
                found.setdefault(doing, {})[size] = _child(endpoint, what, size, url)
    part.raw["memory"] = found
    for what, sizes in found.items():
        first, last = min(sizes), max(sizes)
        before = ", ".join(f"{mib:.3g} at {size:,}" for size, mib in sizes.items() if size != last)
        grown = slope(first, sizes[first], last, sizes[last])
        bench.series(f"memory: {what}", [sizes[last]], unit="MiB", note=f"{last:,} ({before}; slope {grown:.2f})")
    return found


def _child(endpoint: str, what: str, size: int, url: str = "") -> float:
    keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": ACCESS_KEY, "AWS_REGION": REGION}
    done = subprocess.run(
        [sys.executable, "-m", "bench.growth_memory", what, str(size), *([url] if url else [])],
        env=os.environ | keys | {"AWS_ENDPOINT_URL": endpoint, "AWS_DEFAULT_REGION": REGION},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{what} of {size} failed:\n{done.stderr[-2000:]}")
    return float(json.loads(done.stdout))


def slope(first: int, cost: float, last: int, later: float) -> float:
    return math.log(later / cost) / math.log(last / first)


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
