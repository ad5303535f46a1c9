"""PartitionRounds: a `per_batch` job over the messages of partitions.  [P9]

One query for many partitions: a round takes the next message of each group, and up to a hundred of each share, runs
them as any batch, and commits each partition's outcomes with its lease. So a group stays in order, and a thousand
groups with a message each are a few queries, not a thousand.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from s3queue.documents.record import Failure, Record
from s3queue.errors import LeaseLost, QueueError, Unavailable
from s3queue.flow.partition_hold import Hold
from s3queue.flow.partitions import hold_partition
from s3queue.protocol.claim import Claim
from s3queue.queue import Queue

from .messages import TURN_SECONDS

if TYPE_CHECKING:
    from .driver import Driver

_log = logging.getLogger(__name__)


class Run(Protocol):
    """What a job's messages come from, and are told to: the driver, or a round of partitions."""

    queue: Queue

    def is_over(self) -> bool:
        """Whether nothing more should be started."""
        ...

    def begin(self, claims: Sequence[Claim]) -> None:
        """These are about to be started."""
        ...

    def ended(self, claim: Claim, outcome: str) -> None:
        """A message came to its end, as far as this run is concerned."""
        ...

    def release(self, claim: Claim) -> None:
        """Give a message back that was not started."""
        ...

    def vanished(self, claim: Claim) -> None:
        """What was claimed was deleted or PUT anew since, or its lease is over; it was not started."""
        ...


class BatchRunner(Protocol):
    """What runs a batch: `BatchWork`."""

    def run_claims(self, claims: Sequence[Claim], driver: Run) -> None: ...


@dataclass(slots=True)
class _Held:
    """A partition that the run holds."""

    hold: Hold
    until: float
    #: The messages of the present round, by path, and those of them that were started.
    taken: dict[str, Claim] = field(default_factory=dict)
    started: set[str] = field(default_factory=set)
    #: How messages ended since the last commit, and whether any did.
    endings: list[str] = field(default_factory=list)
    has_run: bool = False


class PartitionRounds:
    """Holds partitions, and runs their messages in rounds; the lease of each says what was taken and what ended."""

    def __init__(self, work: BatchRunner, partitions: Iterable[str], driver: Driver) -> None:
        self.queue = driver.queue
        self._work = work
        self._driver = driver
        self._fresh = iter(partitions)
        #: Partitions to look at once more; and whether there are no others.
        self._again: deque[str] = deque()
        self._is_exhausted = False
        self._held: dict[str, _Held] = {}
        #: How many were held.
        self._count = 0

    def run(self) -> int:
        """Round after round, until nothing is left that can run; returns how many partitions were held.

        Raises:
            RunLost: the run is not ours any more. SparkGone: the session died.
        """
        while True:
            claims = self._take()
            try:
                if claims:
                    self._work.run_claims(claims, self)
                must_pause = self._driver.must_pause()
                self._commit(stop=must_pause)
                self._driver.progressed()
            except Exception as error:
                # What is given up is not charged with what happened here, but for what was started.
                self._fail_started(error)
                self._commit(stop=True)
                raise
            if not self._held and (must_pause or (self._is_exhausted and not self._again)):
                return self._count

    # What the job's messages are told to

    def is_over(self) -> bool:
        return self._driver.is_over()

    def begin(self, claims: Sequence[Claim]) -> None:
        """Nothing is written: the lease of a partition names what was taken. For a session that dies."""
        for claim in claims:
            held = self._of(claim)
            held.started.add(claim.path)

    def ended(self, claim: Claim, outcome: str) -> None:
        held = self._of(claim)
        held.taken.pop(claim.path, None)
        held.endings.append(outcome)
        if outcome == "lost":
            held.hold.lose(claim)

    def release(self, claim: Claim) -> None:
        self.vanished(claim)

    def vanished(self, claim: Claim) -> None:
        """The next holder lists the partition anew, and finds what lies there, or that it is gone."""
        held = self._of(claim)
        held.taken.pop(claim.path, None)
        held.hold.put_back(claim.path)

    def _of(self, claim: Claim) -> _Held:
        assert claim.within is not None
        return self._held[claim.within.path]

    # Rounds

    def _take(self) -> list[Claim]:
        """The messages of the next round: of the partitions that are held, then of others, if there is room."""
        most, claims = self.queue.settings.messages_per_run, list[Claim]()
        for held in self._held.values():
            claims += self._take_from(held, most - len(claims))
        while len(claims) < most and not self._driver.must_pause() and (partition := self._next()):
            if taken := self._hold(partition):
                claims += self._take_from(taken, most - len(claims))
        return claims

    def _next(self) -> str | None:
        if self._again:
            return self._again.popleft()
        partition = next(self._fresh, None)
        self._is_exhausted = partition is None
        return partition

    def _hold(self, partition: str) -> _Held | None:
        self._driver.trying(partition)
        try:
            hold = hold_partition(self.queue.leases, partition)
        except QueueError as error:
            _log.warning("partition not taken: %s/%s: %s", self.queue.name, partition, error)
            return None
        if hold is None:
            return None
        self._driver.heartbeat.hold(hold.claim)
        self._count += 1
        held = self._held[hold.claim.path] = _Held(hold, self.queue.clock.monotonic() + TURN_SECONDS)
        return held

    def _take_from(self, held: _Held, most: int) -> list[Claim]:
        claims: list[Claim] = []
        try:
            while len(claims) < most and (claim := held.hold.take()):
                claims.append(claim)
                held.taken[claim.path] = claim
        except QueueError as error:
            # The hold is closed: what has ended is committed, and the partition is given up.
            held.hold.close()
            _log.warning("message not read, partition given up: %s: %s", held.hold.partition, error)
        return claims

    def _fail_started(self, error: Exception) -> None:
        """The session died, of one of these or not: each has had its attempt, and runs alone in its next."""
        for held in self._held.values():
            for path in held.started & held.taken.keys():
                try:
                    ended = self.queue.fail(held.taken.pop(path), Failure.of(error))
                    held.endings.append(ended.outcome if isinstance(ended, Record) else "retried")
                except QueueError as problem:
                    _log.warning("attempt not failed: %s/%s: %s", self.queue.name, path, problem)

    def _commit(self, *, stop: bool) -> None:
        for path, held in list(self._held.items()):
            for claim in held.taken.values():
                held.hold.put_back(claim.path)  # it has not ended
            held.taken.clear()
            held.started.clear()
            is_last = stop or self.queue.clock.monotonic() > held.until
            if is_last:
                held.hold.close()
            if not held.hold.is_done:
                continue
            is_committed = goes_on = False
            try:
                goes_on = held.hold.advance(stop=is_last)
                is_committed = True
            except (LeaseLost, Unavailable) as error:
                _log.warning("partition lost, left to its next holder: %s: %s", held.hold.partition, error)
            except QueueError as error:
                _log.warning("partition not finished: %s/%s: %s", self.queue.name, held.hold.partition, error)
            for ending in held.endings:
                self._driver.counted(ending if is_committed else "lost")
            held.has_run = held.has_run or bool(held.endings)
            held.endings.clear()
            if goes_on:
                continue
            del self._held[path]
            held.hold.claim.end()
            self._driver.heartbeat.drop(held.hold.claim)
            if is_committed and held.has_run and not is_last:
                # Once more: an event that found it held has left its message to this run.
                self._again.append(held.hold.partition)
