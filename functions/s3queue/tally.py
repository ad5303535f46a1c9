"""Tally: PROTOCOL.md's operations as sums of requests, by verb and by kind of object.

Each constant is one operation. tests/unit/test_estimate.py lets the library carry each out, and compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

VERBS = ("PUT", "COPY", "LIST", "GET", "HEAD", "DELETE")
#: What S3 counts as a write when it limits a prefix. (Its bill counts LIST as one too, and DELETE as nothing.)
WRITES = frozenset({"PUT", "COPY", "DELETE"})
#: What S3 bills like a PUT, and like a GET.
BILLED_AS_WRITES = frozenset({"PUT", "COPY", "LIST"})
BILLED_AS_READS = frozenset({"GET", "HEAD"})
#: The `{queue}/` LIST with a delimiter.
ROOT = "root"


@dataclass(frozen=True, slots=True)
class Tally:
    """How many requests, by (verb, kind of object): `("PUT", "leases")`. A value: add and multiply it."""

    counts: Mapping[tuple[str, str], float] = field(default_factory=dict)

    @classmethod
    def of(cls, *requests: str) -> Tally:
        """From `"PUT leases"`, `"GET messages"`, …; what is named twice counts twice."""
        counts: dict[tuple[str, str], float] = {}
        for request in requests:
            verb, kind = request.split()
            counts[verb, kind] = counts.get((verb, kind), 0) + 1
        return cls(counts)

    def __add__(self, other: Tally) -> Tally:
        keys = self.counts.keys() | other.counts.keys()
        return Tally({key: self.counts.get(key, 0) + other.counts.get(key, 0) for key in keys})

    def __mul__(self, times: float) -> Tally:
        return Tally({key: count * times for key, count in self.counts.items()} if times else {})

    def total(self, verbs: frozenset[str] | None = None, kind: str | None = None) -> float:
        """All of them, or those with one of these verbs, or those to one kind of object."""
        return sum(
            count
            for (verb, what), count in self.counts.items()
            if (verbs is None or verb in verbs) and (kind is None or what == kind)
        )

    def by_verb(self) -> dict[str, float]:
        verbs = sorted({verb for verb, _ in self.counts}, key=VERBS.index)
        return {verb: self.total(frozenset({verb})) for verb in verbs}

    def kinds(self) -> list[str]:
        return sorted({kind for _, kind in self.counts})


NOTHING = Tally()

# A message, or a batch, on its way
ENQUEUE = Tally.of("PUT messages")
CLAIM = Tally.of("PUT leases", "GET messages")
#: What the claim's GET did not keep (`message.INLINE_BYTES`) is opened again by whoever reads it.
REOPEN = Tally.of("GET messages")
RECORD = Tally.of("PUT records")
CLEAR = Tally.of("DELETE messages", "DELETE leases")
#: A batch that takes longer than half its lease.
EXTEND = Tally.of("PUT leases")
#: An event that comes late, or a dispatch, reads before it writes.
LOOK = Tally.of("GET leases", "HEAD messages")
#: Attempts left; and the next attempt.
FAIL = Tally.of("PUT leases", "PUT retries")
CLAIM_AGAIN = Tally.of("GET leases", "PUT leases", "GET messages", "GET records")
FORGET_REMINDER = Tally.of("DELETE retries")
#: Out of time in the middle of a batch: given back with what is done, the next invocation goes on.
RELEASE = Tally.of("PUT leases", "PUT retries")
#: The last attempt, or a Reject: a single message is copied; of a batch, each dead line is PUT.
BURY = Tally.of("PUT leases") + RECORD + CLEAR
MOVE = Tally.of("COPY dead")
MOVE_LINES = Tally.of("GET messages")
MOVE_LINE = Tally.of("PUT dead")

# A look at what may run: which kinds there are; then what lies there, and what of it has a lease
LOOK_AROUND = Tally.of("LIST root")
LOOK_AT_MESSAGES = Tally.of("LIST messages", "LIST leases")
LOOK_AT_REMINDERS = Tally.of("LIST retries")
#: A queue whose names are sharded: its top, then messages and leases of every shard that has any.
LOOK_AT_TOP = Tally.of("LIST messages")
REFRESH = Tally.of("GET queue.json")

# The sweeper, by queue: nothing there, something in flight, and a look at what is due in between
SWEEP_IDLE = Tally.of("LIST root")
SWEEP_BUSY = Tally.of("LIST root", "GET queue.json")
SWEEP_PAGE = Tally.of("LIST leases", "LIST messages")
PUBLISH = Tally.of("PUT stats.json")
LOOK_AT_DUE = Tally.of("LIST root")
RETAIN = Tally.of("LIST dead")

# Heavy messages
#: The doorbell of one that finds a run at work.
RING_IN_VAIN = Tally.of("GET runs", "GET workers")
#: A run from its slot to its end, without its messages: opened by one message that looks around and starts it …
LAUNCH = (
    Tally.of("GET runs", "PUT runs", "PUT runs", "PUT runs", "PUT workers")
    + LOOK
    + Tally.of("LIST root", "LIST messages", "LIST leases")
)
#: … taken over by the driver, closed, and looked after once more.
DRIVE = Tally.of("PUT runs", "PUT runs", "PUT runs", "PUT workers", "PUT workers", "HEAD workers", "GET queue.json") + (
    Tally.of("GET runs") * 4 + Tally.of("LIST root", "LIST leases") * 2 + Tally.of("DELETE runs", "DELETE workers")
)
#: What the launcher claimed, the driver takes over.
ADOPT = CLAIM_AGAIN
#: "Started" is written before each message is.
BEGIN = Tally.of("PUT runs")
NEXT_BATCH = Tally.of("PUT runs", "PUT runs", "LIST root", "LIST messages", "LIST leases")
#: A batch that is not full looks whether more has come meanwhile.
LOOK_FOR_MORE = Tally.of("LIST root", "LIST messages", "LIST leases")
HEARTBEAT = Tally.of("PUT workers")
