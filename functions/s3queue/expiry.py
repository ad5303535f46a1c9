"""What the sweeper does with a lease whose owner fell silent: finish what it finished, fail what it did not.  [P6]"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from .batch import Lines
from .claim import Claim
from .encoding import decode_metadata
from .errors import CorruptState, NewerFormat
from .lease import Lease
from .message import Generation, Message
from .protocol import LeaseProtocol, whole_second
from .record import Failure, Record
from .store import Object, delete_surely

Ending = Literal["gone", "finished", "retried", "dead", "restarted"]


def expire(queue: LeaseProtocol, path: str, found: Object, *, because: Failure | None = None) -> Ending:
    """Do what the owner of this lease, read just now and over, would have done.  [P1] [P6]

    A message that is finished is cleared away; a burial is gone on with; anything else is a failed attempt, `because`
    of what is known of its owner's end.

    Raises:
        LeaseLost: someone else got to it first.
        NewerFormat: a newer version wrote its lease or record; only that version can decide.
    """
    before = queue.clock.monotonic()
    lease = _readable(queue, found)
    stored = queue.store.head(queue.keys.message(path))
    if stored is None:
        queue.record_vanished(path, lease, found.at)
        delete_surely(queue.store, found.key, if_match=found.etag)
        return "gone"
    generation = Generation(etag=stored.etag, put_at=stored.modified_at)
    claimed_at = lease.claimed_at or found.modified_at
    claim = Claim(
        message=Message(
            queue=queue.name,
            path=path,
            generation=generation,
            size=stored.size,
            metadata=decode_metadata(stored.metadata),
            content_type=stored.content_type,
        ),
        lease=lease,
        lease_etag=found.etag,
        claimed_at=claimed_at,
        since=before - (found.at - claimed_at).total_seconds(),
        deadline=before + lease.timeout.total_seconds(),
        clock=queue.clock,
        fence="",
        lines=lease.lines or Lines(),
    )
    if lease.generation and _is_another(lease, generation):
        # The name was PUT anew: those attempts were another generation's, this one has had none.  [P5]
        _restart(queue, claim, found)
        return "restarted"
    claim.lease = replace(lease, generation=generation, claimed_at=claimed_at)
    record = queue.outcomes.read(path)
    if record and record.generation == generation:
        # Under a lease of its own: two sweepers must not clear at different times.
        queue.write(claim, replace(claim.lease, state="burying"))
        queue.finish(claim, record)
        return "finished"
    silence = f"{lease.owner} fell silent in attempt {lease.attempt}: crashed, or out of time"
    failure = because or Failure("LeaseExpired", silence)
    if lease.state == "burying":
        queue.bury(claim, lease.failure or failure)
        return "dead"
    return "dead" if isinstance(queue.fail(claim, failure), Record) else "retried"


def _is_another(lease: Lease, generation: Generation) -> bool:
    """Equal bytes are the same message while it is at work; one that is being buried may have been replayed since."""
    assert lease.generation
    return lease.generation != generation if lease.state == "burying" else lease.generation.etag != generation.etag


def _readable(queue: LeaseProtocol, found: Object) -> Lease:
    """A lease that someone overwrote with garbage tells neither attempts nor owner: its message is buried.  [P5]"""
    try:
        return Lease.from_bytes(found.read(), found.key)
    except NewerFormat:
        raise
    except CorruptState as error:
        timeout = queue.settings.visibility_timeout
        return Lease(state="burying", attempt=0, owner="unknown", nonce="", timeout=timeout, failure=Failure.of(error))


def _restart(queue: LeaseProtocol, claim: Claim, found: Object) -> None:
    due_at = whole_second(found.at)
    fresh = Lease(
        state="waiting", attempt=0, owner=claim.lease.owner, nonce="", timeout=claim.lease.timeout, retry_at=due_at
    )
    queue.write(claim, fresh)
    queue.remind(claim.path, due_at)
