"""RunWatch: what happens to a Spark run whose launcher or driver stopped.  [P6]

A launch whose answer was lost is sent again with the same token. When a run has ended, its slot is freed and its leases
fail at once; messages that it had not started are given back, and no attempt is counted.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta

from s3queue.documents.heartbeat import Heartbeat
from s3queue.documents.record import Failure
from s3queue.documents.run_documents import Manifest
from s3queue.errors import Conflict, CorruptState, QueueError, Unavailable
from s3queue.protocol.expire import expire
from s3queue.protocol.liveness import HeartbeatWriter
from s3queue.queue import Queue
from s3queue.store import Object, delete_unique, look_at, open_state

from .service import Job, JobRequest, JobService
from .slots import START_WITHIN, HeldSlot, RunStore, as_run

_log = logging.getLogger(__name__)
#: A launch that takes longer counts as crashed. If it lives, it finds its slot given away, and starts nothing.
LAUNCH_GRACE = timedelta(seconds=60)
#: For this long, a repeated token certainly names the same job; later, the job is searched by the run's name.
TOKEN_TRUSTED = timedelta(minutes=10)
#: A manifest's time comes from the launcher's clock, a job's from the service's; they may differ by this much.
SKEW = timedelta(minutes=5)
#: The service is asked about a run at most this often.
ASK_SECONDS = 20.0


def close_refused(run_store: RunStore, manifest: Manifest, etag: str, failure: Failure) -> None:
    """After a refusal, before anything is given back: from now on no driver takes this run over.  [P2]

    A refusal is about one request. An earlier one for the same run, whose answer was lost, may have started it.

    Raises:
        Conflict: a driver has taken it over: the run is at work.
    """
    run_store.write_manifest(_ended(manifest, failure), etag)


def cool(run_store: RunStore, held: HeldSlot, run: str, reason: str) -> None:
    """After `close_refused`: delete heartbeat and manifest, and keep the slot as `cooling`, so that nobody asks for a
    while.

    If a step fails, the sweeper does it later.
    """
    try:
        remove(run_store, run)
        run_store.write_slot(held, state="cooling", reason=reason[:500])
    except QueueError as error:
        name = run_store.queue.name
        _log.warning("refused Spark run not removed, left to the sweeper: %s: %s: %s", name, run, error)


def remove(run_store: RunStore, run: str) -> None:
    """After `close_refused`: delete the heartbeat and the manifest of a run that never was."""
    queue = run_store.queue
    queue.store.delete(queue.keys.worker(run))
    queue.store.delete(queue.keys.manifest(run))


@dataclass(slots=True)
class RunWatch:
    """Checks the runs of the queues of one bucket. Keep the instance: it remembers when it last asked the service."""

    jobs: JobService
    bucket: str
    _asked: dict[str, float] = field(default_factory=dict)

    def check(self, queue: Queue) -> int:
        """Check every run of a queue; returns how many slots are taken. One LIST if there are none."""
        taken = 0
        for held in RunStore(queue).slots():
            taken += 1
            try:
                self.resolve(queue, held)
            except Conflict:
                continue  # someone else changed it first
            except QueueError as error:
                _log.warning(
                    "Spark run not checked, trying again at the next sweep: %s: %s: %s",
                    queue.name,
                    held.slot.run,
                    error,
                )
        return taken

    def job_changed(self, queues: Mapping[str, Queue], detail: Mapping[str, object]) -> None:
        """The service reports that a job changed its state: if it ended, end its run, unless that is another job's."""
        job = self.jobs.get(str(detail.get("jobRunId", "")))
        queue = queues.get(job.queue) if job else None
        if job is None or queue is None or job.phase != "ended":
            return
        for held in RunStore(queue).slots():
            if held.slot.run == job.run and held.slot.state != "cooling":
                try:
                    self._end_with(queue, held, job)
                except Conflict:
                    continue  # its driver, or another watch, changed it first: the next sweep looks again
                except CorruptState as error:
                    _log.error("ended Spark run kept as it is: %s: %s: %s", queue.name, job.run, error)

    def resolve(self, queue: Queue, held: HeldSlot) -> None:
        """Do for one slot what its launcher or driver should have done.

        Raises:
            Conflict: the slot changed meanwhile.
        """
        match held.slot.state:
            case "cooling":
                if held.is_cold:
                    RunStore(queue).free_slot(held.number, held.slot.run)
            case "launching":
                if held.age > LAUNCH_GRACE:
                    self._go_on_launching(queue, held)
            case "started":
                self._ask_after(queue, held)

    @staticmethod
    def is_fresh(queue: Queue, run: str) -> bool:
        """Whether the run's heartbeat is fresh."""
        return _is_fresh(open_state(queue.store, queue.keys.worker(run)))

    def _go_on_launching(self, queue: Queue, held: HeldSlot) -> None:
        """The launcher crashed, or the answer to its request was lost: send the same request again."""
        run_store, run = RunStore(queue), held.slot.run
        found = run_store.manifest(run)
        if found is None:
            # No manifest, so no run was asked for; claimed messages run out by themselves. Only the slot as it was
            # read: a launcher that lives may have written its manifest, and then the slot, since.
            delete_unique(queue.store, queue.keys.slot(held.number), if_match=held.etag)
            return
        manifest, etag = found
        if manifest.state != "launching":
            # A driver has had it, so there is a job; or it was refused, and whoever gave it up crashed meanwhile. Which
            # job that driver is of is not known: of two, the service may name the other one.
            run_store.write_slot(held, state="started")
            return
        # The manifest of an older version does not say what was asked for.
        queue.refresh()
        mine = as_run(queue, run)
        _keep(mine, run)
        try:
            known = None
            if held.age > TOKEN_TRUSTED:
                known = self.jobs.find(run, since=manifest.opened_at - SKEW)
            request = JobRequest.of(run, queue.name, self.bucket, queue.settings, manifest.asked)
            job = known.id if known else self.jobs.start(request)
        except Unavailable:
            raise
        except QueueError as error:
            close_refused(run_store, manifest, etag, Failure.of(error))
            _log.warning("Spark run not started, messages given back: %s: %s: %s", queue.name, run, error)
            self._give_back(mine, manifest, started=0, failure=Failure.of(error), is_dead=True)
            cool(run_store, held, run, str(error))
            return
        run_store.write_slot(held, state="started", job=job)

    def _ask_after(self, queue: Queue, held: HeldSlot) -> None:
        run, now = held.slot.run, queue.clock.monotonic()
        if now - self._asked.get(run, float("-inf")) < ASK_SECONDS:
            return
        self._asked[run] = now
        if not held.slot.job:
            # The launcher never learned the id, and the driver has written the slot since.
            found = RunStore(queue).manifest(run)
            job = self.jobs.find(run, since=found[0].opened_at - SKEW) if found else None
        else:
            job = self.jobs.get(held.slot.job)
        if job is None:
            if not self.is_fresh(queue, run):
                self._end(queue, held, Failure("RunLost", f"{run}: the service has no job {held.slot.job}"))
        elif job.phase == "ended":
            self._end_with(queue, held, job)
        elif job.phase == "starting":
            # It may be in the service's queue for hours: its messages must not run out meanwhile.
            _keep(as_run(queue, run), run)
        elif held.age > START_WITHIN and not self.is_fresh(queue, run):
            _log.error("Spark run without a heartbeat, cancelled: %s: %s", queue.name, run)
            self.jobs.cancel(job.id)

    def _end_with(self, queue: Queue, held: HeldSlot, job: Job) -> None:
        """A job of this run has ended: end the run, unless its driver is another job's, and at work.  [P2]

        A run has two jobs if its token was forgotten, or if someone started one like it: the second driver touches
        nothing, and its job succeeds. A driver that was at work, and whose job succeeded, has deleted its heartbeat.
        """
        is_known = job.id == held.slot.job and not job.succeeded
        if is_known or not self.is_fresh(queue, held.slot.run):
            self._end(queue, held, _failure(job), is_dead=is_known)
        else:
            _log.info("job ended, its run goes on: %s: %s (%s)", queue.name, held.slot.run, job.id)

    def _end(self, queue: Queue, held: HeldSlot, failure: Failure, *, is_dead: bool = False) -> None:
        """Give the messages back, then free the slot, or let it cool if the run had started nothing: after a crash in
        between, everything is repeated.

        A driver of which we only know that it was silent, not that it `is_dead`, may be at work again: then its run is
        left alone.
        """
        run_store, run = RunStore(queue), held.slot.run
        found = run_store.manifest(run)
        cools = found is not None and found[0].is_unstarted
        is_given = True
        if found:
            manifest, etag = found
            # An operator may have changed how often messages are tried, and what becomes of those that die.
            queue.refresh()
            mine = as_run(queue, run)
            is_given = self._give_back(mine, manifest, started=manifest.started, failure=failure, is_dead=is_dead)
        # Once more, at the end: the run may hold partitions only.
        beat = open_state(queue.store, queue.keys.worker(run))
        if not is_given or (not is_dead and _is_fresh(beat)):
            _log.info("silent Spark run at work again, left alone: %s: %s", queue.name, run)
            return
        if found and manifest.state in ("launching", "running"):
            run_store.write_manifest(_ended(manifest, failure), etag)
        _log.warning("Spark run ended without closing its slot: %s: %s: %s", queue.name, run, failure.message)
        if beat:
            # Not one that was written since: its driver counts on it.  [P2]
            delete_unique(queue.store, beat.key, if_match=beat.etag)
        if cools:
            run_store.cool_slot(held.number, run, failure.message)
        else:
            run_store.free_slot(held.number, run)
        self._asked.pop(run, None)

    def _give_back(self, mine: Queue, manifest: Manifest, *, started: int, failure: Failure, is_dead: bool) -> bool:
        """Give back what the run holds; False if its driver is at work again, which keeps the rest."""
        for number, path in enumerate(manifest.paths):
            try:
                held = mine.read_lease(path)
                if held is None or held.lease.owner != manifest.run or held.lease.state == "waiting":
                    continue
                if not held.is_over() and (held.lease.state == "burying" or not is_dead):
                    # It runs out by itself: another watch of this run may just have written it, or a driver that is
                    # only silent may have asked for an hour. The others of the queue need not wait for that.  [P2]
                    continue
                # After the lease, not before it: a driver that wakes up may have beaten since.  [P2]
                if not is_dead and self.is_fresh(mine, manifest.run):
                    return False
                if number < started or held.lease.state == "burying":
                    expire(mine.leases, path, held, because=failure)
                else:
                    mine.leases.give_back(path, held.lease, held.etag, held.read_at)
            except Unavailable:
                raise
            except QueueError as error:
                # Someone else has it, or it makes no sense: the others of the run need not wait for that.
                _log.info("lease of an ended run kept: %s/%s: %s", mine.name, path, error)
        return True


def _keep(mine: Queue, run: str) -> None:
    """Write the heartbeat for a run whose driver has not started yet."""
    found = look_at(mine.store, mine.keys.worker(run))
    if found is None or found.at - found.modified_at > START_WITHIN / 2:
        heartbeat = HeartbeatWriter(mine, START_WITHIN, run=run)
        # The first beat finds the one that is there, the second replaces it.
        if not (heartbeat.beat({}) or heartbeat.beat({})):
            raise Unavailable(f"heartbeat not written: {mine.keys.worker(run)}; try again")


def _is_fresh(found: Object | None) -> bool:
    if found is None:
        return False
    try:
        return Heartbeat.read(found).is_fresh(found.at - found.modified_at)
    except CorruptState:
        return False


def _failure(job: Job) -> Failure:
    said = f": {job.details}" if job.details else ""
    return Failure("RunFailed", f"{job.run} ({job.id}) ended as {job.state} before this message ended{said}"[:2000])


def _ended(manifest: Manifest, failure: Failure) -> Manifest:
    return replace(manifest, state="failed", note=failure.message[:500])
