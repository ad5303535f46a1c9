"""Things that go wrong on AWS once in a while, on purpose: a worker that dies, an event that never comes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from .ministack.server import ask
from .processes import Process, environment_of, members
from .stack import LocalStack

#: Served by ministack/gateway.py, which cannot be imported here: it lives in MiniStack's environment.
AT_WORK = "/_s3queue/at-work"


def at_work(stack: LocalStack) -> dict[str, int]:
    """Function → events that it works on right now; a function at rest is not mentioned."""
    _, answer = ask(stack.state, AT_WORK)
    return dict(json.loads(answer))


def processes_of(stack: LocalStack, function: str) -> list[Process]:
    """The processes that run a function, at work or warm: one for each event at a time."""
    # MiniStack unpacks each one's code into a folder named after the function and eight characters of chance.
    folder = re.compile(rf"ministack-lambda-{re.escape(function)}-\w{{8}}/")
    return [process for process in members(stack.state.pid) if folder.search(process.command)]


def process_of(stack: LocalStack, queue: str, owner: str) -> Process | None:
    """The process behind the owner of a lease; None if it is gone."""
    # The worker puts the end of its log stream's name into its id.
    for process in processes_of(stack, stack.workers[queue]):
        stream = re.search(r"AWS_LAMBDA_LOG_STREAM_NAME=\S*?(\w{12})(?:\s|$)", environment_of(process.pid))
        if stream and f"-{stream[1]}-" in owner:
            return process
    return None


def kill(process: Process) -> None:
    """As the machine under a Lambda function dies: between two instructions, with no goodbye."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)


@contextmanager
def events_lost(stack: LocalStack, queue: str) -> Iterator[None]:
    """S3 tells nobody about what is put into this queue."""
    s3, bucket = stack.client("s3"), stack.bucket
    before = s3.get_bucket_notification_configuration(Bucket=bucket)
    before.pop("ResponseMetadata")
    worker = stack.workers[queue]
    kept = [
        rule for rule in before["LambdaFunctionConfigurations"] if not rule["LambdaFunctionArn"].endswith(f":{worker}")
    ]
    without = {**before, "LambdaFunctionConfigurations": kept}
    s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration=without)
    try:
        yield
    finally:
        s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration=before)


@contextmanager
def throttled(stack: LocalStack, queue: str) -> Iterator[None]:
    """Every invocation of this queue's worker is refused, as behind a concurrency limit that others have used up."""
    functions, worker = stack.client("lambda"), stack.workers[queue]
    before = functions.get_function_concurrency(FunctionName=worker).get("ReservedConcurrentExecutions")
    functions.put_function_concurrency(FunctionName=worker, ReservedConcurrentExecutions=0)
    try:
        yield
    finally:
        if before is None:
            functions.delete_function_concurrency(FunctionName=worker)
        else:
            functions.put_function_concurrency(FunctionName=worker, ReservedConcurrentExecutions=before)
