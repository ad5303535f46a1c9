"""Partitions: one lease for many messages.  [P9]

Whoever holds the lease of a partition takes its messages, and commits up to a hundred outcomes with one conditional
write of that lease. What follows from a commit (sends, dead letters, the journal, the deletions) is done after it, and
may be repeated by anyone: whoever takes the lease over does it first.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Literal

from s3queue.documents.lease import NEVER, Lease
from s3queue.documents.message import Generation, Message, is_placeholder
from s3queue.documents.once import is_once, was_finished
from s3queue.documents.partition import MOST_WAITING, PartitionLease, StoredPartition, Waiting, journal_bytes
from s3queue.documents.record import Attempt, Failure, Record
from s3queue.encoding import EARLIEST
from s3queue.errors import AccessDenied, Conflict, CorruptState, LeaseLost, NewerFormat
from s3queue.keys import is_batch, is_ordered, partition_path
from s3queue.protocol.access import QueueAccess
from s3queue.protocol.claim import Claim
from s3queue.protocol.claiming import message_of
from s3queue.protocol.journal import find_outcome
from s3queue.protocol.lease_protocol import LeaseProtocol
from s3queue.protocol.liveness import LiveOwners
from s3queue.store import Object, ObjectInfo, Written, delete_all_seen, delete_unique, listing, put_surely

from .held_leases import HeldLeases

_log = logging.getLogger(__name__)
#: Messages that are taken, and then committed, together.
WINDOW = 100
#: Messages that one LIST shows.
PAGE = 1000
#: A commit comes at the latest this long after the last one: what was not committed runs again after a crash.
COMMIT_SECONDS = 10.0
#: A commit comes early if its outcomes have more bytes than this.
COMMIT_BYTES = 1024 * 1024


def hold_partition(leases: LeaseProtocol, partition: str) -> Hold | None:
    """Take a partition; None if someone else has it, or there is nothing to do in it now.  [P2]

    Raises:
        Unavailable: unknown whether it was taken; its lease runs out, and the next holder goes on.
        NewerFormat: a newer version wrote its lease, and only that version can go on.
    """
    stored = _read_free(leases.queue, partition)
    if stored is False:
        return None
    hold = Hold(leases, partition, stored)
    return hold if hold.begin() else None


def _read_free(queue: QueueAccess, partition: str) -> StoredPartition | Literal[False] | None:
    """The lease as it is stored, if nobody works under it; None if there is none, False if it is another's."""
    path = partition_path(partition)
    found = queue.store.open(queue.keys.lease(path))
    if found is None:
        return None
    try:
        stored = StoredPartition.of(found, PartitionLease.read(found))
    except NewerFormat:
        raise
    except CorruptState as error:
        stored = _unreadable(queue, found)
        if stored.is_over():
            _log.error("lease of a partition cannot be read, replaced: %s/%s: %s", queue.name, partition, error)
    lease = stored.lease
    if lease.state == "open":
        return stored
    is_kept = LiveOwners(queue).keep
    if not stored.is_over() or is_kept(lease.owner, path, over_at=stored.over_at, now=stored.read_at):
        return False
    return stored


def _unreadable(queue: QueueAccess, found: Object) -> StoredPartition:
    """A lease that nobody can read keeps others off for as long as one that was written just then."""
    lease = PartitionLease(state="processing", owner="?", timeout=queue.settings.visibility_timeout)
    return StoredPartition.of(found, lease)


