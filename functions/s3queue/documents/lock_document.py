"""LockDocument: who holds a lock, for how long, and the fencing token of the latest acquisition."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from s3queue.encoding import (
    LARGEST,
    LONGEST,
    NONSENSE,
    as_duration,
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

#: Larger objects are not read: five short fields.
LOCK_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class LockDocument:
    """The stored object. The nonce gives two writes of equal content different ETags."""

    token: int
    owner: str
    ttl: timedelta
    acquired_at: datetime | None = None

    def to_bytes(self, nonce: str) -> bytes:
        return dump(
            {
                "token": self.token,
                "owner": self.owner,
                "ttl_seconds": min(self.ttl, LONGEST).total_seconds(),
                "acquired_at": format_instant(self.acquired_at) if self.acquired_at else None,
                "nonce": nonce,
            }
        )

    @classmethod
    def from_bytes(cls, body: bytes, key: str) -> LockDocument:
        found = load_current(body, key)
        try:
            return cls(
                # The next token is one more than this.
                token=as_whole(found["token"], most=LARGEST // 2),
                owner=as_text(found.get("owner", "")),
                ttl=as_duration(found["ttl_seconds"]),
                acquired_at=parse_instant(found["acquired_at"]) if found.get("acquired_at") else None,
            )
        except NONSENSE as error:
            raise CorruptState(f"{key} is not a lock: {cut(error)}") from None

    @classmethod
    def read(cls, found: Object) -> LockDocument:
        """`from_bytes` of an object that was opened; one that is too large is corrupt, and is not read."""
        return cls.from_bytes(found.read(LOCK_BYTES), found.key)
