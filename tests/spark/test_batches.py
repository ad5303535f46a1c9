"""per_batch on a real session, against a real S3 server: every message has its own outcome."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import functions as sf

from s3queue import Queue, QueueSettings
from s3queue.run_memory import RunMemory
from s3queue.spark_runs.launcher import Launcher
from s3queue.spark_runs.slots import as_run
from spark.heavy.batches import BatchWork, outcomes_of
from spark.heavy.driver import Driver
from support.data_frames import assertDataFrameEqual
from support.fake_jobs import FakeJobs

SETTINGS = {"engine": "spark", "visibility_timeout": 60, "messages_per_run": 50, "retry_base": 1, "retry_jitter": False}


def drained(spark, bucket, per_batch: Callable[..., Any], bodies, *, settings=None) -> tuple[Queue, dict, list[str]]:
    """Enqueue, launch, drain; the queue, the counts, the paths."""
    chosen = QueueSettings.of(**SETTINGS | (settings or {}))
    queue = Queue(store=bucket.store(), name="heavy", settings=chosen)
    paths = [queue.enqueue_many(body)[0] if isinstance(body, list) else queue.enqueue(body) for body in bodies]
    jobs = FakeJobs()
    assert Launcher(jobs, bucket.name).launch(queue, []) == "started"
    (run,) = jobs.started
    driver = Driver(as_run(queue, run), BatchWork(per_batch, spark, bucket), seconds=120)
    return queue, driver.drain(), paths


def squared(spark, messages):
    """The numbers' squares; what is no number is an error, and a negative one is rejected."""
    number = sf.expr("try_cast(get_json_object(cast(body AS string), '$.n') AS double)")
    return messages.select(
        "path",
        "line",
        sf.when(number >= 0, sf.struct((number * number).alias("square"))).alias("result"),
        sf.when(number.isNull(), sf.lit("not a number")).when(number < 0, sf.lit("negative")).alias("error"),
        (number < 0).alias("reject"),
    )


def test_every_message_of_a_batch_has_its_own_outcome(spark, bucket):
    queue, counts, paths = drained(spark, bucket, squared, [{"n": 3}, {"n": "x"}, {"n": -1}, {"n": 4}])

    assert counts == {"completed": 2, "dead": 2, "retried": 2}
    results = [queue.status(path).record for path in paths]
    assert [record.result for record in results] == [{"square": 9.0}, None, None, {"square": 16.0}]
    assert (results[1].failure.message, results[1].attempt) == ("not a number", 3)
    assert (results[2].failure.message, results[2].attempt) == ("negative", 1)


def test_a_message_that_poisons_its_batch_dies_alone(spark, bucket):
    def poisoned(spark, messages):
        return messages.selectExpr(
            "path",
            "cast(get_json_object(cast(body AS string), '$.n') AS int) AS result",
            "cast(null AS string) AS error",
        )

    bodies = [{"n": n} for n in range(6)] + [{"n": "poison"}]
    queue, counts, paths = drained(spark, bucket, poisoned, bodies)

    records = [queue.status(path).record for path in paths]
    assert [record.outcome for record in records] == ["completed"] * 6 + ["dead"]
    assert [record.attempt for record in records] == [2] * 6 + [3]
    assert [record.result for record in records[:6]] == list(range(6))
    assert "CAST_INVALID_INPUT" in records[6].failure.message
    assert counts == {"retried": 8, "completed": 6, "dead": 1}


def test_the_lines_of_a_batch_object_are_messages_and_only_failed_ones_run_again(spark, bucket):
    seen = []

    def job(spark, messages):
        seen.append(sorted((row.line, json.loads(row.body)["n"]) for row in messages.collect()))
        return squared(spark, messages)

    queue, _, (path,) = drained(spark, bucket, job, [[{"n": 1}, {"n": "x"}, {"n": 2}]])

    record = queue.status(path).record
    assert record.lines["total"] == 3
    assert (record.lines["completed"], record.lines["dead"]) == (2, 1)
    assert seen[0] == [(1, 1), (2, "x"), (3, 2)]
    assert seen[1:] == [[(2, "x")], [(2, "x")]]
    assert queue.store.head(queue.keys.dead(f"{path}.lines"))


def test_a_message_without_an_outcome_is_not_taken_for_done(spark, bucket):
    def forgetful(spark, messages):
        return squared(spark, messages).where("result.square > 10")

    queue, _, paths = drained(spark, bucket, forgetful, [{"n": 1}, {"n": 5}], settings={"max_attempts": 1})

    records = [queue.status(path).record for path in paths]
    assert (records[0].outcome, records[1].outcome) == ("dead", "completed")
    assert "no outcome" in records[0].failure.message


def test_a_message_larger_than_the_queue_takes_is_rejected_before_it_is_read(spark, bucket):
    queue, _, paths = drained(spark, bucket, squared, [{"n": 1}, {"n": "x" * 100}], settings={"max_message_size": 120})
    big = queue.store.put("heavy/messages/big", b"{" + b" " * 200 + b"}")
    assert big.etag
    jobs = FakeJobs()
    Launcher(jobs, bucket.name).launch(queue, [])
    (run,) = jobs.started
    Driver(as_run(queue, run), BatchWork(squared, spark, bucket), seconds=60).drain()

    assert "MessageTooLarge" in queue.status("messages/big").record.failure.message
    assert queue.status(paths[0]).record.outcome == "completed"


