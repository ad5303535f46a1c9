"""Claim: the right to work on one message, and until when."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from s3queue.clock import Clock
from s3queue.documents.batch import Lines
from s3queue.documents.lease import Lease
from s3queue.documents.message import Message
from s3queue.documents.record import Attempt, Failure, Record
from s3queue.documents.sends import Send
from s3queue.errors import LeaseLost

if TYPE_CHECKING:
    from .lease_protocol import LeaseProtocol


@dataclass(slots=True, kw_only=True)
class Claim:
    """A message that belongs to this worker until `deadline`; `extend` moves the deadline."""

    message: Message
    lease: Lease
    lease_etag: str
    #: By S3's clock.
    claimed_at: datetime
    #: By this process's monotonic clock: when the request of the claim was sent, and until when its lease keeps it.
    since: float
    leased_until: float
    clock: Clock
    #: Until when the worker's heartbeat keeps it, whatever its own lease says.
    named_until: float = float("-inf")
    #: Set by `end`.
    is_ended: bool = False
    #: Different for every claim of a message, and greater for later attempts: a system that the handler writes to can
    #: refuse a late writer.
    fence: str
    #: The progress of a batch's lines; empty for a single message.
    lines: Lines = field(default_factory=Lines)
    #: Set if another object was in the place of the finished message: its name may have been PUT again.
    superseded: bool = False
    #: The outcome is recorded, and the message is still to be deleted, because `complete` was asked not to do it.
    is_recorded: bool = False
    #: The record that counts, once it is written: it says whether the payload is kept before the message is deleted.
    record: Record | None = None
    #: Set once the deletion has begun: a second call must not delete without a check, see `Outcomes.clear`.
    is_clearing: bool = False
    #: What the lines that others have done had sent when the completion was first asked for, and how many parts of that
    #: were staged; None before.
    sent_before: tuple[tuple[Send, ...], int] | None = None
    #: Set once this worker knows that an operator cancelled the message.
    is_cancelled: bool = False
    #: The claim of the partition that the message belongs to, and what ends its messages; None: it has its own lease.
    within: Claim | None = None
    leases: LeaseProtocol | None = None
    #: The other messages that the same call of the handler is for.
    companions: tuple[Claim, ...] = ()

    @property
    def path(self) -> str:
        return self.message.path

    @property
    def attempt(self) -> int:
        return self.lease.attempt

    @property
    def deadline(self) -> float:
        if self.is_ended:
            return float("-inf")
        own = max(self.leased_until, self.named_until)
        return own if self.within is None else min(own, self.within.deadline)

    def end(self) -> None:
        """It is over, whatever the own clock says: no handler may start on it any more.  [P4]

        For good: nor does the answer to a write of its lease that is on its way give it more time.
        """
        self.is_ended = True

    def remaining(self) -> timedelta:
        return timedelta(seconds=max(0.0, self.deadline - self.clock.monotonic()))

    def is_alive(self) -> bool:
        """Whether nobody else can have the message yet, by this process's own clock.  [P4]"""
        return self.clock.monotonic() < self.deadline

    def check_alive(self) -> None:
        """Raises LeaseLost after the deadline: someone else may have the message."""
        if not self.is_alive():
            raise LeaseLost(f"lease ran out: {self.message.queue}/{self.path}: another worker may have the message")

    def now(self) -> datetime:
        """S3's time, carried forward from the claim by the monotonic clock: no request, no wall clock."""
        return self.claimed_at + timedelta(seconds=self.clock.monotonic() - self.since)

    def progressed(self) -> Lines | None:
        """The progress of a batch's lines, for the lease; None if there is nothing to keep."""
        return None if self.lines.is_empty() else self.lines

    def tried(self, failure: Failure | None = None) -> tuple[Attempt, ...]:
        """All attempts so far, including the present one."""
        this = Attempt(
            number=self.attempt,
            worker=self.lease.owner,
            started_at=self.claimed_at,
            ended_at=self.now(),
            failure=failure,
        )
        return (*self.lease.attempts, this)
