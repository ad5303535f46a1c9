"""Driver: one run from its manifest to its end.  [P1] [P2] [P5]

Takes the manifest over, works on its messages, and claims the next ones while the last still run, until the queue is
empty or the time is up; closes the slot, and looks once more. In between it works on the partitions that have messages:
each has a lease of its own, which the run holds meanwhile, and which is no part of the manifest.  [P9]

It may die between any two requests: what it started fails, what it had not is given back (s3queue.spark_runs.watch),
what it recorded stays.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Protocol

from s3queue.errors import QueueError
from s3queue.paths import is_partition
from s3queue.protocol.backlog import Backlog
from s3queue.protocol.claim import Claim
from s3queue.protocol.liveness import BEATS, HeartbeatWriter, keep_beating
from s3queue.queue import Queue
from s3queue.spark_runs.claims import THREADS, Waiting, claim_heavy, heavy_backlog, in_parallel, release_all
from s3queue.spark_runs.partitions import RunPartitions

from .feed import Feed
from .run_manifest import RunLost, RunManifest

_log = logging.getLogger(__name__)
#: A retry that is due this soon is waited for: another run would take a minute to start.
LINGER = timedelta(seconds=30)
#: After this long no further partition is held before the next batch was claimed.
PARTITIONS_SECONDS = 300.0
#: Claiming takes this part of the visibility timeout at most: until the manifest names them, only their own
#: leases keep the messages.
CLAIMING_PART = 3


class Work(Protocol):
    """What is done with messages, and with partitions."""

    def run(self, feed: Feed, driver: Driver) -> None:
        """Bring what the feed has to its outcome, and tell the driver: `begin` before it is started, `ended` after."""
        ...

    def run_partitions(self, partitions: Iterable[str], driver: Driver) -> int:
        """Hold each of these that can be held, and bring its messages to their outcomes; returns how many could be.

        The driver is told of each: `trying` before, `counted` for every message, `progressed` after.
        """
        ...

    def keeps_body(self, path: str) -> bool:
        """Whether the driver itself reads this payload: then it keeps what the claim has brought, and reads it once."""
        ...


class Driver:
    """Drains one queue in the name of one run: `queue.worker_id` is the run's id."""

    def __init__(
        self,
        queue: Queue,
        work: Work,
        *,
        seconds: float,
        linger: timedelta = LINGER,
        threads: int = THREADS,
        should_stop: Callable[[], bool] = lambda: False,
        beats: bool = True,
    ) -> None:
        self.queue = queue
        self.queue.keeps_body = work.keeps_body
        self._work = work
        self._until = queue.clock.monotonic() + seconds
        self._linger = linger
        self._threads = threads
        self._should_stop = should_stop
        self._beats = beats
        self._manifest = RunManifest(queue)
        #: Keeps the messages of the manifest, and the partitions that are held.
        self.heartbeat = HeartbeatWriter(queue, run=queue.worker_id)
        self._waiting = Waiting(queue)
        self._partitions = RunPartitions(queue)
        #: What is started next, while messages run.
        self._feed: Feed | None = None
        #: Whether the last look at the queue showed partitions: of a queue that has none, nothing more is listed.
        self._saw_partitions = False
        self._mutex = threading.RLock()

    @property
    def counts(self) -> Counter[str]:
        """How many messages came to which outcome."""
        return self._manifest.counts

    def drain(self) -> dict[str, int]:
        """Work until nothing may run or the time is up; how many messages came to which outcome.

        Raises:
            NotOurs: another driver has, or had, this run.
            RunLost: it was given up by the others while it was at work.
        """
        self._manifest.take_over()
        try:
            with self._beating():
                self._drain()
        except RunLost:
            raise
        except BaseException as error:
            self._give_up(error)
            raise
        finally:
            self.heartbeat.end()
        return dict(self.counts)

    def _drain(self) -> None:
        claims = self._adopt() or self.claim_more(self.queue.settings.messages_per_run)
        fruitless = False
        while True:
            fruitless = self._until_empty(claims) == 0 and fruitless
            self._manifest.close()
            # Whoever saw the slot taken before this left their messages to us.
            if self.is_over() or fruitless or not self._is_anything_left() or not self._manifest.reopen():
                break
            fruitless = True
            claims = self.claim_more(self.queue.settings.messages_per_run)

    def is_over(self) -> bool:
        """Whether nothing more should be started."""
        return self._manifest.is_lost or self._should_stop() or self.queue.clock.monotonic() >= self._until

    def must_pause(self) -> bool:
        """Whether no message of a partition should be started now; an operator may pause the queue at any time."""
        with self._mutex, suppress(QueueError):
            self.queue.refresh()
        return self.is_over() or self.queue.settings.paused

    def beat(self) -> None:
        """Keep what this run holds; called every third of the visibility timeout, by a thread of its own. It waits for
        nothing else: one slow PUT of the manifest would cost the run all its leases.
        """
        # The first beat finds the launcher's, or the sweeper's, and the second replaces it.
        if not (self.heartbeat.beat(self.counts) or self.heartbeat.beat(self.counts)):
            _log.warning("heartbeat not written, trying again: %s: %s", self.queue.name, self.queue.worker_id)

    def tidy(self) -> None:
        """Name what has ended no longer; called as often as `beat`, and when the time is up, by a thread of its own. So
        it comes again: where an outcome could not be written, the manifest often cannot be either.

        If the run is over, what it has not started is given back: every other thread may have a slow message.
        """
        feed = self._feed
        if feed and self.is_over():
            for claim in feed.left():
                self.release(claim)
        # If the run is lost, whoever starts the next message learns it.
        with suppress(QueueError, RunLost):
            self._manifest.drop_ended()

    def begin(self, claims: Sequence[Claim]) -> None:
        """Say that these are started, before they are: after a crash, only what was started has had its attempt.

        Raises:
            RunLost: the run is not ours any more; start nothing.
        """
        self._manifest.begin(claims)

    def ended(self, claim: Claim, outcome: str, *, has_run: bool = True) -> None:
        """A message came to its end, as far as this run is concerned: it is not held any more.  [P4]

        One that is lost has a lease yet: the manifest does not name it either before long (`tidy`).
        """
        claim.end()
        self.heartbeat.drop(claim)
        self._manifest.ended(claim, outcome, has_run=has_run)
        _log.info("%s/%s: %s (attempt %d)", self.queue.name, claim.path, outcome, claim.attempt)

    def release(self, claim: Claim) -> None:
        """Give a message back that was not started."""
        release_all(self.queue, [claim])
        self.ended(claim, "released")

    def vanished(self, claim: Claim) -> None:
        """What was claimed was deleted or PUT anew since, or its lease is over; it was not started.

        The sweeper sees to it, and charges nothing, also if it was begun: the manifest says so before long.  [P5]
        """
        self.ended(claim, "lost", has_run=False)

    def trying(self, partition: str) -> None:
        """A partition is about to be held."""
        self._partitions.tried(partition)

    def counted(self, outcome: str) -> None:
        """A message of a partition came to its end, and that is committed, or lost."""
        self._manifest.count(outcome)

    def progressed(self) -> None:
        """Say how far the run is, after a partition.

        Raises:
            RunLost: the run is not ours any more; hold nothing more.
        """
        self._manifest.progressed()

    # Beginning and end

    @contextmanager
    def _beating(self) -> Iterator[None]:
        """A heartbeat every third of the visibility timeout, or sooner if a lease needs it, in a thread of its own; the
        manifest is kept tidy by another.
        """
        done = threading.Event()
        self.beat()
        beating = (self.heartbeat, self.beat, done.is_set)
        threads = [
            threading.Thread(target=keep_beating, args=beating, name="heartbeat", daemon=True),
            threading.Thread(target=self._keep_tidy, args=(done,), name="manifest", daemon=True),
        ]
        for thread in threads if self._beats else ():
            thread.start()
        try:
            yield
        finally:
            done.set()
            self.heartbeat.changed.set()
            for thread in threads if self._beats else ():
                thread.join()

    def _keep_tidy(self, done: threading.Event) -> None:
        while not done.wait(self._seconds_to_tidy()):
            try:
                self.tidy()
            except Exception:
                # A thread that ends would let the heartbeat keep what nobody works on.
                _log.exception("unexpected error in the thread of the manifest, continuing")

    def _seconds_to_tidy(self) -> float:
        seconds = self.heartbeat.ttl.total_seconds() / BEATS
        left = self._until - self.queue.clock.monotonic()
        return min(seconds, left) if left > 0.0 else seconds

    def _adopt(self) -> list[Claim]:
        adopted: dict[str, Claim] = {}

        def adopt(path: str) -> None:
            try:
                claim = self.queue.adopt(path)
            except QueueError as error:
                _log.warning("claim failed, left to the sweeper: %s/%s: %s", self.queue.name, path, error)
                return
            if claim:
                adopted[path] = claim
                self.heartbeat.hold(claim)

        paths = self._manifest.paths
        in_parallel(adopt, paths, self._threads)
        claims = [adopted[path] for path in paths if path in adopted]
        self._manifest.adopted(claims)
        return claims

    def _give_up(self, error: BaseException) -> None:
        """An error that no message explains: leave everything so that the next run can go on at once."""
        _log.error("run gives up: %s: %s: %r", self.queue.name, self.queue.worker_id, error)
        with suppress(QueueError, RunLost):
            self._manifest.fail(error)
            # A partition is left to run out: what was taken in it is charged, or tried alone, by its next holder.
            unfinished = [claim for claim in self.heartbeat.held() if not is_partition(claim.path)]
            paths = self._manifest.unstarted
            release_all(self.queue, [claim for claim in unfinished if claim.path in paths], threads=self._threads)
            for claim in unfinished:
                if claim.path not in paths:
                    with suppress(QueueError):
                        self.queue.fail(claim, error)
            self._manifest.free_slot()

    # Messages

    def _until_empty(self, claims: list[Claim]) -> int:
        """Message after message, then the partitions, in turns; how many of both were worked on."""
        worked = 0
        while True:
            is_drained = False
            if claims:
                count, is_drained = self._run(claims)
                worked += count
            was_seen, held = self._saw_partitions, self._hold_partitions()
            worked += held
            if self.is_over():
                return worked
            claims = [] if is_drained and not held else self.claim_more(self.queue.settings.messages_per_run)
            goes_on = bool(claims or held) or (self._saw_partitions and not was_seen)
            if not goes_on and not self._wait_for_retries():
                return worked

    def _run(self, claims: list[Claim]) -> tuple[int, bool]:
        """These messages, and what comes while they run; how many were taken, and whether nothing more is there."""
        self._feed = feed = Feed(self, claims, limit=self.queue.settings.messages_per_run, clock=self.queue.clock)
        try:
            self._work.run(feed, self)
        except BaseException:
            # What is still being claimed must be named before the run gives it up.
            feed.join()
            raise
        for claim in feed.finish():
            self.release(claim)
        return feed.taken, feed.is_drained

    def has_others_waiting(self) -> bool:
        """Whether partitions have their turn once what was claimed has run."""
        return self._saw_partitions

    def _hold_partitions(self) -> int:
        """Work on the partitions that have something to do; how many were held."""
        if not self._saw_partitions or self.is_over() or self.queue.settings.paused:
            return 0
        found = self._partitions.find()
        return self._work.run_partitions(self._for_a_while(found), self) if found else 0

    def _for_a_while(self, partitions: Sequence[str]) -> Iterator[str]:
        """These, until other messages should have their turn: they may be more urgent."""
        until = self.queue.clock.monotonic() + PARTITIONS_SECONDS
        for partition in partitions:
            if self.queue.clock.monotonic() >= until:
                return
            yield partition

    def claim_more(self, limit: int) -> list[Claim]:
        """Claim, then name them in the manifest, then let the heartbeat keep them: in this order.  [P2]

        Only one thread at a time may call this; others may run messages meanwhile.
        """
        with self._mutex:
            self.queue.refresh()
        settings = self.queue.settings
        if settings.paused:
            return []
        seconds = settings.visibility_timeout.total_seconds() / CLAIMING_PART
        backlog = heavy_backlog(self.queue)
        claims = claim_heavy(
            self.queue, self._waiting.due(), limit, seconds=seconds, threads=self._threads, backlog=backlog
        )
        self._saw_partitions = self._is_partitioned(backlog)
        if claims:
            try:
                self._manifest.name(claims)
            except BaseException:
                release_all(self.queue, claims, threads=self._threads)
                raise
            for claim in claims:
                self.heartbeat.hold(claim)
        return claims

    def _is_partitioned(self, backlog: Backlog) -> bool:
        """Whether a run of this queue has partitions to look at: in a mixed queue, functions hold them."""
        is_seen = backlog.saw_partitions or self._waiting.saw_partitions
        return is_seen and self.queue.settings.engine == "spark"

    def _wait_for_retries(self) -> bool:
        """Wait for the next retry, if it is due soon; whether there is a reason to look again."""
        waiting = [(self._waiting.next_at, self._waiting.at)]
        if self._saw_partitions:
            waiting.append((self._partitions.next_at, self._partitions.at))
        waits = [next_at - at for next_at, at in waiting if next_at and at]
        if not waits or self.queue.settings.paused:
            return False
        wait = min(waits)
        if wait > self._linger or self.queue.clock.monotonic() + wait.total_seconds() >= self._until:
            return False
        # One second more: S3's clock, which decides, ticks in whole seconds.
        self.queue.clock.sleep(wait.total_seconds() + 1)
        return not self.is_over()

    def _is_anything_left(self) -> bool:
        if self.queue.settings.paused:
            return False
        backlog = heavy_backlog(self.queue)
        if backlog.refill() or self._waiting.due():
            return True
        return self._is_partitioned(backlog) and self._partitions.has_any()
