"""The worker function of one queue: S3 notifies it, and it claims, processes and records messages."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from functools import cache
from typing import Any

from s3queue.connect import connect
from s3queue.deployment import Deployment
from s3queue.queue import Queue
from s3queue.spark_runs.runs import SparkRuns
from s3queue.worker import notifications as notifications
from s3queue.worker.application import Application
from s3queue.worker.invocation import InvocationRunner

from .telemetry import Telemetry, is_starting, start_logging, start_tracing


@dataclass(frozen=True, slots=True)
class Runtime:
    """What one execution environment keeps from invocation to invocation."""

    deployment: Deployment
    queue: Queue
    telemetry: Telemetry
    runner: InvocationRunner


@cache
def runtime() -> Runtime:
    """Made once, without a request to AWS: in Lambda's init phase, elsewhere by the first invocation."""
    logger, tracer = start_logging(), start_tracing()
    deployment = Deployment.from_env(os.environ)
    definition = Application().load_one(deployment.queue)
    function = os.environ.get("AWS_LAMBDA_FUNCTION_NAME", definition.name)
    queue = connect(
        f"s3://{deployment.bucket}/{definition.name}",
        settings=definition.settings,
        worker_id=f"{function}-{_start()}",
    )
    definition.events.pass_on(queue.events)
    telemetry = Telemetry(queue, logger, tracer)
    telemetry.publish(deployment)
    runs = SparkRuns.of(deployment)
    runner = InvocationRunner(queue, definition, launch=runs.launch if runs else None, around_message=telemetry.message)
    return Runtime(deployment, queue, telemetry, runner)


def _start() -> str:
    """New at every start, so that a lease of an earlier process does not count for this one: after a crash, the log
    stream stays the same. The end of the stream's name leads from a lease or record to the log.
    """
    stream = os.environ.get("AWS_LAMBDA_LOG_STREAM_NAME", "")
    return f"{stream[-12:]}-{secrets.token_hex(4)}" if stream[-12:].isalnum() else secrets.token_hex(6)


def handle(event: Any, context: Any) -> dict[str, int]:
    """Process the messages that the event names; returns how many attempts ended in which way.

    Raises:
        Exception: a missing permission or a bug, after all messages were tried, so that Lambda counts an error.
    """
    kept = runtime()
    with kept.telemetry.invocation(context):
        found = notifications.read(event, kept.queue.keys, kept.deployment.bucket)
        try:
            return kept.runner.run(found, lambda: context.get_remaining_time_in_millis() / 1000)
        finally:
            kept.telemetry.late_events(kept.runner.late_events)


if is_starting():
    runtime()
