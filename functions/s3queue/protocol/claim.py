"""Claim: the right to work on one message, and until when."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from s3queue.clock import Clock
from s3queue.documents.batch import Lines
from s3queue.documents.lease import Lease
from s3queue.documents.message import Message
from s3queue.documents.record import Attempt, Failure
from s3queue.errors import LeaseLost


@dataclass(slots=True, kw_only=True)
class Claim:
    """A message that is yours until `deadline`. `extend` moves the deadline; the rest does not change."""

    message: Message
    lease: Lease
    lease_etag: str
    #: By S3's clock.
    claimed_at: datetime
    #: By this process's monotonic clock: when the claim's request was sent, and when the claim is over.
    since: float
    deadline: float
    clock: Clock
    #: Different for every claim of a message and growing with its attempts, so that a store behind the handler can
    #: refuse a late writer.
    fence: str
    #: The outcomes of a batch's lines; empty for a single message.
    lines: Lines = field(default_factory=Lines)
    #: Set when the message was finished and something else lay in its place: its name may have been PUT anew.
    superseded: bool = False
    #: Completed and recorded, and still to be cleared away by whoever asked for it to be left.
    is_recorded: bool = False
    #: Set once the clearing has begun: a completion that is asked for again must not delete blindly again.
    is_clearing: bool = False

    @property
    def path(self) -> str:
        return self.message.path

    @property
    def attempt(self) -> int:
        return self.lease.attempt

    def remaining(self) -> timedelta:
        return timedelta(seconds=max(0.0, self.deadline - self.clock.monotonic()))

    def is_alive(self) -> bool:
        """Whether nobody else can have the message yet, as far as this process's own clock can tell.  [P4]"""
        return self.clock.monotonic() < self.deadline

    def check_alive(self) -> None:
        """Raises LeaseLost once the deadline has passed: someone else may be at it."""
        if not self.is_alive():
            raise LeaseLost(f"the lease on {self.message.queue}/{self.path} ran out; it is no longer ours")

    def now(self) -> datetime:
        """S3's time, carried forward from the claim by the monotonic clock: no request, no wall clock."""
        return self.claimed_at + timedelta(seconds=self.clock.monotonic() - self.since)

    def progressed(self) -> Lines | None:
        """What the lines of a batch have come to, for the lease; None if there is nothing to keep."""
        return None if self.lines.is_empty() else self.lines

    def tried(self, failure: Failure | None = None) -> tuple[Attempt, ...]:
        """All attempts so far, the present one included."""
        this = Attempt(
            number=self.attempt,
            worker=self.lease.owner,
            started_at=self.claimed_at,
            ended_at=self.now(),
            failure=failure,
        )
        return (*self.lease.attempts, this)
