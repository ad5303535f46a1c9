"""What really happened, seen from inside the store: every PUT, outcome, dead letter, claim and handler run."""

from __future__ import annotations

import io
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from s3queue.documents.dead_lines import messages_of
from s3queue.documents.record import Record
from s3queue.encoding import put_id_of
from s3queue.paths import is_batch, is_ordered, partition_of
from s3queue.protocol.claim import Claim

from .machines import Process


@dataclass(slots=True, eq=False)
class Run:
    """One start of a handler."""

    attempt: int
    process: Process
    began_at: float
    #: "" while it runs (or for ever, if its process died); then ok, failed or rejected.
    ended: str = ""
    ended_at: float = 0.0
    #: Another message of the same call was the one whose sends count.
    is_silent: bool = False


@dataclass(slots=True, eq=False)
class Life:
    """One generation of a message: a PUT, and what became of it."""

    path: str
    etag: str
    put_at: Any
    body: bytes
    began_at: float
    order: int
    #: A lease was there when it was PUT: the former message of that name was still at work.
    was_leased: bool
    #: S3 cannot tell equal bytes within one second apart.
    puts: int = 1
    put_id: str = ""
    last_put_at: float = 0.0
    #: "" while it lies there; then overwritten, deleted, removed (by an operator), repeated (sent a second time), or
    #: merged (deleted as equal bytes that were at work).
    end: str = ""
    ended_at: float = 0.0
    #: The delete that took it was sent before it was PUT.
    is_unstoppable: bool = False
    #: An operator deleted it while a lease named it: its record has to say so.
    is_missed: bool = False
    #: The lease was that of a first attempt, and nothing had started.
    is_untouched: bool = False
    #: What that lease named: the one before it, perhaps.
    worked_on: Life | None = None
    #: It was sent, and a late repetition of that PUT, after it was finished.
    is_repeated: bool = False
    record: Record | None = None
    recorded_at: float = 0.0
    recorded_alive: bool = False
    #: When a lease was taken away while the message stayed: its worker gave it back.
    given_back_at: float = -1.0
    #: How often a lease was taken while it lay there: no attempt may be charged to it beyond these.
    claims: int = 0
    #: Line (0: a single message) → its runs.
    runs: dict[int, list[Run]] = field(default_factory=dict)
    #: Lines that lie, or lay, in a dead letter; {0} for a single message.
    lettered: set[int] = field(default_factory=set)

    @property
    def lines(self) -> dict[int, bytes]:
        """The messages in it, by line; a single one is line 0."""
        if not is_batch(self.path):
            return {0: self.body}
        messages = messages_of(self.path, io.BytesIO(self.body))
        return {number: body for number, body in messages if isinstance(body, bytes)}

    def succeeded(self, line: int, since: float = 0.0) -> bool:
        """Whether a handler did that began no earlier than this."""
        return any(run.ended == "ok" and run.began_at >= since for run in self.runs.get(line, ()))


@dataclass(slots=True, eq=False)
class Holding:
    """A claim that a process was given, and the ETags of its lease: its own writes may be ahead of what it knows."""

    process: Process
    claim: Claim
    etags: set[str]
    leased_at: float


class Ledger:
    """The lives of all messages, by path and in order."""

    def __init__(self) -> None:
        self.lives: dict[str, list[Life]] = {}
        self.present: dict[str, Life] = {}
        #: Path → when a lease of it was taken, also if nothing lay there.
        self.claimed: defaultdict[str, list[float]] = defaultdict(list)
        self._order = 0

    def put(self, path: str, stored: Any, now: float, *, was_leased: bool) -> Life:
        lives = self.lives.setdefault(path, [])
        former = self.present.get(path)
        if former:
            former.end = "overwritten"
        self._order += 1
        same = self.find(path, stored.etag, stored.modified_at)
        # A repetition that was cleared away is over: a replay within its second is another message.
        if same and same.end != "repeated" and not self._is_forgotten(same):
            same.puts += 1
            same.order = self._order  # another one may have lain there in between
            same.end = ""
            same.was_leased = same.was_leased or was_leased
            same.last_put_at = now
            self.present[path] = same
            return same
        life = Life(path, stored.etag, stored.modified_at, stored.body, now, self._order, was_leased, last_put_at=now)
        life.put_id = put_id_of(stored.metadata)
        lives.append(life)
        self.present[path] = life
        return life

    def find(self, path: str, etag: str, put_at: Any) -> Life | None:
        """The last one: an upload that began when equal bytes were PUT has their date, and comes later."""
        for life in reversed(self.lives.get(path, ())):
            if life.etag == etag and life.put_at == put_at:
                return life
        return None

    def _is_forgotten(self, life: Life) -> bool:
        """Whether the record of it was replaced by a later message's: nothing says any more that it is finished."""
        later = (one.recorded_at for one in self.lives[life.path] if one.record and one is not life)
        return life.end == "deleted" and life.record is not None and max(later, default=0.0) > life.recorded_at

    def alike(self, life: Life) -> list[Life]:
        """Lives of the same name and the same bytes: S3's conditions cannot tell one from another."""
        return [other for other in self.lives[life.path] if other.etag == life.etag]

    def alike_since(self, life: Life) -> tuple[list[Life], float]:
        """Those that are one message with this one, and when that began: equal bytes that had their outcome before this
        one was PUT are another message, and no claim, start or line of theirs counts for it.  [P1] [P5]
        """
        alike = self.alike(life)
        if life.puts > 1:
            return alike, 0.0  # S3 cannot tell which of the PUTs of one second an outcome is about
        ended = [one for one in alike if one is not life and one.record and one.recorded_at <= life.began_at]
        since = max((one.recorded_at for one in ended), default=0.0)
        return [one for one in alike if one not in ended], since

    def claims_of(self, life: Life) -> int:
        """How many attempts may be charged to it."""
        alike, since = self.alike_since(life)
        # After an outcome, also those that were taken before it lay there: nobody knows what their GET would have met.
        return sum(at >= since for at in self.claimed[life.path]) if since else sum(one.claims for one in alike)

    def of_group(self, life: Life) -> list[Life]:
        """Lives that may carry the same put id: those of its name, or of its whole group, where replays are renamed."""
        partition = partition_of(life.path)
        if not (partition and is_ordered(partition)):
            return self.lives[life.path]
        return [one for path, lives in self.lives.items() if partition_of(path) == partition for one in lives]

    def all(self) -> list[Life]:
        return [life for lives in self.lives.values() for life in lives]
