"""Writing: the rows of a DataFrame, or of each microbatch of a stream, as batches of a queue."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

from s3queue.documents.message import ONCE
from s3queue.encoding import MOST_LINES, with_put_id
from s3queue.errors import Conflict, InvalidRequest, Unavailable
from s3queue.settings import QueueSettings
from s3queue.store import UNKNOWN_TRIES, ObjectStore
from spark.bulk.buckets import cut, enqueue_bucket, problem_of
from spark.bulk.digest import LinesDigest
from spark.bulk.plan import Plan, check_buckets
from spark.bulk.sorting import in_order
from spark.storage.scan import in_threads

from .kinds import Target, whole

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger("spark.datasource")
#: What Spark calls the microbatch of a task, and the query, which is the same for all runs of one checkpoint.
BATCH_ID, QUERY_ID = "streaming.sql.batchId", "sql.streaming.queryId"
Former = Literal["none", "begun", "done"]


@dataclass
class Written(WriterCommitMessage):
    """What one task did."""

    batches: int
    messages: int
    added: int


def check_rows(schema: StructType, overwrite: bool) -> None:
    """Raises InvalidRequest if rows like these are no messages."""
    if overwrite:
        raise InvalidRequest('mode("append") is the only one: a queue is not replaced')
    if len(schema) != 1 or not isinstance(schema[0].dataType, (StringType, BinaryType)):
        raise InvalidRequest(
            "one column of text or bytes is the message: "
            "df.select(to_json(struct('*')).alias('body')) makes one of all columns"
        )


def plan_of(options: Mapping[str, str], target: Target, run: str) -> Plan:
    return Plan(
        queue=target.queue,
        run=run,
        per_object=whole(options, "per_object", 100, least=1, most=MOST_LINES),
        priority=whole(options, "priority", 0, least=0, most=255),
        shards=whole(options, "shards", 0, least=0, most=256),
        buckets=0,
        rows=0,
        fingerprint="",
    )


def former_of(store: ObjectStore, plan: Plan) -> Former:
    """What former starts of a run left; for a new one, one LIST."""
    if not store.list(plan.keys.bulk(plan.run, ""), limit=1).objects:
        return "none"
    return "done" if store.head(plan.keys.bulk(plan.run, "done.json")) else "begun"


def lines_in(batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    """The messages, sorted. Raises InvalidRequest for a row that cannot be one."""
    return in_order(_lines(batches))


def _lines(batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    limit = QueueSettings().max_message_size
    for batch in batches:
        for value in batch.column(0).to_pylist():
            line = value.encode() if isinstance(value, str) else value
            problem = problem_of(line, limit)
            if problem:
                raise InvalidRequest(f"a row cannot be a message: {problem}: {str(value)[:200]!r}")
            yield line


class QueueWriter(DataSourceArrowWriter):
    """A partition is a bucket of bulk/buckets.py: a retried task finds what its former attempt did, and refuses other
    rows. How many partitions there are, a Python source is told when all were written: if a former start of the run
    had more, it does not become done.
    """

    def __init__(self, target: Target, plan: Plan, former: Former) -> None:
        self._target = target
        self._plan = plan
        self._is_done = former == "done"
        self._is_begun = former == "begun"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if self._is_done:
            return Written(0, 0, 0)
        number = _task().partitionId()
        digest = LinesDigest()
        lines = digest.sorted(_lines(iterator))
        told = enqueue_bucket(self._target.bucket.store(), self._plan, number, lines, digest=digest)
        return Written(told["batches"], told["messages"], told["added"])

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._is_done:
            return
        if self._is_begun:
            check_buckets(self._target.bucket.store(), self._plan, len(messages))
        body = json.dumps({"queue": self._plan.queue, "run": self._plan.run} | _sums(messages)).encode()
        key = self._plan.keys.bulk(self._plan.run, "done.json")
        self._target.bucket.store().put(key, body, content_type="application/json")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        # Nothing to take back: what was PUT may have run already.
        _log.warning("bulk run aborted, enqueued messages stay: %s: %s", self._plan.queue, self._plan.run)


class QueueStreamWriter(DataSourceStreamArrowWriter):
    """Every batch has a name that follows from stream, microbatch, task and content, and runs once.

    A microbatch that is repeated PUTs the same names `If-None-Match: *`. What was finished meanwhile is PUT again, and
    cleared away by its claim, which reads the record first: see documents/once.py. So nothing is remembered here.
    """

    def __init__(self, target: Target, plan: Plan, is_named: bool) -> None:
        self._target = target
        self._plan = plan
        self._is_named = is_named

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = _task()
        batch, query = task.getLocalProperty(BATCH_ID), task.getLocalProperty(QUERY_ID)
        if batch is None or query is None:
            raise InvalidRequest("the number of the microbatch is unknown here: write a stream with writeStream")
        stream = self._plan.run if self._is_named else f"stream-{query}"
        plan = replace(self._plan, run=f"{stream}.{int(batch):09d}")
        return Written(**put_batches(self._target.bucket.store(), plan, task.partitionId(), lines_in(iterator)))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        _log.info("microbatch enqueued: %s: %s: %s", self._plan.queue, batchId, _sums(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        _log.warning("microbatch aborted, enqueued messages stay: %s: %s", self._plan.queue, batchId)


def put_batches(store: ObjectStore, plan: Plan, task: int, lines: Iterator[bytes]) -> dict[str, int]:
    """PUT the batches of one task, each of which runs once, however often this is called with the same lines.

    Raises:
        Unavailable: unknown whether something was written; calling again is safe.
    """

    def put(numbered: tuple[int, tuple[bytes, int]]) -> tuple[bool, int]:
        sequence, (batch, count) = numbered
        return _put_once(store, plan, plan.path(task, sequence, batch), batch), count

    told = {"batches": 0, "messages": 0, "added": 0}
    for was_added, count in in_threads(put, enumerate(cut(lines, plan.per_object))):
        told["batches"] += 1
        told["messages"] += count
        told["added"] += was_added
    return told


def _put_once(store: ObjectStore, plan: Plan, path: str, batch: bytes) -> bool:
    """False if it was there already. An answer that is lost changes nothing: a second PUT of it does not run."""
    mark = with_put_id({}, f"{ONCE}bulk-{hashlib.sha256(path.encode()).hexdigest()[:32]}")
    for _ in range(UNKNOWN_TRIES):
        try:
            key = plan.keys.message(path)
            store.put(key, batch, if_absent=True, metadata=mark, content_type="application/x-ndjson")
            return True
        except Conflict:
            return False
        except Unavailable:
            continue
    raise Unavailable(f"unknown whether {path} was enqueued; run again")


def _task() -> Any:
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None
    return task


def _sums(messages: list[WriterCommitMessage | None]) -> dict[str, int]:
    told = [asdict(message) for message in messages if isinstance(message, Written)]
    return {name: sum(each[name] for each in told) for name in ("batches", "messages", "added")}
