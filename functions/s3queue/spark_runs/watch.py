"""RunWatch: what becomes of a run whose launcher or driver fell silent.  [P6]

A launch whose answer was lost is asked for again, with the same token; a run that ended frees its slot, and its leases
fail at once; what it had not started is given back and costs no attempt.
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

from .service import Job, JobRequest, JobService
from .slots import START_WITHIN, HeldSlot, RunStore, as_run

_log = logging.getLogger(__name__)
#: A function that launches is done, or dead, after this time.
LAUNCH_GRACE = timedelta(seconds=60)
#: After a refusal nobody asks again for this long.
COOL = timedelta(seconds=20)
#: As long as a repeated token surely names the same job; later, jobs are looked through for the run's name.
TOKEN_TRUSTED = timedelta(minutes=10)
#: A manifest's time is its launcher's, a job's is the service's.
SKEW = timedelta(minutes=5)
#: The service is asked after a run this often at most.
ASK_SECONDS = 20.0


def is_cooling(held: HeldSlot) -> bool:
    return held.slot.state == "cooling" and held.age <= COOL


def cool(book: RunStore, held: HeldSlot, run: str, reason: str) -> None:
    """After a refusal: nothing is held any more, and for a while nobody asks again. Every step may be lost."""
    queue = book.queue
    try:
        queue.store.delete(queue.keys.worker(run))
        queue.store.delete(queue.keys.manifest(run))
        book.write_slot(held, state="cooling", reason=reason[:500])
    except QueueError as error:
        _log.warning("%s: what %s left behind stays for the sweeper: %s", queue.name, run, error)


@dataclass(slots=True)
class RunWatch:
    """Looks after the runs of the queues of one bucket; keep it, it remembers when it last asked."""

    jobs: JobService
    bucket: str
    _asked: dict[str, float] = field(default_factory=dict)

    def check(self, queue: Queue) -> int:
        """Every run of a queue; how many slots are taken. One LIST if there are none."""
        taken = 0
        for held in RunStore(queue).slots():
            taken += 1
            try:
                self.resolve(queue, held)
            except Conflict:
                continue  # someone else is at it
            except QueueError as error:
                _log.warning("%s: %s: %s; the next sweep looks again", queue.name, held.slot.run, error)
        return taken

    def job_changed(self, queues: Mapping[str, Queue], detail: Mapping[str, object]) -> None:
        """The service says that a job changed its state: if it ended, so did its run."""
        job = self.jobs.get(str(detail.get("jobRunId", "")))
        queue = queues.get(job.queue) if job else None
        if job is None or queue is None or job.phase != "ended":
            return
        for held in RunStore(queue).slots():
            if held.slot.run == job.run:
                self._end(queue, held, _failure(job))

    def resolve(self, queue: Queue, held: HeldSlot) -> None:
        """Do for one slot what its run does not do any more.

        Raises:
            Conflict: it changed meanwhile.
        """
        match held.slot.state:
            case "cooling":
                if not is_cooling(held):
                    RunStore(queue).free_slot(held.number, held.slot.run)
            case "launching":
                if held.age > LAUNCH_GRACE:
                    self._go_on_launching(queue, held)
            case "started":
                self._ask_after(queue, held)

    @staticmethod
    def is_fresh(queue: Queue, run: str) -> bool:
        """Whether the run's heartbeat counts."""
        found = queue.store.open(queue.keys.worker(run))
        if found is None:
            return False
        try:
            return Heartbeat.from_bytes(found.read(), found.key).is_fresh(found.at - found.modified_at)
        except CorruptState:
            return False

    def _go_on_launching(self, queue: Queue, held: HeldSlot) -> None:
        """The launcher crashed, or was not told how its request ended: send the same one again."""
        book, run = RunStore(queue), held.slot.run
        found = book.manifest(run)
        if found is None:
            # Before the manifest nothing was asked for; what was claimed runs out by itself.
            book.free_slot(held.number, run)
            return
        mine = as_run(queue, run)
        _keep(mine, run)
        try:
            known = None
            if held.age > TOKEN_TRUSTED:
                known = self.jobs.find(run, since=found[0].opened_at - SKEW)
            job = known.id if known else self.jobs.start(JobRequest.of(run, queue.name, self.bucket, queue.settings))
        except Unavailable:
            raise
        except QueueError as error:
            _log.warning("%s: %s cannot be started: %s", queue.name, run, error)
            self._give_back(mine, found[0], started=0, failure=Failure.of(error))
            cool(book, held, run, str(error))
            return
        book.write_slot(held, state="started", job=job)

    def _ask_after(self, queue: Queue, held: HeldSlot) -> None:
        run, now = held.slot.run, queue.clock.monotonic()
        if now - self._asked.get(run, float("-inf")) < ASK_SECONDS:
            return
        self._asked[run] = now
        if not held.slot.job:
            # Its launcher never learnt the id, and the driver has reopened the slot since.
            found = RunStore(queue).manifest(run)
            job = self.jobs.find(run, since=found[0].opened_at - SKEW) if found else None
        else:
            job = self.jobs.get(held.slot.job)
        if job is None:
            if not self.is_fresh(queue, run):
                self._end(queue, held, Failure("RunLost", f"{run}: the service knows no job {held.slot.job}"))
        elif job.phase == "ended":
            self._end(queue, held, _failure(job))
        elif job.phase == "starting":
            # In the service's queue, perhaps for hours: what it holds must not run out meanwhile.
            _keep(as_run(queue, run), run)
        elif held.age > START_WITHIN and not self.is_fresh(queue, run):
            _log.error("%s: %s runs and is silent: cancelled", queue.name, run)
            self.jobs.cancel(job.id)

    def _end(self, queue: Queue, held: HeldSlot, failure: Failure) -> None:
        """The slot last: after a crash in between, everything is done again from there."""
        book, run = RunStore(queue), held.slot.run
        _log.warning("%s: %s ended without closing its slot: %s", queue.name, run, failure.message)
        found = book.manifest(run)
        if found:
            manifest, etag = found
            mine = as_run(queue, run)
            self._give_back(mine, manifest, started=manifest.started, failure=failure)
            if manifest.state in ("launching", "running"):
                book.write_manifest(_ended(manifest, failure), etag)
        queue.store.delete(queue.keys.worker(run))
        book.free_slot(held.number, run)
        self._asked.pop(run, None)

    def _give_back(self, mine: Queue, manifest: Manifest, *, started: int, failure: Failure) -> None:
        for number, path in enumerate(manifest.paths):
            try:
                held = mine.read_lease(path)
                if held is None or held.lease.owner != manifest.run or held.lease.state == "waiting":
                    continue
                if number < started or held.lease.state == "burying":
                    expire(mine.leases, path, held, because=failure)
                else:
                    mine.leases.give_back(path, held.lease, held.etag, held.read_at)
            except (Conflict, CorruptState) as error:
                _log.info("lease of a failed run kept: %s/%s: %s", mine.name, path, error)


def _keep(mine: Queue, run: str) -> None:
    """A heartbeat for a run that cannot have one yet."""
    found = mine.store.head(mine.keys.worker(run))
    if found is None or found.at - found.modified_at > START_WITHIN / 2:
        heartbeat = HeartbeatWriter(mine, START_WITHIN, run=run)
        # The first beat finds the one that is there, the second replaces it.
        if not (heartbeat.beat({}) or heartbeat.beat({})):
            raise Unavailable(f"the heartbeat of {run} could not be written")


def _failure(job: Job) -> Failure:
    said = f": {job.details}" if job.details else ""
    return Failure("RunFailed", f"{job.run} ({job.id}) ended as {job.state} before this message did{said}"[:2000])


def _ended(manifest: Manifest, failure: Failure) -> Manifest:
    return replace(manifest, state="failed", note=failure.message[:500])
