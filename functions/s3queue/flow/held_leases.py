"""HeldLeases: complete, fail, extend or release a message whose partition is held.  [P9]

Nothing is written at once: the outcome goes into the next commit of the partition's lease, and counts from then on.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from s3queue.documents.lease import Lease
from s3queue.documents.message import Generation, Message
from s3queue.documents.partition import Waiting
from s3queue.documents.record import Failure, Record
from s3queue.encoding import EARLIEST
from s3queue.events import Event, InProcess
from s3queue.paths import partition_path
from s3queue.protocol.access import QueueAccess
from s3queue.protocol.claim import Claim
from s3queue.protocol.lease_protocol import ENDED, LeaseProtocol, as_exception

if TYPE_CHECKING:
    from .partition_hold import Hold


@dataclass(frozen=True, slots=True)
class HeldLeases(LeaseProtocol):
    """As `LeaseProtocol`, for the messages of one partition."""

    hold: Hold = field(repr=False)

    def claim(self, message: Message, waiting: Waiting | None, at: datetime, since: float) -> Claim:
        """The claim of a message that was taken and read; `waiting`, if it, or another of its name, failed before."""
        queue, hold = self.queue, self.hold
        timeout = hold.claim.lease.timeout
        lease = Lease(state="waiting", attempt=0, owner="", nonce="", timeout=timeout)
        if waiting and waiting.is_for(message.generation):
            lease = waiting.lease
        lease = replace(
            lease,
            state="processing",
            attempt=lease.attempt + 1,
            owner=queue.worker_id,
            timeout=timeout,
            claimed_at=at,
            generation=message.generation,
            put_id=message.put_id or lease.put_id,
            retry_at=None,
            is_cancelling=False,
            fence=f"{lease.attempt + 1}-{queue.chance.token()}",
        )
        return Claim(
            message=message,
            lease=lease,
            lease_etag="",
            claimed_at=at,
            since=since,
            leased_until=float("inf"),
            clock=queue.clock,
            fence=lease.fence,
            within=hold.claim,
            leases=self,
        )

    def _complete(self, claim: Claim, record: Record, result: Any, result_size: int, *, clear: bool) -> Record:
        # The lease is the commit point, so a zombie's completion does not count here.
        self._check_alive(claim)
        self.hold.end(claim.path, record)
        local = InProcess(claim, result=result)
        self.emit(ENDED[record.outcome], claim, local, outcome=record.outcome, result_size=result_size)
        claim.record = record
        return record

    def bury(self, claim: Claim, failure: Failure, error: BaseException | Failure | str | None = None) -> Record:
        self._check_alive(claim)
        record = self._record(claim, "dead", failure)
        self.hold.end(claim.path, record)
        local = InProcess(claim, as_exception(error or failure, failure))
        self.emit("message.dead", claim, local, outcome="dead", error=failure.message, error_type=failure.type)
        return record

    def write(self, claim: Claim, lease: Lease) -> None:
        """The lease of a message is kept by its partition: one that waits goes into the next commit."""
        self._check_alive(claim)
        claim.lease = lease
        if lease.state == "waiting":
            self.hold.wait(claim, lease)
        else:
            self.hold.renew(lease.timeout)

    def _check_alive(self, claim: Claim) -> None:
        """Raises LeaseLost after the deadline; then the whole hold is over for good.

        Another thread's commit may be on its way, and its answer would give the lease more time: the partition would be
        given up, and nobody would have counted this start. So the lease runs out, and whoever takes it over does.  [P5]
        """
        if not self.hold.claim.is_alive():
            self.hold.claim.end()
        claim.check_alive()

    def give_back(self, path: str, lease: Lease, etag: str, now: datetime) -> None:
        self.hold.put_back(path)

    def clear(self, claim: Claim) -> None:
        """The next commit does that."""

    def remind(self, path: str, at: datetime) -> None:
        """The partition is reminded of the first of its messages, when it is given up."""

    def outer_remind(self, path: str, at: datetime) -> None:
        LeaseProtocol.remind(self, path, at)

    def emit(self, name: Event, claim: Claim, in_process: InProcess | None = None, **fields: Any) -> None:
        self.hold.tell(claim.path, partial(LeaseProtocol.emit, self, name, claim, in_process, **fields))


def claim_of_partition(queue: QueueAccess, partition: str) -> Claim:
    """Stands for a whole partition where a worker keeps its claims; it is over until the lease is written."""
    timeout = queue.settings.visibility_timeout
    return Claim(
        message=Message(
            queue=queue.name,
            path=partition_path(partition),
            generation=Generation(etag="", put_at=EARLIEST),
            size=0,
        ),
        lease=Lease(state="processing", attempt=1, owner=queue.worker_id, nonce="", timeout=timeout),
        lease_etag="",
        claimed_at=EARLIEST,
        since=queue.clock.monotonic(),
        leased_until=float("-inf"),
        clock=queue.clock,
        fence="",
    )
