"""RequestCounts: the operations of PROTOCOL.md as sums of requests, by verb and by kind of object.

Each constant is one operation. A test lets the library carry out each operation, counts its requests, and compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

VERBS = ("PUT", "COPY", "LIST", "GET", "HEAD", "DELETE")
#: Requests that count as writes for S3's limit per prefix. (On the bill, LIST is a write too, and DELETE is free.)
WRITES = frozenset({"PUT", "COPY", "DELETE"})
#: Requests that are billed like a PUT, and like a GET.
BILLED_AS_WRITES = frozenset({"PUT", "COPY", "LIST"})
BILLED_AS_READS = frozenset({"GET", "HEAD"})
#: The LIST of `{queue}/` with a delimiter.
ROOT = "root"


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """How many requests, by (verb, kind of object), for example `("PUT", "leases")`. Can be added and multiplied."""

    counts: Mapping[tuple[str, str], float] = field(default_factory=dict)

    @classmethod
    def of(cls, *requests: str) -> RequestCounts:
        """From `"PUT leases"`, `"GET messages"`, …; a request that is named twice counts twice."""
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
        """The number of requests, of all, or only with one of these verbs, or only to this kind of object."""
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

# A message or a batch
ENQUEUE = RequestCounts.of("PUT messages")
CLAIM = RequestCounts.of("PUT leases", "GET messages")
#: A large body (`message.INLINE_BYTES`), which the claim's GET did not keep, is read with a second GET.
REOPEN = RequestCounts.of("GET messages")
RECORD = RequestCounts.of("PUT records")
CLEAR = RequestCounts.of("DELETE messages", "DELETE leases")
#: With `keep_payload`, for what is completed.
KEEP = RequestCounts.of("COPY done")
#: For a batch that takes longer than half its lease.
EXTEND = RequestCounts.of("PUT leases")
#: A late event, or a dispatch of the sweeper: the worker reads before it claims.
READ_FIRST = RequestCounts.of("GET leases", "HEAD messages")
#: A claim of a message that someone else has finished meanwhile.
LOSE = RequestCounts.of("PUT leases", "GET messages", "DELETE leases")
#: A failed attempt that is followed by another one; and the claim of the next attempt.
FAIL = RequestCounts.of("PUT leases", "PUT retries")
CLAIM_AGAIN = RequestCounts.of("GET leases", "PUT leases", "GET messages", "GET records")
#: A queue with a rate: a call of the handler, if no other token is left from the last time.
TOKEN = RequestCounts.of("GET limits", "PUT limits")
#: With `dedup_for`: the marker of the id; and whoever runs the message asks whether it has run.
RESERVE = RequestCounts.of("GET dedup", "PUT dedup")
ASK_RECORD = RequestCounts.of("GET records")
#: Sends of more than 64 KiB in one completion.
STAGE = RequestCounts.of("PUT outbox", "GET outbox", "DELETE outbox")
#: A flow with one step, beside its messages: marker, document and started; the decision for the step, after a look at
#: the document; and the end, in the same way, after a look at the step's own decision.
FLOW = RequestCounts.of(*("PUT flows",) * 5, *("GET flows",) * 3, "DELETE flows")
#: Each member or step notes its outcome; a member asks whether others have one, and the last lists all.
FLOW_OUTCOME = RequestCounts.of("PUT flows")
FLOW_PROBE = RequestCounts.of("HEAD flows")
FLOW_COUNT = RequestCounts.of("LIST flows")
#: Of a message that waits, and is not running.
CANCEL = RequestCounts.of("HEAD messages", "GET records", "GET leases", "PUT leases", "HEAD messages") + RECORD + CLEAR
FORGET_REMINDER = RequestCounts.of("DELETE retries")
#: Out of time in the middle of a batch: it is given back with its progress, and the next invocation continues.
RELEASE = RequestCounts.of("PUT leases", "PUT retries")
#: After the last attempt, or a Reject: a message is copied, the dead lines of a batch are PUT together, each unless the
#: letter of an earlier death under that name is still there.
BURY = RequestCounts.of("PUT leases") + RECORD + CLEAR
MOVE = RequestCounts.of("HEAD dead", "COPY dead")
MOVE_LINES = RequestCounts.of("HEAD dead", "GET messages", "PUT dead")

# A partition: taken, committed once for each window, given up and looked at once more; and an event that finds it held
HOLD = RequestCounts.of("GET leases", "LIST messages", "PUT leases")
COMMIT = RequestCounts.of("PUT leases", "DELETE messages")
GIVE_UP = RequestCounts.of("DELETE leases", "GET leases", "LIST messages")
LIST_PARTITION = RequestCounts.of("LIST messages")
#: With `collect` and few messages: the lease is written first, and the messages are listed again after `within`.
GATHER = RequestCounts.of("PUT leases", "LIST messages")
LOOK = RequestCounts.of("GET leases")

# Refilling the backlog: a LIST of the kinds of objects; then messages and leases, and reminders if there are any
LIST_KINDS = RequestCounts.of("LIST root")
LIST_BACKLOG = RequestCounts.of("LIST messages", "LIST leases")
LIST_REMINDERS = RequestCounts.of("LIST retries")
#: For a sharded queue: the shards first, then messages and leases of every shard that has messages.
LIST_SHARDS = RequestCounts.of("LIST messages")
REFRESH = RequestCounts.of("GET queue.json")

# The sweeper, per queue: an idle sweep, one with something in flight, and the check for what is due in between
SWEEP_IDLE = RequestCounts.of("LIST root")
SWEEP_BUSY = RequestCounts.of("LIST root", "GET queue.json")
SWEEP_PAGE = RequestCounts.of("LIST leases", "LIST messages")
PUBLISH = RequestCounts.of("PUT stats.json")
#: The root and the leases take turns.
SWEEP_DUE = RequestCounts.of("LIST root", "LIST leases") * 0.5
#: Each sweep of a queue that has schedules, up to a thousand of them.
LIST_SCHEDULES = RequestCounts.of("LIST schedules")
RETAIN = RequestCounts.of("LIST dead")
#: What has finished in the last hour: the folders of records, pages of them, and a sample.
LOOK_BACK = RequestCounts.of("LIST records")
SAMPLE_RECORD = RequestCounts.of("GET records")
#: While a delayed message is due within a minute, and nothing else is in flight.
LIST_DELAYED = RequestCounts.of("LIST delayed")

# Heavy messages
#: A notification of a heavy message while a run is active.
NOTIFICATION_DURING_RUN = RequestCounts.of("GET runs", "GET workers")
#: A run, without its messages: the first message lists the backlog and starts it …
LAUNCH = (
    RequestCounts.of("GET runs", "PUT workers")
    + RequestCounts.of("PUT runs") * 4
    + READ_FIRST
    + RequestCounts.of("LIST root", "LIST messages", "LIST leases")
)
#: … the driver takes it over, closes it, and lists the backlog once more.
DRIVE = RequestCounts.of("PUT runs", "PUT runs", "PUT workers", "PUT workers", "HEAD workers", "GET queue.json") + (
    RequestCounts.of("GET runs") * 4
    + RequestCounts.of("LIST root", "LIST leases") * 2
    + RequestCounts.of("DELETE runs", "DELETE workers")
)
#: The driver takes over a message that the launcher claimed.
ADOPT = CLAIM_AGAIN
#: The manifest says that a message is started before it is.
BEGIN = RequestCounts.of("PUT runs")
NEXT_ROUND = RequestCounts.of("PUT runs", "LIST root", "LIST messages", "LIST leases")
#: After a round that was not full, the driver lists what has come meanwhile.
LIST_FOR_MORE = RequestCounts.of("LIST root", "LIST messages", "LIST leases")
HEARTBEAT = RequestCounts.of("PUT workers")
