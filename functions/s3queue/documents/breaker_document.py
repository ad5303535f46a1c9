"""BreakerDocument: whether a queue's breaker lets messages be claimed; `{queue}/queue-breaker.json`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, cast

from s3queue.encoding import (
    LONGEST,
    NONSENSE,
    as_duration,
    as_name,
    as_text,
    as_whole,
    cut,
    dump,
    format_instant,
    load_current,
    parse_instant,
)
from s3queue.errors import CorruptState
from s3queue.store import Object

BreakerState = Literal["closed", "open", "probing"]
STATES: tuple[BreakerState, ...] = ("closed", "open", "probing")
#: A larger document is not read.
BREAKER_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerDocument:
    """Closed: messages run. Open: none is claimed. Probing: one message runs, and decides."""

    state: BreakerState = "closed"
    #: Failures in a row, while it is closed.
    failures: int = 0
    #: An operator wants it so: nothing that happens changes it.
    is_forced: bool = False
    #: For how long this state lasts, counted from when it was written: the pause, or the time of the probe.
    lasts: timedelta = timedelta()
    #: Who probes.
    owner: str = ""
    #: Which pause the probe follows. It stays when another worker takes the probe over, and ends with a failure.
    round: str = ""
    #: Since when it has not been closed, and the last failure that it counted.
    opened_at: datetime | None = None
    error: str = ""

    def to_bytes(self, nonce: str) -> bytes:
        return dump(
            {
                "state": self.state,
                "failures": self.failures or None,
                "forced": self.is_forced or None,
                "lasts_seconds": min(self.lasts, LONGEST).total_seconds(),
                "owner": self.owner,
                "round": self.round or None,
                "opened_at": format_instant(self.opened_at) if self.opened_at else None,
                "error": self.error[:500],
                "nonce": nonce,
            }
        )

    @classmethod
    def read(cls, found: Object) -> BreakerDocument:
        """`from_bytes` of an object that was opened; one that is too large is corrupt, and is not read."""
        return cls.from_bytes(found.read(BREAKER_BYTES), found.key)

    @classmethod
    def from_bytes(cls, body: bytes, key: str) -> BreakerDocument:
        """Raises CorruptState, which names the key, if it is not a breaker; NewerFormat if a newer version wrote it."""
        document = load_current(body, key)
        try:
            return cls._from_json(document)
        except NONSENSE as error:
            raise CorruptState(f"{key} is not a breaker: {cut(error)}; delete it") from None

    @classmethod
    def _from_json(cls, found: dict[str, Any]) -> BreakerDocument:
        if found["state"] not in STATES:
            raise ValueError(f"unknown state {found['state']!r}")
        return cls(
            state=cast(BreakerState, found["state"]),
            failures=as_whole(found.get("failures", 0)),
            is_forced=found.get("forced") is True,
            lasts=as_duration(found.get("lasts_seconds", 0)),
            owner=as_name(found.get("owner", "")),
            round=as_name(found.get("round", "")),
            opened_at=parse_instant(found["opened_at"]) if found.get("opened_at") else None,
            error=as_text(found.get("error", "")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBreaker:
    """A breaker as it was read or written, with the ETag that the next write must match; None: there is none yet."""

    document: BreakerDocument
    etag: str | None
    #: When it was written, by S3's clock.
    written_at: datetime | None = None

    @property
    def until(self) -> datetime | None:
        """When its state is over; None: it is not over by itself."""
        document = self.document
        if document.state == "closed" or document.is_forced or self.written_at is None:
            return None
        return self.written_at + document.lasts
