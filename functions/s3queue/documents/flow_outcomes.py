"""How the nodes of a flow ended, and what was decided about its steps: each written once.  [P8]"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from s3queue.encoding import NONSENSE, as_text, cut, dump, format_instant, load_current, parse_instant
from s3queue.errors import CorruptState
from s3queue.store import Object

from .record import OUTCOMES, Failure, Outcome, Record

Decided = Literal["continue", "completed", "failed", "cancelled"]
DECISIONS: tuple[Decided, ...] = Decided.__args__  # type: ignore[attr-defined]
#: An outcome: a record's result, a quarter of a MiB, and an error.
DONE_BYTES = 1024 * 1024
DECISION_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """`flows/{id}/done/{node}.{queue}`: how one node ended. Written once, after its record, before its message goes."""

    outcome: Outcome
    queue: str = ""
    path: str = ""
    finished_at: datetime
    result: Any = None
    result_error: str = ""
    failure: Failure | None = None

    @classmethod
    def of(cls, queue: str, record: Record) -> Done:
        return cls(
            outcome=record.outcome,
            queue=queue,
            path=record.path,
            finished_at=record.finished_at,
            result=record.result if record.outcome == "completed" else None,
            result_error=record.result_error,
            failure=record.failure if record.outcome == "dead" else None,
        )

    def to_bytes(self) -> bytes:
        return dump(
            {
                "outcome": self.outcome,
                "queue": self.queue,
                "path": self.path,
                "finished_at": format_instant(self.finished_at),
                "result": self.result,
                "result_error": self.result_error,
                "failure": self.failure.to_json() if self.failure else None,
            }
        )

    @classmethod
    def read(cls, found: Object) -> Done:
        """
        Raises:
            CorruptState: it is not an outcome; NewerFormat: a newer version wrote it.
        """
        document = load_current(found.read(DONE_BYTES), found.key)
        try:
            if document["outcome"] not in OUTCOMES:
                raise ValueError(f"unknown outcome {document['outcome']!r}")
            return cls(
                outcome=document["outcome"],
                queue=as_text(document.get("queue", "")),
                path=as_text(document.get("path", "")),
                finished_at=parse_instant(document["finished_at"]),
                result=document.get("result"),
                result_error=as_text(document.get("result_error", "")),
                failure=Failure.from_json(document["failure"]) if document.get("failure") else None,
            )
        except NONSENSE as error:
            raise CorruptState(f"{found.key} is not an outcome: {cut(error)}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """`flows/{id}/decided/{step}`: whether a step comes, or the flow has ended before it. The first writer wins."""

    decided: Decided
    at: datetime
    by: str = ""
    reason: str = ""
    nonce: str = ""

    def to_bytes(self) -> bytes:
        return dump(
            {
                "decided": self.decided,
                "at": format_instant(self.at),
                "by": self.by,
                "reason": self.reason,
                "nonce": self.nonce,
            }
        )

    @classmethod
    def read(cls, found: Object) -> Decision:
        """
        Raises:
            CorruptState: it is not a decision; NewerFormat: a newer version wrote it.
        """
        document = load_current(found.read(DECISION_BYTES), found.key)
        try:
            if document["decided"] not in DECISIONS:
                raise ValueError(f"unknown decision {document['decided']!r}")
            return cls(
                decided=document["decided"],
                at=parse_instant(document["at"]),
                by=as_text(document.get("by", "")),
                reason=as_text(document.get("reason", "")),
                nonce=as_text(document.get("nonce", "")),
            )
        except NONSENSE as error:
            raise CorruptState(f"{found.key} is not a decision: {cut(error)}") from None
