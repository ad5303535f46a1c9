"""Telemetry: logs, metrics and traces of the functions, made from the queue's events.

They contain names, counts and times. A payload is never logged, nor is the text of a handler's error, which may quote
one: that text is in the record and in the dead letter, and reading it needs access to the queue.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools import Logger
from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

from s3queue.deployment import METRICS, Deployment
from s3queue.events import publish_to
from s3queue.paths import due_of
from s3queue.queue import Queue

from .tracing import Tracer

if TYPE_CHECKING:
    from s3queue.sweeper.report import Report

_log = logging.getLogger(__name__)
NAMESPACE = "s3queue"
#: The loggers whose lines are written: the functions', the library's, and the application's own.
LOGGERS = ("handlers", "s3queue", "queues")
#: Keys that are removed after a message, so that no later line carries them.
OF_A_MESSAGE = ("path", "attempt")


def start_logging() -> Logger:
    """Write JSON lines, with the keys that `Logger.append_keys` adds, for every logger in LOGGERS."""
    logger = Logger(service=NAMESPACE)
    for name in LOGGERS:
        listened = logging.getLogger(name)
        listened.handlers = list(logger.handlers)
        listened.setLevel(logger.log_level)
        # Otherwise Lambda's own handler at the root would write every line again.
        listened.propagate = False
    if os.environ.get("S3QUEUE_LOG"):
        from s3queue.printable import heed_log_level

        heed_log_level(os.environ)
    return logger


def start_tracing() -> Tracer | None:
    """The tracer; None where no X-Ray daemon listens, as on a laptop or in the emulator."""
    daemon = os.environ.get("AWS_XRAY_DAEMON_ADDRESS")
    return Tracer(daemon, NAMESPACE) if daemon else None


def is_starting() -> bool:
    """Whether Lambda imports the handler in its init phase, which has more CPU than invocations have.

    False before a snapshot: everything made before it, including the worker's id, would be the same in every copy.
    """
    return os.environ.get("AWS_LAMBDA_INITIALIZATION_TYPE") in ("on-demand", "provisioned-concurrency")


class Telemetry:
    """Log lines, metrics and traces of one queue."""

    def __init__(self, queue: Queue, logger: Logger, tracer: Tracer | None = None) -> None:
        self._queue = queue
        self._logger = logger
        self._tracer = tracer
        # Without a service: the alarms use metrics whose only dimension is the queue.
        self._metrics = EphemeralMetrics(namespace=NAMESPACE, service="")
        self._metrics.set_default_dimensions(queue=queue.name)
        #: Each is paid for by the month, and a line of them by every invocation.
        self._published = METRICS.get(os.environ.get("S3QUEUE_METRICS", "all"), METRICS["all"])
        #: Whether deaths are counted from what the sweeper finds: no function hears of those in pull workers and Spark
        #: runs. Then none is counted from events, not even a function's own, or it would count twice.
        self.counts_deaths = queue.defined.runs_elsewhere and "Dead" in self._published
        queue.events.on("message.claimed", self._claimed)
        queue.events.on("message.completed", self._completed)
        queue.events.on("message.retry", self._retried)
        queue.events.on("message.released", self._released)
        queue.events.on("message.dead", self._died)
        queue.events.on("message.cancelled", self._cancelled)
        queue.events.on("claim.lost", lambda _: self._count("ClaimConflicts"))

    def publish(self, deployment: Deployment) -> None:
        """Publish events to EventBridge, if the queue's settings ask for it."""
        which = self._queue.defined.events
        if deployment.event_bus and which != "off":
            import boto3

            self._queue.events.on("*", publish_to(deployment.event_bus, boto3.client("events"), which))

    @contextmanager
    def invocation(self, context: Any) -> Iterator[None]:
        """Every log line has queue, worker and request; the metrics are written at the end, also after an error."""
        request = getattr(context, "aws_request_id", "")
        self._logger.append_keys(queue=self._queue.name, worker=self._queue.worker_id, request_id=request)
        try:
            yield
        finally:
            self.flush()

    @contextmanager
    def message(self, path: str) -> Iterator[None]:
        """Every log line, including the handler's own, has the path of the message."""
        self._logger.append_keys(path=path)
        try:
            with self._trace(path):
                yield
        finally:
            self._logger.remove_keys(OF_A_MESSAGE)

    def _trace(self, path: str) -> AbstractContextManager[None]:
        if self._tracer is None:
            return nullcontext()
        return self._tracer.subsegment("## message", queue=self._queue.name, path=path)

    def swept(self, report: Report) -> None:
        """Metrics and log lines of one sweep."""
        if report.orphans:
            self._count("Rescued", report.orphans)
        if report.deaths:
            self._count("Dead", report.deaths)
        if report.stats:
            # 0 for an empty queue, so that an alarm sees that the problem is over.
            self._add("AgeOfOldest", MetricUnit.Seconds, report.stats.oldest_seconds or 0.0)
            self._add("Pending", MetricUnit.Count, report.stats.pending)
        if report.corrupt:
            _log.error("unreadable objects found", extra={"queue": report.queue, "keys": report.corrupt})
        if report.due or report.orphans or report.endings or report.removed or not report.complete:
            _log.info("swept", extra=report.to_json())

    def late_events(self, count: int) -> None:
        """Events that came so late that the worker read before it claimed, and looked around afterwards."""
        if count:
            self._count("LateEvents", count)

    def flush(self) -> None:
        if self._metrics.metric_set:
            self._metrics.flush_metrics()

    def _count(self, name: str, value: int = 1) -> None:
        self._add(name, MetricUnit.Count, value)

    def _time(self, name: str, duration: timedelta) -> None:
        # Stored instants are S3's, in whole seconds: a difference can be slightly negative.
        self._add(name, MetricUnit.Seconds, max(0.0, duration.total_seconds()))

    def _add(self, name: str, unit: MetricUnit, value: float) -> None:
        if name in self._published:
            self._metrics.add_metric(name, unit, value)

    def _claimed(self, fields: Mapping[str, Any]) -> None:
        self._logger.append_keys(path=fields["path"], attempt=fields["attempt"])
        if fields["attempt"] == 1:
            # Only for first attempts, because a retry waits on purpose; a delayed message waits from its due time on.
            self._time("WaitTime", fields["claimed_at"] - (due_of(fields["path"]) or fields["enqueued_at"]))

    def _completed(self, fields: Mapping[str, Any]) -> None:
        self._count("Completed")
        self._ended("completed", fields, logging.INFO)

    def _retried(self, fields: Mapping[str, Any]) -> None:
        self._count("Failed")
        self._count("Retried")
        self._ended("failed, will be retried", fields, logging.WARNING, retry_at=str(fields["retry_at"]))

    def _died(self, fields: Mapping[str, Any]) -> None:
        self._count("Failed")
        if not self.counts_deaths:
            self._count("Dead")
        self._ended("dead", fields, logging.ERROR)

    def _cancelled(self, fields: Mapping[str, Any]) -> None:
        self._ended("cancelled", fields, logging.INFO)

    def _released(self, fields: Mapping[str, Any]) -> None:
        self._ended("released", fields, logging.INFO)

    def _ended(self, said: str, fields: Mapping[str, Any], level: int, **extra: Any) -> None:
        # When the sweeper ends a message, path, attempt and worker are another worker's: they come with the event.
        extra |= {name: fields[name] for name in ("queue", "path", "attempt", "worker", "error_type") if name in fields}
        if "claimed_at" in fields:
            ran = fields["at"] - fields["claimed_at"]
            extra["ran_seconds"] = round(ran.total_seconds(), 3)
            if fields["worker"] == self._queue.worker_id:
                self._time("RunTime", ran)
        _log.log(level, said, extra=extra)
