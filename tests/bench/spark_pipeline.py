"""The pipeline against plain Spark: the same rows from a queue's bucket, and from JSON files on this machine's disk.

What plain Spark does is the same work without a queue: read JSON lines, then write Parquet (archive), compute the same
figures with the same code (statistics), or write JSON lines again (bulk enqueue). Both sides share one session. The
difference is what it costs that every record is an object behind HTTP, read and written by Python.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from s3queue.documents.record import Failure, Record
from s3queue.stores.s3 import client
from support.finished_messages import NOON, keys_under, put_record, record
from support.recording_bucket import recording_bucket, requests_in
from support.s3_servers import ACCESS_KEY, REGION, SECRET_KEY, fresh_bucket, seaweedfs_server

from .instruments.harness import Bench, Part

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark.storage.bucket import Bucket

#: Messages per object → messages. Fewer where each of them is an object: its requests take the time, not Spark.
ROWS = {1: 1_000, 10: 10_000, 100: 50_000}
PLAIN = "spark.read.json, local files"
THREADS = 16


def run(bench: Bench) -> None:
    with (
        bench.part("spark_pipeline", "The pipeline, against plain Spark on local files") as part,
        seaweedfs_server() as endpoint,
        TemporaryDirectory() as folder,
        session() as spark,
    ):
        from spark.storage.bucket import Bucket

        bucket = Bucket(fresh_bucket(client(endpoint, REGION)), endpoint, REGION)
        bench.note("Messages a second here, where the S3 server runs too. Plain Spark reads a row per message;")
        bench.note("of a batch there is one record, so archive and statistics read fewer rows the larger batches are.")
        for per_object, usual in ROWS.items():
            # A hundred rows are copied to make the plain ones.
            rows = bench.scaled(usual, step=100 * per_object)
            scene = Scene(spark, bucket, Path(folder) / str(per_object), per_object, rows)
            scene.prepare()
            for name, (ours, theirs) in scene.jobs().items():
                what = f"{name}, {per_object} per object"
                count_requests(bench, part, scene, what, ours)
                # Once before it counts, as the counted run was for ours: what is compiled then is compiled for both.
                theirs()
                bench.compare(what, rate(rows, ours), PLAIN, rate(rows, theirs), unit="messages/s")


@dataclass(slots=True)
class Scene:
    """The same messages twice: as records and a dataset for the jobs, as JSON lines for plain Spark."""

    spark: SparkSession
    bucket: Bucket
    folder: Path
    per_object: int
    rows: int
    #: A rerun of the same bulk enqueue would find it done.
    runs: Iterator[int] = field(default_factory=itertools.count)

    @property
    def queue(self) -> str:
        return f"per-{self.per_object}"

    def prepare(self) -> None:
        store = self.bucket.store()
        with ThreadPoolExecutor(THREADS) as pool:
            list(
                pool.map(
                    lambda n: put_record(store, self.queue, finished(n, self.per_object)),
                    range(self.rows // self.per_object),
                )
            )
        self._lines().write.text(str(self.folder / "dataset"))
        self._messages().write.json(str(self.folder / "records"))

    def jobs(self) -> dict[str, tuple[Callable[..., float], Callable[[], float]]]:
        """Each as seconds: ours, and plain Spark's."""
        return {
            "archive": (self.archive, self.plain_archive),
            "statistics": (self.statistics, self.plain_statistics),
            "bulk enqueue": (self.bulk_enqueue, self.plain_bulk_enqueue),
        }

    def archive(self, bucket: Bucket | None = None) -> float:
        from spark.archive import archive

        store = self.bucket.store()
        for key in keys_under(store, "archive/"):
            store.delete(key)
        with timed() as took:
            done = archive(self.spark, bucket or self.bucket, self.queue, now=NOON)
        assert done.records == self.rows // self.per_object
        return took()

    def plain_archive(self) -> float:
        with timed() as took:
            self._read().repartition(1).write.mode("overwrite").partitionBy("queue", "day").parquet(
                self._out("parquet")
            )
        return took()

    def statistics(self, bucket: Bucket | None = None) -> float:
        """Of live records, none of them archived: as much as an hour may find."""
        from spark.statistics import statistics

        store = self.bucket.store()
        for key in keys_under(store, "archive/"):
            store.delete(key)
        with timed() as took:
            told = statistics(self.spark, bucket or self.bucket, [self.queue], now=NOON)
        assert told["queues"][self.queue]["messages"] == self.rows, told["queues"]
        return took()

    def plain_statistics(self) -> float:
        from spark.history.statistics_frames import facts
        from spark.statistics import compute

        with timed() as took:
            known = facts(self._read(), since=NOON - timedelta(days=7)).persist()
            told = compute(known)
            known.unpersist()
        assert sum(row.messages for row in told["totals"]) == self.rows
        return took()

    def bulk_enqueue(self, bucket: Bucket | None = None) -> float:
        from spark.bulk_enqueue import bulk_enqueue, lines_of, read_dataset

        where = bucket or self.bucket
        with timed() as took:
            lines = lines_of(read_dataset(self.spark, [str(self.folder / "dataset")], "ndjson"), "line")
            run = f"run-{next(self.runs)}"
            told = bulk_enqueue(self.spark, where, self.queue, lines, run=run, per_object=self.per_object)
        assert told["messages"] == self.rows
        return took()

    def plain_bulk_enqueue(self) -> float:
        with timed() as took:
            self.spark.read.json(str(self.folder / "dataset")).repartition(2).write.mode("overwrite").json(
                self._out("json")
            )
        return took()

    def _out(self, name: str) -> str:
        return str(self.folder / f"out-{name}")

    def _read(self) -> DataFrame:
        from spark.rows.record_rows import RECORD_SCHEMA

        return self.spark.read.schema(RECORD_SCHEMA).json(str(self.folder / "records"))

    def _lines(self) -> DataFrame:
        number = self.spark.range(self.rows)
        return number.selectExpr(
            "to_json(struct(id, concat('reader-', id, '@example.com') AS to, repeat('x', 150) AS text))"
        )

    def _messages(self) -> DataFrame:
        """A row per message, as the archive has them; a few real ones, many times."""
        from pyspark.sql import functions as sf

        from spark.rows.record_rows import RECORD_SCHEMA, read_records
        from spark.storage.scan import listed, survey

        store, few = self.bucket.store(), "few"
        for n in range(100):
            put_record(store, few, finished(n, 1))
        found = listed(self.spark, self.bucket, survey(store, f"{few}/records/").ranges)
        rows = read_records(found, self.bucket, few).select(RECORD_SCHEMA.names).localCheckpoint()
        times = self.spark.range(self.rows // 100)
        copies = rows.crossJoin(times).withColumn("path", sf.concat("path", sf.lit("-"), "id"))
        return copies.withColumn("queue", sf.lit(self.queue)).select(RECORD_SCHEMA.names)


def finished(n: int, per_object: int) -> Record:
    """One message in a hundred dead, or a batch; over ten hours."""
    at = NOON - timedelta(minutes=15 * (n % 40))
    if per_object == 1:
        failure = Failure("Refused", "550 no such user") if n % 100 == 0 else None
        return record(f"messages/m{n:06d}", finished_at=at, failure=failure, worker=f"worker-{n % 8}")
    lines = {"total": per_object, "completed": per_object, "dead": 0, "dead_lines": []}
    return record(f"messages/m{n:06d}.ndjson", finished_at=at, lines=lines, worker=f"worker-{n % 8}")


def count_requests(bench: Bench, part: Part, scene: Scene, what: str, ours: Callable[..., float]) -> None:
    """One run apart: writing down a request takes time."""
    log = scene.folder / f"requests-{what}"
    ours(recording_bucket(scene.bucket, log))
    verbs = Counter(request.verb for request in requests_in(log))
    part.raw.setdefault("requests", {})[what] = dict(verbs) | {"messages": scene.rows}
    sent = sum(verbs.values()) / scene.rows
    said = ", ".join(f"{count} {verb.upper()}" for verb, count in sorted(verbs.items()))
    bench.series(f"{what}: requests", [sent], unit="per message", note=said)


def rate(rows: int, seconds: Callable[[], float]) -> Callable[[], float]:
    return lambda: rows / seconds()


@contextmanager
def timed() -> Iterator[Callable[[], float]]:
    began = time.perf_counter()
    ended = [0.0]
    yield lambda: ended[0]
    ended[0] = time.perf_counter() - began


@contextmanager
def session() -> Iterator[SparkSession]:
    from spark.runtime.session import build_session

    # For executors, too, which are processes of their own.
    os.environ.update(AWS_ACCESS_KEY_ID=ACCESS_KEY, AWS_SECRET_ACCESS_KEY=SECRET_KEY, AWS_REGION=REGION)
    settings = {"spark.sql.shuffle.partitions": "2", "spark.ui.showConsoleProgress": "false"}
    built = build_session("bench", master="local[2]", settings=settings)
    built.sparkContext.setLogLevel("ERROR")
    try:
        yield built
    finally:
        built.stop()
