"""What others claim for queues of this kind, with ours measured beside it, all in one run.

The claims are those of the five systems that set the bar, as their own documents state them; each is taken at its best
end. Ours run on SeaweedFS, through a proxy that makes every request 20 ms slower where the claim is one for S3. Not all
claims hold where they were made: what the plugin does here is in the part `plugin`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from s3queue import Queue, Worker
from s3queue.costs.prices import requests_cost
from s3queue.costs.requests import BILLED_AS_READS, BILLED_AS_WRITES
from s3queue.costs.workload import Workload, light_object
from s3queue.settings import QueueSettings
from s3queue.stores.memory import MemoryStore
from support.counting_store import CountingStore
from support.s3_servers import ACCESS_KEY, REGION, SECRET_KEY, fresh_bucket, s3_client, seaweedfs_server

from .instruments.delay import proxy
from .instruments.harness import Bench
from .instruments.scene import drain, fill, queue_at, seconds
from .limit import bare_puts

#: The S3 queue plugin's, at so many at a time: milliseconds a message, and messages a second.
LATENCY_MS = {3: 150.0, 50: 400.0}
RATES = {3: 10.0, 50: 150.0}
#: Messages for one measurement of a rate.
MESSAGES = {3: 60, 50: 500}
REQUEST_SECONDS = 0.02
PLUGIN_REQUESTS, PLUGIN_DOLLARS = 9.0, 5.0
#: The priority queue on S3: each of the two.
ENQUEUE_MS = DEQUEUE_MS = 10.0
#: The PostgreSQL queue, for each worker.
ENQUEUES, DEQUEUES = 10_000.0, 5_000.0
SINGLES, LINES, PER_OBJECT = 300, 100_000, 100
#: After how many seconds a message of a killed worker runs again, with a timeout of five: as measured of the plugin.
TIMEOUT_SECONDS, BACK_SECONDS = 5.0, 6.5
PLUGIN, PRIORITY_QUEUE, POSTGRES = "claimed: S3 queue plugin", "claimed: S3 priority queue", "claimed: PostgreSQL queue"
#: Claims a message and dies as a machine does.
CRASH = """
import os, sys
from s3queue import connect
queue = connect(sys.argv[1], store="direct")
claim = queue.claim(sys.argv[2], timeout=float(sys.argv[3]))
assert claim
print(flush=True)
os.kill(os.getpid(), 9)
"""


def run(bench: Bench) -> None:
    with bench.part("claims", "What others claim, and ours beside it"), seaweedfs_server() as endpoint:
        bucket = fresh_bucket(s3_client(endpoint))
        with proxy(endpoint, seconds=REQUEST_SECONDS) as slow:
            for concurrency in RATES:
                _rates(bench, endpoint, slow.endpoint, bucket, concurrency)
        # What client and server can do at all, here and now: a claim made elsewhere knows nothing of this machine.
        bench.figure("for comparison: bare PUTs/s, 8 threads", lambda: bare_puts(endpoint), unit="/s")
        _one_by_one(bench, endpoint, bucket)
        _per_worker(bench, endpoint, bucket)
        _requests(bench)
        _crash(bench, endpoint, bucket)


def _repeated(bench: Bench, what: str, measure: Callable[[], float], claim: float, whose: str, **options: str) -> None:
    pairs = [(measure(), claim) for _ in range(bench.repetitions)]
    bench.pair(what, pairs, whose, **options)  # type: ignore[arg-type]  # unit and better are texts


def _rates(bench: Bench, endpoint: str, slow: str, bucket: str, concurrency: int) -> None:
    def rate() -> float:
        queue = queue_at(endpoint, bucket)
        fill(queue, MESSAGES[concurrency])
        queue = queue_at(slow, bucket, queue.name)
        return MESSAGES[concurrency] / seconds(lambda: drain(queue, concurrency))

    rates = [rate() for _ in range(bench.repetitions)]
    at = f"{concurrency} at a time, +20 ms a request"
    bench.pair(f"messages/s, {at}", [(one, RATES[concurrency]) for one in rates], PLUGIN, unit="/s")
    # As many are under way at all times: each takes that many times the time between two ends.
    spent = [(1000 * concurrency / one, LATENCY_MS[concurrency]) for one in rates]
    bench.pair(f"a message, claim to outcome, {at}", spent, PLUGIN, unit="ms", better="less")


def _one_by_one(bench: Bench, endpoint: str, bucket: str) -> None:
    queue = queue_at(endpoint, bucket)
    found: dict[str, list[list[float]]] = {"enqueue": [], "dequeue": []}
    for _ in range(bench.repetitions):
        took: dict[str, list[float]] = {"enqueue": [], "dequeue": []}
        for number in range(SINGLES):
            began = time.perf_counter()
            path = queue.enqueue({"n": number})
            enqueued = time.perf_counter()
            claim = queue.claim(path)
            took["enqueue"].append((enqueued - began) * 1000)
            took["dequeue"].append((time.perf_counter() - enqueued) * 1000)
            assert claim
            queue.complete(claim)
        for what, values in took.items():
            found[what].append(values)
    for what, runs in found.items():
        for name, place in (("p50", 49), ("p99", 98)):
            values = [statistics.quantiles(one, n=100, method="inclusive")[place] for one in runs]
            pairs = [(value, ENQUEUE_MS if what == "enqueue" else DEQUEUE_MS) for value in values]
            bench.pair(f"{what}, one by one, {name}", pairs, PRIORITY_QUEUE, unit="ms", better="less")


def _per_worker(bench: Bench, endpoint: str, bucket: str) -> None:
    """One process on each side; ours has four threads."""
    bodies = [{"n": number} for number in range(LINES)]

    def enqueue_many() -> float:
        queue = queue_at(endpoint, bucket)
        return LINES / seconds(lambda: queue.enqueue_many(bodies, per_object=PER_OBJECT))

    def process_batches() -> float:
        queue = queue_at(endpoint, bucket)
        queue.enqueue_many(bodies, per_object=PER_OBJECT)
        return LINES / seconds(lambda: drain(queue, 4))

    def buffered() -> float:
        queue = queue_at(endpoint, bucket)

        def send() -> None:
            with queue.buffer(linger=0.1, per_object=PER_OBJECT) as buffer:
                for body in bodies[: LINES // 5]:
                    buffer.enqueue(body)

        return LINES // 5 / seconds(send)

    def enqueue() -> float:
        queue = queue_at(endpoint, bucket)
        return 2000 / seconds(lambda: fill(queue, 2000, {"n": 1}, threads=4))

    def process() -> float:
        queue = queue_at(endpoint, bucket)
        fill(queue, 1000, {"n": 1})
        return 1000 / seconds(lambda: drain(queue, 4))

    for what, measure, claim in (
        (f"enqueue, {PER_OBJECT} per object", enqueue_many, ENQUEUES),
        (f"enqueue one by one into a buffer, {PER_OBJECT} per object", buffered, ENQUEUES),
        ("enqueue, 1 per object", enqueue, ENQUEUES),
        (f"process, {PER_OBJECT} per object", process_batches, DEQUEUES),
        ("process, 1 per object", process, DEQUEUES),
    ):
        _repeated(bench, f"{what}: messages/s", measure, claim, POSTGRES, unit="/s")


def _requests(bench: Bench) -> None:
    """Counted, and from the model that they are checked against: these have no spread."""
    store = CountingStore(MemoryStore("counted"))
    queue = Queue(store=store, name="orders", settings=QueueSettings())
    fill(queue, SINGLES, threads=1)
    assert drain(queue, 1) == SINGLES
    each = sum(store.take().values()) / SINGLES
    bench.pair("requests a message", [(each, PLUGIN_REQUESTS)], PLUGIN, unit="", better="less")
    for what, load in (
        ("1 per object", Workload(rate=100)),
        ("1 per object, busy partition", Workload(rate=100, settings=QueueSettings.of(partitions=1))),
        ("10 per object", Workload(rate=100, batch=10)),
        ("100 per object", Workload(rate=100, batch=100)),
    ):
        spent = light_object(load) * (1_000_000 / load.batch)
        cost = requests_cost(puts=spent.total(BILLED_AS_WRITES), gets=spent.total(BILLED_AS_READS))
        bench.pair(f"S3 requests of a million, {what}", [(cost, PLUGIN_DOLLARS)], PLUGIN, unit="$", better="less")


def _crash(bench: Bench, endpoint: str, bucket: str) -> None:
    """From a worker's claim, whose process is killed, to the start of the next attempt."""
    known = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": REGION}

    def back() -> float:
        queue = queue_at(endpoint, bucket, visibility_timeout=TIMEOUT_SECONDS, handler_timeout=TIMEOUT_SECONDS)
        path = queue.enqueue({"n": 1})
        environment = os.environ | known | {"AWS_ENDPOINT_URL": endpoint, "AWS_DEFAULT_REGION": REGION}
        crashed = subprocess.run(
            [sys.executable, "-c", CRASH, f"s3://{bucket}/{queue.name}", path, str(TIMEOUT_SECONDS)],
            env=environment,
            capture_output=True,
            check=False,
        )
        claimed_at = time.perf_counter()
        assert crashed.stdout, crashed.stderr.decode()[-500:]
        started = threading.Event()
        worker = Worker(queue, lambda message: started.set(), concurrency=1, poll_interval=0.2)
        worker.start()
        try:
            assert started.wait(60), "the message did not come back"
            return time.perf_counter() - claimed_at
        finally:
            worker.stop()

    what = f"back after kill -9, with a timeout of {TIMEOUT_SECONDS:.0f} s"
    _repeated(bench, what, back, BACK_SECONDS, "measured: S3 queue plugin", unit="s", better="less")
