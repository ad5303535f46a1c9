"""Status: the state of one message, and its history: when it was enqueued, every attempt, its outcome."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from s3queue.documents.kept_payload import is_payload_of
from s3queue.documents.lease import Lease
from s3queue.documents.record import Attempt, Record
from s3queue.encoding import format_instant
from s3queue.errors import CorruptState, MessageNotFound
from s3queue.keys import Keys
from s3queue.paths import due_of
from s3queue.store import ObjectInfo, ObjectStore, open_state

State = Literal["pending", "delayed", "processing", "waiting", "burying", "completed", "dead", "cancelled", "corrupt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """A message's state, and the documents that it follows from."""

    path: str
    state: State
    message: ObjectInfo | None = None
    lease: Lease | None = None
    record: Record | None = None
    dead: ObjectInfo | None = None
    #: The payload of a completed message, if it was kept.
    kept: ObjectInfo | None = None
    #: Why the state is `corrupt`: which object cannot be read.
    problem: str = ""

    @property
    def enqueued_at(self) -> datetime | None:
        if self.message:
            return self.message.modified_at
        return self.record.generation.put_at if self.record else None

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """Every attempt that has ended: those of the lease if there is one, otherwise those of the record."""
        if self.lease:
            return self.lease.attempts
        return self.record.attempts if self.record else ()

    def to_json(self) -> dict[str, Any]:
        lease, record = self.lease, self.record
        described: dict[str, Any] = {
            "path": self.path,
            "state": self.state,
            "enqueued_at": format_instant(self.enqueued_at) if self.enqueued_at else None,
            "size": self.message.size if self.message else (record.size if record else None),
            "attempts": [attempt.to_json() for attempt in self.attempts],
        }
        if lease:
            described |= {
                "attempt": lease.attempt,
                "worker": lease.owner,
                "retry_at": format_instant(lease.retry_at) if lease.retry_at else None,
                "failure": lease.failure.to_json() if lease.failure else None,
                "progress": list(lease.progress) if lease.progress else None,
            }
        elif record:
            described |= {
                "attempt": record.attempt,
                "worker": record.worker,
                "finished_at": format_instant(record.finished_at),
                "result": record.result,
                "result_error": record.result_error or None,
                "failure": record.failure.to_json() if record.failure else None,
                "lines": dict(record.lines) if record.lines else None,
            }
            if record.has_sends:
                described["sent"] = {"messages": len(record.sends), "staged_parts": len(record.outbox)}
            described |= {"kept_payload": self.kept.key} if self.kept else {}
        return described | ({"problem": self.problem} if self.problem else {})


def read_status(store: ObjectStore, keys: Keys, path: str) -> Status:
    """See `Queue.status`. Four requests: message, lease, record, dead letter; and its payload, if that is kept."""
    message = store.head(keys.message(path))
    lease: Lease | None = None
    record: Record | None = None
    problem = ""
    if found := open_state(store, keys.lease(path)):
        try:
            lease = Lease.read(found)
        except CorruptState as error:
            problem = str(error)
    if found := open_state(store, keys.record(path)):
        try:
            record = Record.read(found)
        except CorruptState as error:
            problem = problem or str(error)
    dead, kept = store.head(keys.dead(path)), kept_payload_of(store, keys, record)
    state = _state(path, message, lease, record, dead, problem)
    return Status(
        path=path, state=state, message=message, lease=lease, record=record, dead=dead, kept=kept, problem=problem
    )


def kept_payload_of(store: ObjectStore, keys: Keys, record: Record | None) -> ObjectInfo | None:
    """The payload that this completion kept; None if it kept none, or another message of that name has kept its own."""
    kept = store.head(keys.done(record.path)) if record and record.keeps_payload else None
    return kept if kept and record and is_payload_of(kept, record) else None


def _state(
    path: str,
    message: ObjectInfo | None,
    lease: Lease | None,
    record: Record | None,
    dead: ObjectInfo | None,
    problem: str,
) -> State:
    if problem:
        return "corrupt"
    is_recorded = message and record and record.generation.etag == message.etag
    if message and lease and not (is_recorded and record and record.generation.put_at == message.modified_at):
        return lease.state
    if message and not lease:
        due_at = due_of(path)
        return "delayed" if due_at and due_at > message.at else "pending"
    if record:
        return record.outcome
    if dead:
        return "dead"
    hint = "" if path.startswith(("messages/", "delayed/")) else "; a path starts with messages/ or delayed/"
    raise MessageNotFound(f"no message, record or dead letter has the path {path}{hint}")
