"""Intake: one queue of a Celery worker: polls, claims, keeps what is not acknowledged, and sweeps.

A delivery is a claim. The heartbeat keeps it until Celery acknowledges it, however long its task takes; if the worker
is killed, the lease runs out, and another worker's sweep gives the task to someone else.  [P2] [P6]
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from s3queue.clock import SystemClock
from s3queue.documents.record import Failure
from s3queue.errors import Conflict, InvalidRequest, LeaseLost, QueueError
from s3queue.paths import priority_of
from s3queue.protocol.backlog import Backlog, Candidate
from s3queue.protocol.claim import Claim
from s3queue.protocol.liveness import HeartbeatWriter, keep_beating
from s3queue.queue import Queue
from s3queue.worker.background import Background
from s3queue.worker.crew import start_lasting
from s3queue.worker.identity import own_queue
from s3queue.worker.inbox import Inbox
from s3queue.worker.processor import AttemptEnding
from s3queue.worker.statistics import Statistics
from s3queue.worker.sweep_turn import SweepTurn
from s3queue.worker.sweep_turns import SweepTurns
from s3queue.worker.unknown import until_known
from s3queue.worker.unserved import AGAIN, Unserved

_log = logging.getLogger(__name__)
#: Claims that run at one time: each is a PUT and a GET, and Celery's own loop waits for them.
CLAIMS = 8
#: Paths that a sweep may hand over.
INBOX = 100
#: Each poll that finds nothing makes the next pause longer by this.
SLOWER = 1.5


class Intake:
    """What a Celery worker takes from one queue. `start` it, `take` claims, end each of them, `stop`."""

    def __init__(self, queue: Queue, *, poll_interval: float, slowest: float, changed: Callable[[], None]) -> None:
        """Polls every `poll_interval` seconds while there is work, and up to every `slowest` if there is none.
        `changed` is called, in other threads, when there may be something to take before that.
        """
        # Two channels of a connection may consume one queue.
        self.queue = queue = own_queue(queue)
        self._poll_interval = poll_interval
        self._slowest = max(slowest, poll_interval)
        self._changed = changed
        self._heartbeat = HeartbeatWriter(queue)
        self._backlog = Backlog(queue)
        self._inbox = Inbox(INBOX)
        self._unserved = Unserved(queue)
        self._statistics = Statistics()
        self._turn = SweepTurn(queue, self._accept)
        self._background = Background(queue, self._heartbeat, CLAIMS, self._cleared)
        self._claiming = ThreadPoolExecutor(CLAIMS, f"{queue.worker_id}-claiming")
        self._stopping = threading.Event()
        self._resting = threading.Event()
        self._until_sweep = SystemClock(self._stopping)
        self._until_beat = SystemClock(self._heartbeat.changed)
        self._threads: list[threading.Thread] = []
        self._interval = poll_interval
        self._next_poll = float("-inf")

    def start(self) -> None:
        """Look whether the queue can be used, and start the threads.

        Raises:
            InvalidRequest: messages of this queue are not a Celery worker's.
            NotFound, AccessDenied, Unavailable: the bucket cannot be used.
        """
        self.queue.store.list(self.queue.keys.root, limit=1)
        self.queue.refresh()
        settings = self.queue.settings
        if settings.partitions or settings.uses_spark:
            raise InvalidRequest(
                f"queue {self.queue.name!r} has partitions, or sends messages to Spark: a Celery worker claims each "
                f"task by itself; remove partitions, engine and heavy_above from {self.queue.name}/queue.json"
            )
        targets: dict[str, Callable[[], None]] = {"heartbeat": self._beat, "sweeping": self._sweep}
        for role, target in targets.items():
            name = f"{self.queue.worker_id}-{role}"
            self._threads.append(start_lasting(name, target, self._stopping.is_set, self._pause))

    def _pause(self) -> None:
        self._until_sweep.sleep(self._poll_interval)

    def rest(self) -> None:
        """Nothing is taken any more, perhaps for hours, until what is held has ended: another worker has to sweep,
        since what is handed over here is not run. `resume` ends it.
        """
        self._resting.set()

    def resume(self) -> None:
        self._resting.clear()

    def stop(self) -> None:
        """End the threads. Claims that are still held are kept until their leases run out: end them before."""
        self._stopping.set()
        self._heartbeat.changed.set()
        for thread in self._threads:
            thread.join()
        self._claiming.shutdown()
        self._background.end()
        if self._threads:
            self._unserved.leave(self._inbox.take)
            self._heartbeat.end()
        self._threads = []

    # Taking

    def seconds_to_poll(self) -> float:
        """How long `take` will find nothing, as far as is known without a request."""
        if not self._is_held_back() and (self._inbox or not self._backlog.is_fruitless()):
            return 0.0
        return max(0.0, self._next_poll - self.queue.clock.monotonic())

    def take(self, limit: int) -> list[Claim]:
        """Claim up to `limit` messages; none if nothing may run now, or the next poll is not due. Never raises for what
        may be better at the next poll: it is logged.
        """
        try:
            candidates = self._candidates(min(limit, CLAIMS))
            if len(candidates) == 1:
                found = [self._claim(candidates[0])]
            else:
                found = list(self._claiming.map(self._claim, candidates))
        except QueueError as error:
            _log.warning("poll failed, trying again: %s: %s", self.queue.name, error)
            self._wait_longer()
            return []
        return [claim for claim in found if claim is not None]

    def _candidates(self, limit: int) -> list[Candidate]:
        self.queue.refresh()
        if self._is_held_back():
            if self.queue.clock.monotonic() >= self._next_poll:
                self._wait_longer()
            return []
        found: list[Candidate] = []
        while len(found) < limit and (path := self._inbox.take(above=self._backlog.next_priority())):
            now = self.queue.clock.now()
            found.append(Candidate(path, priority_of(path), now, read_first=True, is_handed_over=True))
        if not found and (self._backlog.is_stale() or not len(self._backlog)):
            self._poll()
        while len(found) < limit and (candidate := self._backlog.take()):
            found.append(candidate)
        return found

    def _is_held_back(self) -> bool:
        """Whether an operator's pause or the queue's limits let nothing be claimed."""
        return self.queue.settings.paused or self.queue.held_for() > 0

    def _poll(self) -> None:
        if not self._backlog.is_fruitless():
            self._interval = self._poll_interval
        elif self.queue.clock.monotonic() < self._next_poll:
            return
        self._wait_longer()
        self._backlog.refill([claim.path for claim in self._heartbeat.held()])
        if self._backlog.due_in is not None:
            # However slowly an idle worker polls, it polls when a delayed task is due.
            self._next_poll = min(self._next_poll, self.queue.clock.monotonic() + self._backlog.due_in)

    def _wait_longer(self) -> None:
        self._next_poll = self.queue.clock.monotonic() + self._interval
        self._interval = min(self._interval * SLOWER, self._slowest)

    def _claim(self, candidate: Candidate) -> Claim | None:
        held_back, claim, is_tried = self.queue.held_back, None, False
        try:
            claim = self.queue.claim(candidate.path, read_first=candidate.read_first, etag=candidate.etag)
            is_tried = claim is not None or self.queue.held_back == held_back
        except QueueError as error:
            # One message must not keep the others from being delivered; the sweeper takes care of it.
            _log.warning("claim failed, message kept: %s/%s: %s", self.queue.name, candidate.path, error)
        finally:
            if candidate.is_handed_over and not is_tried:
                self._unserved.not_tried(candidate.path)
        self._backlog.report(won=claim is not None, is_hint=candidate.is_hint)
        if is_tried:
            self.queue.leases.forget(candidate.reminder)
        if claim is not None:
            self._heartbeat.hold(claim)
        return claim

    # Ending

    def complete(self, claim: Claim) -> None:
        """Acknowledged: its outcome is recorded when this returns, and it is deleted in the background.  [P1] [P3]"""
        try:
            until_known(self.queue, lambda: self.queue.complete(claim, clear=False))
        except QueueError as error:
            self._heartbeat.drop(claim)
            _log.error("not acknowledged, the task may run again: %s/%s: %s", self.queue.name, claim.path, error)
            self._statistics.count("lost")
            return
        self._statistics.count("completed")
        if not claim.is_recorded:
            self._heartbeat.drop(claim)
        elif not self._background.hand_over(claim):
            self._cleared(claim)

    def release(self, claim: Claim) -> None:
        """Requeued: others may have it at once, and no attempt is used."""
        self._end(claim, "released", lambda: self.queue.release(claim))

    def bury(self, claim: Claim, failure: Failure) -> None:
        """Rejected: it becomes a dead letter, which an operator can replay."""
        self._end(claim, "dead", lambda: self.queue.fail(claim, failure, dead=True))

    def fail(self, claim: Claim, failure: Failure) -> None:
        """An attempt failed before the task ran: it is tried again, or dead after the last attempt."""
        self._end(claim, "retried", lambda: self.queue.fail(claim, failure))

    def _end(self, claim: Claim, ending: AttemptEnding, step: Callable[[], object]) -> None:
        try:
            step()
        except LeaseLost:
            _log.warning("too late, someone else has the task: %s/%s", self.queue.name, claim.path)
            ending = "lost"
        except QueueError as error:
            # Its lease runs out, and the sweeper continues.
            _log.warning("%s, left to the sweeper: %s/%s: %s", ending, self.queue.name, claim.path, error)
        finally:
            self._heartbeat.drop(claim)
        self._statistics.count(ending)

    def _cleared(self, claim: Claim) -> None:
        if claim.superseded:
            self._accept([claim.path])

    # Keeping house

    def _accept(self, paths: Sequence[str]) -> int:
        accepted = 0 if self._resting.is_set() else self._inbox.accept(paths)
        if accepted:
            self._changed()
        return accepted

    def _beat(self) -> None:
        def beat() -> bool:
            return self._heartbeat.beat(self._statistics.to_dict(running=len(self._heartbeat)))

        keep_beating(self._heartbeat, beat, self._stopping.is_set, self._until_beat.sleep)

    def _sweep(self) -> None:
        turns = SweepTurns(self.queue)
        while not self._stopping.is_set():
            self._until_sweep.sleep(self._sweep_once(turns))
        with suppress(QueueError, Conflict):
            turns.lock.release()

    def _sweep_once(self, turns: SweepTurns) -> float:
        """Returns how many seconds to wait."""
        if self._resting.is_set():
            self._unserved.leave(self._inbox.take)
            with suppress(QueueError, Conflict):
                turns.lock.release()
            return self._slowest
        self._unserved.remind(after=AGAIN)
        expects = self._backlog.saw_leases or len(self._heartbeat) > 0
        return self._turn.sweep(turns, expects_leases=expects)
