"""Driver: one run from its manifest to its end.  [P1] [P2] [P5]

Takes the manifest over, works on its messages, claims the next batch, until the queue is empty or the time is up;
closes the slot, and looks once more. Between two batches it works on the partitions that have messages: each has a
lease of its own, which the run holds meanwhile, and which is no part of the manifest.  [P9]

It may die between any two requests: what it started fails, what it had not is given back (s3queue.spark_runs.watch),
what it recorded stays.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Protocol

from s3queue.documents.run_documents import Manifest
from s3queue.errors import Conflict, QueueError
from s3queue.paths import is_partition
from s3queue.protocol.backlog import Backlog
from s3queue.protocol.claim import Claim
from s3queue.protocol.liveness import HeartbeatWriter, keep_beating
from s3queue.queue import Queue
from s3queue.spark_runs.claims import THREADS, Waiting, claim_heavy, heavy_backlog, in_parallel, release_all
from s3queue.spark_runs.partitions import RunPartitions
from s3queue.spark_runs.slots import RunStore

_log = logging.getLogger(__name__)
#: A retry that is due this soon is waited for: another run would take a minute to start.
LINGER = timedelta(seconds=30)
#: After this long no further partition is held before the next batch was claimed.
PARTITIONS_SECONDS = 300.0
#: Claiming a batch takes this part of the visibility timeout at most: until the manifest names them, only their own
#: leases keep the messages.
CLAIMING_PART = 3


class NotOurs(Exception):
    """The run has another driver, or none any more: nothing was touched."""


class RunLost(Exception):
    """Someone judged this run dead: stop at once, and write nothing more about it."""


class Work(Protocol):
    """What is done with a batch, and with partitions."""

    def run(self, claims: Sequence[Claim], driver: Driver) -> None:
        """Bring every claim to its outcome, and tell the driver: `begin` before it is started, `ended` after."""
        ...

    def run_partitions(self, partitions: Iterable[str], driver: Driver) -> int:
        """Hold each of these that can be held, and bring its messages to their outcomes; returns how many could be.

        The driver is told of each: `trying` before, `counted` for every message, `progressed` after.
        """
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
        self._work = work
        self._run = queue.worker_id
        self._until = queue.clock.monotonic() + seconds
        self._linger = linger
        self._threads = threads
        self._should_stop = should_stop
        self._beats = beats
        self._book = RunStore(queue)
        #: Keeps the messages of the manifest, and the partitions that are held.
        self.heartbeat = HeartbeatWriter(queue, run=self._run)
        self._waiting = Waiting(queue)
        self._partitions = RunPartitions(queue)
        #: Whether the last look at the queue showed partitions: of a queue that has none, nothing more is listed.
        self._saw_partitions = False
        self._mutex = threading.RLock()
        self._manifest: Manifest | None = None
        self._etag = ""
        self._job = ""
        self._lost = False
        self.counts: Counter[str] = Counter()

    def drain(self) -> dict[str, int]:
        """Work until nothing may run or the time is up; how many messages came to which outcome.

        Raises:
            NotOurs: another driver has, or had, this run.
            RunLost: it was given up by the others while it was at work.
        """
        self._take_over()
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
        claims = self._adopt() or self._next_batch()
        fruitless = False
        while True:
            fruitless = self._until_empty(claims) == 0 and fruitless
            self._close()
            # Whoever saw the slot taken before this left their messages to us.
            if self.is_over() or fruitless or not self._is_anything_left() or not self._reopen():
                break
            fruitless = True
            claims = self._next_batch()

    def is_over(self) -> bool:
        """Whether nothing more should be started."""
        return self._lost or self._should_stop() or self.queue.clock.monotonic() >= self._until

    def must_pause(self) -> bool:
        """Whether no message of a partition should be started now; an operator may pause the queue at any time."""
        with self._mutex, suppress(QueueError):
            self.queue.refresh()
        return self.is_over() or self.queue.settings.paused

    def beat(self) -> None:
        """Keep what this run holds; called every third of the visibility timeout, by a thread of its own."""
        # The first beat finds the launcher's, or the sweeper's, and the second replaces it.
        if not (self.heartbeat.beat(self.counts) or self.heartbeat.beat(self.counts)):
            _log.warning("heartbeat not written, trying again: %s: %s", self.queue.name, self._run)

    def begin(self, claims: Sequence[Claim]) -> None:
        """Say that these are started, before they are: after a crash, only what was started has had its attempt.

        Raises:
            RunLost: the run is not ours any more; start nothing.
        """
        with self._mutex:
            manifest = self._known()
            started = max(manifest.paths.index(claim.path) for claim in claims) + 1
            if started > manifest.started:
                self._write(replace(manifest, started=started, counts=dict(self.counts)))

    def ended(self, claim: Claim, outcome: str) -> None:
        """A message came to its end, as far as this run is concerned."""
        self.heartbeat.drop(claim)
        with self._mutex:
            self.counts[outcome] += 1
        _log.info("%s/%s: %s (attempt %d)", self.queue.name, claim.path, outcome, claim.attempt)

    def release(self, claim: Claim) -> None:
        """Give a message back that was not started."""
        release_all(self.queue, [claim])
        self.ended(claim, "released")

    def vanished(self, claim: Claim) -> None:
        """What was claimed was deleted or PUT anew since: the sweeper sees to it."""
        self.ended(claim, "lost")

    def trying(self, partition: str) -> None:
        """A partition is about to be held."""
        self._partitions.tried(partition)

    def counted(self, outcome: str) -> None:
        """A message of a partition came to its end, and that is committed, or lost."""
        with self._mutex:
            self.counts[outcome] += 1

    def progressed(self) -> None:
        """Say how far the run is, after a partition.

        Raises:
            RunLost: the run is not ours any more; hold nothing more.
        """
        with self._mutex:
            self._write(replace(self._known(), counts=dict(self.counts)))

    # Beginning and end

    @contextmanager
    def _beating(self) -> Iterator[None]:
        """A heartbeat every third of the visibility timeout, or sooner if a lease needs it, in a thread of its own."""
        done = threading.Event()
        self.beat()
        thread = threading.Thread(
            target=keep_beating, args=(self.heartbeat, self.beat, done.is_set), name="heartbeat", daemon=True
        )
        if self._beats:
            thread.start()
        try:
            yield
        finally:
            done.set()
            self.heartbeat.changed.set()
            if self._beats:
                thread.join()

    def _take_over(self) -> None:
        found = self._book.manifest(self._run)
        if found is None:
            raise NotOurs(f"{self._run} has no manifest: it was given up before its driver started")
        manifest, etag = found
        if manifest.state != "launching":
            raise NotOurs(f"{self._run} is {manifest.state}: another driver has had it")
        held = self._book.slot(manifest.slot)
        if held is None or held.slot.run != self._run:
            raise NotOurs(f"{self._run} lost its slot before its driver started")
        self._job = held.slot.job
        try:
            self._manifest, self._etag = self._book.write_manifest(replace(manifest, state="running"), etag)
        except Conflict:
            raise NotOurs(f"{self._run} was taken over by another driver this very moment") from None
        _log.info("run takes messages over: %s: %s: %d", self.queue.name, self._run, len(manifest.paths))

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

        paths = self._known().paths
        in_parallel(adopt, paths, self._threads)
        return [adopted[path] for path in paths if path in adopted]

    def _close(self) -> None:
        manifest = self._known()
        held = self._book.slot(manifest.slot)
        # The launcher may have learnt the job's id after this driver had started.
        self._job = held.slot.job if held and held.slot.run == self._run else self._job
        self._write(replace(manifest, state="closed", paths=(), started=0, counts=dict(self.counts)))
        self._book.free_slot(manifest.slot, self._run)
        _log.info(
            "run closes: %s: %s after %d rounds: %s", self.queue.name, self._run, manifest.rounds, dict(self.counts)
        )

    def _reopen(self) -> bool:
        """Take the slot again for what came late; False if someone else has: they do it."""
        manifest = self._known()
        try:
            held = self._book.open_slot(manifest.slot, self._run)
            self._book.write_slot(held, state="started", job=self._job)
        except Conflict:
            return False
        self._write(replace(manifest, state="running"))
        return True

    def _give_up(self, error: BaseException) -> None:
        """An error that no message explains: leave everything so that the next run can go on at once."""
        _log.error("run gives up: %s: %s: %r", self.queue.name, self._run, error)
        with suppress(QueueError, RunLost):
            manifest = self._known()
            self._write(replace(manifest, state="failed", note=repr(error)[:500], counts=dict(self.counts)))
            # A partition is left to run out: what was taken in it is charged, or tried alone, by its next holder.
            unfinished = [claim for claim in self.heartbeat.held() if not is_partition(claim.path)]
            paths = manifest.paths[manifest.started :]
            release_all(self.queue, [claim for claim in unfinished if claim.path in paths], threads=self._threads)
            for claim in unfinished:
                if claim.path not in paths:
                    with suppress(QueueError):
                        self.queue.fail(claim, error)
            self._book.free_slot(manifest.slot, self._run)

    # Batches

    def _until_empty(self, claims: list[Claim]) -> int:
        """Batch after batch, and the partitions after each; how many messages and partitions were worked on."""
        worked = 0
        while True:
            if claims:
                self._work.run(claims, self)
                worked += len(claims)
                manifest = self._known()
                self._write(replace(manifest, rounds=manifest.rounds + 1, counts=dict(self.counts)))
            was_seen, held = self._saw_partitions, self._hold_partitions()
            worked += held
            if self.is_over():
                return worked
            claims = self._next_batch()
            goes_on = bool(claims or held) or (self._saw_partitions and not was_seen)
            if not goes_on and not self._wait_for_retries():
                return worked

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

    def _next_batch(self) -> list[Claim]:
        """Claim, then name them in the manifest, then let the heartbeat keep them: in this order.  [P2]"""
        settings = self.queue.settings
        self.queue.refresh()
        if self.queue.settings.paused:
            return []
        seconds = settings.visibility_timeout.total_seconds() / CLAIMING_PART
        backlog = heavy_backlog(self.queue)
        claims = claim_heavy(
            self.queue,
            self._waiting.due(),
            settings.messages_per_run,
            seconds=seconds,
            threads=self._threads,
            backlog=backlog,
        )
        self._saw_partitions = self._is_partitioned(backlog)
        if claims:
            try:
                self._write(replace(self._known(), paths=tuple(claim.path for claim in claims), started=0))
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

    def _known(self) -> Manifest:
        assert self._manifest is not None
        return self._manifest

    def _write(self, manifest: Manifest) -> None:
        with self._mutex:
            try:
                self._manifest, self._etag = self._book.write_manifest(manifest, self._etag)
            except Conflict as conflict:
                self._lost = True
                raise RunLost(f"{self._run}: {conflict}") from conflict
