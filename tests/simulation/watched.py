"""The real queue and the real dead letters; they only tell the judge what was claimed, called and answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from s3queue.documents.lease import Lease
from s3queue.documents.record import Record
from s3queue.flow.releasing import ReleasedClaim
from s3queue.protocol.access import QueueAccess
from s3queue.protocol.claim import Claim
from s3queue.protocol.claiming import Claiming
from s3queue.protocol.dead_letters import DeadLetters
from s3queue.protocol.lease_protocol import LeaseProtocol
from s3queue.queue import Queue
from s3queue.settings import QueueSettings

from .judge import Judge
from .machines import Process


@dataclass(frozen=True, slots=True)
class WatchedLeases(LeaseProtocol):
    """The real leases; they only tell the judge whose burial a sweeper goes on with."""

    judge: Judge
    process: Process

    def write(self, claim: Claim, lease: Lease) -> None:
        LeaseProtocol.write(self, claim, lease)
        # A sweeper that goes on with a burial holds the message like a worker; one that gives it back does not.
        if claim.lease.state == "burying":
            self.judge.hold(self.process, claim)


class WatchedQueue(Queue):
    """The real queue."""

    def watch(self, judge: Judge, process: Process) -> WatchedQueue:
        self._judge = judge
        self._history = judge.history
        self._process = process
        self.leases = WatchedLeases(self, self.outcomes, judge, process)
        self._claiming = Claiming(self, self.leases)
        return self

    def claim(self, path: str, **options: Any) -> Claim | None:
        claim = super().claim(path, **options)
        if claim:
            self._judge.hold(self._process, claim)
        return claim

    def adopt(self, path: str) -> Claim | None:
        claim = super().adopt(path)
        if claim:
            self._judge.hold(self._process, claim)
        return claim

    def claim_next(self, limit: int = 1, **options: Any) -> list[Claim]:
        claims = super().claim_next(limit, **options)
        for claim in claims:
            self._judge.hold(self._process, claim)
        return claims

    def enqueue(self, body: Any, **options: Any) -> str:
        with self._history.call(self._process, "enqueue", body=body, **options) as call:
            call.answer = super().enqueue(body, **options)
        return str(call.answer)

    def enqueue_many(self, bodies: Any, **options: Any) -> list[str]:
        with self._history.call(self._process, "enqueue_many", bodies=bodies, **options) as call:
            call.answer = super().enqueue_many(bodies, **options)
        return list(call.answer)

    def configure(self, **changes: Any) -> QueueSettings:
        with self._history.call(self._process, "configure", **changes) as call:
            call.answer = settings = super().configure(**changes)
        return settings

    def purge(self) -> int:
        with self._history.call(self._process, "purge"):
            return super().purge()

    def replay(self, path: str, *, of: Record | None = None, to: QueueAccess | None = None) -> str:
        """Of a completed message; dead letters are replayed through `letters`."""
        with self._history.call(self._process, "rerun", path=path) as call:
            call.answer = super().replay(path, of=of)
        return str(call.answer)

    def replay_edited(self, path: str, body: bytes) -> str:
        with self._history.call(self._process, "edit", path=path, body=body) as call:
            call.answer = super().replay_edited(path, body)
        return str(call.answer)

    def purge_one(self, path: str) -> None:
        for entry in self.store.list(self.keys.message(path), limit=1).objects:
            with self._history.call(self._process, "purge", path=path):
                self.purge_message(entry)

    def cancel(self, path: str) -> Record:
        with self._history.call(self._process, "cancel", path=path) as call:
            call.answer = record = super().cancel(path)
        return record

    def release_held(self, path: str) -> ReleasedClaim:
        with self._history.call(self._process, "release", path=path):
            return super().release_held(path)

    def remove(self, path: str) -> None:
        """What no queue has: an operator deletes the object."""
        with self._history.call(self._process, "remove", path=path):
            self.store.delete(self.keys.message(path))

    def letters(self) -> WatchedLetters:
        return WatchedLetters(self, self._judge, self._process)


@dataclass(frozen=True, slots=True)
class WatchedLetters(DeadLetters):
    """The real dead letters."""

    judge: Judge
    process: Process

    def replay(self, path: str, *, error_type: str | None = None, message: str | None = None) -> str:
        with self.judge.history.call(self.process, "replay", path=path, error_type=error_type) as call:
            call.answer = DeadLetters.replay(self, path, error_type=error_type, message=message)
        return str(call.answer)

    def purge(self, **options: Any) -> int:
        with self.judge.history.call(self.process, "discard", **options):
            return DeadLetters.purge(self, **options)
