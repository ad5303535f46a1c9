"""Worker: pulls messages in a container or on a laptop, with threads, a heartbeat, a graceful stop and statistics."""

from __future__ import annotations

import logging
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from s3queue.clock import SystemClock
from s3queue.errors import QueueError
from s3queue.keys import priority_of
from s3queue.protocol.backlog import Backlog, Candidate
from s3queue.protocol.claim import Claim
from s3queue.protocol.liveness import HeartbeatWriter
from s3queue.queue import Queue
from s3queue.sweeper.report import Report
from s3queue.sweeper.sweeper import Sweeper

from .background_delete import BackgroundDelete
from .definition import Definition, Handler
from .inbox import Inbox
from .own_retries import OwnRetries
from .processor import AttemptEnding, Processor, renew_held
from .sweep_turns import BY_WORKER, SweepTurns

_log = logging.getLogger(__name__)
#: An idle worker polls more and more slowly, until it waits this many times its interval.
SLOWEST = 5
#: When this many candidates per thread are left, one thread refills the backlog.
LOW = 8
#: Paths that the sweep may put into the inbox, per thread; the rest stays where it is, and is found again.
INBOX = 100


class Worker:
    """Runs a handler on a queue's messages until it is told to stop.

    `concurrency` threads claim and process messages; one writes the heartbeat, which keeps every held message; one
    sweeps the queue if no sweeper function does. `stop` lets running handlers finish, and gives other messages back.
    """

    def __init__(
        self,
        queue: Queue,
        handler: Definition | Handler,
        *,
        concurrency: int | None = None,
        poll_interval: float = 1.0,
        sweep: bool = True,
    ) -> None:
        self.queue = queue
        if isinstance(handler, Definition):
            definition = handler
        else:
            definition = Definition(queue.name, queue.settings)
            definition.handler(handler)
        definition.events.pass_on(queue.events)
        self._stopping = threading.Event()
        self._wake = SystemClock(self._stopping)
        self._processor = Processor(
            queue=queue,
            definition=definition,
            should_stop=self._stopping.is_set,
            renew=partial(renew_held, queue),
            clears=False,
        )
        self._concurrency = concurrency or queue.settings.concurrency
        self._poll_interval = poll_interval
        self._heartbeat = HeartbeatWriter(queue, queue.settings.visibility_timeout)
        self._sweeper = Sweeper(queue=queue, dispatch=self._accept, publishes_as=BY_WORKER)
        self._sweeps = sweep
        self._threads: list[threading.Thread] = []
        self._mutex = threading.Lock()
        self._backlog = Backlog(queue, competes=self._concurrency > 1)
        self._inbox = Inbox(INBOX * self._concurrency)
        self._retries = OwnRetries(queue)
        self._next_refill = float("-inf")
        self._interval = poll_interval
        self._counts: Counter[str] = Counter()
        self._busy = 0
        #: Paths that threads process or delete → how many threads.
        self._in_hand: Counter[str] = Counter()
        self._is_refilling = False
        self._clearing: BackgroundDelete | None = None

    def start(self) -> None:
        """Start the threads and return."""
        if self._threads:
            raise RuntimeError(f"the worker of {self.queue.name} is already running; stop it first")
        self._stopping.clear()
        # A new backlog: what an earlier run of this worker found must not delay this one, or end it as idle.
        self._backlog = Backlog(self.queue, competes=self._concurrency > 1)
        self._next_refill = float("-inf")
        self._clearing = BackgroundDelete(self.queue, self._heartbeat, self._concurrency, self._cleared)
        targets: list[Callable[[], None]] = [self._pull] * self._concurrency + [self._keep_alive]
        targets += [self._sweep_regularly] if self._sweeps else []
        for number, target in enumerate(targets):
            thread = threading.Thread(target=target, name=f"{self.queue.worker_id}-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self.queue.events.emit(
            "workers.started", queue=self.queue.name, worker=self.queue.worker_id, concurrency=self._concurrency
        )

    def stop(self, timeout: float | None = None) -> bool:
        """Stop claiming and wait for running handlers; True if all of them finished within `timeout`."""
        self._stopping.set()
        deadline = None if timeout is None else self.queue.clock.monotonic() + timeout
        for thread in self._threads:
            thread.join(None if deadline is None else max(0.0, deadline - self.queue.clock.monotonic()))
        finished = not any(thread.is_alive() for thread in self._threads)
        if finished and self._threads:
            self._threads = []
            if self._clearing:
                self._clearing.end()
            self._heartbeat.end()
            self.queue.events.emit(
                "workers.stopped", queue=self.queue.name, worker=self.queue.worker_id, **self.stats()
            )
        return finished

    def run(self) -> None:
        """Work until SIGTERM, SIGINT or `stop`, then stop gracefully. Call it from the main thread."""
        previous = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            self.start()
            while not self._stopping.is_set():
                self._stopping.wait(0.5)
        finally:
            self.stop()
            for number, handler in previous.items():
                signal.signal(number, handler)

    def run_until_empty(self) -> None:
        """Work until no message can run and none is running; for jobs and tests. Waiting and delayed messages stay."""
        self.start()
        try:
            while not self._stopping.is_set():
                self._stopping.wait(0.02)
                if self._is_idle():
                    return
        finally:
            self.stop()

    def stats(self) -> dict[str, int]:
        """Counts since the start: processed, succeeded, failed, retried, dead, released, lost; and how many run now."""
        counts = self._counts
        return {
            "processed": sum(counts[ending] for ending in ("completed", "retried", "dead")),
            "succeeded": counts["completed"],
            "failed": counts["retried"] + counts["dead"],
            "retried": counts["retried"],
            "dead": counts["dead"],
            "released": counts["released"],
            "lost": counts["lost"],
            "running": len(self._heartbeat),
        }

    def _on_signal(self, number: int, _frame: Any) -> None:
        _log.info("stopping after running handlers: %s: %s received", self.queue.name, signal.Signals(number).name)
        self._stopping.set()

    # Pulling

    def _pull(self) -> None:
        while not self._stopping.is_set():
            try:
                candidate = self._next()
                if candidate is None:
                    self._wake.sleep(min(self._interval, self._poll_interval))
                else:
                    self._work(candidate)
            except QueueError as error:
                _log.warning("claim or LIST failed, trying again: %s: %s", self.queue.name, error)
                self._wake.sleep(self._poll_interval)
            except Exception:
                # A thread that ends would reduce the worker's concurrency, and nobody would notice.
                _log.exception("unexpected error in a worker thread, continuing: %s", self.queue.name)
                self._wake.sleep(self._poll_interval)

    def _work(self, candidate: Candidate) -> None:
        handed_over = False
        try:
            claim = self.queue.claim(candidate.path, read_first=candidate.read_first, etag=candidate.etag)
            self._backlog.report(won=claim is not None)
            while claim is not None:
                if self._stopping.is_set():
                    self.queue.release(claim)  # claimed while the worker was told to stop: the handler never started
                    ending: AttemptEnding = "released"
                else:
                    ending = self._process(claim)
                with self._mutex:
                    self._counts[ending] += 1
                if claim.is_recorded and self._clearing and self._clearing.hand_over(claim):
                    handed_over = True
                    return
                claim = self._processor.claim_again(claim)
        finally:
            if not handed_over:
                self._put_down(candidate.path)

    def _process(self, claim: Claim) -> AttemptEnding:
        self._heartbeat.hold(claim)
        try:
            return self._processor.process(claim)
        finally:
            if not claim.is_recorded:
                self._heartbeat.drop(claim)

    def _cleared(self, claim: Claim) -> None:
        if claim.superseded and not self._stopping.is_set():
            self._inbox.append(claim.path)
        self._put_down(claim.path)

    def _next(self) -> Candidate | None:
        """The next message to claim: own retries that are due, then what the sweep found, then the backlog."""
        with self._mutex:
            candidate = self._choose()
            if candidate:
                self._busy += 1
                self._in_hand[candidate.path] += 1
            refills = candidate and not self._is_refilling and self._backlog.is_running_low(LOW * self._concurrency)
            if refills:
                self._is_refilling = True
                in_hand = list(self._in_hand)
        if refills:
            # In this thread only, while the others take what is left: a refill takes as long as several messages.
            try:
                with suppress(QueueError):
                    self._refill(in_hand)
            finally:
                self._is_refilling = False
        return candidate

    def _refill(self, in_hand: Iterable[str]) -> None:
        """Refill the backlog, unless the queue has been paused since."""
        self.queue.refresh()
        if not self.queue.settings.paused:
            self._backlog.refill(in_hand)

    def _put_down(self, path: str) -> None:
        with self._mutex:
            self._busy -= 1
            self._in_hand[path] -= 1
            if not self._in_hand[path]:
                del self._in_hand[path]

    def _choose(self) -> Candidate | None:
        now = self.queue.clock.monotonic()
        if retry := self._retries.take_due():
            return Candidate(retry.path, 0, self.queue.clock.now(), read_first=True)
        if self._inbox and self._backlog.is_stale():
            # Something more urgent than what the sweep found may have come.
            self._refill(self._in_hand)
        # What the sweep found is old: it comes before the backlog, but after what is more urgent.
        if path := self._inbox.take(above=self._backlog.next_priority()):
            return Candidate(path, priority_of(path), self.queue.clock.now(), read_first=True)
        if candidate := self._backlog.take():
            return candidate
        if not self._backlog.is_fruitless():
            self._interval = self._poll_interval
        elif now < self._next_refill:
            return None
        else:
            self._interval = min(self._interval * 1.5, self._poll_interval * SLOWEST)
        self._next_refill = now + self._interval
        self._refill(self._in_hand)
        return self._backlog.take()

    def _accept(self, paths: Sequence[str]) -> int:
        return self._inbox.accept(paths)

    def _is_idle(self) -> bool:
        with self._mutex:
            return not self._busy and not self._inbox and self._backlog.is_fruitless()

    # Keeping house

    def _keep_alive(self) -> None:
        """The heartbeat keeps the held messages, so this thread does nothing else, and it ends after the handlers."""
        pause = self.queue.settings.visibility_timeout.total_seconds() / 3
        while not self._stopping.is_set() or len(self._heartbeat):
            self._heartbeat.beat(self.stats())
            self._wake.sleep(pause)
            if self._stopping.is_set():
                # The event is set, so a sleep on it returns at once: wait for the handlers instead.
                self._wait_for_handlers(pause)

    def _wait_for_handlers(self, seconds: float) -> None:
        clock = SystemClock()
        until = clock.monotonic() + seconds
        while len(self._heartbeat) and clock.monotonic() < until:
            clock.sleep(0.05)

    def _sweep_regularly(self) -> None:
        turns = SweepTurns(self.queue)
        while not self._stopping.is_set():
            self._wake.sleep(self._sweep_in_turn(turns))
        with suppress(QueueError):
            turns.lock.release()

    def _sweep_in_turn(self, turns: SweepTurns) -> float:
        """Sweep if it is this worker's turn; returns how many seconds to wait."""
        report: Report | None = None
        try:
            if turns.is_ours():
                if turns.is_new():
                    self._sweeper = Sweeper(queue=self.queue, dispatch=self._accept, publishes_as=BY_WORKER)
                if self._backlog.saw_leases or len(self._heartbeat):
                    self._sweeper.expect_leases()
                report = self._sweeper.tick()
            if report and report.error:
                raise report.error
        except QueueError as error:
            _log.warning("sweep failed, trying again: %s: %s", self.queue.name, error)
        except Exception:
            # A thread that ends would hold the lock, and nobody would sweep.
            _log.exception("unexpected error in a sweep, continuing: %s", self.queue.name)
        return turns.pause(report.next_tick if report else None)
