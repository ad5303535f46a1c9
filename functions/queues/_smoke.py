"""smoke: the queue of `make aws-smoke`, whose handler succeeds, fails, refuses or dies as its message says.

It is deployed with `-c smoke_queue=true` only. Whoever may enqueue to it may kill its worker.
"""

from __future__ import annotations

import os
import secrets
import signal
import time
from dataclasses import dataclass
from functools import cache

from s3queue.connect import open_store
from s3queue.deployment import Deployment
from s3queue.errors import Conflict, Reject
from s3queue.keys import Keys
from s3queue.paths import name_of
from s3queue.store import ObjectStore, put_surely
from s3queue.worker.context import Context
from s3queue.worker.definition import define

queue = define(
    "smoke",
    # Short, so that nobody waits long for a killed worker's message.
    visibility_timeout=15,
    handler_timeout=10,
    max_attempts=3,
    retry_base=2,
    concurrency=5,
    memory_mib=256,
    max_message_size="64 KiB",
)


@dataclass(frozen=True)
class Task:
    """What producers PUT, as JSON."""

    #: `return`; or, the first time: `fail`, `reject`, `die`.
    do: str = "return"


@queue.handler
def handle(task: Task, context: Context) -> dict[str, float | int]:
    """Do as the message says; the result is when it began, by this machine's clock, and at which attempt."""
    began_at = time.time()
    if task.do == "fail" and context.attempt == 1:
        raise ConnectionError("told to fail at the first attempt")
    if task.do == "reject" and _is_first(context):
        raise Reject("told to refuse the message the first time")
    if task.do == "die" and context.attempt == 1:
        # As the machine under a function dies: between two instructions, with no goodbye.
        os.kill(os.getpid(), signal.SIGKILL)
    return {"began_at": began_at, "attempt": context.attempt}


def _is_first(context: Context) -> bool:
    """Whether this message was never seen before: a replayed one starts at its first attempt again."""
    key = f"{Keys(context.queue).prefix('idempotency')}{name_of(context.path)}"
    try:
        put_surely(bucket(), key, secrets.token_bytes(16), if_absent=True)
    except Conflict:
        return False
    return True


@cache
def bucket() -> ObjectStore:
    """Where it notes what it has seen; opened by the first refusal."""
    return open_store(f"s3://{Deployment.from_env(os.environ).bucket}")[0]
