"""QueueAccess: what every part of a queue shares: its bucket, its keys, the worker's id and the current settings."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from weakref import WeakValueDictionary

from s3queue.clock import Ascending, Chance, Clock, RandomChance, SystemClock
from s3queue.documents.lease import StoredLease
from s3queue.documents.record import Record
from s3queue.errors import AccessDenied
from s3queue.events import Events
from s3queue.keys import Keys
from s3queue.paths import partition_of
from s3queue.settings import QueueSettings
from s3queue.store import ObjectInfo, ObjectStore, open_state

from .gate import Gate
from .outcomes import Outcomes


@dataclass(slots=True, kw_only=True, weakref_slot=True)
class QueueAccess:
    """One queue of a bucket, as one worker, producer or operator uses it."""

    store: ObjectStore
    name: str
    #: The current settings: those that the queue was defined with, and the overrides of `queue.json`.
    settings: QueueSettings = field(default_factory=QueueSettings)
    #: New at every start, and in every child process: a heartbeat or lease of another one must not count for this one.
    worker_id: str = ""
    clock: Clock = field(default_factory=SystemClock)
    chance: Chance = field(default_factory=RandomChance)
    events: Events = field(default_factory=Events)
    #: The queues that this one's messages may send to; None: whatever this process's credentials allow.
    sends_to: tuple[str, ...] | None = None
    #: Called with every payload before it is enqueued, of a batch with every line; raises InvalidRequest if the queue's
    #: handler could not take it. `Definition.connect` sets it.
    check_body: Callable[[bytes], None] | None = None
    #: Whether its messages may be members of flows: then their outcomes are noted there, and what comes next is sent to
    #: queues that `sends_to` names. None: whatever this process's credentials allow.
    flows: bool | None = None
    #: What the queue was defined with.
    defined: QueueSettings = field(init=False)
    keys: Keys = field(init=False)
    #: How many claims led to nothing because of the message itself: it cannot be read, or has a name that no lease can
    #: have. The backlog must not take them for claims that others won.
    in_vain: int = field(init=False, default=0, repr=False)
    #: Messages that can be neither claimed nor buried; the backlog leaves them out.
    set_aside: set[str] = field(init=False, default_factory=set, repr=False)

    #: Taken, for good, by the worker that writes a heartbeat in the name of `worker_id`: there must not be two.
    identity: threading.Lock = field(init=False, default_factory=threading.Lock, repr=False, compare=False)

    #: A rate or a breaker, for queues that have one.
    gate: Gate | None = field(init=False, default=None, repr=False)
    #: Called between the many requests that one message's sends may need: a sweep's ends them when its budget does.
    pace: Callable[[], None] = field(init=False, default=lambda: None, repr=False)
    #: Whether a small payload that the GET of a claim brings is kept. A Spark run that claims a hundred messages has no
    #: room for those that its executors read.
    keeps_body: Callable[[str], bool] = field(init=False, default=lambda path: True, repr=False)
    #: When the last journal of a partition was named.
    journaled_at: Ascending = field(init=False, default_factory=Ascending, repr=False)
    #: How many claims the gate did not permit: they say nothing about what others do.
    held_back: int = field(init=False, default=0, repr=False)
    #: The message of a partition that the gate held back last: `free_at` of it says when to look again.
    held_path: str = field(init=False, default="", repr=False)

    def __post_init__(self) -> None:
        self.keys = Keys(self.name)
        self.defined = self.settings
        self.worker_id = self.keys.check_worker(self.worker_id) or f"worker-{self.chance.token()}"
        _of_this_process[id(self)] = self

    def new_worker_id(self, chance: Chance | None = None) -> str:
        """One that nobody has, and that tells which it comes from."""
        return f"{self.worker_id}-{(chance or self.chance).token()}"

    def follow_limits(self) -> bool:
        """Bring `gate` up to date with the settings; whether there is one. `Queue` does that."""
        return self.gate is not None

    def hold_back(self, path: str) -> None:
        """The gate did not permit a message of a partition."""
        self.held_back += 1
        self.held_path = path

    def list_message(self, path: str) -> ObjectInfo | None:
        """The message as a LIST shows it, also where a HEAD would be refused; None if there is none. One LIST."""
        key = self.keys.message(path)
        return next((entry for entry in self.store.list(key, limit=1).objects if entry.key == key), None)

    def find_message(self, path: str) -> tuple[ObjectInfo | None, bool]:
        """The message as a HEAD shows it, None if there is none; and whether it is described. One that nobody may read
        may not be described either: then a LIST shows as much as is needed to claim it, or to end its lease.  [P6]
        """
        try:
            return self.store.head(self.keys.message(path)), True
        except AccessDenied:
            return self.list_message(path), False

    def outcome_of(self, path: str, since: datetime | None = None) -> Record | None:
        """The last record of a path, also if it is kept in its partition's journals; None if there is none.

        `since`: the message cannot have ended before, by S3's clock, so older journals are not read.

        Raises:
            NewerFormat: a newer version wrote it, and only that version can read it.
        """
        if partition_of(path):
            from .journal import find_outcome

            return find_outcome(self, path, since=since)
        return Outcomes(self.store, self.keys, self.chance).read(path)

    def perform(self, record: Record, between: Callable[[], None] = lambda: None) -> None:
        """Store what a record has sent, and tell its flow. Safe to repeat; for all other records it is no request and
        no import.  [P7] [P8]

        Raises:
            NotSent, CorruptState, Unavailable: it is not done; the message has to be kept until it is. The record is
                renewed meanwhile, so that it does not expire before its message goes.  [P3]
        """
        if record.has_sends:
            from .outbox import perform

            perform(self, record, between)
        if record.is_member and self.flows is not False:
            from s3queue.documents.flow import reference

            from .flow_progress import member_finished

            if of := reference(record.path, record.put_id):
                try:
                    member_finished(self, record, of, between)
                except Exception:
                    # Its message is kept until the flow can be told, however late: so long its record must be, too.
                    from .record_renewal import renew

                    renew(self, record)
                    raise

    def read_lease(self, path: str) -> StoredLease | None:
        """The lease on a path as it is stored now; None if there is none. One GET.

        Raises:
            CorruptState: the object is not a lease. NewerFormat: a newer version wrote it.
        """
        found = open_state(self.store, self.keys.lease(path))
        return StoredLease.read(found) if found else None


_of_this_process: WeakValueDictionary[int, QueueAccess] = WeakValueDictionary()


def _renew_worker_ids() -> None:
    """In a child process: its parent goes on with the ids that they share, and so may other children.  [P2]"""
    chance = RandomChance()  # one with a seed would draw the same in every child
    for queue in list(_of_this_process.values()):
        queue.worker_id = queue.new_worker_id(chance)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_worker_ids)
