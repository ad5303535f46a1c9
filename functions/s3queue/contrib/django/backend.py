"""S3QueueBackend: Django tasks as messages of a bucket."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone

from s3queue.connect import open_store
from s3queue.errors import InvalidName, InvalidRequest, MessageNotFound
from s3queue.keys import check_queue
from s3queue.protocol.status import State, Status
from s3queue.queue import Queue
from s3queue.settings import QueueSettings
from s3queue.store import ObjectStore

from .failures import task_error
from .payload import Payload, queue_priority
from .tasks import (
    BaseTaskBackend,
    InvalidTaskError,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
)

#: What a queue of tasks needs, unless OPTIONS["settings"] says otherwise: results name the arguments of finished tasks,
#: too, and tasks may take longer than a function can.
SETTINGS = {"engine": "pull", "keep_payload": True, "handler_timeout": 3600}
_OPTIONS = ("url", "endpoint_url", "region", "store", "prefix", "settings", "retry")
#: A message that moves while it is read is looked for again, so often at most.
_LOOKS = 5
_FINISHED = ("completed", "dead", "cancelled")
_STATUS: dict[State, TaskResultStatus] = {
    "pending": TaskResultStatus.READY,
    "delayed": TaskResultStatus.READY,
    "waiting": TaskResultStatus.READY,
    "processing": TaskResultStatus.RUNNING,
    # Its handler has ended, its outcome is not recorded yet.
    "burying": TaskResultStatus.RUNNING,
    "completed": TaskResultStatus.SUCCESSFUL,
    "dead": TaskResultStatus.FAILED,
    "cancelled": TaskResultStatus.FAILED,
    "corrupt": TaskResultStatus.FAILED,
}


class S3QueueBackend(BaseTaskBackend):
    """A backend for `TASKS`: each of its QUEUES is a queue of the bucket that OPTIONS["url"] names."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.options: dict[str, Any] = params.get("OPTIONS", {})
        if unknown := sorted(self.options.keys() - set(_OPTIONS)):
            raise ImproperlyConfigured(
                f"TASKS[{alias!r}] has the unknown option {unknown[0]!r}; known are {', '.join(_OPTIONS)}"
            )
        if not self.options.get("url"):
            raise ImproperlyConfigured(f"TASKS[{alias!r}] needs OPTIONS = {{'url': 's3://bucket'}}")
        try:
            self._settings = QueueSettings.of(**SETTINGS | self.options.get("settings", {}))
        except InvalidRequest as error:
            raise ImproperlyConfigured(f"TASKS[{alias!r}]: {error}") from None
        self._queues: dict[str, Queue] = {}
        self._store: ObjectStore | None = None
        self._mutex = threading.Lock()

    @property
    def retries_exceptions(self) -> bool:
        """Whether a task that raised is tried again, `max_attempts` times; Django's own backends never do that."""
        return bool(self.options.get("retry", False))

    def queue(self, name: str) -> Queue:
        """The queue of this name; for operators' commands, and for the worker.

        Raises:
            InvalidName: no queue can have this name.
        """
        with self._mutex:
            if self._store is None:
                given = {name: self.options.get(name) for name in ("endpoint_url", "region", "store")}
                self._store, named = open_store(self.options["url"], **given)
                if named and not self.options["url"].startswith("memory:"):
                    raise ImproperlyConfigured(
                        f"TASKS[{self.alias!r}]: the url names the queue {named!r}; give the bucket alone, and QUEUES"
                    )
            if name not in self._queues:
                prefixed = f"{self.options.get('prefix', '')}{name}"
                self._queues[name] = Queue(store=self._store, name=prefixed, settings=self._settings)
            return self._queues[name]

    def check(self, **kwargs: Any) -> Iterator[checks.CheckMessage]:
        yield from super().check(**kwargs)
        for name in sorted(self.queues):
            try:
                check_queue(f"{self.options.get('prefix', '')}{name}")
            except InvalidName as error:
                yield checks.Error(f"TASKS[{self.alias!r}]: {error}", id="s3queue.E001")

    def enqueue(self, task: Task, args: Any, kwargs: Any) -> TaskResult:
        """One PUT. The result's id is the message's place in the bucket: `default/messages/p128/…`.

        Raises:
            InvalidTaskError: the task cannot be enqueued; nothing was written.
            Unavailable: unknown whether it was written.
        """
        self.validate_task(task)
        result = TaskResult(
            task=task,
            id="",
            status=TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        payload = Payload(
            task=task.module_path,
            args=result.args,
            kwargs=result.kwargs,
            priority=task.priority,
            enqueued_at=_aware(result.enqueued_at),
            run_after=_aware(task.run_after) if task.run_after else None,
        )
        try:
            body = payload.to_bytes()
        except ValueError as error:
            raise InvalidTaskError(f"the arguments of {task.module_path} cannot be written as JSON: {error}") from None
        path = self.queue(task.queue_name).enqueue(
            body,
            priority=queue_priority(task.priority),
            due_at=payload.run_after,
            content_type="application/json",
        )
        object.__setattr__(result, "id", f"{task.queue_name}/{path}")
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult:
        """State, return value, errors and attempts, as the bucket has them.

        Raises:
            TaskResultDoesNotExist: no such task; or its record is past the queue's `record_retention`.
        """
        queue_name, _, path = str(result_id).partition("/")
        # An id may come from a browser: it must not open other queues of the bucket, or as many as someone likes.
        if self.queues and queue_name not in self.queues:
            raise TaskResultDoesNotExist(f"no result {result_id!r}: its queue is none of TASKS[{self.alias!r}]")
        try:
            queue = self.queue(queue_name)
            status, payload = self._look(queue, path)
            task = payload.to_task(self.alias, queue_name)
        except (MessageNotFound, InvalidRequest) as error:
            raise TaskResultDoesNotExist(f"no result {result_id!r}: {error}") from None
        return self._result(result_id, task, payload, status)

    def _look(self, queue: Queue, path: str) -> tuple[Status, Payload]:
        """Its state and its payload, which moves when it ends: to where it is kept, or to the dead letters."""
        for _ in range(_LOOKS):
            status = queue.status(path)
            for found in (status.message, status.dead, status.kept):
                stored = queue.store.open(found.key) if found else None
                if stored is None:
                    continue
                try:
                    return status, Payload.parse(json.loads(stored.read(queue.settings.max_message_size)))
                except (ValueError, RecursionError):
                    raise InvalidRequest("it is not a task's") from None
            if status.message is None:
                break
        raise InvalidRequest(
            f"it is {status.state}, and its arguments were not kept: the setting keep_payload does that"
        )

    def _result(self, result_id: str, task: Task, payload: Payload, status: Status) -> TaskResult:
        # A record that is there and not the message's own is that of an earlier message of its name.
        record = status.record if status.state in _FINISHED else None
        # The lease of a finished message may not be deleted yet; what it says is older.
        lease = None if record else status.lease
        attempts = record.attempts if record else status.attempts
        workers = [attempt.worker for attempt in attempts]
        started = [attempt.started_at for attempt in attempts]
        if lease and lease.state == "processing":
            workers.append(lease.owner)
            started += [lease.claimed_at] if lease.claimed_at else []
        failures = [attempt.failure for attempt in attempts if attempt.failure]
        if record and record.failure and not failures:
            failures = [record.failure]
        result = TaskResult(
            task=task,
            id=result_id,
            status=_STATUS[status.state],
            enqueued_at=payload.enqueued_at,
            started_at=started[0] if started else None,
            last_attempted_at=started[-1] if started else None,
            finished_at=record.finished_at if record else None,
            args=payload.args,
            kwargs=payload.kwargs,
            backend=self.alias,
            errors=[task_error(failure) for failure in failures],
            worker_ids=workers,
        )
        if record:
            object.__setattr__(result, "_return_value", record.result)
        return result


def _aware(at: datetime) -> datetime:
    """With USE_TZ off, Django's times have no zone, and mean the default one."""
    return at if at.tzinfo else timezone.make_aware(at)
