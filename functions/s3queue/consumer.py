"""Consumer: how a worker comes by a message. It writes the lease, then looks at what it leases.

Claim what nobody has, take over what waits and is due, adopt what was claimed in its name elsewhere.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import IO

from .batch import Lines
from .claim import Claim
from .encoding import decode_metadata
from .errors import Conflict, CorruptState, NewerFormat, QueueError
from .keys import due_of
from .lease import Lease
from .message import INLINE_BYTES, Generation, Message
from .protocol import LeaseProtocol, as_duration, is_placeholder
from .store import Object, Written, delete_surely


@dataclass(slots=True, kw_only=True)
class Consumer(LeaseProtocol):
    """The claiming half of a Queue."""

    def claim(self, path: str, *, timeout: float | timedelta | None = None, look: bool = False) -> Claim | None:
        """Take the message at `path`; None if someone else has it, it is finished, or it is not due.  [P2]

        Without `look`, nothing is read first: an event is reason enough to try, and a lost try costs one PUT. With
        `look` (a late event, a retry, a rescue) the lease is read first, and one that waits and is due is taken over.

        Raises:
            Unavailable: unknown; the sweeper will look after it.
        """
        limit = as_duration(timeout) if timeout is not None else self.settings.visibility_timeout
        if path.endswith("/") and is_placeholder(self.store.head(self.keys.message(path))):
            return None
        problem = self.keys.problem(path)
        if problem:
            if self.outcomes.bury_misnamed(path, problem):
                self.events.emit("message.dead", queue=self.name, path=path, attempt=0, error=problem)
            return None
        due_at = due_of(path)
        # Whether a delayed message is due is S3's clock to say, so it is asked.
        if not look and due_at is None:
            return self._claim_first(path, limit)
        before = self.clock.monotonic()
        found = self.store.open(self.keys.lease(path))
        if found is None:
            stored = self.store.head(self.keys.message(path))
            is_due = stored is not None and (due_at is None or due_at <= stored.at)
            return self._claim_first(path, limit) if is_due else None
        try:
            lease = Lease.from_bytes(found.read(), found.key)
        except CorruptState:
            return None  # the sweeper buries it once it is old enough to be nobody's
        if lease.state != "waiting" or (lease.retry_at and lease.retry_at > found.at):
            return None
        mine = replace(
            lease,
            state="processing",
            attempt=lease.attempt + 1,
            owner=self.worker_id,
            timeout=limit,
            claimed_at=found.at,
            retry_at=None,
            progress=None,
        )
        return self._take(path, mine, before, if_match=found.etag)

    def adopt(self, path: str) -> Claim | None:
        """Go on with a message that was claimed in this worker's name elsewhere; None if it is not ours any more.

        The same attempt: whoever claimed it started nothing. Writing the lease anew makes sure that nobody else, who
        may have judged it just now, takes it too.  [P2] [P5]

        Raises:
            Unavailable: unknown; the sweeper will look after it.
        """
        before = self.clock.monotonic()
        found = self.store.open(self.keys.lease(path))
        if found is None:
            return None
        try:
            lease = Lease.from_bytes(found.read(), found.key)
        except CorruptState:
            return None
        if lease.state != "processing" or lease.owner != self.worker_id:
            return None
        mine = replace(lease, claimed_at=lease.claimed_at or found.modified_at)
        return self._take(path, mine, before, if_match=found.etag)

    def _claim_first(self, path: str, timeout: timedelta) -> Claim | None:
        before = self.clock.monotonic()
        lease = Lease(state="processing", attempt=1, owner=self.worker_id, nonce="", timeout=timeout)
        return self._take(path, lease, before, if_match=None)

    def _take(self, path: str, lease: Lease, before: float, *, if_match: str | None) -> Claim | None:
        """Write the lease, then look at what it leases. The deadline counts from before the request.  [P2] [P4]"""
        try:
            lease, written = self._put_lease(path, lease, if_match=if_match)
        except Conflict:
            self.events.emit("claim.lost", queue=self.name, path=path)
            return None
        try:
            return self._look_at(path, lease, written, before, is_first=if_match is None)
        except Conflict:
            return None  # it took so long that the lease is someone else's by now
        except NewerFormat:
            raise  # only a newer version can decide: a lease that was given back would be claimed again and again
        except QueueError:
            # Nothing ran yet: give it back if that can be done; else it runs out, and the sweeper goes on from there.
            with contextlib.suppress(QueueError):
                self.give_back(path, lease, written.etag, written.at)
            raise

    def _look_at(self, path: str, lease: Lease, written: Written, before: float, *, is_first: bool) -> Claim | None:
        found = self.store.open(self.keys.message(path))
        if found is None:
            if not is_first:
                self.record_vanished(path, lease, written.at)
            delete_surely(self.store, self.keys.lease(path), if_match=written.etag)
            return None
        message = self._message(path, found)
        if lease.generation and lease.generation.etag != message.generation.etag:
            # The name was PUT anew, and attempts belong to a generation.  [P5]
            lease = replace(lease, attempt=1, generation=None, failure=None, attempts=(), lines=None)
            lease, written = self._put_lease(path, lease, if_match=written.etag)
        claim = Claim(
            message=message,
            lease=replace(lease, generation=message.generation, claimed_at=lease.claimed_at or written.at),
            lease_etag=written.etag,
            claimed_at=written.at,
            since=before,
            deadline=before + lease.timeout.total_seconds(),
            clock=self.clock,
            fence=f"{lease.attempt}-{lease.nonce}",
            lines=lease.lines or Lines(),
        )
        record = None if is_first else self.outcomes.read(path)
        if record and record.generation == message.generation:
            self.finish(claim, record)
            return None
        self._emit("message.claimed", claim)
        return claim

    def _message(self, path: str, found: Object) -> Message:
        inline = None
        if found.size <= INLINE_BYTES:
            inline = found.read()
        else:
            found.stream.close()
        return Message(
            queue=self.name,
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
                found = self.store.open(self.keys.message(path), if_match=etag)
            except Conflict:
                return None
            return found.stream if found else None

        return reopen
