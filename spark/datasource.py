"""A data source for Spark 4: a queue as a DataFrame, and a DataFrame into a queue.

    spark.dataSource.register(QueueDataSource)
    spark.read.format("s3queue").options(url="s3://bucket/emails", kind="dead").load()
    df.select(sf.to_json(sf.struct("*")).alias("body")).write.format("s3queue").options(url=…).mode("append").save()

| option | for | |
|---|---|---|
| `url` | both | `s3://bucket/queue`, or `s3://bucket` and an option `queue` |
| `kind` | reading | `messages` (with the delayed ones), `records`, `archive` or `dead` |
| `run`, `per_object`, `priority`, `shards` | writing | as in bulk_enqueue.py |
| `endpoint_url`, `region` | both | an S3 server other than AWS |

**Reading** takes no claim: rows are what lay there when their partition was listed; a batch is a row for each line.
What is no record is left out (archive.py counts it). `archive` has the rows of `records` that were archived, expired
or not, at one version of the table; any reader of Delta Lake sees the same.

**Writing is no transaction.** A batch may run as soon as it is PUT, long before the job's commit, and an aborted job
takes nothing back. What is promised: a task that is retried adds no batch twice as long as its rows come again as they
were, and a `run` that was committed is not repeated. For more, see bulk_enqueue.py, whose batches do not depend on how
the data was partitioned.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, StringType, StructType

from s3queue.archive.old_log import check_converted
from s3queue.archive.parts import Part, part_batches
from s3queue.clock import RandomChance
from s3queue.errors import InvalidRequest
from s3queue.keys import Keys
from s3queue.queue import Queue
from s3queue.settings import QueueSettings
from spark.bulk.buckets import enqueue_bucket, problem_of
from spark.bulk.plan import Plan
from spark.rows.message_rows import LETTER_SCHEMA, MESSAGE_SCHEMA, letter_rows, message_rows
from spark.rows.record_rows import RECORD_SCHEMA, read_record
from spark.storage.bucket import Bucket
from spark.storage.scan import KeyRange, batches_of, in_threads, list_range, survey

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger("spark.datasource")
#: Whole messages are in memory, so fewer at a time than of records.
THREADS = 4
Rows = Iterator[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Kind:
    """What one kind of object is read as."""

    schema: StructType
    prefixes: tuple[str, ...]
    #: Queue, key and ETag → its rows.
    rows: Callable[[Queue, str, str], Rows]


def _record_rows(queue: Queue, key: str, etag: str) -> Rows:
    for row in read_record(queue.store, queue.name, key, etag):
        if row[-1] is None:
            yield row[:-1]


KINDS = {
    "messages": Kind(MESSAGE_SCHEMA, ("messages", "delayed"), lambda queue, key, _: message_rows(queue, key)),
    "records": Kind(RECORD_SCHEMA, ("records",), _record_rows),
    # Files of a table, not objects of the queue: see ArchiveReader.
    "archive": Kind(RECORD_SCHEMA, (), _record_rows),
    "dead": Kind(LETTER_SCHEMA, ("dead",), lambda queue, key, _: letter_rows(queue, key)),
}


@dataclass(frozen=True, slots=True)
class Target:
    """Which queue of which bucket."""

    bucket: Bucket
    queue: str

    @classmethod
    def of(cls, options: Any) -> Target:
        """Raises InvalidRequest, naming the option, if they name no queue."""
        parts = urlsplit(options.get("url", ""))
        queue = parts.path.strip("/") or options.get("queue", "")
        if parts.scheme != "s3" or not parts.netloc or not queue:
            raise InvalidRequest("option url: s3://bucket/queue, or s3://bucket and an option queue")
        Keys(queue)
        return cls(Bucket(parts.netloc, options.get("endpoint_url"), options.get("region")), queue)

    def connect(self) -> Queue:
        return Queue(store=self.bucket.store(), name=self.queue)


class QueueDataSource(DataSource):
    """`format("s3queue")`."""

    @classmethod
    def name(cls) -> str:
        return "s3queue"

    def schema(self) -> StructType:
        return self._kind().schema

    def reader(self, schema: StructType) -> DataSourceReader:
        if schema != self._kind().schema:
            raise InvalidRequest("the schema follows from the kind: leave it out, and select what is wanted")
        if self.options.get("kind") == "archive":
            return ArchiveReader(Target.of(self.options))
        return QueueReader(Target.of(self.options), self.options.get("kind", "messages"))

    def writer(self, schema: StructType, overwrite: bool) -> QueueWriter:
        if overwrite:
            raise InvalidRequest('mode("append") is the only one: a queue is not replaced')
        if len(schema) != 1 or not isinstance(schema[0].dataType, (StringType, BinaryType)):
            raise InvalidRequest(
                "one column of text or bytes is the message: "
                "df.select(to_json(struct('*')).alias('body')) makes one of all columns"
            )
        target = Target.of(self.options)
        plan = Plan(
            queue=target.queue,
            run=self.options.get("run") or f"write-{RandomChance().token()}",
            per_object=int(self.options.get("per_object", 100)),
            priority=int(self.options.get("priority", 0)),
            shards=int(self.options.get("shards", 0)),
            buckets=0,
            rows=0,
            fingerprint="",
        )
        is_done = target.bucket.store().head(plan.keys.bulk(plan.run, "done.json")) is not None
        return QueueWriter(target, plan, is_done)

    def _kind(self) -> Kind:
        kind = self.options.get("kind", "messages")
        if kind not in KINDS:
            raise InvalidRequest(f"option kind: {', '.join(KINDS)}, not {kind!r}")
        return KINDS[kind]


class KeyPartition(InputPartition):
    """A page of keys."""

    def __init__(self, keys: KeyRange) -> None:
        self.keys = keys


class QueueReader(DataSourceReader):
    """Lists on the driver, lists again and reads in the executors: no more than a page's bounds travel."""

    def __init__(self, target: Target, kind: str) -> None:
        self._target = target
        self._kind = kind

    def partitions(self) -> Sequence[InputPartition]:
        store, keys = self._target.bucket.store(), Keys(self._target.queue)
        extents = [survey(store, keys.prefix(prefix)) for prefix in KINDS[self._kind].prefixes]
        return [KeyPartition(found) for extent in extents for found in extent.ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        kind, queue = KINDS[self._kind], self._target.connect()
        # Without any partition Spark asks for one that is None.
        found = list_range(queue.store, partition.keys) if isinstance(partition, KeyPartition) else iter(())
        read = in_threads(lambda entry: list(kind.rows(queue, entry.key, entry.etag)), found, threads=THREADS)
        yield from batches_of((row for rows in read for row in rows), kind.schema)


class PartPartition(InputPartition):
    """A file of the archive."""

    def __init__(self, part: Part) -> None:
        self.part = part


class ArchiveReader(DataSourceReader):
    """The driver reads the table's log; the executors read files, one each."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def partitions(self) -> Sequence[InputPartition]:
        bucket, queue = self._target.bucket, self._target.queue
        seen = bucket.archive().snapshot()
        check_converted(bucket.store(), seen, queue)
        return [PartPartition(part) for part in seen.parts(queue)] if seen else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyspark.sql.pandas.types import to_arrow_schema

        # Without any partition Spark asks for one that is None.
        if isinstance(partition, PartPartition):
            part, schema = partition.part, to_arrow_schema(RECORD_SCHEMA)
            constants = {"queue": part.queue, "day": part.day}
            yield from part_batches(self._target.bucket.store(), part.key, part.rows, constants, schema)


@dataclass
class Written(WriterCommitMessage):
    """What one task did."""

    batches: int
    messages: int
    added: int


class QueueWriter(DataSourceArrowWriter):
    """A partition is a bucket of bulk/buckets.py: a retried task finds what its former attempt did."""

    def __init__(self, target: Target, plan: Plan, is_done: bool) -> None:
        self._target = target
        self._plan = plan
        self._is_done = is_done

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        if self._is_done:
            return Written(0, 0, 0)
        lines = self._lines(iterator)
        told = enqueue_bucket(self._target.bucket.store(), self._plan, task.partitionId(), lines)
        return Written(told["batches"], told["messages"], told["added"])

    def _lines(self, batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
        limit = QueueSettings().max_message_size
        for batch in batches:
            for value in batch.column(0).to_pylist():
                line = value.encode() if isinstance(value, str) else value
                problem = problem_of(line, limit)
                if problem:
                    raise InvalidRequest(f"a row cannot be a message: {problem}: {str(value)[:200]!r}")
                yield line

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._is_done:
            return
        told = [asdict(message) for message in messages if isinstance(message, Written)]
        report = {name: sum(each[name] for each in told) for name in ("batches", "messages", "added")}
        body = json.dumps({"queue": self._plan.queue, "run": self._plan.run} | report).encode()
        key = self._plan.keys.bulk(self._plan.run, "done.json")
        self._target.bucket.store().put(key, body, content_type="application/json")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        # Nothing to take back: what was PUT may have run already.
        _log.warning("bulk run aborted, enqueued messages stay: %s: %s", self._plan.queue, self._plan.run)
