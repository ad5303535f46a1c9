"""LockDocument: who holds a lock, for how long, and the fencing token of the latest acquisition."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from s3queue.encoding import FORMAT, dump, format_instant, load, parse_instant
from s3queue.errors import CorruptState, NewerFormat


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
                "ttl_seconds": self.ttl.total_seconds(),
                "acquired_at": format_instant(self.acquired_at) if self.acquired_at else None,
                "nonce": nonce,
            }
        )

    @classmethod
    def from_bytes(cls, body: bytes, key: str) -> LockDocument:
        found = load(body, key)
        if found["v"] > FORMAT:
            raise NewerFormat(f"{key} has format {found['v']}, this version reads up to {FORMAT}: upgrade this side")
        try:
            return cls(
                token=int(found["token"]),
                owner=str(found.get("owner", "")),
                ttl=timedelta(seconds=float(found["ttl_seconds"])),
                acquired_at=parse_instant(found["acquired_at"]) if found.get("acquired_at") else None,
            )
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            raise CorruptState(f"{key} is not a lock: {error!r}") from None
