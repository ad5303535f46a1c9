"""Launcher: starts one Spark run for heavy messages, however many notifications come at once.

Slot, claims, manifest, the slot again, heartbeat, then one StartJobRun, in this order: after a crash the sweeper can
continue from any of these steps (watch.py), a launch that was so slow that its slot was given away starts nothing, and
one whose answer was lost is found again and not started twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from s3queue.documents.record import Failure
from s3queue.documents.run_documents import Manifest
from s3queue.errors import Conflict, CorruptState, QueueError, Unavailable
from s3queue.paths import partition_of
from s3queue.protocol.claim import Claim
from s3queue.protocol.liveness import HeartbeatWriter
from s3queue.queue import Queue

from .claims import THREADS, claim_heavy, heavy_backlog, release_all
from .service import JobRequest, JobService, NotStarted, asked_of
from .slots import START_WITHIN, HeldSlot, RunStore, as_run
from .watch import LAUNCH_GRACE, RunWatch, close_refused, cool, remove

_log = logging.getLogger(__name__)
#: `busy`: an active run drains the queue. `unknown`: a run was asked for, and the sweeper finds out whether it started.
Launched = Literal["started", "busy", "nothing", "unknown"]
#: Claiming for a run takes at most 1/3 of the visibility timeout, so that the leases do not run out meanwhile; and of
#: the time after which a launch counts as crashed, and of what its function has left: three PUTs and StartJobRun come
#: after it, and may have to be repeated.
CLAIMING_PART = 3
#: With less time than this left, nothing is claimed: a function that is killed before it has written the manifest costs
#: each of its messages an attempt.
SHORTEST_SECONDS = 6.0
#: How often a launch that could claim nothing is tried again: while it held the slot, another launch may have found the
#: slot taken, and left its message.
CLAIM_TRIES = 3


@dataclass(frozen=True, slots=True)
class Launcher:
    """Starts runs for the queues of one bucket."""

    jobs: JobService
    bucket: str
    threads: int = THREADS

    def launch(
        self, queue: Queue, paths: Sequence[str], time_left: Callable[[], float] = lambda: float("inf")
    ) -> Launched:
        """Make sure that these heavy messages run: start a run, or leave them to an active one. A path may also stand
        for a partition, or be a message of one: the run takes the partitions that it finds. `time_left()`: seconds
        until this process is ended by force.

        Raises:
            NotStarted, AccessDenied: no run could be started, or there was no time for it. Nothing is claimed, no
                attempt is used; the sweeper notifies again.
            Unavailable: no clear answer from the store; the sweeper takes care of it.
        """
        run_store = RunStore(queue)
        held_by_runs = queue.settings.engine == "spark"
        partitions = {partition for path in paths if (partition := partition_of(path))} if held_by_runs else set()
        paths = [path for path in paths if not partition_of(path)]
        # Before the slot is taken: each message of a group that waits for a retry comes this way.
        if partitions and not paths and not _are_worth(queue, partitions):
            return "nothing"
        for _ in range(CLAIM_TRIES):
            if (left := time_left()) < SHORTEST_SECONDS:
                raise NotStarted(f"too little time left to launch a Spark run: {left:.0f} s")
            held = self._open(queue, run_store)
            if held is None:
                return "busy"
            mine = as_run(queue, held.slot.run)
            # The manifest names paths alone, and a function's memory is small.
            mine.keeps_body = lambda path: False
            limits = (queue.settings.visibility_timeout.total_seconds(), LAUNCH_GRACE.total_seconds(), time_left())
            seconds = min(limits) / CLAIMING_PART
            try:
                claims = claim_heavy(
                    mine, paths, queue.settings.messages_per_run, seconds=seconds, threads=self.threads
                )
                is_worth = bool(claims) or _are_worth(queue, partitions)
            except Exception:
                run_store.free_slot(held.number, held.slot.run)
                raise
            if is_worth:
                return self._start(mine, run_store, held, claims)
            run_store.free_slot(held.number, held.slot.run)
            backlog = heavy_backlog(queue)
            is_left = bool(backlog.refill())
            if backlog.saw_partitions and held_by_runs:
                from .partitions import RunPartitions

                partitions.update(found := RunPartitions(queue).find())
                is_left = is_left or bool(found)
            if not is_left:
                break
        return "nothing"

    def _open(self, queue: Queue, run_store: RunStore) -> HeldSlot | None:
        """A slot for a new run; None if the active runs are enough for the waiting messages."""
        free: list[tuple[int, HeldSlot | None]] = []
        live = 0
        for number in range(queue.settings.max_runs):
            try:
                found = run_store.slot(number)
            except CorruptState as error:
                # The sweeper deletes it, if it was forged.
                _log.error("slot skipped: %s", error)
                continue
            if found and found.is_cooling:
                # The service has just refused a run, or one has just failed: asking for every message would not help.
                return None
            if found and found.slot.state != "cooling" and found.age > LAUNCH_GRACE:
                found = self._resolve_silent(queue, run_store, found)
            if found is None or found.slot.state == "cooling":
                free.append((number, found))
            else:
                live += 1
        if not free or (live and not self._is_worth(queue, live)):
            return None
        for number, found in free:
            try:
                return run_store.open_slot(number, run_store.new_run(), over=found)
            except Conflict:
                continue
        return None

    def _resolve_silent(self, queue: Queue, run_store: RunStore, found: HeldSlot) -> HeldSlot | None:
        """The slot of a run that may have stopped; None if it has, and its slot was freed."""
        if RunWatch.is_fresh(queue, found.slot.run):
            return found
        try:
            RunWatch(self.jobs, self.bucket).resolve(queue, found)
        except QueueError as error:
            _log.warning("Spark run not checked, left to the sweeper: %s: %s: %s", queue.name, found.slot.run, error)
        return run_store.slot(found.number)

    def _is_worth(self, queue: Queue, live: int) -> bool:
        """Whether more messages wait than the active runs can claim: another run costs at least a minute of cores."""
        enough = min(1000, queue.settings.messages_per_run * (live + 1))
        found = queue.store.list(queue.keys.prefix("messages")).objects
        return sum(queue.settings.is_heavy(message.size) for message in found) >= enough

    def _start(self, mine: Queue, run_store: RunStore, held: HeldSlot, claims: Sequence[Claim]) -> Launched:
        run = held.slot.run
        manifest = Manifest(
            run=run,
            slot=held.number,
            state="launching",
            opened_at=mine.clock.now(),
            paths=tuple(claim.path for claim in claims),
            asked=asked_of(mine.settings),
        )
        try:
            manifest, etag = run_store.write_manifest(manifest, None)
        except QueueError:
            release_all(mine, claims, threads=self.threads)
            run_store.free_slot(held.number, run)
            raise
        try:
            # Whoever took this launch for dead, because it was slow, has given the slot away: then nothing is started.
            # If not, they find the manifest from now on, and send the same request.
            held = run_store.write_slot(held)
            if not HeartbeatWriter(mine, START_WITHIN, run=run).beat({}):
                raise Unavailable(f"heartbeat not written: {mine.keys.worker(run)}; try again")
        except QueueError as error:
            if not self._give_back(mine, run_store, manifest, etag, claims, error):
                return "unknown"
            remove(run_store, run)
            run_store.free_slot(held.number, run)
            raise NotStarted(str(error)) from error
        try:
            job = self.jobs.start(JobRequest.of(run, mine.name, self.bucket, mine.settings))
        except Unavailable as error:
            _log.warning("Spark run perhaps not started, left to the sweeper: %s: %s: %s", mine.name, run, error)
            return "unknown"
        except QueueError as error:
            if not self._give_back(mine, run_store, manifest, etag, claims, error):
                # The first try of the request may have started it, and only its repetition was refused.
                return "unknown"
            cool(run_store, held, run, str(error))
            raise error if isinstance(error, NotStarted) else NotStarted(str(error)) from error
        try:
            run_store.write_slot(held, state="started", job=job)
        except QueueError as error:
            # Finished already, or unknown: the sweeper asks for the same run again, and gets the same job.
            _log.info("slot not updated, left to the sweeper: %s: %s (%s): %s", mine.name, run, job, error)
        _log.info("Spark run started: %s: %s (%s), messages: %d", mine.name, run, job, len(claims))
        return "started"

    def _give_back(
        self,
        mine: Queue,
        run_store: RunStore,
        manifest: Manifest,
        etag: str,
        claims: Sequence[Claim],
        error: QueueError,
    ) -> bool:
        """No run is started: give up the claims; False if a driver has taken the run over, or may have."""
        try:
            close_refused(run_store, manifest, etag, Failure.of(error))
        except QueueError as unsure:
            _log.warning(
                "Spark run not started, left to the sweeper: %s: %s: %s; %s", mine.name, manifest.run, error, unsure
            )
            return False
        release_all(mine, claims, threads=self.threads)
        return True


def _are_worth(queue: Queue, partitions: Collection[str]) -> bool:
    """Whether there is a message to run in any of these partitions: a run without one costs a minute of cores.

    What a run that died had committed is finished here: if that cannot be done, because a permission is missing, run
    after run would be started for it.
    """
    if not partitions:
        return False
    # Not above: most queues have no partitions.
    from s3queue.flow.partitions import has_work

    for partition in sorted(partitions):
        try:
            if has_work(queue.leases, partition, finishes=True):
                return True
        except Unavailable:
            raise
        except QueueError as error:
            _log.error("partition not finished, no run started for it: %s/%s: %s", queue.name, partition, error)
    return False
