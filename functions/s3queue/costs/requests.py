"""RequestCounts: PROTOCOL.md's operations as sums of requests, by verb and by kind of object.

Each constant is one operation. tests/unit/costs/test_requests.py lets the library carry each out, and compares.
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
class RequestCounts:
    """How many requests, by (verb, kind of object): `("PUT", "leases")`. A value: add and multiply it."""

    counts: Mapping[tuple[str, str], float] = field(default_factory=dict)

    @classmethod
    def of(cls, *requests: str) -> RequestCounts:
        """From `"PUT leases"`, `"GET messages"`, …; what is named twice counts twice."""
        counts: dict[tuple[str, str], float] = {}
        for request in requests:
            verb, kind = request.split()
            counts[verb, kind] = counts.get((verb, kind), 0) + 1
        return cls(counts)

    def __add__(self, other: RequestCounts) -> RequestCounts:
        keys = self.counts.keys() | other.counts.keys()
        return RequestCounts({key: self.counts.get(key, 0) + other.counts.get(key, 0) for key in keys})

    def __mul__(self, times: float) -> RequestCounts:
        return RequestCounts({key: count * times for key, count in self.counts.items()} if times else {})

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


NOTHING = RequestCounts()

# A message, or a batch, on its way
ENQUEUE = RequestCounts.of("PUT messages")
CLAIM = RequestCounts.of("PUT leases", "GET messages")
#: What the claim's GET did not keep (`message.INLINE_BYTES`) is opened again by whoever reads it.
REOPEN = RequestCounts.of("GET messages")
RECORD = RequestCounts.of("PUT records")
CLEAR = RequestCounts.of("DELETE messages", "DELETE leases")
#: A batch that takes longer than half its lease.
EXTEND = RequestCounts.of("PUT leases")
#: An event that comes late, or a dispatch, reads before it writes.
LOOK = RequestCounts.of("GET leases", "HEAD messages")
#: Attempts left; and the next attempt.
FAIL = RequestCounts.of("PUT leases", "PUT retries")
CLAIM_AGAIN = RequestCounts.of("GET leases", "PUT leases", "GET messages", "GET records")
FORGET_REMINDER = RequestCounts.of("DELETE retries")
#: Out of time in the middle of a batch: given back with what is done, the next invocation goes on.
RELEASE = RequestCounts.of("PUT leases", "PUT retries")
#: The last attempt, or a Reject: a single message is copied; of a batch, each dead line is PUT.
BURY = RequestCounts.of("PUT leases") + RECORD + CLEAR
MOVE = RequestCounts.of("COPY dead")
MOVE_LINES = RequestCounts.of("GET messages")
MOVE_LINE = RequestCounts.of("PUT dead")

# A look at what may run: which kinds there are; then what lies there, and what of it has a lease
LOOK_AROUND = RequestCounts.of("LIST root")
LOOK_AT_MESSAGES = RequestCounts.of("LIST messages", "LIST leases")
LOOK_AT_REMINDERS = RequestCounts.of("LIST retries")
#: A queue whose names are sharded: its top, then messages and leases of every shard that has any.
LOOK_AT_TOP = RequestCounts.of("LIST messages")
REFRESH = RequestCounts.of("GET queue.json")

# The sweeper, by queue: nothing there, something in flight, and a look at what is due in between
SWEEP_IDLE = RequestCounts.of("LIST root")
SWEEP_BUSY = RequestCounts.of("LIST root", "GET queue.json")
SWEEP_PAGE = RequestCounts.of("LIST leases", "LIST messages")
PUBLISH = RequestCounts.of("PUT stats.json")
LOOK_AT_DUE = RequestCounts.of("LIST root")
RETAIN = RequestCounts.of("LIST dead")

# Heavy messages
#: The notification of one that finds a run at work.
RING_IN_VAIN = RequestCounts.of("GET runs", "GET workers")
#: A run from its slot to its end, without its messages: opened by one message that looks around and starts it …
LAUNCH = (
    RequestCounts.of("GET runs", "PUT runs", "PUT runs", "PUT runs", "PUT workers")
    + LOOK
    + RequestCounts.of("LIST root", "LIST messages", "LIST leases")
)
#: … taken over by the driver, closed, and looked after once more.
DRIVE = RequestCounts.of(
    "PUT runs", "PUT runs", "PUT runs", "PUT workers", "PUT workers", "HEAD workers", "GET queue.json"
) + (
    RequestCounts.of("GET runs") * 4
    + RequestCounts.of("LIST root", "LIST leases") * 2
    + RequestCounts.of("DELETE runs", "DELETE workers")
)
#: What the launcher claimed, the driver takes over.
ADOPT = CLAIM_AGAIN
#: "Started" is written before each message is.
BEGIN = RequestCounts.of("PUT runs")
NEXT_BATCH = RequestCounts.of("PUT runs", "PUT runs", "LIST root", "LIST messages", "LIST leases")
#: A batch that is not full looks whether more has come meanwhile.
LOOK_FOR_MORE = RequestCounts.of("LIST root", "LIST messages", "LIST leases")
HEARTBEAT = RequestCounts.of("PUT workers")