class Hold:
    """A partition that this worker holds: it hands out messages, and commits what became of them. Safe for threads.

    `take` messages until it returns None; when none of them runs any more (`is_done`), `advance`, in one thread.
    """

    def __init__(self, leases: LeaseProtocol, partition: str, stored: StoredPartition | None) -> None:
        queue = self.queue = leases.queue
        self.partition = partition
        self.is_ordered = is_ordered(partition)
        #: What `Queue.complete`, `fail` and the like do with the messages of this partition.
        self.leases = HeldLeases(queue, leases.outcomes, self)
        self._prefix = queue.keys.message(partition_path(partition))
        self._stored = stored
        self._etag = stored.etag if stored else None
        self._lease = PartitionLease(state="processing", owner=queue.worker_id, timeout=self._timeout)
        self._waiting = dict(_after_death(stored) if stored and stored.is_over() else _waiting_of(stored))
        #: Outcomes that count and are not cleared; outcomes that are not committed; what is deleted without one.
        self._uncleared = stored.lease.ended if stored else ()
        self._ended: dict[str, Record] = {}
        self._repeated: dict[str, ObjectInfo] = {}
        self._ended_bytes = 0
        #: Messages that a LIST showed, those that were taken, and those that run, or are about to.
        self._listed: deque[ObjectInfo] = deque()
        self._is_listed_whole = False
        self._window: deque[ObjectInfo] = deque()
        self._running: set[str] = set()
        self._infos: dict[str, ObjectInfo] = {}
        self._news: list[Callable[[], None]] = []
        self._is_closed = False
        self._committed_at = queue.clock.monotonic()
        self._mutex = threading.RLock()
        #: Stands for the whole partition, for the worker's heartbeat.
        self.claim = self._partition_claim(EARLIEST)

    @property
    def _timeout(self) -> timedelta:
        return self.queue.settings.visibility_timeout

    # Taking

    def begin(self) -> bool:
        """Write the lease, and finish what the last holder had committed; False if there is nothing to do, or someone
        else was first.
        """
        self._list()
        window = self._plan()
        is_over = self._stored is not None and self._stored.is_over()
        if not (window or self._uncleared or is_over or self._ended):
            return False
        try:
            self._write(
                taken={self._path(info): info.etag for info in window},
                ended=self._uncleared,
                journal=self._stored.lease.journal if self._stored else "",
            )
        except Conflict:
            self.queue.events.emit("claim.lost", queue=self.queue.name, path=partition_path(self.partition))
            return False
        self._window.extend(window)
        self._clear()
        return True

    def take(self) -> Claim | None:
        """The next message; None if none can be taken now. Whoever takes one ends it by the claim's `leases`."""
        while True:
            with self._mutex:
                if not self._window or (self.is_ordered and self._running) or self._must_commit():
                    return None
                info = self._window.popleft()
                path = self._path(info)
                self._running.add(path)
            try:
                claim = self._open(path, info)
            except BaseException:
                self.put_back(path)
                raise
            if claim is not None:
                return claim

    def _must_commit(self) -> bool:
        """Whether nothing more may start before the next commit. The first message of a window always may."""
        if self._is_closed:
            return True
        if not self._ended and not self._repeated:
            return False
        passed = self.queue.clock.monotonic() - self._committed_at
        # A worker without a heartbeat must not start what may outlast its lease.
        needed = min(self.queue.settings.handler_timeout, self._timeout * 0.8)
        return passed > COMMIT_SECONDS or self._ended_bytes > COMMIT_BYTES or self.claim.remaining() < needed

    def close(self) -> None:
        """Nothing more is started: the worker stops, or its queue was paused."""
        self._is_closed = True

    @property
    def is_done(self) -> bool:
        """Whether everything that was taken has ended, or nothing more may start."""
        with self._mutex:
            return not self._running and (not self._window or self._must_commit())

    @property
    def has_left(self) -> bool:
        """Whether messages were seen that nobody has taken."""
        return bool(self._listed) or not self._is_listed_whole

    @property
    def has_room(self) -> bool:
        """Whether another thread can help: there is a message that can be taken now."""
        with self._mutex:
            return bool(self._window) and not (self.is_ordered and self._running) and not self._must_commit()

    def _open(self, path: str, info: ObjectInfo) -> Claim | None:
        """Read a message; None if it does not have to run, or may not now."""
        queue = self.queue
        permit = None
        if queue.gate:
            permit = None if queue.gate.wait(path) > 0 else queue.gate.enter(path)
            if permit is None:
                queue.held_back += 1
                self.put_back(path)
                return None
        before = queue.clock.monotonic()
        claim: Claim | None = None
        try:
            claim = self._read(path, info, before)
            if claim and permit and not permit.confirm(claim.claimed_at):
                queue.held_back += 1
                self.put_back(path)
                claim = None
        finally:
            if permit and claim is None:
                permit.cancel()
        if claim:
            self.leases.log_step("claimed", claim, claim.lease.owner)
            LeaseProtocol.emit(self.leases, "message.claimed", claim)
        return claim

    def _read(self, path: str, info: ObjectInfo, before: float) -> Claim | None:
        try:
            found = self.queue.store.open(info.key)
        except AccessDenied as refused:
            generation = Generation(etag=info.etag, put_at=info.modified_at)
            message = Message(queue=self.queue.name, path=path, generation=generation, size=info.size)
            with self._mutex:
                self._infos[path] = info
            self.leases.fail(self._claim(message, info.at, before), refused)
            return None
        if found is None:
            self._vanish(path, info.at)
            return None
        message = message_of(self.queue, path, found)
        with self._mutex:
            # With its metadata: a dead letter has it, too.
            self._infos[path] = message.stored(info.key, found.at)
        claim = self._claim(message, found.at, before)
        if is_once(path, message.metadata):
            record = find_outcome(self.queue, path, message.put_id)
            if was_finished(path, message.metadata, record):
                with self._mutex:
                    self._repeated[path] = self._infos[path]
                    self._forget(path)
                return None
        if is_batch(path):
            said = "a batch cannot belong to a partition: put it under messages/, or enqueue its lines one by one"
            self.leases.bury(claim, Failure("InvalidName", said))
            return None
        if claim.attempt > self.queue.settings.max_attempts:
            # It is charged with the death of its last worker.
            claim.lease = replace(claim.lease, state="burying", attempt=claim.attempt - 1)
            failure = claim.lease.failure or Failure("LeaseExpired", "its workers died")
            self.leases.bury(claim, failure)
            return None
        return claim

    def _claim(self, message: Message, at: datetime, before: float) -> Claim:
        queue, waiting = self.queue, self._waiting.get(message.path)
        lease = Lease(state="waiting", attempt=0, owner="", nonce="", timeout=self._timeout)
        if waiting and waiting.is_for(message.generation):
            lease = waiting.lease
        lease = replace(
            lease,
            state="processing",
            attempt=lease.attempt + 1,
            owner=queue.worker_id,
            timeout=self._timeout,
            claimed_at=at,
            generation=message.generation,
            retry_at=None,
            fence=f"{lease.attempt + 1}-{queue.chance.token()}",
        )
        return Claim(
            message=message,
            lease=lease,
            lease_etag="",
            claimed_at=at,
            since=before,
            leased_until=float("inf"),
            clock=queue.clock,
            fence=lease.fence,
            within=self.claim,
            leases=self.leases,
        )

    def _partition_claim(self, at: datetime) -> Claim:
        queue, path = self.queue, partition_path(self.partition)
        lease = Lease(state="processing", attempt=1, owner=queue.worker_id, nonce="", timeout=self._timeout)
        message = Message(queue=queue.name, path=path, generation=Generation(etag="", put_at=at), size=0)
        now = queue.clock.monotonic()
        never = float("-inf")
        return Claim(
            message=message,
            lease=lease,
            lease_etag="",
            claimed_at=at,
            since=now,
            leased_until=never,
            clock=queue.clock,
            fence="",
        )

    # How messages end; called by `HeldLeases`

    def end(self, claim: Claim, record: Record) -> None:
        """The message has an outcome, once it is committed."""
        with self._mutex:
            self._forget(claim.path)
            self._ended[claim.path] = record
            # About: the numbers and names beside these are small.
            self._ended_bytes += len(record.to_bytes())

    def wait(self, claim: Claim, lease: Lease) -> None:
        """The message is tried again later. A group waits for it."""
        with self._mutex:
            before = self._waiting.get(claim.path)
            is_suspect = before is not None and before.is_suspect
            self._forget(claim.path)
            self._waiting[claim.path] = Waiting(claim.path, lease, is_suspect)
            if self.is_ordered:
                # A new LIST shows it in its place.
                self._window.clear()
                self._listed.clear()
                self._is_listed_whole = False

    def put_back(self, path: str) -> None:
        """The message was not started, or its attempt does not count; nothing more starts under this hold."""
        with self._mutex:
            if path in self._running:
                self._running.remove(path)
                self._is_closed = True

    def _vanish(self, path: str, at: datetime) -> None:
        """Someone deleted the message, or it was finished before the LIST was used: only a failed one is recorded."""
        with self._mutex:
            waiting = self._waiting.get(path)
            self._forget(path)
            if waiting and waiting.lease.generation and waiting.lease.attempt:
                said = "someone deleted the message before it was finished; not s3queue"
                self._ended[path] = Record(
                    path=path,
                    outcome="dead",
                    generation=waiting.lease.generation,
                    finished_at=at,
                    attempt=waiting.lease.attempt,
                    worker=self.queue.worker_id,
                    attempts=waiting.lease.attempts,
                    failure=Failure("MessageVanished", said),
                )

    def _forget(self, path: str) -> None:
        self._running.discard(path)
        self._waiting.pop(path, None)

    def _close_window(self) -> None:
        """What was taken and not started goes back to what was listed."""
        self._listed.extendleft(reversed(self._window))
        self._window.clear()

    def tell(self, news: Callable[[], None]) -> None:
        """Emit an event once the outcome is committed."""
        with self._mutex:
            self._news.append(news)

    # Committing

    def advance(self, *, stop: bool = False) -> bool:
        """Commit what has ended, and take the next messages; False: the partition was given up.

        Raises:
            LeaseLost: another worker has the partition; nothing that was not committed counts.
            Unavailable: unknown whether it was committed; the next holder knows.
        """
        with self._mutex:
            is_closed = stop or self._is_closed
            self._close_window()
            window = [] if is_closed else self._plan(relist=True)
            ended = tuple(self._ended.values())
            name = self.queue.chance.name(self.claim.now()) if ended else ""
        if window or ended:
            self._write(taken={self._path(info): info.etag for info in window}, ended=ended, journal=name)
            news, self._news = self._news, []
            for tell in news:
                tell()
        with self._mutex:
            self._uncleared = ended
            self._ended, self._ended_bytes = {}, 0
        self._clear()
        if not window:
            self.give_up()
            return False
        self._committed_at = self.queue.clock.monotonic()
        self._window.extend(window)
        return True

    def renew(self, timeout: timedelta | None = None) -> None:
        """Keep the partition for another `timeout` from now.

        Raises:
            LeaseLost: another worker has it.
        """
        self._write(timeout=timeout)

    def give_up(self) -> None:
        """Let others have the partition: DELETE the lease, or, if failed messages wait, PUT it as open.

        Raises:
            LeaseLost, Unavailable: it runs out instead.
        """
        if self._waiting:
            self._write(state="open", taken={}, ended=(), journal="")
            next_at = self._lease.next_at
            if next_at:
                path = min(self._waiting.values(), key=lambda one: one.retry_at).path
                self.leases.outer_remind(path, next_at)
        elif self._etag:
            delete_unique(self.queue.store, self.queue.keys.lease(partition_path(self.partition)), if_match=self._etag)
        self.claim.end()

    def _write(
        self,
        *,
        state: Literal["processing", "open"] = "processing",
        timeout: timedelta | None = None,
        taken: dict[str, str] | None = None,
        ended: tuple[Record, ...] | None = None,
        journal: str | None = None,
    ) -> None:
        """PUT the lease; its age counts from then. What is not given stays as it was."""
        queue = self.queue
        with self._mutex:
            if self._etag and self._lease.nonce:
                self.claim.check_alive()
            lease = replace(
                self._lease,
                state=state,
                timeout=timeout or self._timeout,
                nonce=queue.chance.token(),
                taken=self._lease.taken if taken is None else taken,
                ended=self._lease.ended if ended is None else ended,
                journal=self._lease.journal if journal is None else journal,
                waiting=dict(self._waiting),
            )
            before = queue.clock.monotonic()
            key = queue.keys.lease(partition_path(self.partition))
            try:
                written = put_surely(
                    queue.store, key, lease.to_bytes(), if_match=self._etag, if_absent=self._etag is None
                )
            except Conflict as conflict:
                self.claim.end()
                raise LeaseLost(f"{queue.name}/{self.partition}: {conflict}") from conflict
            self._lease, self._etag = lease, written.etag
            self._note_written(written, lease.timeout, before)

    def _note_written(self, written: Written, timeout: timedelta, before: float) -> None:
        claim = self.claim
        if claim.claimed_at == EARLIEST:
            claim.claimed_at, claim.since = written.at, before
        claim.lease = replace(claim.lease, timeout=timeout)
        claim.leased_until = before + timeout.total_seconds()

    # What follows from a commit

    def _clear(self) -> None:
        """Do what the committed outcomes ask for, then delete their messages. Every step may be repeated, by anyone."""
        ended = self._uncleared
        for record in ended:
            if record.has_sends:
                self.queue.perform(record, self._keep)
        gone: list[ObjectInfo] = []
        present = self._present(ended)
        for record in ended:
            info = self._infos.get(record.path) or present.get(record.path)
            if info and (record.outcome != "completed" or record.keeps_payload):
                self._keep()
                info = self._bury(record, info)
            if info:
                gone.append(info)
        is_recorded = self.queue.settings.history or any(record.outcome != "completed" for record in ended)
        if ended and is_recorded:
            self._write_journal(ended)
        gone += self._repeated.values()
        if gone:
            self.claim.check_alive()
            delete_all_seen(self.queue.store, gone, is_alive=self.claim.is_alive)
        for info in gone:
            self._infos.pop(self._path(info), None)
        self._uncleared, self._repeated = (), {}

    def _present(self, ended: tuple[Record, ...]) -> dict[str, ObjectInfo]:
        """Path → the message of a committed outcome, if it still lies there: for what another holder committed.

        Looked at under the own lease, which keeps that holder from deleting: equal bytes that were PUT after it had
        deleted the message are another message.  [P1]
        """
        unknown = {self.queue.keys.message(one.path): one for one in ended if one.path not in self._infos}
        present: dict[str, ObjectInfo] = {}
        if unknown:
            # One character less than the first key, so that it is listed, too.
            for page in listing(self.queue.store, self._prefix, after=min(unknown)[:-1]):
                for info in page.objects:
                    record = unknown.get(info.key)
                    if record and Generation(etag=info.etag, put_at=info.modified_at) == record.generation:
                        present[record.path] = info
                if page.next_after is None or page.next_after > max(unknown):
                    break
        return present

    def _bury(self, record: Record, info: ObjectInfo) -> ObjectInfo | None:
        """Write the dead letter, or keep the payload; None if the message must not be deleted then."""
        queue = self.queue
        if record.path not in self._infos:
            # Committed by another holder; a LIST does not show its metadata. What nobody may read has none.
            with suppress(AccessDenied):
                described = queue.store.head(info.key)
                if described is None or described.etag != info.etag:
                    return None
                info = described
        if record.outcome == "dead" and queue.settings.dead_letters:
            if not self.leases.outcomes.move_to_dead(record, info, None):
                self._park(record)
                return None
        elif record.outcome == "completed":
            from s3queue.protocol.keeping import keep_payload

            keep_payload(queue.store, queue.keys, record, info)
        return info

    def _park(self, record: Record) -> None:
        """A dead message that nobody can read stays where it is, and is not taken again; see `LeaseProtocol._park`."""
        lease = Lease(
            state="waiting",
            attempt=record.attempt,
            owner=record.worker,
            nonce="",
            timeout=self._timeout,
            generation=record.generation,
            retry_at=NEVER,
            failure=record.failure,
        )
        self._waiting[record.path] = Waiting(record.path, lease)

    def _write_journal(self, ended: tuple[Record, ...]) -> None:
        key = self.queue.keys.journal(self.partition, self._lease.journal)
        try:
            # The same bytes, whoever writes it: one that is there already is this one.
            put_surely(self.queue.store, key, journal_bytes(ended), if_absent=True)
        except Conflict:
            return

    def _keep(self) -> None:
        """Many sends or letters may outlast the lease."""
        self.claim.check_alive()
        if self.claim.remaining() < self._lease.timeout / 2:
            self.renew()

    # Choosing

    def _list(self) -> None:
        page = self.queue.store.list(self._prefix, limit=PAGE)
        self._listed = deque(info for info in page.objects if not is_placeholder(info))
        self._is_listed_whole = page.next_after is None
        self._listed_at = page.at
        if self._is_listed_whole:
            present = {self._path(info) for info in self._listed}
            for path in [path for path in self._waiting if path not in present]:
                self._vanish(path, page.at)

    def _plan(self, *, relist: bool = False) -> list[ObjectInfo]:
        """The messages to take next; from a new LIST, if the last one has none left."""
        now = max(self._listed_at, self.claim.now())
        window = self._choose(now)
        if not window and relist:
            self._list()
            window = self._choose(max(self._listed_at, now))
        return window

    def _choose(self, now: datetime) -> list[ObjectInfo]:
        """In the order of names. One that its worker may have died of comes alone.  [P5]"""
        finished = {record.path: record.generation.etag for record in (*self._uncleared, *self._ended.values())}
        finished |= {path: info.etag for path, info in self._repeated.items()}
        most = WINDOW if self.queue.settings.max_attempts > 1 else 1
        is_full = len(self._waiting) >= MOST_WAITING
        window: list[ObjectInfo] = []
        skipped: list[ObjectInfo] = []
        while self._listed and len(window) < most:
            info = self._listed.popleft()
            path = self._path(info)
            waiting = self._waiting.get(path)
            if waiting and not waiting.is_for(Generation(etag=info.etag, put_at=info.modified_at)):
                del self._waiting[path]  # its name was PUT anew, and attempts belong to a generation
                waiting = None
            if finished.get(path) == info.etag or (is_full and waiting is None):
                continue
            if waiting and waiting.retry_at > now:
                if self.is_ordered and waiting.retry_at != NEVER:
                    skipped = [info, *self._listed]
                    self._listed.clear()
                    break
                skipped.append(info)
                continue
            if waiting and waiting.is_suspect:
                if window:
                    self._listed.appendleft(info)
                else:
                    window.append(info)
                break
            window.append(info)
        self._listed.extendleft(reversed(skipped))
        return window

    def _path(self, info: ObjectInfo) -> str:
        return info.key.removeprefix(self.queue.keys.root)


