"""Lock: at most one holder at a time, by conditional writes only. A lock whose holder crashed becomes free by itself.

A lock is the object at `queue.keys.lock(name)`. Releasing it does not delete the object, because it keeps the number of
the last fencing token; the sweeper deletes it when nobody has written it for a day. The first token of a new lock is
the time in milliseconds, so that tokens grow even then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal

from s3queue.clock import Chance, Clock, RandomChance, SystemClock, as_duration
from s3queue.documents.lease import GRAIN
from s3queue.documents.lock_document import LockDocument
from s3queue.errors import (
    Conflict,
    CorruptState,
    InvalidName,
    InvalidRequest,
    LeaseLost,
    NewerFormat,
    QueueError,
    Unavailable,
)
from s3queue.keys import Keys, lock_name
from s3queue.paths import check_name
from s3queue.store import ObjectStore, listing, open_state, put_surely

State = Literal["held", "free", "stale", "unreadable"]
#: How often a write is tried when others write between our GET and our PUT.
TRIES = 5
#: Seconds between two tries to get a lock that someone else holds.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LockState:
    """A lock as an operator sees it, at the moment of the answer."""

    name: str
    #: `stale`: its holder has not renewed it within its ttl; the next one may take it over.
    state: State
    #: The number of the latest acquisition; 0 if it cannot be read.
    token: int
    owner: str
    #: When it was acquired or released, by S3's clock.
    since_at: datetime
    ttl: timedelta
    #: How long ago it was last written, by S3's clock.
    age: timedelta
    etag: str
    #: S3's time at the answer.
    at: datetime


@dataclass(frozen=True, slots=True)
class _Grant:
    """What a holder knows about its own lock."""

    document: LockDocument
    etag: str
    #: By the monotonic clock, counted from before the request that acquired or renewed the lock was sent.
    deadline: float


class Lock:
    """A lock with a time to live and a fencing token.

    `name` is the lock's key: `Lock(queue.store, queue.keys.lock("monthly report"), ttl=60)`.

    Between `acquire` and the deadline nobody else holds it. `renew` moves the deadline: call it well before the ttl is
    over. Call `check` before every step that must not happen twice. For writes to another system, a check is not
    enough: pass the `token` along, and let that system refuse a token smaller than the largest that it has seen.
    """

    def __init__(
        self,
        store: ObjectStore,
        name: str,
        ttl: float | timedelta = timedelta(seconds=5),
        *,
        owner: str = "",
        clock: Clock | None = None,
        chance: Chance | None = None,
    ) -> None:
        if lock_name(check_name(name)) is None:
            raise InvalidName(f"{name!r} is not the key of a lock; use queue.keys.lock({name!r})")
        self.ttl = as_duration(ttl)
        if self.ttl <= timedelta():
            raise InvalidRequest(f"the ttl of a lock must be longer than 0 seconds, not {self.ttl}")
        self._store = store
        self._key = name
        self._clock = clock or SystemClock()
        self._chance = chance or RandomChance()
        #: The holder that operators see.
        self.owner = owner or self._chance.token()
        self._grant: _Grant | None = None

    @property
    def token(self) -> int:
        """The number of this acquisition; it is larger than that of every earlier one.

        Raises:
            LeaseLost: it is not held.
        """
        return self._held().document.token

    @property
    def is_held(self) -> bool:
        return self.remaining() > timedelta()

    def remaining(self) -> timedelta:
        """How long it is certainly still held; zero if it is not held."""
        grant = self._grant
        left = grant.deadline - self._clock.monotonic() if grant else 0.0
        return timedelta(seconds=max(0.0, left))

    def check(self) -> None:
        """Raises LeaseLost unless it is held at this moment. Sends no request."""
        self._held()
        if not self.is_held:
            raise LeaseLost(f"lock lost: {self._key}: not renewed within its ttl of {self.ttl}")

    def acquire(self, wait: float | timedelta | None = 0.0) -> bool:
        """Try to get the lock for `wait` seconds (None: for as long as it takes); whether it is held now.

        A lock that its holder has not renewed within its ttl, by S3's clock, is taken over.

        Raises:
            Unavailable: unknown whether it was acquired; if it was, it becomes free after its ttl.
        """
        seconds = wait.total_seconds() if isinstance(wait, timedelta) else wait
        until = None if seconds is None else self._clock.monotonic() + seconds
        pause = FIRST_PAUSE
        while not self._try():
            left = pause if until is None else until - self._clock.monotonic()
            if left <= 0:
                return False
            self._clock.sleep(min(left, self._chance.uniform(pause / 2, pause)))
            pause = min(pause * 2, LONGEST_PAUSE)
        return True

    def renew(self) -> None:
        """Hold it for another ttl from now, with the same token.

        Raises:
            LeaseLost: its time was over, or someone took it over: stop what it protected.
            Unavailable: unknown whether it was renewed; it is held until the old deadline, and can be renewed again.
        """
        self.check()
        self._write(self._held().document)

    def release(self) -> None:
        """Free it for the next holder. If it is not held, nothing happens.

        Raises:
            LeaseLost: someone had taken it over: what it protected ran for longer than its ttl.
            Unavailable: unknown whether it was released; it becomes free after its ttl.
        """
        if self._grant is None:
            return
        self._grant = replace(self._grant, deadline=float("-inf"))
        self._write(replace(self._grant.document, owner="", acquired_at=None))
        self._grant = None

    @contextmanager
    def held(self, wait: float | timedelta | None = None) -> Iterator[Lock]:
        """`with lock.held(wait=2):` acquires and releases.

        Raises:
            Conflict: someone else held it for the whole time; the block did not run.
            LeaseLost: the block ran, but for longer than the lock was held.
        """
        if not self.acquire(wait):
            raise Conflict(f"lock not acquired: {self._key}: someone else holds it")
        try:
            yield self
        except BaseException:
            with suppress(QueueError):
                self.release()
            raise
        with suppress(Unavailable):
            self.release()

    def __enter__(self) -> Lock:
        self._entered = self.held()
        return self._entered.__enter__()

    def __exit__(self, *error: object) -> None:
        self._entered.__exit__(*error)  # type: ignore[arg-type]

    def _try(self) -> bool:
        """One GET, and one PUT if the lock is free. The GET comes first, because a lock that was ever used exists."""
        found = self.read()
        if found and (found.state == "held" or (found.state == "unreadable" and found.age <= self.ttl + GRAIN)):
            return False
        return self.take_over(found)

    def read(self, *, is_newer_garbage: bool = False) -> LockState | None:
        """The lock as it is stored now; None if it was never used. One GET.

        Raises:
            NewerFormat: a newer version of s3queue wrote it; not if that counts as garbage.
        """
        return read_lock(self._store, self._key, is_newer_garbage=is_newer_garbage)

    def take_over(self, found: LockState | None) -> bool:
        """Take the lock from the holder that was `found` there (None: nobody), who is known to be gone. One PUT.

        False if someone else has taken it since, or its holder has renewed it.
        """
        if found is None:
            return self._take(LockDocument(first_token(self._clock), self.owner, self.ttl), None)
        token = found.token + 1 if found.token else first_token(self._clock)
        return self._take(LockDocument(token, self.owner, self.ttl), found.etag)

    def _take(self, document: LockDocument, etag: str | None) -> bool:
        started = self._clock.monotonic()
        body = document.to_bytes(self._chance.token())
        try:
            written = put_surely(self._store, self._key, body, if_match=etag, if_absent=etag is None)
        except Conflict:
            return False
        held = replace(document, acquired_at=written.at)
        self._grant = _Grant(held, written.etag, started + self.ttl.total_seconds())
        if self.is_held:
            return True
        # The answer took longer than the ttl: the lock has run out already, and someone else may be taking it.
        with suppress(Conflict):
            self.release()
        self._grant = None
        return False

    def _write(self, document: LockDocument) -> None:
        """Replace our own document; after an answer that was lost earlier, it may have another ETag."""
        grant = self._held()
        for _ in range(TRIES):
            started = self._clock.monotonic()
            body = document.to_bytes(self._chance.token())
            try:
                written = put_surely(self._store, self._key, body, if_match=grant.etag)
            except Conflict:
                found = read_lock(self._store, self._key)
                # Each token is given only once, so our token with another ETag is our own write.
                is_ours = found and (found.token, found.owner) == (grant.document.token, grant.document.owner)
                if not found or not is_ours or found.etag == grant.etag:
                    break
                grant = replace(grant, etag=found.etag)
                continue
            self._grant = _Grant(grant.document, written.etag, started + self.ttl.total_seconds())
            return
        self._grant = None
        raise LeaseLost(f"lock lost: {self._key}: someone else took it over")

    def _held(self) -> _Grant:
        if self._grant is None:
            raise LeaseLost(f"lock not held: {self._key}: acquire it first")
        return self._grant


def first_token(clock: Clock) -> int:
    """The first token of a lock without a stored one: larger than every token that it can have given before."""
    return int(clock.now().timestamp() * 1000)


def read_lock(store: ObjectStore, key: str, *, is_newer_garbage: bool = False) -> LockState | None:
    """The lock at this key; None if it was never used, or if the sweeper deleted it because nobody used it for a day.

    With `is_newer_garbage`, what a newer version wrote is `unreadable`, for a caller that two holders do no harm.

    Raises:
        NewerFormat: a newer version of s3queue wrote it.
    """
    found = open_state(store, key)
    if found is None:
        return None
    age = found.at - found.modified_at
    state: State
    document: LockDocument | None
    try:
        document = LockDocument.read(found)
    except CorruptState as error:
        if isinstance(error, NewerFormat) and not is_newer_garbage:
            raise
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
        at=found.at,
    )


def list_locks(store: ObjectStore, keys: Keys) -> Iterator[LockState]:
    """Every lock of a queue: who holds it, and since when. One LIST, and one GET for each lock."""
    for page in listing(store, keys.prefix("locks")):
        for entry in page.objects:
            found = read_lock(store, entry.key)
            if found:
                yield found


def break_lock(
    store: ObjectStore, key: str, *, clock: Clock | None = None, chance: Chance | None = None
) -> LockState | None:
    """Free a lock by force, for an operator who knows that its holder is gone; returns the lock as it was.

    If the holder is alive after all, it finds out at its next `renew`, and its token is smaller than the next one.

    Raises:
        Conflict: the holder kept renewing the lock: it is alive.
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
    raise Conflict(f"lock not broken: {key}: its holder keeps renewing it")
