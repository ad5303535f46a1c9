"""What a worker does with a task: the call, its signals, and Django's database connections."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from django.db import close_old_connections
from django.utils import timezone

from s3queue.encoding import sized_result
from s3queue.errors import InvalidRequest, Postpone, Reject, Retry
from s3queue.worker.context import Context
from s3queue.worker.processor import failures

from .backend import S3QueueBackend
from .failures import raised, task_error
from .payload import Payload
from .tasks import TaskContext, TaskError, TaskResult, TaskResultStatus, normalize_json, task_finished, task_started


def handler_of(backend: S3QueueBackend, queue_name: str) -> Callable[[bytes, Context], Any]:
    """The handler of one queue of tasks."""

    def run(body: bytes, context: Context) -> Any:
        try:
            payload = Payload.parse(json.loads(body))
            task = payload.to_task(backend.alias, queue_name)
        except (InvalidRequest, ValueError, RecursionError) as error:
            raise Reject(str(error)) from None
        result = TaskResult(
            task=task,
            id=f"{queue_name}/{context.path}",
            status=TaskResultStatus.RUNNING,
            enqueued_at=payload.enqueued_at,
            started_at=timezone.now(),
            last_attempted_at=timezone.now(),
            finished_at=None,
            args=payload.args,
            kwargs=payload.kwargs,
            backend=backend.alias,
            errors=[],
            # Its length is the number of the attempt.
            worker_ids=[context.worker_id] * context.attempt,
        )
        # As around a request: a connection that the database has closed meanwhile is not used again.
        close_old_connections()
        task_started.send(sender=type(backend), task_result=result)
        try:
            returned = _call(result)
        except failures() as error:
            if not isinstance(error, (Retry, Postpone)):
                _finish(backend, result, TaskResultStatus.FAILED, error)
            raise raised(error, retries=backend.retries_exceptions) from None
        else:
            object.__setattr__(result, "_return_value", returned)
            _finish(backend, result, TaskResultStatus.SUCCESSFUL)
            return returned
        finally:
            close_old_connections()

    return run


def _call(result: TaskResult) -> Any:
    task = result.task
    first = (TaskContext(task_result=result),) if task.takes_context else ()
    returned = normalize_json(task.call(*first, *result.args, **result.kwargs))
    _, problem, _ = sized_result(returned)
    if problem:
        raise ValueError(f"the return value of {task.module_path} cannot be kept: {problem}")
    return returned


def _finish(
    backend: S3QueueBackend, result: TaskResult, status: TaskResultStatus, error: BaseException | None = None
) -> None:
    object.__setattr__(result, "finished_at", timezone.now())
    object.__setattr__(result, "status", status)
    if error is not None:
        result.errors.append(_error_of(error))
    # A receiver that fails must not make a failed attempt of a task that has ended: it would run again.
    task_finished.send_robust(sender=type(backend), task_result=result)


def _error_of(error: BaseException) -> TaskError:
    from s3queue.documents.record import Failure

    return task_error(Failure.of(raised(error, retries=False)))
