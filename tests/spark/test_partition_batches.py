"""Partitions on a real session, against a real S3 server: the order of groups, and one commit for many messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import functions as sf

from s3queue import Queue, QueueSettings
from s3queue.paths import partition_of
from s3queue.spark_runs.launcher import Launcher
from s3queue.spark_runs.slots import as_run
from spark.heavy.batches import BatchWork
from spark.heavy.driver import Driver, Work
from spark.heavy.messages import MessageWork
from spark.storage.bucket import Bucket
from support.fake_jobs import FakeJobs

SETTINGS = {
    "engine": "spark",
    "visibility_timeout": 60,
    "messages_per_run": 50,
    "retry_base": 1,
    "retry_jitter": False,
    "partitions": 2,
}


def queue_of(bucket: Bucket) -> Queue:
    return Queue(store=bucket.store(), name="heavy", settings=QueueSettings.of(**SETTINGS))


def drained(bucket: Bucket, queue: Queue, work: Callable[[Queue], Work], paths: list[str]) -> dict[str, int]:
    jobs = FakeJobs()
    assert Launcher(jobs, bucket.name).launch(queue, paths[:1]) == "started"
    mine = as_run(queue, *jobs.started)
    return Driver(mine, work(mine), seconds=120).drain()


def test_a_query_has_one_message_of_each_group_in_order_and_each_its_own_outcome(spark, bucket):
    queue = queue_of(bucket)
    groups = {name: [queue.enqueue({"n": n}, group=name) for n in (3, "x", 4)] for name in ("a", "b")}
    shared = [queue.enqueue({"n": n}) for n in range(5)]
    queries: list[list[tuple[str, int]]] = []

    def job(spark, messages):
        rows = messages.select("path", "attempt", "body").collect()
        queries.append(sorted((row.path, row.attempt) for row in rows))
        number = sf.expr("try_cast(get_json_object(cast(body AS string), '$.n') AS double)")
        # It works the second time.
        is_bad = number.isNull() & (sf.col("attempt") == 1)
        return messages.select(
            "path",
            "line",
            sf.when(~is_bad, sf.struct((number * number).alias("square"))).alias("result"),
            sf.when(is_bad, sf.lit("not a number")).alias("error"),
        )

    counts = drained(bucket, queue, lambda mine: BatchWork(job, spark, bucket), groups["a"])

    assert counts == {"completed": 11, "retried": 2}
    for paths in groups.values():
        started = [(path, attempt) for query in queries for path, attempt in query if path in paths]
        assert started == [(paths[0], 1), (paths[1], 1), (paths[1], 2), (paths[2], 1)]
    # One query for the first of each group and the shares, then one for each step.
    assert {partition_of(path) for path, _ in queries[0]} == {"@a", "@b", *map(partition_of, shared)}
    assert len(queries[0]) == 7
    assert [queue.outcome_of(path).result for path in shared] == [{"square": float(n * n)} for n in range(5)]
    assert [queue.outcome_of(path).attempt for path in groups["b"]] == [1, 2, 1]
    assert not list(bucket.store().list("heavy/messages/").objects)
    assert not list(bucket.store().list("heavy/leases/").objects)


def test_a_message_that_is_deleted_while_its_query_is_made_takes_no_other_with_it(spark, bucket):
    queue = queue_of(bucket)
    paths = [queue.enqueue({"n": n}, group=name) for n, name in enumerate("abc")]
    gone: list[str] = []

    class Deleting(BatchWork):
        def _messages(self, claims, driver, spark) -> Any:
            if not gone:
                gone.append(claims[0].path)
                bucket.store().delete(queue.keys.message(claims[0].path))
            return super()._messages(claims, driver, spark)

    def job(spark, messages):
        return messages.select("path", "line", sf.lit("done").alias("result"), sf.lit(None).alias("error"))

    counts = drained(bucket, queue, lambda mine: Deleting(job, spark, bucket), paths)

    assert counts == {"completed": 2}
    assert {path for path in paths if queue.outcome_of(path)} == {*paths} - {*gone}
    assert not list(bucket.store().list("heavy/leases/").objects)


def test_per_message_jobs_run_groups_side_by_side_on_one_session(spark, bucket):
    queue = queue_of(bucket)
    groups = {name: [queue.enqueue({"n": n}, group=name) for n in range(3)] for name in ("a", "b", "c")}
    started: list[str] = []

    def per_message(spark, message: dict, context) -> int:
        started.append(context.path)
        return spark.range(message["n"]).count()

    counts = drained(bucket, queue, lambda mine: MessageWork(mine, per_message, spark, parallel=2), groups["a"])

    assert counts == {"completed": 9}
    for paths in groups.values():
        assert [path for path in started if path in paths] == paths
        assert [queue.outcome_of(path).result for path in paths] == [0, 1, 2]
    assert queue.stats().completed == 9
