"""Hold: a partition that this worker holds. It hands out messages, and commits what became of them.  [P9]"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta

from s3queue.documents.lease import Lease
from s3queue.documents.partition import PART_BYTES, StoredPartition, Waiting, in_parts
from s3queue.documents.record import Failure, Record
from s3queue.errors import AccessDenied, Conflict, LeaseLost, NewerFormat, Unavailable
from s3queue.paths import is_ordered, partition_path
from s3queue.protocol.claim import Claim
from s3queue.protocol.journal import outcome_in
from s3queue.protocol.lease_protocol import LeaseProtocol
from s3queue.protocol.misnamed import bury_misnamed
from s3queue.store import ObjectInfo

from .held_lease import HeldLease
from .held_leases import HeldLeases, claim_of_partition
from .partition_clearing import Clearing
from .partition_journals import HeldJournals
from .partition_reading import PartitionReading, vanished
from .partition_uncommitted import Uncommitted
from .partition_window import PartitionWindow
from .read_ahead import ReadAhead, Readers

_log = logging.getLogger(__name__)
#: After fewer messages than this a partition is given up at once: most likely none has come meanwhile.
FEW = 10


class Hold:
    """A partition that this worker holds: it hands out messages, and commits what became of them. Safe for threads.

    `take` messages until it returns None; when none of them runs any more (`end_window`), `advance`, in one thread.
    While others run, and few are left to be taken (`is_low`), `advance_beside` keeps threads from waiting for that.
    """

    def __init__(
        self,
        leases: LeaseProtocol,
        partition: str,
        stored: StoredPartition | None,
        readers: Readers | None = None,
    ) -> None:
        queue = self.queue = leases.queue
        self.partition = partition
        self.is_ordered = is_ordered(partition)
        #: What `Queue.complete`, `fail` and the like do with the messages of this partition.
        self.leases = HeldLeases(queue, leases.outcomes, self)
        self._stored = stored
        self._waiting = dict(stored.lease.waiting) if stored else {}
        #: Outcomes that count and are not cleared; what is deleted with them, without one; what is not committed.
        self._uncleared = stored.lease.ended if stored else ()
        self._repeated: Mapping[str, ObjectInfo] = {}
        self._new = Uncommitted(queue.clock.monotonic())
        #: Messages that were taken; and path → ETag of those that run, or are about to.
        self._window: deque[ObjectInfo] = deque()
        self._running: dict[str, str] = {}
        #: Who works on those, by path: one that failed may be taken again before its first thread is done with it.
        self._claims: dict[str, Claim] = {}
        #: Nothing was found to take beside those that run.
        self._is_last = False
        self._is_closed = False
        #: Everything that has ended is committed, and nothing more will end.
        self._is_told = False
        self._mutex = threading.RLock()
        #: Stands for the whole partition, for the worker's heartbeat.
        self.claim = claim_of_partition(queue, partition)
        self._lease = HeldLease(queue, partition, self.claim, stored)
        self.messages = PartitionWindow(queue, partition, self._waiting)
        self._clearing = Clearing(queue, leases.outcomes, partition, self.claim, self._lease.keep)
        self._ahead = ReadAhead(queue, readers)
        self._journals = HeldJournals(queue, partition, self.keep)
        self._reading = PartitionReading(self, self._clearing, self._journals, self._ahead)

    # Taking

    def begin(self, *, takes: bool = True) -> bool:
        """Write the lease, and finish what the last holder had committed; False if there is nothing to do, or someone
        else was first. Without `takes`, it takes no messages: an operator decides about one.
        """
        # What was committed comes first, and nothing is taken meanwhile: should this fail again and again, no message
        # is charged with it; and equal bytes that were PUT since are listed after it, in their place.  [P5]
        self.queue.follow_limits()
        window = [] if self._uncleared or not takes else self._plan(relist=True)
        # Also if what waited was deleted by hand: nobody else forgets that, or deletes a lease that is open.
        is_left = (last := self._stored) and (last.is_over() or len(self._waiting) < max(1, len(last.lease.waiting)))
        if takes and not (window or self._uncleared or is_left):
            return False
        if (gate := self.queue.gate) and window and gate.wait(self.messages.path(window[0])) > 0:
            self.queue.hold_back(self.messages.path(window[0]))
            return False
        try:
            within = self.queue.settings.within if window and self.messages.must_gather(window) else timedelta()
            if within or self.messages.gone:
                # The lease comes first: the events of what comes meanwhile find it held, and end there.
                self._lease.wait(within)
                self._settle_gone()
                if within:
                    self.queue.clock.sleep(within.total_seconds())
                    window = self._plan(relist=True)
                    self._settle_gone()
                if not window and not self._new.ended:
                    self.give_up()
                    return False
            journal = self._lease.document.journal
            if not self._uncleared:  # what waited, and is gone: nothing else has ended yet
                self._uncleared = tuple(self._begin_commit().ended.values())
                journal = self._clearing.journal_name(self._uncleared, self.messages.listed_at)
            self._commit(window, self._uncleared, journal)
        except Conflict:
            self.queue.events.emit("claim.lost", queue=self.queue.name, path=partition_path(self.partition))
            return False
        self._window.extend(window)
        self.clear()
        return True

    def take(self, wanted: int = 0) -> Claim | None:
        """The next message; None if none can be taken now. Whoever takes one ends it by the claim's `leases`. So many
        more are `wanted` right after it.
        """
        while True:
            with self._mutex:
                if not self._window or (self.is_ordered and self._running) or self._must_commit():
                    return None
                info = self._window.popleft()
                path = self.messages.path(info)
                self._running[path] = info.etag
                self._claims.pop(path, None)
                coming = ((self.messages.path(one), one) for one in self._window)
                self._ahead.begin(coming, len(self._running), wanted)
            try:
                claim = self._reading.open(path, info)
            except BaseException:
                self.put_back(path)
                raise
            if claim is not None:
                with self._mutex:
                    self._claims[path] = claim
                return claim

    def _must_commit(self) -> bool:
        """Whether nothing more may start before the next commit. The first message of a window always may."""
        return self._is_closed or self._new.is_due(self.queue, self.claim)

    def close(self) -> None:
        """Nothing more is started: the worker stops, or its queue was paused."""
        self._is_closed = True

    @property
    def is_done(self) -> bool:
        """Whether everything that was taken has ended, or nothing more may start."""
        with self._mutex:
            return not self._running and (not self._window or self._must_commit())

    def end_window(self) -> bool:
        """As `is_done`; if so, nothing more is taken before `advance`.

        A heartbeat may give the partition time in between: what another thread took then would run while the partition
        is given up, or is kept by a lease that does not name it.  [P2] [P5]
        """
        with self._mutex:
            if is_done := self.is_done:
                self.messages.put_back(self._window)
            return is_done

    @property
    def has_left(self) -> bool:
        """Whether messages were seen that nobody has taken."""
        return self.messages.has_left

    @property
    def has_room(self) -> bool:
        """Whether another thread can help: there is a message that can be taken now."""
        with self._mutex:
            return bool(self._window) and not (self.is_ordered and self._running) and not self._must_commit()

    @property
    def is_low(self) -> bool:
        """Whether a commit is due while other messages run: soon nothing would be left to be taken."""
        with self._mutex:
            if self._is_closed or self._is_last or not self._running or self._new.is_empty:
                return False
            # What may be too much for one lease waits until nothing runs.
            if not self.messages.may_share or not self._may_follow or self._new.size > PART_BYTES:
                return False
            return self.messages.is_low(len(self._window)) or self._must_commit()

    # For `PartitionReading`

    def waiting(self, path: str) -> Waiting | None:
        """What is known of a message that failed before."""
        return self._waiting.get(path)

    def ended_here(self, path: str, put_id: str) -> Record | None:
        """An outcome that is in no journal yet: two messages that carry one id may be taken together."""
        with self._mutex:
            return outcome_in((*self._new.ended.values(), *self._uncleared), path, put_id)

    def skip(self, path: str) -> None:
        """It is not started now; others may be."""
        with self._mutex:
            self._running.pop(path, None)

    def look_again(self, path: str) -> None:
        """Something else lies there than the lease names: a new LIST shows it in its place."""
        with self._mutex:
            self._running.pop(path, None)
            self._list_again()

    def delete_repeated(self, path: str) -> None:
        """It was finished before, and was PUT again since: the next commit deletes it."""
        with self._mutex:
            self._new.repeated[path] = self._clearing.read.pop(path)
            self._forget(path)

    # How messages end; called by `HeldLeases`

    def end(self, path: str, record: Record) -> None:
        """The message has an outcome, once it is committed."""
        with self._mutex:
            if claim := self._claims.get(path):
                self._ahead.handled(claim)
            self._forget(path)
            self._new.end(path, record)

    def wait(self, claim: Claim, lease: Lease) -> None:
        """The message is tried again later. A group waits for it."""
        with self._mutex:
            before = self._waiting.get(claim.path)
            is_suspect = before is not None and before.is_suspect
            self._forget(claim.path)
            self._waiting[claim.path] = Waiting(claim.path, lease, is_suspect)
            self._new.has_failed = True
            if self.is_ordered:
                self._list_again()

    def _list_again(self) -> None:
        """A new LIST shows what waits, or was PUT anew, in its place. A group goes on with nothing else before it."""
        if self.is_ordered:
            self._window.clear()
            self._ahead.forget()
        self.messages.forget()

    def lose(self, claim: Claim) -> None:
        """A handler was started, and how that ended cannot be recorded: the attempt counts, and nothing more starts.

        Once the lease has run out, nothing that this holder writes counts. It is still `taken` there, and nothing is
        given up (`give_up`): whoever takes the partition over charges it, or, of several, tries each alone.  [P5]
        """
        with self._mutex:
            if self._claims.get(claim.path) is claim and claim.path in self._running:
                with suppress(LeaseLost):
                    self.leases.fail(claim, Failure("OutcomeUnknown", "how the attempt ended could not be recorded"))
            self.put_back(claim.path, claim)
            self._is_closed = True

    def put_back(self, path: str, claim: Claim | None = None) -> None:
        """The message was not started, or its attempt does not count; nothing more starts under this hold.

        With a `claim`, unless that has ended: another thread may run the message by now.
        """
        with self._mutex:
            if path in self._running and (claim is None or self._claims.get(path) is claim):
                del self._running[path]
                self._is_closed = True

    def miss(self, path: str) -> None:
        """It is not there any more. If it had failed, it waits until a LIST shows that: `_settle_gone` asks whether it
        has its outcome, and should nobody answer, that is no attempt.  [P1]
        """
        with self._mutex:
            # Equal bytes that are PUT by now are another message, and not to be deleted with this one.  [P1]
            self._clearing.read.pop(path, None)
            if path in self._waiting:
                self.look_again(path)
            else:
                self._forget(path)

    def _settle_gone(self) -> None:
        """Give what failed, and was deleted by hand, its outcome, unless a journal has one. The lease is written.

        The lease that lets it wait may be an old one: its creation and the PUT after it may have come late, one after
        the other, when the partition had been given up.  [P3] The mutex is free: this may take many requests.
        """
        gone, self.messages.gone = self.messages.gone, {}
        found = (vanished(one, self.messages.listed_at, self.queue.worker_id) for one in gone.values())
        records = [record for record in found if record]
        ended = set[str]()
        try:
            if records and self._stored:
                ended = self._journals.with_outcome(records, self._stored.written_at, self.claim.claimed_at)
        except (Unavailable, AccessDenied, NewerFormat) as error:
            # The others go on; the next LIST shows once more that it is gone.
            _log.warning("unknown what became of messages that are gone, asking again: %s: %s", self.partition, error)
            with self._mutex:
                self._waiting.update(gone)
            return
        with self._mutex:
            for record in records:
                if record.path not in ended:
                    self._new.end(record.path, record)

    def _forget(self, path: str) -> None:
        self._running.pop(path, None)
        self._waiting.pop(path, None)
        self._claims.pop(path, None)  # it has the payload, and the partition may be held for long

    def tell(self, path: str, news: Callable[[], None]) -> None:
        """Emit an event of a message once what it tells is committed. Another thread may have done that by now."""
        with self._mutex:
            is_told = self._is_told
            if not is_told:
                self._new.news.append((path, news))
        if is_told:
            news()

    # Committing

    def advance(self, *, stop: bool = False) -> bool:
        """Commit what has ended, and take the next messages; False: the partition was given up.

        Raises:
            LeaseLost: another worker has the partition; nothing that was not committed counts.
            Unavailable: unknown whether it was committed; the next holder knows.
        """
        with self._mutex:
            self.messages.put_back(self._window)
            window = [] if stop or self._is_closed else self._plan()
        self._settle_gone()
        with self._mutex:
            new, self._is_last = self._begin_commit(), False
            all_ended = tuple(new.ended.values())
        # Usually one part. What is not committed yet stays taken: it may have been started.
        *parts, ended = in_parts(all_ended) if new.size > PART_BYTES else [all_ended]
        left = {record.path: record.generation.etag for record in all_ended}
        for part in parts:
            left = {path: etag for path, etag in left.items() if path not in {record.path for record in part}}
            self._write(left, part, self._clearing.journal_name(part))
            self._uncleared = part
            new.tell_all_but(left)
            self.clear()
        name = self._clearing.journal_name(ended)
        if window or ended:
            self._commit(window, ended, name)
            new.tell_all_but(())
        self._uncleared, self._repeated = ended, new.repeated
        self.clear()
        if not window:
            self.give_up()
            with self._mutex:
                self._is_told = True
            new.tell_all_but(())
            self._new.tell_all_but(())
        self._window.extend(window)
        return bool(window)

    def _begin_commit(self) -> Uncommitted:
        """What the next commit is about; what ends from now on belongs to the one after it."""
        new, self._new = self._new, Uncommitted(self.queue.clock.monotonic())
        return new

    def advance_beside(self) -> bool:
        """Commit what has ended while other messages run, and take some beside them; False: there is none, and nothing
        is committed. As `advance`, but `clear` has to follow, before anything else is committed.
        """
        with self._mutex:
            beside = {self.messages.path(info): info.etag for info in self._window} | self._running
            is_alone = any((known := self._waiting.get(path)) and known.is_suspect for path in beside)
            window = [] if is_alone or self._is_closed else self._plan(beside=beside)
        self._settle_gone()
        with self._mutex:
            if not window:
                self._is_last = True
                return False
            new = self._begin_commit()
            self._uncleared, self._repeated = tuple(new.ended.values()), new.repeated
            # Some may have ended meanwhile.
            beside = {self.messages.path(info): info.etag for info in (*self._window, *window)} | self._running
            waiting = dict(self._waiting)
        name = self._clearing.journal_name(self._uncleared)
        self._lease.commit(taken=beside, ended=self._uncleared, journal=name, waiting=waiting)
        with self._mutex:
            self._window.extend(window)
        new.tell_all_but(())
        return True

    @property
    def _may_follow(self) -> bool:
        """Whether another LIST is worth its price; if not, it is looked at once more after it was given up."""
        return len(self._lease.document.taken) >= FEW or self.messages.has_left

    def _plan(self, *, relist: bool = False, beside: Mapping[str, str] | None = None) -> list[ObjectInfo]:
        """The messages to take next; from a new LIST, if the last one has none left.

        `beside`, path → ETag, are not done with: nothing of their names is taken, nor of those that are not deleted
        yet, and no message that has to run alone.
        """
        finished = {one.path: one.generation.etag for one in (*self._uncleared, *self._new.ended.values())}
        finished |= {path: info.etag for path, info in (*self._repeated.items(), *self._new.repeated.items())}
        if not relist and (window := self.messages.choose(self.claim.now(), finished, beside)):
            return window
        if not relist and (self._is_last or not self._may_follow):
            return []  # it is looked at once more after it was given up
        self.messages.look(beside or ())
        window = self.messages.find(finished, beside)
        for path, one in list(self.messages.gone.items()):
            self._forget(path)
            # Equal bytes that are PUT by now are another message, and not to be deleted with this one.  [P1]
            self._clearing.read.pop(path, None)
            if vanished(one, self.messages.listed_at, self.queue.worker_id) is None:
                del self.messages.gone[path]
        while self.messages.misnamed:
            bury_misnamed(self.leases, *self.messages.misnamed.popitem())
        return window

    def clear(self) -> None:
        """Do what the last commit asks for. Raises as `advance`."""
        parked = self._clearing.clear(self._uncleared, self._lease.document.journal, self._repeated.values())
        with self._mutex:
            self._waiting.update({one.path: one for one in parked})
            self._uncleared, self._repeated = (), {}

    def _commit(self, window: Sequence[ObjectInfo], ended: tuple[Record, ...], journal: str) -> None:
        self._write({self.messages.path(info): info.etag for info in window}, ended, journal)

    def _write(self, taken: dict[str, str], ended: tuple[Record, ...], journal: str) -> None:
        with self._mutex:
            waiting = dict(self._waiting)
        self._lease.commit(taken=taken, ended=ended, journal=journal, waiting=waiting)

    def renew(self, timeout: timedelta | None = None) -> None:
        """Keep the partition for another `timeout` from now.

        Raises:
            LeaseLost: another worker has it.
        """
        self._lease.renew(timeout)

    def keep(self) -> None:
        """Renew the partition if much of its time is over. Raises LeaseLost."""
        self._lease.keep()

    def give_up(self) -> None:
        """Let others have the partition: DELETE the lease, or, if failed messages wait, PUT it as open.

        Raises:
            LeaseLost, Unavailable: it runs out instead.
        """
        # What outlasted the lease is charged with that when it has run out: it must not begin anew at once.  [P5]
        self.claim.check_alive()
        if self._waiting:
            if following := self._lease.open(dict(self._waiting)):
                self.leases.outer_remind(following.path, following.retry_at)
        else:
            self._lease.delete()
        self.claim.end()
