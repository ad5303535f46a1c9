"""StreamDefinition: a `per_stream` job, whose messages are read in executors: the driver keeps none of their bytes.

Only the lines of a batch come from the driver. Each message, and each line, is a task of its own. Claim, attempt and
outcome are the driver's, as those of a `per_message` job.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from s3queue.documents.message import Message
from s3queue.documents.record import Failure
from s3queue.encoding import Unstorable, storable
from s3queue.errors import Conflict, MessageNotFound, Postpone, Reject, Retry
from s3queue.keys import Keys
from s3queue.queue import Queue
from s3queue.run_memory import CORES
from s3queue.settings import QueueSettings
from s3queue.worker.context import Context
from s3queue.worker.definition import Definition
from spark.storage.bucket import Bucket

from .reasons import SparkError, reason_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PerStream = Callable[..., Any]


class JobError(Exception):
    """What a job raised in an executor, as text: its own exceptions need not travel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamContext:
    """The second argument of `per_stream`: what can be known of a message where an executor runs."""

    queue: str
    path: str
    attempt: int
    max_attempts: int
    enqueued_at: datetime
    size: int
    #: The line of a batch, counted from 1; 0 for a single message.
    line: int = 0
    #: Pass it to the system that the job writes to, which should refuse an older one.
    fence: str = ""
    content_type: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Ended:
    """How a call ended, as it travels back."""

    result: str = "null"
    #: Why no record can keep what the job returned.
    problem: str = ""
    kind: str = ""
    error: str = ""
    after: timedelta | None = None


class StreamDefinition(Definition):
    """A queue whose handler has each message run by `per_stream` in an executor."""

    def __init__(self, queue: Queue, per_stream: PerStream, spark: SparkSession, bucket: Bucket) -> None:
        super().__init__(queue.name, queue.settings, queue.sends_to or (), flows=bool(queue.flows))
        self._per_stream = per_stream
        self._context = spark.sparkContext
        self._bucket = bucket
        self.handler(self._run)

    def argument(self, message: Message, settings: QueueSettings | None = None) -> Any:
        """Nothing: the driver does not open it. A stream has no largest size."""
        return None

    def parse(self, line: bytes) -> Any:
        """A line of a batch, as it is."""
        return line

    def _run(self, line: Any, context: Context) -> Any:
        message = context.claim.message
        about = StreamContext(
            queue=context.queue,
            path=context.path,
            attempt=context.attempt,
            max_attempts=context.max_attempts,
            enqueued_at=context.enqueued_at,
            size=message.size if line is None else len(line),
            line=context.line,
            fence=context.fence,
            content_type=context.content_type,
            metadata=dict(context.metadata),
        )
        call = partial(_call, self._bucket, self._per_stream, message.generation.etag, line, about)
        try:
            (ended,) = self._context.parallelize([0], 1).map(call).collect()
        except Exception as error:
            raise SparkError(reason_of(error)) from error
        return _outcome(ended)


def at_once(spark: SparkSession, settings: QueueSettings) -> int:
    """How many messages are started at one time: one for each core that the run may get, and half as many that wait.

    Tasks that wait are what makes Spark ask for executors; and a core need not wait for the driver, which records one
    message and begins another.
    """
    context = spark.sparkContext
    is_local = str(context.master).startswith("local")
    cores = context.defaultParallelism if is_local else settings.max_executors * CORES
    return cores + max(1, cores // 2)


def _call(bucket: Bucket, per_stream: PerStream, etag: str, line: bytes | None, about: StreamContext, _: int) -> _Ended:
    """Runs in an executor."""
    from pyspark import TaskContext

    task = TaskContext.get()
    if task and task.attemptNumber():
        # Spark starts the task of a lost executor again: that would be a second start in one attempt.  [P5]
        raise JobError("the executor was lost while it ran the message; perhaps it had too little memory")
    try:
        with _opened(bucket, etag, line, about) as stream:
            result = per_stream(stream, about)
    except Reject as error:
        return _Ended(kind="Reject", error=str(error))
    except (Retry, Postpone) as error:
        return _Ended(kind=type(error).__name__, error=str(error), after=error.after)
    except Exception as error:
        failure = Failure.of(error)
        return _Ended(kind="JobError", error=f"{failure.type}: {failure.message}")
    # The work is done, whatever it returned. Nor need that travel: its classes may be unknown to the driver.
    kept, problem = storable(result)
    return _Ended(json.dumps(kept), problem=problem)


def _opened(bucket: Bucket, etag: str, line: bytes | None, about: StreamContext) -> Any:
    if line is not None:
        return io.BytesIO(line)
    try:
        found = bucket.store().open(Keys(about.queue).message(about.path), if_match=etag)
    except Conflict:
        found = None
    if found is None:
        raise MessageNotFound(f"{about.queue}/{about.path} was deleted or PUT again since it was claimed")
    return found.stream


def _outcome(ended: _Ended) -> Any:
    if ended.kind == "Reject":
        raise Reject(ended.error)
    if ended.kind == "Retry":
        raise Retry(ended.error, after=ended.after)
    if ended.kind == "Postpone":
        raise Postpone(ended.error, after=ended.after or timedelta())
    if ended.kind:
        raise JobError(ended.error)
    return Unstorable(ended.problem) if ended.problem else json.loads(ended.result)
