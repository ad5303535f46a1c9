"""A run of heavy messages: are the cores busy? Large payloads are read, digested and compressed in two executor cores.

What is counted is the time in which Python workers computed, or were ready to and waited for a core that another
process had; what is compared is the time of both cores. So a busy machine changes it little, and a core that waits for
a message to be claimed, for the slowest of a batch or for bytes, shows. On a machine of its own it is CPU used divided
by CPU available, without Java's and the driver's part.

That has an end. Workers that hardly ever get a core are always ready for one, and the ratio says nothing about ours: it
is held against the goal only if they were on a core for at least half of the time in which they were at work.
"""

from __future__ import annotations

import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from infra.local.emr.memory import python_below
from s3queue import Queue, QueueSettings
from s3queue.spark_runs.launcher import Launcher
from s3queue.spark_runs.slots import as_run
from s3queue.stores.s3 import client
from support.fake_jobs import FakeJobs
from support.s3_servers import REGION, fresh_bucket, seaweedfs_server

from .instruments.harness import Bench
from .spark_pipeline import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.heavy.streams import StreamContext
    from spark.storage.bucket import Bucket

MESSAGES, MEGABYTES = 200, 20
GOAL = 0.8
#: Of the time in which workers were at work.
LEAST_ON_CORE = 0.5
SETTINGS = QueueSettings.of(engine="spark", visibility_timeout=300, messages_per_run=50, history=False)
#: Of the session.
CORES = 2


def run(bench: Bench) -> None:
    messages = bench.scaled(MESSAGES)
    with (
        bench.part("spark_drain", "A run of heavy messages: are the cores busy?") as part,
        seaweedfs_server() as endpoint,
        session() as spark,
    ):
        from spark.storage.bucket import Bucket

        bucket = Bucket(fresh_bucket(client(endpoint, REGION)), endpoint, REGION)
        drain(spark, bucket, "warm-up", 2)
        pairs, rates, shares, busy = [], [], [], []
        for turn in range(bench.repetitions):
            (on_core, ready), machine, there, seconds = drain(spark, bucket, f"turn-{turn}", messages)
            busy.append(machine)
            pairs.append((on_core + ready, there))
            shares.append(on_core / there)
            rates.append(messages * MEGABYTES / seconds)
        what = f"per_stream, {messages} messages of {MEGABYTES} MB, local[2]"
        share, ratio = statistics.median(shares), statistics.median(used / there for used, there in pairs)
        is_judged = share >= ratio * LEAST_ON_CORE
        bench.pair(what, pairs, "time of two cores", unit="s", goal=GOAL if is_judged else None)
        if not is_judged:
            bench.skip(
                f"the goal of {GOAL}: the machine was too busy to say, workers were on a core {share:.2f} of the time"
            )
        bench.note(
            f"on a core: {share:.2f} of the time; the rest of the ratio, ready while another process had the core"
        )
        bench.note(
            f"the machine's cores were busy {statistics.median(busy):.2f} of the time, with Java and the S3 server"
        )
        part.raw |= {"machine": busy, "megabytes per second": rates, "on a core": shares}


def drain(
    spark: SparkSession, bucket: Bucket, name: str, messages: int
) -> tuple[tuple[float, float], float, float, float]:
    """Seconds that Python was on a core in executors, and ready for one; how busy the machine was, of 1; the seconds of
    the executors' cores; how long it took.
    """
    from spark.heavy.driver import Driver
    from spark.heavy.messages import MessageWork
    from spark.heavy.streams import StreamDefinition, at_once

    queue = Queue(store=bucket.store(), name=name, settings=SETTINGS)
    # Text that compresses as logs do; the same for all, or making it would take longer than the run.
    said = (
        b"2026-11-17T12:%02d:00Z reader-%d opened %s" % (n % 60, n, os.urandom(9).hex().encode()) for n in range(999)
    )
    line = b"\n".join(said)
    body = (line * (MEGABYTES * 1_000_000 // len(line) + 1))[: MEGABYTES * 1_000_000]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: queue.store.put(f"{name}/messages/m{n:04d}", body), range(messages)))
    jobs = FakeJobs()
    assert Launcher(jobs, bucket.name).launch(queue, []) == "started"
    mine = as_run(queue, next(iter(jobs.started)))
    definition = StreamDefinition(mine, job(), spark, bucket)
    work = MessageWork(mine, definition, spark, parallel=at_once(spark, SETTINGS))
    before, machine, began = working_seconds(), machine_ticks(), time.monotonic()
    counts = Driver(mine, work, seconds=3600).drain()
    seconds, after = time.monotonic() - began, working_seconds()
    used, there = (now - then for now, then in zip(machine_ticks(), machine, strict=True))
    assert counts == {"completed": messages}, counts
    return (after[0] - before[0], after[1] - before[1]), used / there, seconds * CORES, seconds


def job() -> Any:
    """Made in here, so that it travels to executors, which do not see the tests."""

    def packed(stream: IO[bytes], context: StreamContext) -> Any:
        import hashlib
        import zlib

        digest, packer, size = hashlib.sha256(), zlib.compressobj(3), 0
        while chunk := stream.read(1024 * 1024):
            digest.update(chunk)
            size += len(packer.compress(chunk))
        return {"sha256": digest.hexdigest(), "packed": size + len(packer.flush())}

    return packed


def working_seconds() -> tuple[float, float]:
    """Seconds that the living Python workers of this process's Spark have been on a core, and ready to be."""
    on_core = ready = 0
    for pid in python_below(os.getpid())["executor"]:
        for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with suppress(OSError):
                # In nanoseconds.
                had, waited = map(int, thread.read_text().split()[:2])
                on_core, ready = on_core + had, ready + waited
    return on_core / 1e9, ready / 1e9


def machine_ticks() -> tuple[int, int]:
    """CPU time that anything here has used, and that there was."""
    ticks = [int(count) for count in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)
