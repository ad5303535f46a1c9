"""The pipeline against plain Spark: the same rows from a queue's bucket, and from files on this machine's disk.

What plain Spark does is the same work without a queue. Archive: read the same JSON documents, one file for each object,
and write Parquet; once more from two large files, as if somebody had collected the documents before. Statistics: the
same figures by the same code, from the archive's own Parquet files, or from the same JSON documents. Bulk enqueue: read
JSON lines and write them again. Both sides share one session, and Java has its second compiler, as on EMR.

The S3 server is SeaweedFS, in real time, on the same two cores; plain Spark has a disk and no server. So the ratios say
what it costs that objects are behind HTTP, and are read and written by Python.

At ten rows per object the data grows with `--scale`: 10,000 rows; with `--scale 10` also 100,000, and the statistics of
an archive of a million; with `--scale 100` also a million rows in 100,000 objects.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from s3queue.stores.s3 import client
from support.finished_messages import NOON
from support.recording_bucket import recording_bucket, recording_proxy, requests_in
from support.s3_servers import ACCESS_KEY, REGION, SECRET_KEY, fresh_bucket, seaweedfs_server

from .instruments.harness import Bench
from .instruments.pipeline_scene import Scene
from .instruments.plain_spark import facts, read_documents

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


#: Rows per object → rows. Fewer where each is an object of its own: its requests take the time, not Spark.
ROWS = {1: 1_000, 10: 10_000, 100: 50_000}
#: Rows per object whose number of rows grows, and the most rows that are enqueued in bulk: each object is a PUT.
GROWS, ENQUEUED = 10, 50_000
SAME, LARGE, PARQUET, LINES = "the same files", "two large files", "the same Parquet files", "JSON lines"
#: From so many rows on, each is measured in so many turns at most.
LARGEST, LARGE_TURNS = 1_000_000, 2
#: At ten rows per object; of a million archived rows.
ARCHIVE_GOAL, STATISTICS_GOAL = 0.5, 0.8


def run(bench: Bench) -> None:
    with (
        bench.part("spark_pipeline", "The pipeline, against plain Spark on local files"),
        seaweedfs_server() as endpoint,
        TemporaryDirectory() as folder,
        session() as spark,
    ):
        from spark.storage.bucket import Bucket

        bucket = Bucket(fresh_bucket(client(endpoint, REGION)), endpoint, REGION)
        bench.note("rows a second; SeaweedFS has the same two cores, and plain Spark reads and writes a local disk")
        bench.note("requests are those to S3, of one run, counted: GET, LIST, PUT and those of the archive's table")
        for per_object, rows in sizes(bench.scale):
            scene = Scene(spark, bucket, Path(folder) / f"{per_object}-{rows}", per_object, rows)
            scene.prepare()
            Jobs(bench, scene).measure()
            scene.remove()


def sizes(scale: float) -> Iterator[tuple[int, int]]:
    """Rows per object, and rows; what grows comes first."""
    usual = {per_object: max(100, round(rows * min(scale, 1.0) / 100) * 100) for per_object, rows in ROWS.items()}
    yield GROWS, usual.pop(GROWS)
    rows = ROWS[GROWS] * 10
    while rows <= ROWS[GROWS] * scale:
        yield GROWS, rows
        rows *= 10
    yield from usual.items()


class Jobs:
    """What is measured of one scene, in this order: the statistics of archived rows come when they are archived."""

    def __init__(self, bench: Bench, scene: Scene) -> None:
        self.bench = bench
        self.scene = scene
        self.spark = scene.spark
        self.archived = Path()

    def measure(self) -> None:
        """With a million rows in objects, what has a goal: the rest takes hours on a busy machine."""
        rows, is_large = self.scene.rows, self.scene.rows >= LARGEST
        goal = ARCHIVE_GOAL if self.scene.per_object == GROWS else None
        theirs = {SAME: self.plain_archive} | ({} if is_large else {LARGE: self.plain_large})
        self._compare("archive", self.archive, theirs, {SAME: goal})
        if is_large:
            return
        self.archived = self.scene.archived_files()
        self._compare("statistics, archived", self.statistics, {PARQUET: self.plain_statistics})
        if self.bench.scale > 1 and rows == ROWS[GROWS]:
            self._measure_large_archive()
        self.scene.clear("archive/")
        self.scene.put()
        self._compare("statistics, live", self.statistics, {SAME: self.plain_live_statistics})
        if rows <= ENQUEUED:
            self._compare("bulk enqueue", self.bulk_enqueue, {LINES: self.plain_bulk_enqueue})

    def _measure_large_archive(self) -> None:
        """The archive, a hundred times as large: its own files, with other keys."""
        usual = self.scene
        self.scene = replace(usual, rows=LARGEST)
        self.scene.multiply_archive(usual.queue, LARGEST // usual.rows)
        self.archived = self.scene.archived_files()
        theirs = {PARQUET: self.plain_statistics}
        self._compare("statistics, archived", self.statistics, theirs, {PARQUET: STATISTICS_GOAL})
        self.scene = usual

    def _compare(
        self,
        name: str,
        ours: Callable[[], float],
        theirs: dict[str, Callable[[], float]],
        goals: dict[str, float | None] | None = None,
    ) -> None:
        scene = self.scene
        what = f"{name}: {scene.rows:,} rows, {scene.per_object} per object"
        is_large = scene.rows >= LARGEST
        if not is_large or name != "archive":
            self._count_requests(what, ours)
        if not is_large:
            # Once before it counts, as the counted run was for ours: what is compiled then is compiled for both.
            for other in theirs.values():
                other()
        turns: list[dict[str, float]] = []
        for turn in range(min(self.bench.repetitions, LARGE_TURNS) if is_large else self.bench.repetitions):
            measures = {"": ours, **theirs}
            order = list(measures) if turn % 2 == 0 else list(measures)[::-1]
            turns.append({which: scene.rows / measures[which]() for which in order})
        for against in theirs:
            pairs = [(turn[""], turn[against]) for turn in turns]
            self.bench.pair(what, pairs, against, unit="rows/s", goal=(goals or {}).get(against))

    def _count_requests(self, what: str, ours: Callable[[], float]) -> None:
        """One run apart: writing down a request takes time."""
        scene, log = self.scene, self.scene.folder / "requests"
        log.unlink(missing_ok=True)
        usual = scene.bucket
        with recording_proxy(str(usual.endpoint_url), log) as endpoint:
            scene.bucket = recording_bucket(usual, log, table_endpoint=endpoint)
            try:
                ours()
            finally:
                scene.bucket = usual
        # What is cleared away before a run is not part of it.
        verbs = Counter(request.verb for request in requests_in(log) if request.verb != "delete")
        self.bench.parts[-1].raw.setdefault("requests", {})[what] = dict(verbs) | {"rows": scene.rows}
        sent = sum(verbs.values()) / scene.rows
        said = ", ".join(f"{count} {verb.upper()}" for verb, count in sorted(verbs.items()))
        self.bench.series(f"{what}: requests", [sent], unit="per row", note=said)

    def archive(self) -> float:
        from spark.archive import archive

        self._usual().clear("archive/")
        with timed() as took:
            done = archive(self.spark, self.scene.bucket, self.scene.queue, now=NOON)
        assert done.records == self.scene.rows, done
        return took()

    def plain_archive(self) -> float:
        return self._write(lambda: read_documents(self.spark, self.scene.folder / "files", self.scene.per_object))

    def plain_large(self) -> float:
        return self._write(self._read_large)

    def _write(self, read: Callable[[], DataFrame]) -> float:
        with timed() as took:
            read().repartition("day").write.mode("overwrite").partitionBy("day").parquet(self.scene.out("parquet"))
        return took()

    def plain_live_statistics(self) -> float:
        return self._figures(lambda: read_documents(self.spark, self.scene.folder / "files", self.scene.per_object))

    def statistics(self) -> float:
        """Everything anew, whatever was computed before."""
        from spark.statistics import statistics

        self._usual().clear("analytics/")
        with timed() as took:
            told = statistics(self.spark, self.scene.bucket, [self.scene.queue], now=NOON, everything=True)
        assert told["queues"][self.scene.queue]["messages"] == self.scene.rows, told["queues"]
        return took()

    def plain_statistics(self) -> float:
        from spark.rows.record_rows import RECORD_SCHEMA

        return self._figures(lambda: self.spark.read.schema(RECORD_SCHEMA).parquet(str(self.archived)))

    def _figures(self, read: Callable[[], DataFrame]) -> float:
        from pyspark.sql import functions as sf

        from spark.statistics import compute

        with timed() as took:
            known = facts(read().withColumn("queue", sf.lit(self.scene.queue))).persist()
            told = compute(known)
            known.unpersist()
        assert sum(row.messages for row in told["hours"]) == self.scene.rows
        return took()

    def bulk_enqueue(self) -> float:
        from spark.bulk_enqueue import bulk_enqueue, lines_of, read_dataset

        scene = self.scene
        dataset = str(scene.dataset())
        with timed() as took:
            lines = lines_of(read_dataset(self.spark, [dataset], "ndjson"), "line")
            run = f"run-{next(scene.runs)}"
            told = bulk_enqueue(self.spark, scene.bucket, scene.queue, lines, run=run, per_object=scene.per_object)
        assert told["messages"] == scene.rows
        return took()

    def plain_bulk_enqueue(self) -> float:
        target, dataset = self.scene.out("json"), str(self.scene.dataset())
        with timed() as took:
            self.spark.read.json(dataset).repartition(2).write.mode("overwrite").json(target)
        return took()

    def _read_large(self) -> DataFrame:
        from spark.rows.record_rows import RECORD_SCHEMA

        return self.spark.read.schema(RECORD_SCHEMA).json(str(self.scene.folder / "large"))

    def _usual(self) -> Scene:
        """For what is not measured: the bucket, not the one that writes everything down."""
        found = self.scene
        usual = type(found.bucket).__mro__[-2]
        where = usual(found.bucket.name, found.bucket.endpoint_url, found.bucket.region)
        return Scene(found.spark, where, found.folder, found.per_object, found.rows)


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
    settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.showConsoleProgress": "false",
        # As an executor of EMR has them; on a laptop, tests do without the second compiler.
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": "-XX:+UseG1GC",
    }
    built = build_session("bench", master="local[2]", settings=settings)
    built.sparkContext.setLogLevel("ERROR")
    try:
        yield built
    finally:
        built.stop()
