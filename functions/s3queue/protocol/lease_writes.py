"""LeaseWrites: what is done with a lease while its message is held: keep it, give it back, let it wait.

Every write is conditional or safe to repeat; after an unknown answer the object is read (`store.put_surely`).
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from s3queue.clock import as_positive_duration, whole_second
from s3queue.documents.lease import Lease
from s3queue.errors import Conflict, LeaseLost, NewerFormat, QueueError, Unavailable
from s3queue.events import Event, InProcess
from s3queue.store import Written, delete_unique, put_surely

from .access import QueueAccess
from .claim import Claim
from .outcomes import Outcomes

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseWrites:
    """Writes the leases of one queue, and tells whoever listens."""

    queue: QueueAccess
    outcomes: Outcomes

    def extend(self, claim: Claim, timeout: float | timedelta | None = None) -> None:
        """PUT the lease again; its age counts from then.  [P2]"""
        limit = claim.lease.timeout if timeout is None else as_positive_duration(timeout, "the timeout of a claim")
        self.write(claim, replace(claim.lease, timeout=limit, lines=claim.progressed()))
        self.log_step("extended", claim, f"for {limit.total_seconds():g} s")

    def release(self, claim: Claim) -> None:
        """`give_back` with the progress of a batch's lines.  [P5]"""
        lease = replace(claim.lease, lines=claim.progressed())
        self.give_back(claim.path, lease, claim.lease_etag, claim.now())
        self.log_step("released", claim)
        self.emit("message.released", claim)

    def postpone(self, claim: Claim, after: timedelta, *, is_asked: bool = True) -> Lease:
        """PUT the lease as waiting, with the attempt not counted, then the reminder.  [P5]

        `is_asked`: the handler asked for it, which it may do a limited number of times.

        Raises:
            LeaseLost: another worker has the lease.
        """
        retry_at = whole_second(claim.now() + after)
        waiting = replace(claim.lease, state="waiting", attempt=claim.attempt - 1, retry_at=retry_at)
        self.write(
            claim, replace(waiting, lines=claim.progressed(), postponed=claim.lease.postponed + is_asked, progress=None)
        )
        self.remind(claim.path, retry_at)
        self.emit("message.postponed", claim, retry_at=retry_at)
        return claim.lease

    def give_back(self, path: str, lease: Lease, etag: str, now: datetime) -> None:
        """Undo a claim in which nothing was started, whoever made it: DELETE the lease of a first attempt, else PUT it
        as waiting, with the attempt not counted.  [P5]

        Raises:
            LeaseLost: the lease no longer has this ETag.
        """
        is_first = lease.attempt == 1 and not lease.attempts and lease.lines is None and not lease.postponed
        if is_first and not self._is_finished(path, lease):
            if not delete_unique(self.queue.store, self.queue.keys.lease(path), if_match=etag):
                raise LeaseLost(f"lease lost: {self.queue.name}/{path}: another worker has the message")
            return
        retry_at = whole_second(now)
        waiting = replace(lease, state="waiting", attempt=lease.attempt - 1, retry_at=retry_at)
        try:
            self.put_lease(path, waiting, if_match=etag)
        except Conflict as conflict:
            raise LeaseLost(str(conflict)) from conflict
        self.remind(path, retry_at)

    def _is_finished(self, path: str, lease: Lease) -> bool:
        """Whether the message has an outcome, or that is unknown. Who claims a message without a lease does not look
        for a record, and would run what an operator has cancelled.
        """
        try:
            record = self.outcomes.read(path)
        except (Unavailable, NewerFormat):
            return True
        # One that names no message may be that of the recorded one: whoever claims a waiting lease looks.
        return record is not None and lease.leased_etag in ("", record.generation.etag)

    def write(self, claim: Claim, lease: Lease) -> None:
        """Replace the claim's lease, and move its deadline with it.  [P2]

        Raises:
            LeaseLost: another worker has the lease.
        """
        # Also if that is sooner than before; what the heartbeat has promised stays promised. It may be stored long
        # before its answer comes: what it gives less than the last one is gone by then.
        until = self.queue.clock.monotonic() + lease.timeout.total_seconds()
        claim.leased_until = min(claim.leased_until, until)
        try:
            claim.lease, written = self.put_lease(claim.path, lease, if_match=claim.lease_etag)
        except Conflict as conflict:
            claim.end()
            raise LeaseLost(f"{self.queue.name}/{claim.path}: {conflict}") from conflict
        claim.lease_etag = written.etag
        claim.leased_until = until

    def remind(self, path: str, at: datetime) -> None:
        """A hint for the sweeper. Without it, the sweeper still finds the waiting lease, only later."""
        with contextlib.suppress(QueueError):
            self.queue.store.put(self.queue.keys.reminder(at, path), b"")

    def forget(self, reminder: str) -> None:
        """Delete a reminder that was followed, whether or not the claim succeeded: it says nothing new. One that is
        written again at the same second goes too; then the sweeper finds the waiting lease, only later.
        """
        if reminder:
            with contextlib.suppress(QueueError):
                self.queue.store.delete(reminder)

    def put_lease(self, path: str, lease: Lease, *, if_match: str | None) -> tuple[Lease, Written]:
        """Create or replace a lease with a fresh nonce; returns what was written.

        Raises:
            Conflict: someone else was first.
        """
        nonce = self.queue.chance.token()
        lease = replace(lease, nonce=nonce, fence=lease.fence or f"{lease.attempt}-{nonce}")
        key = self.queue.keys.lease(path)
        return lease, put_surely(self.queue.store, key, lease.to_bytes(), if_match=if_match, if_absent=if_match is None)

    def log_step(self, step: str, claim: Claim, detail: str = "") -> None:
        """One debug line for each step of a message: the event, then the key. Neither payloads nor errors' texts."""
        if _log.isEnabledFor(logging.DEBUG):
            said = f": {detail}" if detail else ""
            _log.debug("%s: %s/%s, attempt %d%s", step, self.queue.name, claim.path, claim.attempt, said)

    def emit(self, name: Event, claim: Claim, in_process: InProcess | None = None, **fields: Any) -> None:
        if not self.queue.events.has_hooks(name):
            return
        if name != "message.claimed":
            fields["duration_seconds"] = max(0.0, round((claim.now() - claim.claimed_at).total_seconds(), 6))
        self.queue.events.emit(
            name,
            in_process or InProcess(claim),
            queue=self.queue.name,
            path=claim.path,
            attempt=claim.attempt,
            worker=claim.lease.owner,
            at=claim.now(),
            enqueued_at=claim.message.enqueued_at,
            claimed_at=claim.claimed_at,
            max_attempts=self.queue.settings.max_attempts,
            size=claim.message.size,
            **fields,
        )