def test_a_payload_that_executors_have_too_little_memory_for_is_refused_and_costs_nobody_an_attempt(spark, bucket):
    memory = RunMemory(executor_heap=512, executor_python=3072)
    queue = Queue(store=bucket.store(), name="heavy", settings=QueueSettings.of(**SETTINGS))
    queue.store.put("heavy/messages/large", b" " * (memory.largest_in_batch + 1))
    small = queue.enqueue({"n": 3})
    line = b'{"n": 4}' + b" " * memory.largest_in_batch
    queue.store.put("heavy/messages/lines.ndjson", b'{"n": 5}\n' + line + b"\n")
    jobs = FakeJobs()
    assert Launcher(jobs, bucket.name).launch(queue, []) == "started"
    (run,) = jobs.started

    Driver(as_run(queue, run), BatchWork(squared, spark, bucket, memory=memory), seconds=120).drain()

    refused = queue.status("messages/large").record
    assert (refused.outcome, refused.attempt) == ("dead", 1)
    for advice in ("MessageTooLarge", "executor_memory_mib=512", "per_stream", "replay"):
        assert advice in refused.failure.message
    assert queue.store.head("heavy/dead/messages/large")
    assert (queue.status(small).record.outcome, queue.status(small).record.attempt) == ("completed", 1)
    lines = queue.status("messages/lines.ndjson").record.lines
    assert (lines["completed"], lines["dead"]) == (1, 1)
    assert "per_stream" in lines["dead_lines"][0][2]


def test_outcomes_need_their_columns(spark):
    with pytest.raises(ValueError, match="there is no error, result"):
        outcomes_of(spark.createDataFrame([("a",)], "path string"))


def test_of_two_outcomes_the_error_counts(spark):
    rows = [("a", "1", None), ("a", None, "broke"), ("b", "2", None)]
    found = outcomes_of(spark.createDataFrame(rows, "path string, result string, error string"))
    assert found == {("a", 0): (None, "broke", False), ("b", 0): ("2", None, False)}


def test_the_job_itself_is_a_pure_transformation(spark):
    messages = spark.createDataFrame([("a", 0, b'{"n": 3}'), ("b", 0, b"?")], "path string, line int, body binary")
    expected = spark.createDataFrame(
        [("a", 0, (9.0,), None, False), ("b", 0, None, "not a number", None)],
        "path string, line int, result struct<square: double>, error string, reject boolean",
    )
    assertDataFrameEqual(squared(spark, messages), expected)


def test_a_line_that_is_too_long_dies_alone_and_the_job_never_sees_it(spark, bucket):
    queue, _, (path,) = drained(spark, bucket, squared, [[{"n": 1}, {"n": 2}]])
    assert queue.status(path).record.lines["completed"] == 2
    long = json.dumps({"n": 2, "note": "x" * 200})
    queue.store.put("heavy/messages/long.ndjson", f'{{"n":1}}\n{long}\n{{"n":3}}\n'.encode())
    queue.store.put("heavy/messages/many.ndjson", b'{"n":1}\n' * 9)
    limited = Queue(
        store=bucket.store(),
        name="heavy",
        settings=QueueSettings.of(**SETTINGS | {"max_message_size": 100, "max_batch_lines": 5}),
    )
    jobs = FakeJobs()
    Launcher(jobs, bucket.name).launch(limited, [])
    (run,) = jobs.started
    Driver(as_run(limited, run), BatchWork(squared, spark, bucket), seconds=60).drain()

    record = limited.status("messages/long.ndjson").record
    assert (record.lines["completed"], record.lines["dead"]) == (2, 1)
    assert "MessageTooLarge" in record.lines["dead_lines"][0][2]
    many = limited.status("messages/many.ndjson").record
    assert many.outcome == "dead"
    assert "max_batch_lines" in many.failure.message


def test_the_next_messages_are_queried_while_the_last_query_still_runs(spark, bucket):
    """Each of two queries waits for the other: one after the other, they never would end. Their views are their own."""
    both = threading.Barrier(2, timeout=60)
    views = []

    def job(spark, messages):
        messages.createOrReplaceTempView("messages")
        both.wait()
        views.append(sorted(row.path for row in spark.table("messages").collect()))
        return squared(spark, spark.table("messages"))

    queue = Queue(store=bucket.store(), name="heavy", settings=QueueSettings.of(**SETTINGS | {"messages_per_run": 2}))
    paths = [queue.enqueue({"n": n}) for n in range(4)]
    jobs = FakeJobs()
    assert Launcher(jobs, bucket.name).launch(queue, []) == "started"
    (run,) = jobs.started

    counts = Driver(as_run(queue, run), BatchWork(job, spark, bucket, queries=2), seconds=120).drain()

    assert counts == {"completed": 4}
    assert [queue.status(path).record.result for path in paths] == [{"square": float(n * n)} for n in range(4)]
    # Which of them were claimed together is a race of claims.
    assert [len(view) for view in views] == [2, 2]
    assert sorted(views[0] + views[1]) == sorted(paths)
