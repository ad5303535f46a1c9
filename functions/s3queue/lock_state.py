"""What a lock stores, and what an operator sees of it: who holds what since when. `break_lock` frees one by force."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from .clock import Chance, Clock, RandomChance, SystemClock
from .encoding import FORMAT, dump, format_instant, load, parse_instant
from .errors import Conflict, CorruptState, NewerFormat
from .keys import Keys, lock_name
from .lease import GRAIN
from .store import ObjectStore, listing, put_surely

State = Literal["held", "free", "stale", "unreadable"]
#: Tries against writers that come between our reading and our writing.
TRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LockState:
    """A lock as an operator sees it, at the moment of the answer."""

    name: str
    #: `stale`: its holder has been silent for longer than it promised; the next one takes over.
    state: State
    #: The number of the latest acquisition; 0 if it cannot be read.
    token: int
    owner: str
    #: Since when it has been so: acquired, or released, by S3's clock.
    since_at: datetime
    ttl: timedelta
    #: How long ago it was last written, by S3's clock.
    age: timedelta
    etag: str


@dataclass(frozen=True, slots=True)
class LockDocument:
    """What is stored. The nonce makes two writes of equal content two different ETags."""

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


def first_token(clock: Clock) -> int:
    """Where a lock without a memory starts: behind every token that it can have given before."""
    return int(clock.now().timestamp() * 1000)


def read_lock(store: ObjectStore, key: str) -> LockState | None:
    """The lock at this key; None if it was never used, or not for so long that the sweeper removed it.

    Raises:
        NewerFormat: a newer version of s3queue wrote it.
    """
    found = store.open(key)
    if found is None:
        return None
    body, age = found.read(), found.at - found.modified_at
    state: State
    document: LockDocument | None
    try:
        document = LockDocument.from_bytes(body, key)
    except NewerFormat:
        raise
    except CorruptState:
        document = None
    if document is None:
        state, document = "unreadable", LockDocument(0, "", timedelta())
    elif not document.owner:
        state = "free"
    else:
        state = "stale" if age > document.ttl + GRAIN else "held"
    return LockState(
        name=lock_name(key) or key,
        state=state,
        token=document.token,
        owner=document.owner,
        since_at=document.acquired_at or found.modified_at,
        ttl=document.ttl,
        age=age,
        etag=found.etag,
    )


def list_locks(store: ObjectStore, keys: Keys) -> Iterator[LockState]:
    """Every lock of a queue: who holds what since when. One LIST, and one GET for each."""
    for page in listing(store, keys.prefix("locks")):
        for entry in page.objects:
            found = read_lock(store, entry.key)
            if found:
                yield found


def break_lock(
    store: ObjectStore, key: str, *, clock: Clock | None = None, chance: Chance | None = None
) -> LockState | None:
    """Free a lock by force, for an operator who knows that its holder is gone; returns what was broken.

    A holder that lives after all finds out at its next `renew`, and its token is smaller than the next one's.

    Raises:
        Conflict: its holder kept renewing it: it lives.
    """
    for _ in range(TRIES):
        found = read_lock(store, key)
        if found is None or found.state == "free":
            return found
        token = found.token or first_token(clock or SystemClock())
        body = LockDocument(token, "", timedelta()).to_bytes((chance or RandomChance()).token())
        try:
            put_surely(store, key, body, if_match=found.etag)
        except Conflict:
            continue
        return found
    raise Conflict(f"{key}: its holder keeps renewing it")
