"""Several machines: 1, 2 and 4 producer processes, and 1, 2 and 4 worker processes, on one queue of one server.

What is gained until the server is the limit (here it has the same two cores as they); how many claims the workers lose
to one another; how equal their shares are; and whether a message needs the requests that `s3queue estimate` says,
however many work on it.
"""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from dataclasses import dataclass, field

from s3queue import QueueSettings
from s3queue.costs.workload import Workload, light_object
from support.s3_servers import fresh_bucket, s3_client, seaweedfs_server

from .instruments.crews import Did, crew
from .instruments.delay import Proxy, proxy
from .instruments.harness import Bench
from .instruments.scene import fill, queue_at

PROCESSES = (1, 2, 4)
THREADS = 4
#: Of one run; and of a run in which each request takes so much longer.
MESSAGES, DELAYED, DELAY = 1_200, 400, 0.02
#: The largest share of claims that may be lost, and the smallest part of the fair share that a worker may have.
MOST_LOST, FAIREST = 0.02, 0.5


@dataclass(slots=True)
class Found:
    """By the number of processes."""

    enqueued: dict[int, list[float]] = field(default_factory=dict)
    processed: dict[int, list[float]] = field(default_factory=dict)
    delayed: dict[int, list[float]] = field(default_factory=dict)
    lost: dict[int, list[float]] = field(default_factory=dict)
    fair: dict[int, list[float]] = field(default_factory=dict)
    requests: dict[int, list[float]] = field(default_factory=dict)


def run(bench: Bench) -> None:
    with bench.part("several", "Several machines: processes on one queue") as part, ExitStack() as stack:
        endpoint = stack.enter_context(seaweedfs_server())
        bucket = fresh_bucket(s3_client(endpoint))
        far = stack.enter_context(proxy(endpoint, seconds=DELAY))
        found = Found()
        with bench.console.status("messages/s") as status:
            for turn in range(bench.repetitions):
                status.update(f"messages/s: {turn + 1} of {bench.repetitions}")
                for count in PROCESSES if turn % 2 else reversed(PROCESSES):
                    _enqueue(found, endpoint, bucket, count)
                    _process(found, endpoint, bucket, count)
                    _process_far(found, endpoint, bucket, count, far)
        _show(bench, found)
        part.raw["lost"], part.raw["requests"] = found.lost, found.requests


def _show(bench: Bench, found: Found) -> None:
    for what, rates in (
        ("enqueue", found.enqueued),
        ("process", found.processed),
        (f"process, +{DELAY * 1000:g} ms a request", found.delayed),
    ):
        for count in PROCESSES[1:]:
            pairs = list(zip(rates[count], rates[1], strict=True))
            bench.pair(f"{what}, {count} processes", pairs, "one process", unit="messages/s")
    for count in PROCESSES:
        lost = [max(share, 1e-4) for share in found.lost[count]]
        goal = [(share, MOST_LOST) for share in lost]
        bench.pair(f"claims lost, {count} processes", goal, "the most", unit="of all", better="less", goal=1)
    for count in PROCESSES[1:]:
        pairs = [(share, FAIREST) for share in found.fair[count]]
        bench.pair(f"smallest share, {count} processes", pairs, "of a fair one", unit="", goal=1)
    expected = light_object(Workload(rate=1, settings=QueueSettings())).total() - 1
    for count in PROCESSES:
        pairs = [(requests, expected) for requests in found.requests[count]]
        bench.pair(f"requests to process, {count} processes", pairs, "`estimate`", unit="a message", better="less")
    bench.note(f"each process has {THREADS} threads; the server shares the machine's cores with them")


def _name() -> str:
    return f"ours-{uuid.uuid4().hex[:12]}"


def _enqueue(found: Found, endpoint: str, bucket: str, count: int) -> None:
    options = {"endpoint": endpoint, "bucket": bucket, "queue": _name(), "concurrency": THREADS}
    with crew(count, role="produce", messages=MESSAGES // count, **options) as producers:
        seconds, _ = producers.run(MESSAGES // count * count)
    found.enqueued.setdefault(count, []).append(MESSAGES / seconds)


def _process(found: Found, endpoint: str, bucket: str, count: int) -> None:
    seconds, did = _drain(endpoint, endpoint, bucket, count, MESSAGES)
    found.processed.setdefault(count, []).append(MESSAGES / seconds)
    won = sum(one.done for one in did)
    found.lost.setdefault(count, []).append(sum(one.lost for one in did) / won)
    found.fair.setdefault(count, []).append(min(one.done for one in did) * count / won)


def _process_far(found: Found, endpoint: str, bucket: str, count: int, far: Proxy) -> None:
    far.take()
    seconds, _ = _drain(endpoint, far.endpoint, bucket, count, DELAYED)
    passed = far.take()
    found.delayed.setdefault(count, []).append(DELAYED / seconds)
    found.requests.setdefault(count, []).append(sum(passed.requests.values()) / DELAYED)


def _drain(endpoint: str, there: str, bucket: str, count: int, messages: int) -> tuple[float, list[Did]]:
    queue = queue_at(endpoint, bucket)
    fill(queue, messages, {"payload": "x" * 200})
    with crew(count, role="work", endpoint=there, bucket=bucket, queue=queue.name, concurrency=THREADS) as workers:
        return workers.run(messages)
