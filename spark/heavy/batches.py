"""BatchWork: a `per_batch` job, many messages in one DataFrame, and every one of them with its own outcome.

Fresh messages go together. What failed before goes alone: a message that poisons a batch takes its neighbours down
once, and dies by itself.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from s3queue.documents.batch import most_bytes, most_lines
from s3queue.documents.dead_lines import messages_of
from s3queue.documents.record import Failure
from s3queue.encoding import MOST_LINES
from s3queue.errors import Conflict, LeaseLost, QueueError, Reject
from s3queue.paths import is_batch
from s3queue.protocol.claim import Claim
from s3queue.run_memory import RunMemory
from s3queue.settings import QueueSettings
from s3queue.spark_runs.claims import in_parallel
from s3queue.worker.unknown import until_known
from spark.storage.bucket import Bucket
from spark.storage.objects import fetch

from .driver import Driver
from .feed import Feed
from .messages import SparkGone
from .partition_rounds import PartitionRounds, Run
from .reasons import reason_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)
#: What is asked for, and what comes back.
ASKED = "path string, key string, etag string, attempt int, enqueued_at timestamp, skip array<int>"
MESSAGES = "path string, line int, body binary, attempt int, enqueued_at timestamp"
#: Instead of a line's number, without a body: the batch has too many lines; the object is not the one that was claimed.
ENDLESS, GONE = -1, -2
#: (path, line) → (result, error, whether a second attempt is vain).
Outcomes = dict[tuple[str, int], tuple[Any, str | None, bool]]


class BatchWork:
    """Runs `per_batch` over groups of messages."""

    def __init__(
        self,
        per_batch: Callable[[SparkSession, DataFrame], DataFrame],
        spark: SparkSession,
        bucket: Bucket,
        *,
        memory: RunMemory | None = None,
        queries: int = 1,
        is_alive: Callable[[], bool] = lambda: True,
    ) -> None:
        """`queries`: how many run at one time. `memory`: of the run; payloads that it is too small for are refused."""
        self._per_batch = per_batch
        self._spark = spark
        self._bucket = bucket
        self._queries = queries
        self._memory = memory
        self._is_alive = is_alive

    def run(self, feed: Feed, driver: Driver) -> None:
        """Bring what the feed has to its outcome, a query for each group. Raises SparkGone if the session died.

        With several queries at a time, the next messages run while the last of a query still do.
        """
        if self._queries > 1:
            feed.low = 0

        def work(number: int) -> None:
            spark = self._session(number)
            try:
                while group := feed.take(size_of_group):
                    self._begin_group(group, driver, spark)
                    feed.done(len(group))
            except BaseException:
                feed.stop()
                raise

        in_parallel(work, range(self._queries), self._queries)

    def run_partitions(self, partitions: Iterable[str], driver: Driver) -> int:
        return PartitionRounds(self, partitions, driver).run()

    def keeps_body(self, path: str) -> bool:
        """None: the executors read them."""
        return False

    def run_claims(self, claims: Sequence[Claim], driver: Run) -> None:
        """Bring every claim to its outcome, group after group. Raises SparkGone if the session died."""
        for group in grouped(claims):
            if driver.is_over():
                for claim in group:
                    driver.release(claim)
            else:
                self._begin_group(group, driver, self._spark)

    def _begin_group(self, group: Sequence[Claim], driver: Run, spark: SparkSession) -> None:
        if not self._is_alive():
            raise SparkGone("the Spark session is gone")
        # What is begun is charged: not a claim that ran out before its turn, or it dies without having run.  [P5]
        alive = [claim for claim in group if claim.is_alive()]
        for claim in group:
            if claim not in alive:
                driver.vanished(claim)
        if alive:
            driver.begin(alive)
            self._run_group(alive, driver, spark)

    def _session(self, number: int) -> SparkSession:
        """Queries that run side by side have views, settings and a share of the executors of their own."""
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", f"query-{number}")
        if number == 0:
            return self._spark
        spark = self._spark.newSession()
        self._bucket.note(spark)
        return spark

    def _run_group(self, group: Sequence[Claim], driver: Run, spark: SparkSession) -> None:
        settings = driver.queue.settings
        longest = self._longest(settings)
        sized: list[Claim] = []
        for claim in group:
            limit = most_bytes(claim.path, settings.max_batch_size) if claim.message.is_batch else longest
            if claim.message.size > limit:
                self._end(driver, claim, Reject(self._too_large(claim, settings)))
            elif claim.is_alive():
                sized.append(claim)
            else:
                driver.vanished(claim)
        if not sized:
            return
        read = self._messages(sized, driver, spark).persist()
        try:
            rows = read.selectExpr("path", "line", "body is null as is_long").collect()
            # No query starts on a message after its lease is over: reading all of them may have taken minutes.  [P4]
            left_out = {claim.path for claim in sized if not claim.is_alive()}
            left_out |= {row.path for row in rows if row.line == GONE}
            for claim in sized:
                if claim.path in left_out:
                    driver.vanished(claim)
            sized = [claim for claim in sized if claim.path not in left_out]
            if not sized:
                return
            endless = {row.path for row in rows if row.line == ENDLESS}
            left_out |= endless
            asked = [(row.path, row.line) for row in rows if row.path not in left_out]
            long = {(row.path, row.line) for row in rows if row.is_long}
            # Also if there was none: what an executor lost is read again, and may be gone by then.
            messages = read.where("body is not null")
            if left_out:
                messages = messages.where(~messages.path.isin(sorted(left_out)))
            found = outcomes_of(self._per_batch(spark, messages))
            said = f"MessageTooLarge: longer than {longest} bytes, which is {self._why(settings, longest + 1)}"
            found |= dict.fromkeys(long, (None, said, True))
        except Exception as error:
            if not self._is_alive():
                raise SparkGone(f"the Spark session is gone: {error}") from error
            _log.warning(
                "group of messages failed: %s: %d messages: %s", driver.queue.name, len(sized), reason_of(error)
            )
            failure = Failure(type(error).__name__, reason_of(error))
            for claim in sized:
                self._end(driver, claim, failure)
            return
        finally:
            if self._is_alive():
                read.unpersist()
        lines: dict[str, list[int]] = {}
        for path, line in asked:
            lines.setdefault(path, []).append(line)
        for claim in sized:
            if claim.path in endless:
                said = f"MessageTooLarge: more than {settings.max_batch_lines} lines, which is max_batch_lines"
                self._end(driver, claim, Reject(said))
            else:
                self._write_outcome(driver, claim, sorted(lines.get(claim.path, ())), found)

    def _longest(self, settings: QueueSettings) -> int:
        """The longest payload that is run. One that the executors have too little memory for would end the query with
        an OutOfMemoryError, and cost all of its messages an attempt.
        """
        fits = self._memory.largest_in_batch if self._memory else settings.max_message_size
        return min(settings.max_message_size, fits)

    def _too_large(self, claim: Claim, settings: QueueSettings) -> str:
        size = claim.message.size
        if claim.message.is_batch:
            return f"MessageTooLarge: {size} bytes, at most {settings.max_batch_size}, which is max_batch_size"
        return f"MessageTooLarge: {size} bytes, at most {self._longest(settings)}, which is {self._why(settings, size)}"

    def _why(self, settings: QueueSettings, size: int) -> str:
        if self._memory is None or self._memory.largest_in_batch >= settings.max_message_size:
            return "max_message_size"
        return f"what its executors have memory for: {self._memory.too_small_for(size)}; then replay it"

    def _messages(self, claims: Sequence[Claim], driver: Run, spark: SparkSession) -> DataFrame:
        keys = driver.queue.keys
        asked = [
            (
                claim.path,
                keys.message(claim.path),
                claim.message.generation.etag,
                claim.attempt,
                claim.message.enqueued_at,
                sorted(_skipped(claim)),
            )
            for claim in claims
        ]
        settings = driver.queue.settings
        read = partial(
            read_message,
            self._bucket,
            max_bytes=self._longest(settings),
            max_lines=settings.max_batch_lines,
        )
        return fetch(spark, asked, ASKED, MESSAGES, read)

    def _write_outcome(self, driver: Run, claim: Claim, lines: list[int], found: Outcomes) -> None:
        if claim.message.is_batch:
            self._write_lines(driver, claim, lines, found)
            return
        result, error, rejected = found.get((claim.path, 0), (None, NO_OUTCOME, False))
        if error is None:
            self._end(driver, claim, None, result)
        else:
            self._end(driver, claim, Reject(error) if rejected else Failure("JobError", error))

    def _write_lines(self, driver: Run, claim: Claim, lines: list[int], found: Outcomes) -> None:
        can_retry = driver.queue.settings.retry.can_retry(claim.attempt)
        total = len(lines) + len(_skipped(claim))
        for line in lines:
            result, error, rejected = found.get((claim.path, line), (None, NO_OUTCOME, False))
            if error is None:
                claim.lines.complete(line, result)
            else:
                claim.lines.fail(line, claim.attempt, Failure("JobError", error), dead=rejected or not can_retry)
        if claim.lines.failed:
            self._end(driver, claim, claim.lines.failure(total))
        else:
            self._write(driver, claim, lambda: driver.queue.complete_lines(claim, total).outcome)

    def _end(self, driver: Run, claim: Claim, error: BaseException | Failure | None, result: Any = None) -> None:
        def write() -> str:
            if error is None:
                return driver.queue.complete(claim, result).outcome
            ended = driver.queue.fail(claim, error)
            return "retried" if not hasattr(ended, "outcome") else str(ended.outcome)

        self._write(driver, claim, write)

    def _write(self, driver: Run, claim: Claim, write: Callable[[], str]) -> None:
        outcome = "lost"
        try:
            outcome = until_known(driver.queue, write)
        except LeaseLost:
            pass
        except QueueError as error:
            _log.error("outcome not written, lease will run out: %s/%s: %s", driver.queue.name, claim.path, error)
        driver.ended(claim, outcome)


NO_OUTCOME = "the job returned no outcome for this message"


def size_of_group(claims: Sequence[Claim]) -> int:
    """How many of these, from the first on, go together: what is fresh; what has failed before goes alone."""
    fresh = next((number for number, claim in enumerate(claims) if claim.attempt > 1), len(claims))
    return max(1, fresh)


def grouped(claims: Sequence[Claim]) -> Iterator[list[Claim]]:
    """What is fresh together, what has failed before alone; in the order of the manifest."""
    left = list(claims)
    while left:
        count = size_of_group(left)
        yield left[:count]
        left = left[count:]


def outcomes_of(outcomes: DataFrame) -> Outcomes:
    """What a job returned, by message. Raises ValueError if the columns are not those of an outcome."""
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    missing = {"path", "result", "error"} - set(outcomes.columns)
    if missing:
        raise ValueError(f"per_batch must return path, result and error; there is no {', '.join(sorted(missing))}")
    kind = outcomes.schema["result"].dataType
    is_nested = isinstance(kind, (st.StructType, st.ArrayType, st.MapType, st.VariantType))
    chosen = outcomes.select(
        "path",
        (sf.col("line") if "line" in outcomes.columns else sf.lit(0)).cast("int").alias("line"),
        (sf.to_json("result") if is_nested else sf.col("result")).alias("result"),
        sf.col("error").cast("string").alias("error"),
        (sf.col("reject") if "reject" in outcomes.columns else sf.lit(False)).cast("boolean").alias("reject"),
    )
    found: Outcomes = {}
    for row in chosen.collect():
        result = json.loads(row.result) if is_nested and row.result is not None else row.result
        known = found.get((row.path, row.line or 0))
        # Two outcomes for one message: the error counts, because a success cannot be taken back.
        if known is None or known[1] is None:
            found[row.path, row.line or 0] = (result, row.error, bool(row.reject))
    return found


def read_message(
    bucket: Bucket, asked: tuple[Any, ...], *, max_bytes: int | None = None, max_lines: int = MOST_LINES
) -> Iterator[tuple[Any, ...]]:
    """Runs in an executor: the rows of one message; a batch without lines has none.

    A line that is too long has no body; `ENDLESS` says that the batch has too many of them, `GONE` that it was deleted
    or PUT anew since it was claimed.
    """
    path, key, etag, attempt, enqueued_at, skip = asked
    found = None
    with suppress(Conflict):
        found = bucket.store().open(key, if_match=etag)
    if found is None:
        yield path, GONE, None, attempt, enqueued_at
        return
    if not is_batch(path):
        yield path, 0, found.read(), attempt, enqueued_at
        return
    skipped = set(skip or ())
    with found.stream as stream:
        for number, line in messages_of(path, stream, max_bytes):
            # As in `spooled`, a last line without an end is not counted.
            if number > most_lines(path, max_lines) + 1:
                yield path, ENDLESS, None, attempt, enqueued_at
                return
            if number not in skipped:
                yield path, number, line if isinstance(line, bytes) else None, attempt, enqueued_at


def _skipped(claim: Claim) -> set[int]:
    """Lines that came to their end in an earlier attempt."""
    return {*claim.lines.done, *claim.lines.dead}
