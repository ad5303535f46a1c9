"""MessageWork: a `per_message` job, a few messages at a time on one session, each through the common Processor."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from s3queue.errors import QueueError
from s3queue.protocol.claim import Claim
from s3queue.queue import Queue
from s3queue.spark_runs.claims import in_parallel
from s3queue.worker.definition import Definition
from s3queue.worker.processor import Processor
from s3queue.worker.renewal import renew_held

from .driver import Driver
from .reasons import SparkError, reason_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkGone(Exception):
    """The session died: whatever would be started now would fail for that reason alone."""


class MessageWork:
    """Runs `per_message` for each message; parsing, retries, rejection and batches are as in a handler."""

    def __init__(
        self,
        queue: Queue,
        per_message: Callable[..., Any],
        spark: SparkSession | None,
        *,
        parallel: int = 1,
        is_alive: Callable[[], bool] = lambda: True,
    ) -> None:
        self._definition = Definition(queue.name, queue.settings)
        self._definition.handler(handler_of(per_message, spark))
        self._parallel = parallel
        self._is_alive = is_alive

    def run(self, claims: Sequence[Claim], driver: Driver) -> None:
        processor = Processor(
            queue=driver.queue,
            definition=self._definition,
            should_stop=driver.is_over,
            renew=partial(renew_held, driver.queue),
        )
        failed = threading.Event()

        def one(claim: Claim) -> None:
            if failed.is_set() or driver.is_over():
                driver.release(claim)
                return
            try:
                if not self._is_alive():
                    raise SparkGone("the Spark session is gone")
                driver.begin([claim])
            except BaseException as error:
                failed.set()
                if isinstance(error, QueueError):
                    driver.release(claim)
                raise
            driver.ended(claim, processor.process(claim))

        in_parallel(one, claims, self._parallel)


def handler_of(per_message: Callable[..., Any], spark: SparkSession | None) -> Callable[..., Any]:
    """`per_message(spark, message, context)` as a handler, annotated alike: that says how payloads are parsed."""

    def handler(message: Any, context: Any) -> Any:
        try:
            return per_message(spark, message, context)
        except Exception as error:
            # By name: pyspark is not loaded where no session is.
            if any(base.__name__ == "PySparkException" for base in type(error).__mro__):
                raise SparkError(reason_of(error)) from error
            raise

    annotation = list(inspect.signature(per_message).parameters.values())[1].annotation
    if isinstance(annotation, str):
        # Only this one: a job may know SparkSession for its annotation's sake alone.
        annotation = eval(annotation, inspect.unwrap(per_message).__globals__)
    handler.__annotations__ = {"message": Any if annotation is inspect.Parameter.empty else annotation}
    return handler
