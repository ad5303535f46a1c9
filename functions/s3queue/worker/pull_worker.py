"""Worker: pulls messages in a container or on a laptop, with threads, a heartbeat, a graceful stop and statistics."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial

from s3queue.clock import SystemClock, as_positive_duration
from s3queue.errors import InvalidRequest, QueueError
from s3queue.paths import partition_of, partition_path, priority_of
from s3queue.protocol.backlog import Backlog, Candidate
from s3queue.protocol.claim import Claim
from s3queue.protocol.liveness import HeartbeatWriter
from s3queue.queue import Queue

from .background import Background
from .crew import Crew, join_all, start_lasting
from .definition import Definition, Handler, definition_for
from .hook_calls import HookCalls, waiting_threads
from .identity import own_queue
from .inbox import Inbox
from .own_retries import OwnRetries
from .partition_runs import PartitionRuns
from .processor import AttemptEnding, Step
from .signals import stopping_on_signal
from .statistics import Statistics
from .supervisor import Supervisor
from .sweep_turn import SweepTurn
from .sweep_turns import SweepTurns
from .unserved import AGAIN, Unserved

_log = logging.getLogger(__name__)
#: An idle worker polls more and more slowly, until it waits this many times its interval.
SLOWEST = 5
#: When this many candidates per thread are left, one thread refills the backlog.
LOW = 8
#: Paths that the sweep may put into the inbox, per thread; the rest stays where it is, and is found again.
INBOX = 100
#: Threads of one worker, at most: the system refuses some when there are too many, and a worker lacks none of its own.
MOST_THREADS = 1000


def check_pace(concurrency: int | None, poll_interval: float | timedelta) -> float:
    """How many seconds the interval has.

    Raises:
        InvalidRequest: no worker can have these; the text says which of them.
    """
    if concurrency is not None:
        if isinstance(concurrency, bool) or not isinstance(concurrency, int):
            raise InvalidRequest(f"concurrency must be a whole number or None, not {concurrency!r}")
        if concurrency < 1:
            raise InvalidRequest(f"concurrency must be at least 1, not {concurrency}")
        if concurrency > MOST_THREADS:
            raise InvalidRequest(
                f"concurrency must be at most {MOST_THREADS} in one worker, not {concurrency}; start more processes"
            )
    return as_positive_duration(poll_interval, "poll_interval").total_seconds()


class Worker:
    """Runs a handler on a queue's messages until it is told to stop.

    `concurrency` threads claim and process messages; one writes the heartbeat, which keeps every held message; one
    sweeps the queue if no sweeper function does; one watches over them. `stop` lets running handlers finish, and gives
    other messages back. A handler that does not return within `handler_timeout`, counted anew at each
    `Context.extend` or `progress`, is given up: its attempt has failed, and another thread takes its thread's place.
    A hook is waited for no longer than that either; the outcome that it was told of stands.
    """

    def __init__(
        self,
        queue: Queue,
        handler: Definition | Handler,
        *,
        concurrency: int | None = None,
        poll_interval: float | timedelta = 1.0,
        sweep: bool = True,
    ) -> None:
        """Without `concurrency`, there are as many threads as the settings say, also if `queue.json` changes that.
        A definition brings its settings along, unless the queue was made with settings of its own: those win.

        Raises:
            InvalidRequest: the definition is another queue's, or a number makes no sense.
        """
        poll_interval = check_pace(concurrency, poll_interval)
        #: Its own: of the second worker of a `Queue` the same one, in another worker's name.
        self.queue = queue = own_queue(queue)
        definition = definition_for(queue, handler)
        definition.events.pass_on(queue.events)
        self._hook_calls = HookCalls(queue)
        queue.events.call_through(self._hook_calls)
        self._stopping = threading.Event()
        self._wake = SystemClock(self._stopping)
        self._own_concurrency = concurrency
        self._poll_interval = poll_interval
        self._heartbeat = HeartbeatWriter(queue)
        #: The pauses of the heartbeat's thread and of the one that watches over the others.
        self._until_beat = SystemClock(self._heartbeat.changed)
        self._until_look = SystemClock(self._stopping)
        known = definition.schedules if definition is handler else None
        #: What it has counted and measured since it was made; see `s3queue.worker.metrics`.
        self.statistics = Statistics()
        self._turn = SweepTurn(queue, self._accept, known, self.statistics.note_counted)
        self._sweeps = sweep
        self._crew = Crew(queue.worker_id, self._pull)
        self._supervisor = Supervisor(
            queue,
            definition,
            self._heartbeat,
            self._crew,
            is_stopping=self._stopping.is_set,
            ended=self._given_up,
            observe=self.statistics.handler_times.observe,
        )
        self._processor = self._supervisor.processor
        self._threads: list[threading.Thread] = []
        self._mutex = threading.Lock()
        self._backlog = Backlog(queue, competes=self._concurrency > 1, partitions=True)
        self._inbox = Inbox(INBOX * self._concurrency)
        self._unserved = Unserved(queue)
        self._retries = OwnRetries(queue)
        self._next_refill = float("-inf")
        self._interval = poll_interval
        self._partitions = PartitionRuns(
            self._processor, self._heartbeat, count=self.statistics.count, is_wanted=self._crew.is_member
        )
        self._busy = 0
        #: Paths that threads process or delete, of messages and of whole partitions → how many threads.
        self._in_hand: Counter[str] = Counter()
        self._is_refilling = False
        self._ends_empty = False
        #: Made anew by `start`: it ends for good.
        self._background = Background(queue, self._heartbeat, self._concurrency, self._ended)

    @property
    def _concurrency(self) -> int:
        # A queue's concurrency may be its function's, too, which can be larger.
        return self._own_concurrency or min(self.queue.settings.concurrency, MOST_THREADS)

    @property
    def is_running(self) -> bool:
        """Whether it was started, and a handler or one of its threads has not ended yet."""
        return any(thread.is_alive() for thread in (*self._crew.threads(), *self._threads))

    def start(self) -> None:
        """Read `queue.json`, start the threads and return."""
        if self._threads:
            raise RuntimeError(f"the worker of {self.queue.name} is already running; stop it first")
        self._stopping.clear()
        self._supervisor.refresh()
        # A new backlog: what an earlier run of this worker found must not delay this one, or end it as idle.
        self._backlog = Backlog(self.queue, competes=self._concurrency > 1, partitions=True)
        self._next_refill = float("-inf")
        self._background = Background(self.queue, self._heartbeat, self._concurrency, self._ended)
        self._crew.resize(self._concurrency)
        targets: dict[str, Callable[[], None]] = {
            "heartbeat": partial(self._supervisor.keep_alive, self.stats, self._until_beat.sleep),
            "supervising": partial(self._supervisor.supervise, self._follow_settings, self._until_look.sleep),
        }
        targets |= {"sweeping": self._sweep_regularly} if self._sweeps else {}
        for role, target in targets.items():
            name = f"{self.queue.worker_id}-{role}"
            self._threads.append(start_lasting(name, target, self._stopping.is_set, self._pause))
        self.queue.events.emit(
            "workers.started", queue=self.queue.name, worker=self.queue.worker_id, concurrency=self._concurrency
        )

    def stop(self, timeout: float | None = None) -> bool:
        """Stop claiming and wait for running handlers; True if all of them ended within `timeout`.

        A handler that hangs is given up after `handler_timeout`, and is not waited for any longer. A handler or a hook
        that calls it does not wait, since it would wait for itself: False.
        """
        self._stopping.set()
        self._heartbeat.changed.set()
        self._partitions.wake()
        if self._is_own_thread() or not join_all(lambda: (*self._crew.threads(), *self._threads), timeout, self._wake):
            return False
        if self._threads:
            self._threads = []
            self._background.end()
            self._partitions.end()
            self._unserved.leave(self._inbox.take)
            self._heartbeat.end()
            self.queue.events.emit(
                "workers.stopped", queue=self.queue.name, worker=self.queue.worker_id, **self.stats()
            )
            self._hook_calls.end()
        return True

    def _is_own_thread(self) -> bool:
        # Also that of a hook which another worker's thread calls: workers of one `Queue` share its events.
        own = (*self._crew.threads(), *self._threads)
        return any(thread in own or self._background.has(thread) for thread in waiting_threads())

    def run(self) -> None:
        """Work until SIGTERM, SIGINT or `stop`, then stop gracefully. Call it from the main thread."""
        with stopping_on_signal(self._stopping, self.queue.name):
            try:
                self.start()
                while not self._stopping.is_set():
                    self._stopping.wait(0.5)
            finally:
                self.stop()

    def run_until_empty(self) -> None:
        """Work until no message can run and none is running; for jobs and tests. Waiting and delayed messages stay, and
        all of a queue that is paused or whose breaker is forced open. A rate, or a breaker's pause, is waited for.
        """
        self._ends_empty = True
        self.start()
        try:
            while not self._stopping.is_set():
                self._stopping.wait(0.02)
                if self._is_idle():
                    return
        finally:
            self.stop()
            self._ends_empty = False

    def stats(self) -> dict[str, int]:
        """Counts since the start: processed, succeeded, failed, retried, dead, released, lost; and how many run now."""
        return self.statistics.to_dict(running=len(self._heartbeat))

    # Pulling

    def _pull(self) -> None:
        while not self._stopping.is_set() and self._crew.goes_on():
            try:
                candidate = self._next()
                if candidate is None:
                    pause = min(self._interval, self._poll_interval)
                    # A partition that this worker holds may have something for this thread sooner.
                    if not self._partitions.wait(pause):
                        self._wake.sleep(pause)
                else:
                    self._work(candidate)
            except QueueError as error:
                _log.warning("claim or LIST failed, trying again: %s: %s", self.queue.name, error)
                self._pause()
            except Exception:
                # A thread that ends would reduce the worker's concurrency, and nobody would notice.
                _log.exception("unexpected error in a worker thread, continuing: %s", self.queue.name)
                self._pause()

    def _pause(self) -> None:
        self._wake.sleep(self._poll_interval)

    def _work(self, candidate: Candidate) -> None:
        if partition_of(candidate.path):
            self._work_on_partition(candidate)
            return
        handed_over = is_tried = False
        try:
            held_back = self.queue.held_back
            claim = self.queue.claim(candidate.path, read_first=candidate.read_first, etag=candidate.etag)
            self._backlog.report(won=claim is not None, is_hint=candidate.is_hint)
            if is_tried := claim is not None or self.queue.held_back == held_back:
                self.queue.leases.forget(candidate.reminder)
            while claim is not None:
                if self._stopping.is_set():
                    self.queue.release(claim)  # claimed while the worker was told to stop: the handler never started
                    self.statistics.count("released")
                    return
                if handed_over := not self._run(claim):
                    return
                if claim.superseded and self.queue.settings.paused:
                    self._inbox.append(claim.path)
                    return
                claim = self._processor.claim_again(claim)
        finally:
            if candidate.is_handed_over and not is_tried:
                self._unserved.not_tried(candidate.path)
            if not handed_over:
                self._put_down(candidate.path)

    def _work_on_partition(self, candidate: Candidate) -> None:
        try:
            was_held = self._partitions.work(candidate.path)
            if not candidate.is_held:
                self._backlog.report(won=was_held, is_hint=candidate.is_hint)
            self.queue.leases.forget(candidate.reminder)
        finally:
            if self._crew.is_member():  # else it hung, and the thread in its place does the rest
                self._put_down(candidate.path)

    def _run(self, claim: Claim) -> bool:
        """Run the handler; whether this thread has written the outcome, too, and goes on with the message's name."""
        self._heartbeat.hold(claim)
        try:
            step = self._processor.call(claim)
        except BaseException:
            self._heartbeat.drop(claim)
            raise
        # If it hung, the thread in its place does the rest.
        return self._crew.is_member() and not self._background.hand_over(claim, partial(self._conclude, claim, step))

    def _conclude(self, claim: Claim, step: Step) -> None:
        self.statistics.count(self._processor.conclude(claim, step))

    def _ended(self, claim: Claim) -> None:
        if claim.superseded and not self._stopping.is_set():
            self._inbox.append(claim.path)
        self._put_down(claim.path)

    def _next(self) -> Candidate | None:
        """The next message to claim: own retries that are due, then what the sweep found, then the backlog."""
        with self._mutex:
            candidate = self._choose()
            if candidate:
                self._busy += 1
                self._in_hand[_whole(candidate.path)] += 1
            refills = candidate and not self._is_refilling and self._backlog.is_running_low(LOW * self._concurrency)
            if refills:
                self._is_refilling = True
                in_hand = list(self._in_hand)
        if refills:
            # In this thread only, while the others take what is left: a refill takes as long as several messages.
            try:
                with suppress(QueueError):
                    self._refill(in_hand)
            except Exception:
                # The candidate is in hand, and must not be lost with it.
                _log.exception("unexpected error in a refill, continuing: %s", self.queue.name)
            finally:
                self._is_refilling = False
        return candidate

    def _refill(self, in_hand: Iterable[str]) -> None:
        """Refill the backlog, unless the queue has been paused since."""
        self.queue.refresh()
        if not self.queue.settings.paused:
            self._backlog.refill(in_hand)

    def _put_down(self, path: str) -> None:
        path = _whole(path)
        with self._mutex:
            self._busy -= 1
            self._in_hand[path] -= 1
            if not self._in_hand[path]:
                del self._in_hand[path]
        if self._stopping.is_set():
            self._heartbeat.changed.set()  # its thread waits for the last message

    def _choose(self) -> Candidate | None:
        now = self.queue.clock.monotonic()
        if self.queue.settings.paused or self.queue.held_for():
            # Retries, inbox and window are kept for later. Whether there is anything has to be known at the end.
            if self._ends_empty and not len(self._backlog) and now >= self._next_refill:
                self._next_refill = now + self._poll_interval
                self._refill(self._in_hand)
            return None
        if retry := self._retries.take_due():
            reminder = self.queue.keys.reminder(retry.retry_at, retry.path)
            return Candidate(retry.path, 0, self.queue.clock.now(), read_first=True, reminder=reminder)
        if self._inbox and self._backlog.is_stale():
            # Something more urgent than what the sweep found may have come.
            self._refill(self._in_hand)
        # What the sweep found is old: it comes before the backlog, but after what is more urgent.
        if path := self._inbox.take(above=self._backlog.next_priority()):
            return Candidate(path, priority_of(path), self.queue.clock.now(), read_first=True, is_handed_over=True)
        if candidate := self._backlog.take():
            return candidate
        if path := self._partitions.helpable():
            return Candidate(path, 0, self.queue.clock.now(), is_overdue=True, is_held=True)
        if not self._backlog.is_fruitless():
            self._interval = self._poll_interval
        elif now < self._next_refill:
            return None
        else:
            self._interval = min(self._interval * 1.5, self._poll_interval * SLOWEST)
        self._next_refill = now + self._interval
        self._refill(self._in_hand)
        if self._backlog.due_in is not None:
            # A delayed message is there: however slowly an idle worker polls, it polls when that is due.
            self._next_refill = min(self._next_refill, self.queue.clock.monotonic() + self._backlog.due_in)
        return self._backlog.take()

    def _accept(self, paths: Sequence[str]) -> int:
        return self._inbox.accept(paths)

    def _is_idle(self) -> bool:
        with self._mutex:
            is_empty = not self._inbox and self._backlog.is_exhausted()
            return not self._busy and (is_empty or self.queue.settings.paused or self.queue.is_stopped())

    # Keeping house

    def _follow_settings(self) -> None:
        self._crew.resize(self._concurrency)
        self._background.resize(self._concurrency)

    def _given_up(self, claim: Claim, endings: Sequence[AttemptEnding]) -> None:
        for ending in endings:
            self.statistics.count(ending)
        if claim.within and endings[0] != "lost":
            self._work_on_partition(Candidate(claim.within.path, 0, self.queue.clock.now(), is_overdue=True))
            return
        if claim.within:
            self._partitions.lose(claim)
        self._put_down((claim.within or claim).path)

    def _sweep_regularly(self) -> None:
        turns = SweepTurns(self.queue)
        while not self._stopping.is_set():
            self._wake.sleep(self._sweep_in_turn(turns))
        with suppress(QueueError):
            turns.lock.release()

    def _sweep_in_turn(self, turns: SweepTurns) -> float:
        """Sweep if it is this worker's turn; returns how many seconds to wait."""
        self._unserved.remind(after=AGAIN)
        expects_leases = self._backlog.saw_leases or len(self._heartbeat) > 0
        return self._turn.sweep(turns, expects_leases=expects_leases, is_idle=self._backlog.is_fruitless())


def _whole(path: str) -> str:
    """What a thread has in hand: whichever message of a partition has led to it, the partition."""
    partition = partition_of(path)
    return partition_path(partition) if partition else path
