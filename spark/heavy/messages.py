"""MessageWork: a `per_message` job, a few messages at a time on one session, each through the common Processor."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from s3queue.errors import InvalidRequest, QueueError
from s3queue.paths import is_batch, partition_path
from s3queue.protocol.claim import Claim
from s3queue.queue import Queue
from s3queue.spark_runs.claims import in_parallel
from s3queue.worker.definition import Definition
from s3queue.worker.partition_runs import PartitionRuns
from s3queue.worker.processor import Processor
from s3queue.worker.renewal import renew_held
from s3queue.worker.signatures import accepts, annotation_of

from .driver import Driver
from .feed import Feed
from .reasons import SparkError, reason_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_log = logging.getLogger(__name__)
#: After this long a partition is given up, so that others have their turn. Longer than a pull worker's: heavy messages
#: take minutes.
TURN_SECONDS = 120.0
#: A thread without a partition looks this often whether it can help with one.
HELP_SECONDS = 0.2


class SparkGone(Exception):
    """The session died: whatever would be started now would fail for that reason alone."""


class MessageWork:
    """Runs `per_message` for each message; parsing, retries, rejection and batches are as in a handler."""

    def __init__(
        self,
        queue: Queue,
        per_message: Callable[..., Any] | Definition,
        spark: SparkSession | None,
        *,
        parallel: int = 1,
        is_alive: Callable[[], bool] = lambda: True,
    ) -> None:
        """`per_message`: the job, or a definition that runs it in executors, as `StreamDefinition` does."""
        #: Whether executors read the payloads, and the driver only the lines of batches.
        self._is_read_there = isinstance(per_message, Definition)
        if isinstance(per_message, Definition):
            self._definition = per_message
        else:
            self._definition = Definition(queue.name, queue.settings, queue.sends_to or (), flows=bool(queue.flows))
            self._definition.handler(handler_of(per_message, spark))
        self._spark = spark
        self._parallel = parallel
        self._is_alive = is_alive

    def run(self, feed: Feed, driver: Driver) -> None:

        def should_stop() -> bool:
            # Also between the lines of a batch: on a dead session, each would be charged with that.
            return driver.is_over() or not self._is_alive()

        processor = self._processor(driver, should_stop)
        if self._parallel > 1:
            feed.low = self._parallel

        def work(_: int) -> None:
            self._in_own_pool()
            try:
                while claims := feed.take():
                    self._one(processor, claims[0], driver)
                    feed.done()
            except BaseException:
                feed.stop()
                raise
            if self._is_alive():
                # Others may run for hours yet. If all of them do, the driver sees to it when the time is up.
                for claim in feed.left():
                    driver.release(claim)

        in_parallel(work, range(self._parallel), self._parallel)

    def keeps_body(self, path: str) -> bool:
        return is_batch(path) or not self._is_read_there

    def _one(self, processor: Processor, claim: Claim, driver: Driver) -> None:
        if not self._is_alive():
            raise SparkGone("the Spark session is gone")
        if not claim.is_alive():
            driver.vanished(claim)
            return
        try:
            driver.begin([claim])
        except QueueError as error:
            _log.warning("message not started, given back: %s/%s: %s", driver.queue.name, claim.path, error)
            driver.release(claim)
            return
        driver.ended(claim, processor.process(claim))

    def _in_own_pool(self) -> None:
        """The threads' queries share the executors evenly: in one pool the first query would go first."""
        if self._spark is not None:
            self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", threading.current_thread().name)

    def run_partitions(self, partitions: Iterable[str], driver: Driver) -> int:
        """Each thread works on a partition; one that finds none left helps another with a share, which has no order."""

        def should_stop() -> bool:
            return driver.must_pause() or not self._is_alive()

        runs = PartitionRuns(
            self._processor(driver, should_stop),
            driver.heartbeat,
            count=driver.counted,
            is_wanted=lambda: True,
            turn=TURN_SECONDS,
        )
        pending, held = iter(partitions), list[str]()
        mutex = threading.Lock()

        def work(_: int) -> None:
            self._in_own_pool()
            while not should_stop():
                with mutex:
                    partition = next(pending, None)
                path = partition_path(partition) if partition else runs.helpable()
                if path is None and not len(runs):
                    return
                if path is None:
                    driver.queue.clock.sleep(HELP_SECONDS)
                    continue
                try:
                    if partition:
                        driver.trying(partition)
                    if runs.work(path) and partition:
                        held.append(partition)
                        driver.progressed()
                except QueueError as error:
                    # Its lease runs out; the other partitions need not wait for that.
                    _log.warning("partition not finished: %s/%s: %s", driver.queue.name, path, error)

        try:
            in_parallel(work, range(self._parallel), self._parallel)
        finally:
            runs.end()
        if not self._is_alive():
            raise SparkGone("the Spark session is gone")
        return len(held)

    def _processor(self, driver: Driver, should_stop: Callable[[], bool]) -> Processor:
        return Processor(
            queue=driver.queue,
            definition=self._definition,
            should_stop=should_stop,
            renew=partial(renew_held, driver.queue),
        )


def handler_of(per_message: Callable[..., Any], spark: SparkSession | None) -> Callable[..., Any]:
    """`per_message(spark, message, context)` as a handler, annotated alike: that says how payloads are parsed.

    Raises:
        InvalidRequest: it cannot be called so, or its annotation cannot be evaluated; no message was started.
    """
    name = getattr(per_message, "__qualname__", None) or repr(per_message)
    if not accepts(per_message, 3):
        raise InvalidRequest(f"{name} must take (spark, message, context), by position")
    try:
        annotation = annotation_of(per_message, 1)
    except Exception as error:
        raise InvalidRequest(
            f"the annotation of the message of {name} cannot be evaluated ({type(error).__name__}: {error}): it says "
            "how payloads are parsed, so its module must define or import that, also at run time"
        ) from error

    def handler(message: Any, context: Any) -> Any:
        try:
            return per_message(spark, message, context)
        except Exception as error:
            # By name: pyspark is not loaded where no session is.
            if any(base.__name__ == "PySparkException" for base in type(error).__mro__):
                raise SparkError(reason_of(error)) from error
            raise

    handler.__annotations__ = {"message": annotation}
    return handler
