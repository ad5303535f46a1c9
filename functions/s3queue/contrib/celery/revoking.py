"""revoke(): a task that waits never runs. Celery's own revoke is a broadcast to workers, which S3 does not have."""

from __future__ import annotations

from typing import Any, Literal

from celery.app.task import Context
from kombu.utils.json import loads

from s3queue.errors import InvalidRequest, MessageNotFound, Unavailable
from s3queue.queue import Queue
from s3queue.store import listing

from .naming import tail_of_task

#: What became of the task: it will never run; a worker had it already, and goes on; no queue has it.
Revoked = Literal["revoked", "running", "not found"]


def revoke(app: Any, task_id: str, *, queue: str | None = None) -> Revoked:
    """Revoke a task that waits in `queue`, or in any queue that the app knows: also one with an eta, or a retry.

    A task that a worker has taken already, be it to run it or in advance (`worker_prefetch_multiplier`), is not
    stopped; if that worker is killed, it is not run again. A revoked task gets the state REVOKED in the result backend,
    and a chord that it is a part of fails. Costs one LIST per thousand messages of a queue, and a GET.

    Raises:
        InvalidRequest: the app's broker is not an `s3queue://` URL.
        Unavailable: unknown whether it was revoked; calling again is safe.
    """
    from .transport import Transport

    with app.connection_for_write() as connection:
        transport = connection.transport
        if not isinstance(transport, Transport):
            raise InvalidRequest(f"the broker of this app is not s3queue, but {connection.as_uri()}")
        names = [queue] if queue else list(app.amqp.queues)
        found = [one for name in names for one in _revoke_in(transport.queue(name), task_id)]
    outcome = _strongest([revoked for revoked, _ in found])
    if outcome == "revoked":
        request = next((request for revoked, request in found if revoked == "revoked"), None)
        app.backend.mark_as_revoked(task_id, reason="revoked", request=request, store_result=True)
    return outcome


def _revoke_in(queue: Queue, task_id: str) -> list[tuple[Revoked, Context | None]]:
    tail = tail_of_task(task_id)
    outcomes: list[tuple[Revoked, Context | None]] = []
    for kind in ("messages", "delayed"):
        for page in listing(queue.store, queue.keys.prefix(kind)):
            for entry in page.objects:
                path = queue.keys.path(entry.key)
                if path and path.endswith(tail):
                    request = _request(queue, entry.key, task_id)
                    outcomes.append((_cancel(queue, path), request))
    return outcomes


def _request(queue: Queue, key: str, task_id: str) -> Context | None:
    """What the result backend has to know of a part of a chord, which fails with it; None if it is no task's."""
    found = queue.store.open(key)
    try:
        payload = loads(found.read(queue.settings.max_message_size)) if found else {}
        headers, (_, _, embedded) = payload["headers"], loads(payload["body"])
        return Context(id=task_id, group=headers["group"], chord=embedded["chord"], task=headers["task"])
    except Unavailable:
        raise
    except Exception:
        # Also arguments that are not JSON: then nothing is known of its chord.
        return None


def _strongest(outcomes: list[Revoked]) -> Revoked:
    """A task that is tried again may have two messages: the attempt that ends, and the one that comes."""
    if "revoked" in outcomes:
        return "revoked"
    return "running" if "running" in outcomes else "not found"


def _cancel(queue: Queue, path: str) -> Revoked:
    try:
        record = queue.cancel(path)
    except MessageNotFound:
        return "not found"
    if record.outcome != "cancelled":
        return "not found"
    # Not inferred from the message being gone: a worker that has taken it deletes it, too.
    return "revoked" if record.is_withdrawn else "running"