def _waiting_of(stored: StoredPartition | None) -> dict[str, Waiting]:
    return dict(stored.lease.waiting) if stored else {}


def _after_death(stored: StoredPartition) -> dict[str, Waiting]:
    """What waits after its worker died: of one message it surely died, or of none. Of several, each is tried alone."""
    lease, waiting = stored.lease, _waiting_of(stored)
    silence = f"{lease.owner} stopped renewing the lease of its partition: it crashed or ran out of time"
    failure = Failure("LeaseExpired", silence)
    finished = {record.path: record.generation.etag for record in lease.ended}
    taken = {path: etag for path, etag in lease.taken.items() if finished.get(path) != etag}
    for path, etag in taken.items():
        known = waiting.get(path)
        if known and known.lease.leased_etag == etag:
            before = known.lease
        else:
            before = Lease(
                state="waiting", attempt=0, owner=lease.owner, nonce="", timeout=lease.timeout, expected_etag=etag
            )
        if len(lease.taken) == 1:
            attempt = Attempt(
                number=before.attempt + 1,
                worker=lease.owner,
                started_at=stored.written_at,
                ended_at=stored.read_at,
                failure=failure,
            )
            before = replace(before, attempt=before.attempt + 1, failure=failure, attempts=(*before.attempts, attempt))
        waiting[path] = Waiting(path, replace(before, retry_at=stored.read_at), is_suspect=True)
    return waiting
