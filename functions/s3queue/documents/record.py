"""Record: the one outcome of a message, and the attempts that led to it."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from s3queue.encoding import (
    FORMAT,
    MOST_LINES,
    NONSENSE,
    as_flag,
    as_list,
    as_object,
    as_text,
    as_whole,
    cut,
    dump,
    filled,
    format_instant,
    load,
    parse_instant,
)
from s3queue.errors import CorruptState, NewerFormat
from s3queue.store import Object

from .message import MEMBER, Generation
from .sends import Send, StoredSends, part_names

Outcome = Literal["completed", "dead", "cancelled"]
OUTCOMES: tuple[Outcome, ...] = Outcome.__args__  # type: ignore[attr-defined]
#: Records of this format may say `cancelled`. All others are written in format 1, so that older versions read them; one
#: that reads a cancelled one leaves it alone, as it does with every newer format.
RECORD_FORMAT = 2
#: Longer error texts are cut: leases and metadata must stay small.
ERROR_CHARACTERS = 2000
#: A record without a result, a failure or sends is about as large.
SMALL_BYTES = 600
#: Larger objects are not read. A result is a quarter of a MiB at most, the attempts are half a MiB.
RECORD_BYTES = 2 * 1024 * 1024


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
        try:
            text = str(error)
        except Exception as broken:
            text = f"its text cannot be made: {type(broken).__name__}"
        return cls(type(error).__name__, text[:ERROR_CHARACTERS], frames[-ERROR_CHARACTERS:])

    def to_json(self) -> dict[str, str]:
        return {"type": self.type, "message": self.message} | ({"details": self.details} if self.details else {})

    @classmethod
    def from_json(cls, found: Any) -> Failure:
        as_object(found)
        return cls(as_text(found["type"]), as_text(found["message"]), as_text(found.get("details", "")))


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
    def from_json(cls, found: Any) -> Attempt:
        as_object(found)
        return cls(
            number=as_whole(found["number"]),
            worker=as_text(found["worker"]),
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
    #: The message's: it shows an enqueue or a replay, whose answer was lost, that this is the outcome of *its* message.
    put_id: str = ""
    #: What the handler sent, and the parts of it that are staged under `outbox/`: they exist if this record does.  [P7]
    sends: tuple[Send, ...] = ()
    outbox: tuple[str, ...] = ()
    #: How far they are stored, if whoever stored them could not store all.
    stored: StoredSends = field(default_factory=StoredSends)
    #: The payload is copied to `done/` before the message is deleted, by whoever deletes it.
    keeps_payload: bool = False
    #: Of the claim that came to this outcome; empty if there was none, or an older version wrote it.
    fence: str = ""
    nonce: str = ""
    #: Of the answer of `Queue.cancel`, and not stored: nobody worked on the message when it was cancelled.
    is_withdrawn: bool = field(default=False, compare=False)
    #: See `within_document`.
    _filled: dict[str, Any] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def has_sends(self) -> bool:
        return bool(self.sends or self.outbox)

    @property
    def is_member(self) -> bool:
        """Whether its message was one of a flow, which has to be told of the outcome.  [P8]"""
        return self.put_id.startswith(MEMBER)

    @property
    def dead_lines(self) -> int:
        """Lines whose dead letters are, or have to be, written: none of a batch that was cancelled as a whole."""
        return 0 if self.outcome == "cancelled" else as_whole((self.lines or {}).get("dead", 0))

    def to_bytes(self) -> bytes:
        return dump(self.to_json())

    def within_document(self) -> dict[str, Any]:
        """`to_json` without empty fields, as a part of another document. Made once: an outcome of a partition goes into
        its lease, and then into a journal.
        """
        if self._filled is None:
            object.__setattr__(self, "_filled", filled(self.to_json()))
        assert self._filled is not None
        return self._filled

    @property
    def about_bytes(self) -> int:
        """How large it is as bytes, about; exact if something in it may be large."""
        is_small = self.result is None and not (self.failure or self.sends or self.lines or len(self.attempts) > 1)
        return SMALL_BYTES if is_small else len(self.to_bytes())

    def to_json(self) -> dict[str, Any]:
        return {
            "v": RECORD_FORMAT if self.outcome == "cancelled" else FORMAT,
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
            "put_id": self.put_id,
            "sends": [send.to_json() for send in self.sends],
            "outbox": list(self.outbox),
            "stored": self.stored.to_json(),
            "keeps_payload": self.keeps_payload or None,
            "fence": self.fence or None,
            "nonce": self.nonce,
        }

    @classmethod
    def from_bytes(cls, body: bytes, key: str) -> Record:
        """Of a newer format, only the outcome and the generation are read.

        Raises:
            CorruptState: the bytes are not a record; the text names the key.
            NewerFormat: a newer version wrote it, and this version cannot read even these fields.
        """
        return cls.from_json(load(body, key), key)

    @classmethod
    def from_json(cls, found: Mapping[str, Any], key: str) -> Record:
        """See `from_bytes`; the document has a version."""
        try:
            outcome = found["outcome"]
            if outcome not in OUTCOMES:
                raise ValueError(f"unknown outcome {outcome!r}")
            generation = Generation(etag=as_text(found["message_etag"]), put_at=parse_instant(found["enqueued_at"]))
            if found["v"] > RECORD_FORMAT:
                finished_at = parse_instant(found.get("finished_at", found["enqueued_at"]))
                path = as_text(found.get("path", ""))
                return cls(path=path, outcome=outcome, generation=generation, finished_at=finished_at)
            return cls(
                path=as_text(found["path"]),
                outcome=outcome,
                generation=generation,
                finished_at=parse_instant(found["finished_at"]),
                attempt=as_whole(found.get("attempt", 0)),
                worker=as_text(found.get("worker", "")),
                attempts=tuple(Attempt.from_json(attempt) for attempt in as_list(found.get("attempts", []))),
                result=found.get("result"),
                result_error=as_text(found.get("result_error", "")),
                failure=Failure.from_json(found["failure"]) if found.get("failure") else None,
                lines=_summary(found["lines"]) if found.get("lines") else None,
                size=as_whole(found.get("size", 0)),
                put_id=as_text(found.get("put_id", "")),
                sends=tuple(Send.from_json(send) for send in as_list(found.get("sends", []))),
                outbox=tuple(part_names(found.get("outbox", []))),
                stored=StoredSends.from_json(found["stored"]) if found.get("stored") else StoredSends(),
                keeps_payload=as_flag(found.get("keeps_payload", False)),
                fence=as_text(found.get("fence") or ""),
                nonce=as_text(found.get("nonce", "")),
            )
        except NONSENSE as error:
            if found["v"] > RECORD_FORMAT:
                raise NewerFormat(
                    f"{key} has format {found['v']}, this version reads up to {RECORD_FORMAT}: upgrade this side"
                ) from None
            raise CorruptState(f"{key} is not a record: {cut(error)}") from None

    @classmethod
    def read(cls, found: Object) -> Record:
        """`from_bytes` of an object that was opened; one that is too large is corrupt, and is not read."""
        return cls.from_bytes(found.read(RECORD_BYTES), found.key)


def _summary(lines: Any) -> dict[str, Any]:
    """What `Lines.summary` wrote: whoever shows it relies on numbers, and on entries of the right length."""
    as_object(lines)
    for name in ("total", "completed", "dead"):
        if name in lines and (name, lines[name]) != ("total", None):
            as_whole(lines[name], most=MOST_LINES + 1)
    for line, kind, message in as_list(lines.get("dead_lines", [])):
        as_whole(line), as_text(kind), as_text(message)
    for line, _ in as_list(lines.get("results", [])):
        as_whole(line)
    return dict(lines)
