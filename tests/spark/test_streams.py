"""per_stream on a real session, against a real S3 server: payloads are read in executors, not by the driver."""

from __future__ import annotations

import hashlib
import os
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import IO, Any

import pytest

from s3queue import Queue, QueueSettings, Reject
from s3queue.spark_runs.launcher import Launcher
from s3queue.spark_runs.slots import as_run
from spark.heavy.driver import Driver
from spark.heavy.messages import MessageWork
from spark.heavy.streams import StreamContext, StreamDefinition, at_once
from support.fake_jobs import FakeJobs
from support.recording_bucket import recording_bucket, requests_in
from support.run_world import World

MIB = 1024 * 1024
SETTINGS = QueueSettings.of(
    engine="spark", visibility_timeout=60, retry_base=1, retry_jitter=False, max_message_size="1 MiB"
)


def digesting() -> Any:
    """A job; made in here, so that it travels to executors, which do not see the tests."""

    def digested(stream: IO[bytes], context: StreamContext) -> Any:
        """The digest of a payload, and where it was made."""
        digest = hashlib.sha256()
        first = b""
        while chunk := stream.read(256 * 1024):
            first = first or chunk[:20]
            digest.update(chunk)
        if first.startswith(b"reject"):
            raise Reject("not like this")
        if first.startswith(b"fail once") and context.attempt == 1:
            raise ValueError("did not work")
        return {"sha256": digest.hexdigest(), "size": context.size, "process": os.getpid(), "line": context.line}

    return digested


def drained(spark, bucket, queue: Queue, per_stream) -> dict[str, int]:
    jobs = FakeJobs()
    assert Launcher(jobs, bucket.name).launch(queue, []) == "started"
    (run,) = jobs.started
    mine = as_run(queue, run)
    definition = StreamDefinition(mine, per_stream, spark, bucket)
    return Driver(mine, MessageWork(mine, definition, spark, parallel=at_once(spark, SETTINGS)), seconds=120).drain()


@pytest.fixture
def queue(bucket) -> Queue:
    return Queue(store=bucket.store(), name="heavy", settings=SETTINGS)


def test_a_message_is_read_in_an_executor_whatever_its_size_and_has_its_own_outcome(spark, bucket, queue, tmp_path):
    large, small = os.urandom(9 * MIB), b"small"
    # As a stranger PUTs it; whoever enqueues through the library is told that it is too large.
    queue.store.put("heavy/messages/large", large)
    paths = ["messages/large", *(queue.enqueue(body) for body in (small, b"reject this", b"fail once"))]
    log = tmp_path / "requests"

    counts = drained(spark, recording_bucket(bucket, log), queue, digesting())

    assert counts == {"completed": 3, "dead": 1, "retried": 1}
    records = [queue.status(path).record for path in paths]
    assert [record.result["sha256"] for record in records[:2]] == [
        hashlib.sha256(body).hexdigest() for body in (large, small)
    ]
    assert records[0].result["size"] == len(large)
    assert (records[2].failure.type, records[2].failure.message) == ("Reject", "not like this")
    assert records[3].attempt == 2
    # Not in this process, which is the driver.
    assert all(record.result["process"] != os.getpid() for record in (records[0], records[1], records[3]))
    # Every attempt has opened its payload there; the driver's own requests are not in this log.
    assert sum(request.verb == "get" and "/messages/" in request.key for request in requests_in(log)) == 5


def test_the_lines_of_a_batch_are_streams_too(spark, bucket, queue):
    (path,) = queue.enqueue_many([{"n": 1}, {"n": 2}])

    assert drained(spark, bucket, queue, digesting()) == {"completed": 1}

    assert queue.status(path).record.lines["completed"] == 2


def test_an_executor_that_dies_costs_the_attempt_of_its_message_alone(spark, bucket, queue):
    def deadly(stream: IO[bytes], context: StreamContext) -> Any:
        if stream.read(4) == b"kill" and context.attempt == 1:
            os._exit(1)
        return context.attempt

    paths = [queue.enqueue(body) for body in (b"kill me", b"fine", b"fine, too")]

    assert drained(spark, bucket, queue, deadly) == {"completed": 3, "retried": 1}

    assert [queue.status(path).record.result for path in paths] == [2, 1, 1]


class OneProcess:
    """As much of a Spark context as a stream needs; the executor is this process."""

    def parallelize(self, rows: list[int], _: int) -> OneProcess:
        self.rows = rows
        return self

    def map(self, call: Any) -> OneProcess:
        self.rows = list(map(call, self.rows))
        return self

    def collect(self) -> list[Any]:
        return self.rows


#: What a job may return, by name: JSON and what becomes JSON, and what no record can keep.
RESULTS = {
    "nothing": None,
    "json": {"rows": [1, 2]},
    "dates": {"at": datetime(2026, 11, 16, 12, tzinfo=UTC)},
    "bytes": b"raw",
    "not a number": float("nan"),
    "an object": object(),
    "large": "x" * 300_000,
}


@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)
@pytest.mark.parametrize("is_batch", [False, True])
def test_what_a_stream_returns_is_recorded_as_that_of_a_message_is(result, is_batch):
    def recorded(kind: str) -> tuple[Any, ...]:
        world, calls = World(), []
        if is_batch:
            world.queue.enqueue_many([{"n": 1}, {"n": 2}])
        else:
            world.queue.enqueue({"n": 1})
        world.launch()

        def per_message(spark: Any, message: Any, context: Any) -> Any:
            calls.append(context.line)
            return result

        def per_stream(stream: IO[bytes], context: StreamContext) -> Any:
            stream.read()
            calls.append(context.line)
            return result

        bucket: Any = SimpleNamespace(store=lambda: world.bench.store)
        spark: Any = SimpleNamespace(sparkContext=OneProcess())
        job = per_message if kind == "message" else StreamDefinition(world.queue, per_stream, spark, bucket)
        counts = world.driver(work=MessageWork(world.queue, job, None)).drain()
        (record,) = world.records().values()
        return counts, calls, record.outcome, record.result, record.result_error, record.lines

    as_stream = recorded("stream")

    assert as_stream == recorded("message")
    assert as_stream[0] == {"completed": 1}
