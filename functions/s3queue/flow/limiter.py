"""RateLimiter: takes tokens of a queue's rate, a few at a time, by conditional writes on `limits/`.

A token is granted for a second of S3's clock, and may be used in the few seconds after it. Whoever claims with it
learns from the answer when S3 wrote the lease; too late, and the claim is undone. So the limit holds whatever this
process believes about the time: its estimates only decide how soon it asks.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from s3queue.documents.limit_document import LimitDocument
from s3queue.errors import Conflict, CorruptState, NewerFormat, QueueError
from s3queue.limits import Rate
from s3queue.paths import rate_key_of
from s3queue.protocol.access import QueueAccess
from s3queue.protocol.store_time import StoreTime
from s3queue.store import Written, open_state, put_surely

_log = logging.getLogger(__name__)
#: How often a grant is tried while others write the same limit, before this process lets them go first.
TRIES = 4
#: Pauses between two tries, and after the last, are drawn up to this many seconds.
PAUSE_SECONDS = 0.05
BUSY_SECONDS = 0.25
#: After an error of the store.
UNKNOWN_SECONDS = 1.0
#: For so long after its own write a process does not read the limit first: a GET is cheaper than a PUT that loses.
KNOWN_SECONDS = 1.0
#: Limits that one process remembers; what it forgets costs it a GET.
MOST_KNOWN = 10_000
#: A process takes at most this part of the limit at a time, and at most twice of what it could use the last time.
PART = 10
#: A grant that is more seconds ahead of S3's clock was forged: whoever grants has just read that clock, and takes it
#: for a second later than it is at most. One more, because dates are whole seconds.
AHEAD = 2
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True, eq=False)
class _Limit:
    """What this process knows about one limit."""

    document: LimitDocument | None = None
    etag: str | None = None
    #: When this process wrote it last, by its monotonic clock.
    written: float = float("-inf")
    #: The rate and the second of the tokens in hand, how many are left, and how many of them were used.
    rate: Rate | None = None
    at: int = -1
    left: int = 0
    used: int = 0
    #: Second → tokens of this rate that were granted earlier and came back: the next write gives them back.
    spare: dict[int, int] = field(default_factory=dict)
    chunk: int = 1
    #: For this rate, nobody has to ask before this time of the monotonic clock; and when S3's clock shows it.
    closed_for: Rate | None = None
    closed_until: float = float("-inf")
    free_at: datetime = _EPOCH
    #: A thread of this process asks right now.
    is_asking: bool = False

    def come_back(self, at: int, tokens: int) -> None:
        """Tokens that were granted for this second were not used."""
        if at == self.at:
            self.left += tokens
        elif tokens:
            self.spare[at] = self.spare.get(at, 0) + tokens

    def receive(self, at: int, tokens: int) -> None:
        """Tokens were granted. Others may have come back since they were asked for."""
        former, self.at = self.at, at
        left, self.left = self.left, tokens
        self.come_back(former, left)
        self.used = 0


@dataclass(slots=True)
class Token:
    """One call of a handler."""

    limit: _Limit
    at: int
    rate: Rate
    mutex: threading.Lock = field(repr=False)

    def confirm(self, at: datetime) -> bool:
        return 0 <= _second(at) - self.at <= self.rate.usable

    def cancel(self) -> None:
        with self.mutex:
            if self.limit.rate == self.rate:
                self.limit.used -= self.limit.at == self.at
                self.limit.come_back(self.at, 1)
                self.limit.closed_for = None  # what came back too late to be used may be granted anew


class RateLimiter:
    """The tokens of one process and queue; safe for threads. No lock is held while a request is on its way."""

    def __init__(self, queue: QueueAccess) -> None:
        self._queue = queue
        self._time = StoreTime(queue.clock)
        self._limits: OrderedDict[str, _Limit] = OrderedDict()
        self._mutex = threading.Lock()

    def wait(self, path: str) -> float:
        """Seconds until a token for this message is worth a request."""
        rate = self._queue.settings.limit
        with self._mutex:
            limit = self._limits.get(self._key(path))
            if limit is None or rate is None or self._has_tokens(limit, rate):
                return 0.0
            if limit.is_asking:
                return PAUSE_SECONDS
            return max(0.0, limit.closed_until - self._queue.clock.monotonic()) if limit.closed_for == rate else 0.0

    def free_at(self, path: str) -> datetime:
        """When S3's clock will show that there are tokens again, as far as this process knows."""
        with self._mutex:
            limit = self._limits.get(self._key(path))
            is_closed = limit is not None and limit.closed_for == self._queue.settings.limit
            return max(limit.free_at if limit and is_closed else _EPOCH, self._time.now() + timedelta(seconds=1))

    def now(self) -> datetime:
        """S3's time, as far as this process knows it."""
        return self._time.now()

    def take(self, path: str, rate: Rate) -> Token | None:
        """A token for the handler of this message; None if there is none now."""
        key = self._key(path)
        with self._mutex:
            limit = self._known(key)
            if token := self._from_hand(limit, rate):
                return token
            is_closed = limit.closed_for == rate and self._queue.clock.monotonic() < limit.closed_until
            if limit.is_asking or is_closed:
                return None
            limit.is_asking = True
        granted, token = None, None
        try:
            granted = self._grant(key, limit, rate)
        except QueueError as error:
            _log.warning("limit not read or written, nothing claimed: %s: %s", self._queue.keys.limit(key), error)
            self._close(limit, rate, UNKNOWN_SECONDS)
        finally:
            with self._mutex:
                limit.is_asking = False
                if granted is not None:
                    limit.receive(*granted)
                token = self._from_hand(limit, rate)
        return token

    def _key(self, path: str) -> str:
        return rate_key_of(path, self._queue.settings.shards) if self._queue.settings.rate_key == "folder" else ""

    def _known(self, key: str) -> _Limit:
        limit = self._limits.setdefault(key, _Limit())
        self._limits.move_to_end(key)
        if len(self._limits) > MOST_KNOWN:
            self._limits.popitem(last=False)
        return limit

    def _has_tokens(self, limit: _Limit, rate: Rate) -> bool:
        """Tokens of another rate do not count: it may have been lowered since."""
        return limit.left > 0 and limit.rate == rate and _second(self._time.now()) - limit.at <= rate.usable

    def _from_hand(self, limit: _Limit, rate: Rate) -> Token | None:
        if not self._has_tokens(limit, rate):
            return None
        limit.left -= 1
        limit.used += 1
        return Token(limit, limit.at, rate, self._mutex)

    def _close(self, limit: _Limit, rate: Rate, seconds: float) -> None:
        limit.closed_for = rate
        limit.closed_until = self._queue.clock.monotonic() + seconds
        limit.free_at = self._time.now() + timedelta(seconds=1 + int(seconds))

    def _grant(self, key: str, limit: _Limit, rate: Rate) -> tuple[int, int] | None:
        """A second and how many tokens of it; None if there are none, or others were faster each time.

        The same write gives back what is left of the last ones: nobody can use these any more.
        """
        with self._mutex:
            if limit.rate != rate:
                # They were granted in other units, and cannot be told apart any more: they count as used.
                limit.rate, limit.left, limit.spare = rate, 0, {}
            left, limit.left = limit.left, 0
            spare, limit.spare = limit.spare, {}
            if left:
                spare[limit.at] = left
        if limit.at >= 0:
            limit.chunk = limit.chunk * 2 if not left else max(1, limit.used)
        limit.chunk = min(limit.chunk, max(1, rate.calls // PART))
        try:
            return self._ask(key, limit, rate, spare)
        finally:
            with self._mutex:
                if limit.left or limit.spare:
                    limit.closed_for = None  # some came back since the limit was read
                for at, tokens in spare.items():
                    limit.come_back(at, tokens)

    def _ask(self, key: str, limit: _Limit, rate: Rate, spare: dict[int, int]) -> tuple[int, int] | None:
        """As `_grant`; what stays in `spare` was not given back."""
        clock, chance = self._queue.clock, self._queue.chance
        if clock.monotonic() - limit.written > KNOWN_SECONDS:
            limit.document = None
        for _ in range(TRIES):
            if limit.document is None:
                limit.document, limit.etag = self._read(key, rate)
            now = _second(self._time.now())
            document = limit.document.converted(rate, now)
            if limit.document.unit == rate.unit:
                for second, tokens in spare.items():
                    document = document.without(rate, second, tokens)
            at = max(now, document.latest)
            free = document.free(rate, at)
            if free <= 0 and limit.etag is not None:
                # Others may have given some back, or someone has raised the rate: what is known may be old.
                self._wait_for(limit, rate, document, at)
                limit.document = None
                return None
            tokens = min(free, limit.chunk)
            # From here on they may have been given back, until the answer says that they have not.
            given = dict(spare)
            spare.clear()
            try:
                written = self._write(key, document.granted(rate, at, tokens), limit)
            except Conflict as conflict:
                if not conflict.retried:
                    # Else they may have been given back: written, read by whoever was faster, and written over.
                    spare.update(given)
                limit.document = None
                clock.sleep(chance.uniform(0.0, PAUSE_SECONDS))
                continue
            if _second(written.at) == at - 1:
                # Granted for the next second, by this estimate or another process's: not again, that would use all up.
                clock.sleep(1.0)
                return at, tokens
            if 0 <= _second(written.at) - at <= rate.usable:
                return at, tokens
            spare[at] = tokens  # too late for all of them
        self._close(limit, rate, chance.uniform(0.0, BUSY_SECONDS))
        return None

    def _wait_for(self, limit: _Limit, rate: Rate, document: LimitDocument, at: int) -> None:
        limit.free_at = _EPOCH + timedelta(seconds=document.free_at(rate, at))
        seconds = self._time.seconds_until(limit.free_at - timedelta(seconds=1))
        limit.closed_for, limit.closed_until = rate, self._queue.clock.monotonic() + seconds

    def _read(self, key: str, rate: Rate) -> tuple[LimitDocument, str | None]:
        store, name = self._queue.store, self._queue.keys.limit(key)
        found = open_state(store, name)
        if found is None:
            # A missing object has no date, and the first grant needs one.
            self._time.note(store.list(name, limit=1).at)
            return LimitDocument(rate.unit), None
        self._time.note(found.at)
        now = _second(found.at)
        try:
            document = LimitDocument.read(found)
            if document.latest > now + AHEAD:
                raise CorruptState(f"{name} has grants of the future")
        except NewerFormat as error:
            # All of it was granted when it was written. What no window can count any more may be written over: a newer
            # version that was taken back must not stop the queue.
            _log.warning("limit taken as used up when it was written, update this worker: %s", error)
            return LimitDocument(rate.unit).granted(rate, _second(found.modified_at), rate.calls), found.etag
        except CorruptState as error:
            # Nobody knows what was granted, so everything was: one window without work, and it is a limit again.
            _log.warning("limit cannot be read, written anew: %s", error)
            document = LimitDocument(rate.unit).granted(rate, now, rate.calls)
            written = put_surely(store, name, document.to_bytes(self._queue.chance.token()), if_match=found.etag)
            return document, written.etag
        return document, found.etag

    def _write(self, key: str, document: LimitDocument, limit: _Limit) -> Written:
        body = document.to_bytes(self._queue.chance.token())
        name = self._queue.keys.limit(key)
        try:
            written = put_surely(self._queue.store, name, body, if_match=limit.etag, if_absent=limit.etag is None)
        except QueueError:
            limit.document = None
            raise
        self._time.note(written.at)
        limit.document, limit.etag, limit.written = document, written.etag, self._queue.clock.monotonic()
        return written


def _second(at: datetime) -> int:
    return int((at - _EPOCH).total_seconds())
