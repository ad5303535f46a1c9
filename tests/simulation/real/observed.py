"""What a process of a run tells the history about its claims and outcomes, whatever part of the library makes them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from s3queue import Claim, Queue, Record
from s3queue.documents.lease import Lease
from s3queue.protocol.lease_protocol import LeaseProtocol
from s3queue.protocol.lease_writes import LeaseWrites
from s3queue.protocol.outcomes import Outcomes

from .history import tell

LAST_FIELD = fields(Claim)[-1].name


def observe() -> None:
    """Let the classes of this process tell: each claim, each move of its deadline, each claim that is given up, and
    each record that was written or found. Once per process.
    """
    object_setattr = object.__setattr__

    def moved(claim: Claim, name: str, value: Any) -> None:
        object_setattr(claim, name, value)
        moves = (LAST_FIELD, "fence", "leased_until", "named_until", "is_ended")
        # Its last field is set last: before, it is not whole yet.
        if name in moves and hasattr(claim, LAST_FIELD) and claim.fence:
            message = claim.message
            tell(
                "held",
                queue=message.queue,
                path=message.path,
                fence=claim.fence,
                owner=claim.lease.owner,
                attempt=claim.lease.attempt,
                # By the history's clock: the claim's own may count what a suspended machine missed.
                until=time.monotonic() + max(0.0, claim.deadline - claim.clock.monotonic()),
            )

    Claim.__setattr__ = moved  # type: ignore[method-assign,assignment]
    write_record = Outcomes.write_record

    def written(outcomes: Outcomes, record: Record, is_alive: Callable[[], bool], *arguments: Any) -> Record:
        found = write_record(outcomes, record, is_alive, *arguments)
        tell(
            "recorded",
            queue=outcomes.keys.root.strip("/"),
            path=found.path,
            nonce=found.nonce,
            outcome=found.outcome,
            generation=[found.generation.etag, found.generation.put_at.isoformat()],
            # After the write: nobody else can have had the message before it.
            alive=is_alive(),
        )
        return found

    Outcomes.write_record = written  # type: ignore[method-assign,assignment]
    for name in ("complete", "complete_lines", "fail", "release", "postpone"):
        setattr(Queue, name, _giving_up(getattr(Queue, name)))
    # A worker asks these where no handler was called: of a message that cannot be read, or must wait for a rate.
    for name in ("fail", "postpone"):
        setattr(LeaseProtocol, name, _giving_up(getattr(LeaseProtocol, name)))
    give_back = LeaseWrites.give_back

    def given_back(leases: LeaseWrites, path: str, lease: Lease, *arguments: Any) -> None:
        # By whoever has just claimed it: a request failed before a handler could be called. Others end it in its place.
        if sys._getframe(1).f_globals["__name__"] == "s3queue.protocol.claiming":
            tell("given up", queue=leases.queue.name, path=path, fence=lease.fence)
        give_back(leases, path, lease, *arguments)

    LeaseWrites.give_back = given_back  # type: ignore[method-assign,assignment]


def _giving_up(method: Callable[..., Any]) -> Callable[..., Any]:
    """Told before the request that does it is sent."""

    def observed(holder: Queue | LeaseProtocol, claim: Claim, *arguments: Any, **options: Any) -> Any:
        # Whoever ends a lease that ran out gives up what was never its own.
        if claim.fence and sys._getframe(1).f_globals["__name__"] != "s3queue.protocol.expire":
            tell("given up", queue=claim.message.queue, path=claim.path, fence=claim.fence)
        return method(holder, claim, *arguments, **options)

    return observed
