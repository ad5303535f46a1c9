"""Record: the one outcome of a message, and the attempts that led to it."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from s3queue.encoding import FORMAT, dump, format_instant, load, parse_instant
from s3queue.errors import CorruptState, NewerFormat

from .message import Generation

Outcome = Literal["completed", "dead"]
#: Longer error texts are cut: leases and metadata must stay small.
ERROR_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt failed."""

    type: str
    message: str
    #: The last frames of the traceback, for people.
    details: str = ""

    @classmethod
    def of(cls, error: BaseException | Failure | str) -> Failure:
        """From an exception, or from a text."""
        if isinstance(error, Failure):
            return error
        if isinstance(error, str):
            return cls("Error", error[:ERROR_CHARACTERS])
        frames = "".join(traceback.format_tb(error.__traceback__, limit=-4)) if error.__traceback__ else ""
        return cls(type(error).__name__, str(error)[:ERROR_CHARACTERS], frames[-ERROR_CHARACTERS:])

    def to_json(self) -> dict[str, str]:
        return {"type": self.type, "message": self.message} | ({"details": self.details} if self.details else {})

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Failure:
        return cls(str(found["type"]), str(found["message"]), str(found.get("details", "")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt: which worker, when, and its failure; None if it succeeded."""

    number: int
    worker: str
    started_at: datetime
    ended_at: datetime
    failure: Failure | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "worker": self.worker,
            "started_at": format_instant(self.started_at),
            "ended_at": format_instant(self.ended_at),
        } | ({"failure": self.failure.to_json()} if self.failure else {})

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Attempt:
        return cls(
            number=int(found["number"]),
            worker=str(found["worker"]),
            started_at=parse_instant(found["started_at"]),
            ended_at=parse_instant(found["ended_at"]),
            failure=Failure.from_json(found["failure"]) if found.get("failure") else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """`records/{path}`: the outcome of one generation of a message, written once.  [P3]"""

    path: str
    outcome: Outcome
    generation: Generation
    finished_at: datetime
    attempt: int = 0
    worker: str = ""
    attempts: tuple[Attempt, ...] = ()
    result: Any = None
    #: Why the result is missing, if the handler returned one that is not JSON, or too large.
    result_error: str = ""
    failure: Failure | None = None
    #: A batch's lines: total, completed, dead, and the numbers of the first dead ones.
    lines: Mapping[str, Any] | None = None
    size: int = 0
    nonce: str = ""

    @property
    def dead_lines(self) -> int:
        return int((self.lines or {}).get("dead", 0))

    def to_bytes(self) -> bytes:
        return dump(
            {
                "path": self.path,
                "outcome": self.outcome,
                "message_etag": self.generation.etag,
                "enqueued_at": format_instant(self.generation.put_at),
                "finished_at": format_instant(self.finished_at),
                "attempt": self.attempt,
                "worker": self.worker,
                "attempts": [attempt.to_json() for attempt in self.attempts],
                "result": self.result,
                "result_error": self.result_error,
                "failure": self.failure.to_json() if self.failure else None,
                "lines": dict(self.lines) if self.lines else None,
                "size": self.size,
                "nonce": self.nonce,
            }
        )

    @classmethod
    def from_bytes(cls, body: bytes, key: str) -> Record:
        """Of a newer format, only the outcome and the generation are read.

        Raises:
            CorruptState: the bytes are not a record; the text names the key.
            NewerFormat: a newer version wrote it, and this version cannot read even these fields.
        """
        found = load(body, key)
        try:
            outcome = found["outcome"]
            if outcome not in ("completed", "dead"):
                raise ValueError(f"unknown outcome {outcome!r}")
            generation = Generation(etag=str(found["message_etag"]), put_at=parse_instant(found["enqueued_at"]))
            if found["v"] > FORMAT:
                finished_at = parse_instant(found.get("finished_at", found["enqueued_at"]))
                path = str(found.get("path", ""))
                return cls(path=path, outcome=outcome, generation=generation, finished_at=finished_at)
            record = cls(
                path=str(found["path"]),
                outcome=outcome,
                generation=generation,
                finished_at=parse_instant(found["finished_at"]),
                attempt=int(found.get("attempt", 0)),
                worker=str(found.get("worker", "")),
                attempts=tuple(Attempt.from_json(attempt) for attempt in found.get("attempts", ())),
                result=found.get("result"),
                result_error=str(found.get("result_error", "")),
                failure=Failure.from_json(found["failure"]) if found.get("failure") else None,
                lines=dict(found["lines"]) if found.get("lines") else None,
                size=int(found.get("size", 0)),
                nonce=str(found.get("nonce", "")),
            )
            _ = record.dead_lines  # if it is not a number, raise here and not where it is used
            return record
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            if found["v"] > FORMAT:
                raise NewerFormat(
                    f"{key} has format {found['v']}, this version reads up to {FORMAT}: upgrade this side"
                ) from None
            raise CorruptState(f"{key} is not a record: {error!r}") from None
