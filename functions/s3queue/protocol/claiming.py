"""Claiming: how a worker gets a message. It writes the lease first, then reads the message.

Claim what nobody has, take over what waits and is due, adopt what was claimed in its name elsewhere.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import IO

from s3queue.clock import as_duration
from s3queue.documents.batch import Lines
from s3queue.documents.lease import Lease
from s3queue.documents.message import INLINE_BYTES, Generation, Message, is_placeholder
from s3queue.encoding import decode_metadata
from s3queue.errors import Conflict, CorruptState, NewerFormat, QueueError
from s3queue.keys import due_of
from s3queue.store import Object, Written, delete_surely

from .access import QueueAccess
from .backlog import Backlog
from .claim import Claim
from .lease_protocol import LeaseProtocol

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Claiming:
    """Takes leases for one worker."""

    queue: QueueAccess
    leases: LeaseProtocol

    def claim(self, path: str, *, timeout: float | timedelta | None = None, read_first: bool = False) -> Claim | None:
        """Take the message at `path`; None if someone else has it, it is finished, or it is not due.  [P2]

        Usually nothing is read first: an event is reason enough to try, and a lost try costs one PUT. With `read_first`
        (a late event, a retry, a rescue) the lease is read, and one that waits and is due is taken over.

        Raises:
            Unavailable: unknown; the sweeper will look after it.
        """
        limit = as_duration(timeout) if timeout is not None else self.queue.settings.visibility_timeout
        if path.endswith("/") and is_placeholder(self.queue.store.head(self.queue.keys.message(path))):
            return None
        problem = self.queue.keys.problem(path)
        if problem:
            if self.leases.outcomes.bury_misnamed(path, problem):
                self.queue.events.emit("message.dead", queue=self.queue.name, path=path, attempt=0, error=problem)
            return None
        due_at = due_of(path)
        # Whether a delayed message is due is S3's clock to say, so it is asked.
        if not read_first and due_at is None:
            return self._claim_first(path, limit)
        before = self.queue.clock.monotonic()
        try:
            held = self.queue.read_lease(path)
        except CorruptState:
            return None  # the sweeper buries it once it is old enough to be nobody's
        if held is None:
            stored = self.queue.store.head(self.queue.keys.message(path))
            is_due = stored is not None and (due_at is None or due_at <= stored.at)
            return self._claim_first(path, limit) if is_due else None
        if not held.is_due():
            return None
        mine = replace(
            held.lease,
            state="processing",
            attempt=held.lease.attempt + 1,
            owner=self.queue.worker_id,
            timeout=limit,
            claimed_at=held.read_at,
            retry_at=None,
            progress=None,
        )
        return self._take(path, mine, before, if_match=held.etag)

    def claim_next(self, limit: int, *, timeout: float | timedelta | None = None) -> list[Claim]:
        """Up to `limit` messages that may run now, highest priority first, then oldest."""
        backlog = Backlog(self.queue)
        claims: list[Claim] = []
        for candidate in backlog.drain():
            try:
                claim = self.claim(candidate.path, timeout=timeout, read_first=candidate.read_first)
            except CorruptState as error:
                _log.warning("claim failed, message kept: %s", error)
                claim = None  # one message that only an operator can help must not stop the others
            except QueueError:
                if not claims:
                    raise
                break  # what is claimed must reach the caller, or it would be nobody's until it runs out
            backlog.report(won=claim is not None)
            if claim:
                claims.append(claim)
            if len(claims) >= limit:
                break
        return claims

    def adopt(self, path: str) -> Claim | None:
        """Go on with a message that was claimed in this worker's name elsewhere; None if it is not ours any more.

        The same attempt: whoever claimed it started nothing. Writing the lease anew makes sure that nobody else, who
        may have judged it just now, takes it too.  [P2] [P5]

        Raises:
            Unavailable: unknown; the sweeper will look after it.
        """
        before = self.queue.clock.monotonic()
        try:
            held = self.queue.read_lease(path)
        except CorruptState:
            return None
        if held is None or held.lease.state != "processing" or held.lease.owner != self.queue.worker_id:
            return None
        mine = replace(held.lease, claimed_at=held.lease.claimed_at or held.written_at)
        return self._take(path, mine, before, if_match=held.etag)

    def _claim_first(self, path: str, timeout: timedelta) -> Claim | None:
        before = self.queue.clock.monotonic()
        lease = Lease(state="processing", attempt=1, owner=self.queue.worker_id, nonce="", timeout=timeout)
        return self._take(path, lease, before, if_match=None)

    def _take(self, path: str, lease: Lease, before: float, *, if_match: str | None) -> Claim | None:
        """Write the lease, then look at what it leases. The deadline counts from before the request.  [P2] [P4]"""
        try:
            lease, written = self.leases.put_lease(path, lease, if_match=if_match)
        except Conflict:
            self.queue.events.emit("claim.lost", queue=self.queue.name, path=path)
            return None
        try:
            return self._read_message(path, lease, written, before, is_first=if_match is None)
        except Conflict:
            return None  # it took so long that the lease is someone else's by now
        except NewerFormat:
            raise  # only a newer version can decide: a lease that was given back would be claimed again and again
        except QueueError:
            # Nothing ran yet: give it back if that can be done; else it runs out, and the sweeper goes on from there.
            with contextlib.suppress(QueueError):
                self.leases.give_back(path, lease, written.etag, written.at)
            raise

    def _read_message(
        self, path: str, lease: Lease, written: Written, before: float, *, is_first: bool
    ) -> Claim | None:
        found = self.queue.store.open(self.queue.keys.message(path))
        if found is None:
            if not is_first:
                self.leases.record_vanished(path, lease, written.at)
            delete_surely(self.queue.store, self.queue.keys.lease(path), if_match=written.etag)
            return None
        message = self._message(path, found)
        if lease.generation and lease.generation.etag != message.generation.etag:
            # The name was PUT anew, and attempts belong to a generation.  [P5]
            lease = replace(lease, attempt=1, generation=None, failure=None, attempts=(), lines=None)
            lease, written = self.leases.put_lease(path, lease, if_match=written.etag)
        claim = Claim(
            message=message,
            lease=replace(lease, generation=message.generation, claimed_at=lease.claimed_at or written.at),
            lease_etag=written.etag,
            claimed_at=written.at,
            since=before,
            deadline=before + lease.timeout.total_seconds(),
            clock=self.queue.clock,
            fence=f"{lease.attempt}-{lease.nonce}",
            lines=lease.lines or Lines(),
        )
        record = None if is_first else self.leases.outcomes.read(path)
        if record and record.generation == message.generation:
            self.leases.finish(claim, record)
            return None
        self.leases.emit("message.claimed", claim)
        return claim

    def _message(self, path: str, found: Object) -> Message:
        inline = None
        if found.size <= INLINE_BYTES:
            inline = found.read()
        else:
            found.stream.close()
        return Message(
            queue=self.queue.name,
            path=path,
            generation=Generation(etag=found.etag, put_at=found.modified_at),
            size=found.size,
            metadata=decode_metadata(found.metadata),
            content_type=found.content_type,
            inline=inline,
            reopen=self._opener(path, found.etag),
        )

    def _opener(self, path: str, etag: str) -> Callable[[], IO[bytes] | None]:
        def reopen() -> IO[bytes] | None:
            try:
                found = self.queue.store.open(self.queue.keys.message(path), if_match=etag)
            except Conflict:
                return None
            return found.stream if found else None

        return reopen
