"""Finished messages, the same bytes twice: as objects of a bucket for our jobs, and as files on disk for plain Spark.

With one row per object, each is a record; with more, each is a journal of a partition, as a queue with groups or
partitions writes them.
"""

from __future__ import annotations

import io
import itertools
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from s3queue.archive.parts import Part
from s3queue.documents.partition import journal_bytes
from s3queue.documents.record import Failure, Record
from s3queue.keys import Keys
from support.finished_messages import NOON, keys_under, record

from .plain_spark import read_documents

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.storage.bucket import Bucket

THREADS = 16
PARTITION = "@=0"
#: Of the messages, in quarters of an hour: six days and a bit, as long as the dashboard shows.
QUARTERS = 600
#: More are not written a second time.
LARGE_ROWS = 100_000
DATASET = "to_json(struct(id, concat('reader-', id, '@example.com') AS to, repeat('x', 150) AS text))"


@dataclass(slots=True)
class Scene:
    """So many rows, so many per object."""

    spark: SparkSession
    bucket: Bucket
    folder: Path
    per_object: int
    rows: int
    #: A rerun of the same bulk enqueue would find it done.
    runs: Iterator[int] = field(default_factory=itertools.count)

    @property
    def queue(self) -> str:
        return f"per-{self.per_object}-of-{self.rows}"

    @property
    def objects(self) -> int:
        return self.rows // self.per_object

    def prepare(self) -> None:
        """Objects and files, and the same rows as JSON lines in two files, which is how plain Spark likes them."""
        self.put()
        read = read_documents(self.spark, self.folder / "files", self.per_object)
        if self.rows <= LARGE_ROWS:
            read.repartition(2).write.json(str(self.folder / "large"))

    def put(self) -> None:
        store, files = self.bucket.store(), self.folder / "files"
        files.mkdir(parents=True, exist_ok=True)

        def put(number: int) -> None:
            key, body = stored(self.queue, number, self.per_object)
            store.put(key, body)
            (files / f"{number:07d}.json").write_bytes(body)

        with ThreadPoolExecutor(THREADS) as pool:
            for first in range(0, self.objects, 1000):
                list(pool.map(put, range(first, min(first + 1000, self.objects))))

    def archived_files(self) -> Path:
        """The archive's files of this queue, copied; then its records are deleted, as S3 deletes them after days."""
        store, target = self.bucket.store(), self.folder / "archived"
        shutil.rmtree(target, ignore_errors=True)
        for key in keys_under(store, Keys(self.queue).archive_days):
            file = target / key.removeprefix("archive/")
            file.parent.mkdir(parents=True, exist_ok=True)
            found = store.open(key)
            assert found
            file.write_bytes(found.read())
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(store.delete, keys_under(store, Keys(self.queue).prefix("records"))))
        return target

    def multiply_archive(self, queue: str, times: int) -> None:
        """Give this queue an archive of so many times the rows that another one has: a file for each day."""
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        store, table = self.bucket.store(), self.bucket.archive()
        seen = table.prepared()
        days: dict[str, list[pa.Table]] = {}
        for part in seen.parts(queue):
            found = store.open(part.key)
            assert found
            days.setdefault(part.day, []).append(pq.ParquetFile(io.BytesIO(found.read())).read())
        parts = []
        for day, tables in days.items():
            rows, copies = pa.concat_tables(tables), list[pa.Table]()
            for number in range(times):
                copy = rows
                for name in ("path", "record_key"):
                    other = pc.binary_join_element_wise(copy[name], f"-{number:04d}", "")
                    copy = copy.set_column(copy.schema.get_field_index(name), name, other)
                copies.append(copy)
            target = io.BytesIO()
            pq.write_table(pa.concat_tables(copies), target, compression="zstd")
            key = Keys(self.queue).archive_part(day, 1, f"{0:032x}")
            store.put(key, target.getvalue())
            parts.append(Part(key=key, queue=self.queue, day=day, rows=rows.num_rows * times, bytes=target.tell()))
        table.commit(seen, self.queue, parts, committed_at=NOON)

    def clear(self, *prefixes: str) -> None:
        store = self.bucket.store()
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(store.delete, [key for prefix in prefixes for key in keys_under(store, prefix)]))

    def remove(self) -> None:
        self.clear(f"{self.queue}/", "archive/", "analytics/", "bulk/")
        shutil.rmtree(self.folder)

    def out(self, name: str) -> str:
        return str(self.folder / f"out-{name}")

    def dataset(self) -> Path:
        """JSON lines to be enqueued."""
        target = self.folder / "dataset"
        if not target.exists():
            self.spark.range(self.rows).selectExpr(DATASET).write.text(str(target))
        return target


def stored(queue: str, number: int, per_object: int) -> tuple[str, bytes]:
    """Key and body of an object."""
    keys = Keys(queue)
    if per_object == 1:
        one = finished(number, f"messages/m{number:07d}")
        return keys.record(one.path), one.to_bytes()
    numbers = range(number * per_object, (number + 1) * per_object)
    records = tuple(finished(n, f"messages/{PARTITION}/m{n:07d}") for n in numbers)
    return keys.journal(PARTITION, f"j{number:07d}-{per_object}"), journal_bytes(records)


def finished(n: int, path: str) -> Record:
    """One message in a hundred is dead, one in ten was tried twice; no two durations are the same for long."""
    return record(
        path,
        finished_at=finished_at(n),
        failure=Failure("Refused", "550 no such user") if n % 100 == 0 else None,
        tries=int(n % 10 == 0),
        worker=f"worker-{n % 8}",
        wait=(n * 37 % 10_007) / 100,
        run=(n * 53 % 1_009) / 100,
        result={"sent": n},
    )


def finished_at(n: int) -> datetime:
    return NOON - timedelta(minutes=15 * (n // 10 % QUARTERS))
