"""The service that runs Spark jobs, as unreliable as EMR Serverless, and the drivers that it starts.

A driver is the real one, with a job that needs no session: `per_message` through `MessageWork`, or `per_batch` through
`PartitionRounds`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

from greenlet import getcurrent

import spark.heavy.driver as driver_module
import spark.heavy.feed as feed_module
import spark.heavy.messages as messages_module
import spark.heavy.run_manifest as manifest_module
from s3queue.errors import QueueError, Reject, Unavailable
from s3queue.protocol.claim import Claim
from s3queue.spark_runs import claims, launcher, slots, watch
from s3queue.spark_runs.service import Job, JobRequest, NotStarted, Phase
from s3queue.worker.context import Context
from spark.heavy.driver import Driver, Work
from spark.heavy.messages import MessageWork, SparkGone
from spark.heavy.partition_rounds import Run
from spark.heavy.run_manifest import NotOurs, RunLost
from support.fake_frames import FakeBatches, fake_frames

from .cast import Cast
from .machines import Process, ProcessClock
from .threads import Condition, Flag, Mutex, Pool
from .watched import WatchedQueue
from .world import Actor, World

#: A run may take so long; then it leaves the rest to the next.
RUN_SECONDS = 60.0
#: As long as everything takes here.
SCALED: dict[ModuleType, dict[str, Any]] = {
    watch: {"LAUNCH_GRACE": timedelta(seconds=6), "ASK_SECONDS": 2.0},
    slots: {"COOL": timedelta(seconds=3), "MOST_COOL": timedelta(seconds=6)},
}


class _Thread:
    """A `threading.Thread` of the process that starts it."""

    def __init__(self, target: Callable[..., object], args: tuple[Any, ...] = (), **_: Any) -> None:
        self._target, self._arguments = target, args

    def start(self) -> None:
        actor = getcurrent()
        assert isinstance(actor, Actor), "only a process has threads"
        self._done = Flag(actor.world)
        actor.world.spawn(actor.process, self._run)

    def _run(self) -> None:
        self._target(*self._arguments)
        self._done.set()

    def join(self) -> None:
        while not self._done.is_set():
            self._done.wait()


def _event() -> Flag:
    actor = getcurrent()
    assert isinstance(actor, Actor), "only a process has threads"
    return Flag(actor.world)


@contextmanager
def spark_greenlets() -> Iterator[None]:
    """Drivers and launchers have greenlets for threads meanwhile, and what is made for minutes takes seconds."""
    threads = SimpleNamespace(RLock=Mutex, Lock=Mutex, Condition=Condition, Event=_event, Thread=_Thread)
    modules = (driver_module, feed_module, messages_module, manifest_module, claims)
    patches: list[Any] = [patch.object(module, "threading", threads) for module in modules]
    patches += [patch.object(claims, "ThreadPoolExecutor", Pool)]
    for module, values in SCALED.items():
        patches += [patch.object(module, name, value) for name, value in values.items()]
    patches.append(patch.object(launcher, "LAUNCH_GRACE", SCALED[watch]["LAUNCH_GRACE"]))
    for one in patches:
        one.start()
    try:
        with fake_frames():
            yield
    finally:
        for one in patches:
            one.stop()


class ScriptedBatches(FakeBatches):
    """The real one; its query is a call that does what each message says."""

    def __init__(self, cast: Cast, process: Process, is_alive: Callable[[], bool]) -> None:
        super().__init__(self._query, cast.world.store, is_alive=is_alive)
        self._cast, self._process = cast, process
        self._claims: dict[str, Claim] = {}

    def _messages(self, claims: Sequence[Claim], driver: Run, spark: Any) -> Any:
        self._claims = {claim.path: claim for claim in claims}
        return super()._messages(claims, driver, spark)

    def _query(self, spark: Any, frame: Any) -> Any:
        cast, started = self._cast, []
        for row in frame.collect():
            run = cast.judge.start(self._process, self._claims[row.path], row.line)
            started.append((row, json.loads(row.body), run))
        cast.world.sleep(max((script["takes"] for _, script, _ in started), default=0.0))
        if not self._is_alive():
            raise SparkGone("the Spark session is gone")
        found: dict[tuple[str, int], tuple[Any, str | None, bool]] = {}
        for row, script, run in started:
            run.ended_at = cast.world.now
            try:
                found[row.path, row.line] = cast.end(run, row.body, script, row.attempt), None, False
            except Exception as error:
                found[row.path, row.line] = None, str(error), isinstance(error, Reject)
        return found


@dataclass(slots=True, eq=False)
class _Started:
    job: Job
    process: Process | None = None


class Jobs:
    """The service. It may refuse, lose an answer, start a driver late, or once more when the first one died.

    In half of the schedules, runs get a second job now and then, and the end of every job is told (`on_end`).
    """

    def __init__(self, cast: Cast, *, by_batch: bool) -> None:
        self._cast = cast
        self._world: World = cast.world
        self._by_batch = by_batch
        #: By the job's id; of a run with two, the first one's is known to whoever asked for it.
        self._started: dict[str, _Started] = {}
        # Of its own: what other schedules mean stays the same.
        self._second = random.Random(f"{cast.world.seed} second jobs")
        self._has_second = self._second.random() < 0.5
        self.on_end: Callable[[str], None] = lambda job: None
        #: Drivers that are at work, or will be.
        self.busy = 0

    # What launchers and sweepers ask

    def start(self, request: JobRequest) -> str:
        self._answer(refuses=True)
        job = f"job-{request.run}"
        if job not in self._started:
            self._note(job, request.run, request.queue)
            self._drive(job, self._world.random.random() * self._world.random.choice((0.5, 0.5, 12.0)))
        # A request that had no answer is repeated by its client, and the repetition may be refused.
        self._answer(refuses=True)
        return job

    def get(self, job: str) -> Job | None:
        self._answer()
        found = self._started.get(job)
        return found.job if found else None

    def find(self, run: str, *, since: datetime) -> Job | None:
        """Of two jobs, either."""
        self._answer()
        found = [one.job for one in self._started.values() if one.job.run == run]
        return self._second.choice(found) if found else None

    def cancel(self, job: str) -> None:
        found = self._started[job]
        if found.process:
            self._world.kill(found.process)

    def _answer(self, *, refuses: bool = False) -> None:
        """Takes a moment, and may say nothing."""
        chance = self._world.random
        self._world.sleep(chance.random() * 0.3)
        if self._cast.is_over:
            return
        if refuses and chance.random() < 0.1:
            raise NotStarted("ThrottlingException")
        if chance.random() < 0.1:
            raise Unavailable("no answer of the service")

    def _note(self, job: str, run: str, queue: str) -> None:
        self._started[job] = _Started(Job(id=job, run=run, queue=queue, phase="starting", state="SUBMITTED"))

    def _becomes(self, job: str, phase: Phase, state: str) -> None:
        known = self._started[job]
        if known.job.phase != "ended":
            known.job = replace(known.job, phase=phase, state=state, succeeded=state == "SUCCESS")
            if phase == "ended" and self._has_second:
                self.on_end(job)

    # Drivers

    def _drive(self, job: str, after: float) -> None:
        process = self._started[job].process = self._cast.process("driver")
        self.busy += 1
        process.on_death = lambda: self._died(job)
        self._world.spawn(process, self._drain, process, job, after=after)
        chance = self._world.random
        if not self._cast.is_over and chance.random() < 0.3:
            # For longer than its leases: others take what it held, and it wakes up as a zombie. The service only calls
            # a job ended that does not run any more.
            self._world.at(self._world.now + after + chance.random() * 8.0, lambda: self._sleeps(process))
        if self._has_second and self._second.random() < 0.5:
            self._world.at(self._world.now + after + self._second.random() * 10.0, lambda: self._start_second(job))

    def _start_second(self, job: str) -> None:
        """Someone starts a job like this one. If the first has not taken the run over, and fails, which of the two has
        the run cannot be known: that it is given up then is not tried here."""
        first = self._started[job].job
        second = f"second-{job}"
        if not self._has_begun(first.run) or second in self._started or self._cast.is_over:
            return
        self._note(second, first.run, first.queue)
        self._drive(second, 0.0)

    def _sleeps(self, process: Process) -> None:
        if process.is_alive and not self._cast.is_over:
            process.pause(self._world.now, self._world.random.random() * 25.0)

    def _died(self, job: str) -> None:
        self.busy -= 1
        # The service calls no job failed that it tries again. Of a run that has begun, both are tried here: the next
        # attempt finds that it is not its run any more.
        has_begun = self._has_begun(self._started[job].job.run)
        if has_begun:
            self._becomes(job, "ended", "FAILED")
        if self._world.random.random() < 0.2:
            self._drive(job, 1.0)
        elif not has_begun:
            self._becomes(job, "ended", "FAILED")

    def _has_begun(self, run: str) -> bool:
        """Whether a driver has taken the run over."""
        manifest = self._world.objects.get(f"{self._cast.name}/runs/{run}.json")
        return manifest is not None and b'"launching"' not in manifest.body

    def _drain(self, process: Process, job: str) -> None:
        cast, world = self._cast, self._world
        run = self._started[job].job.run
        self._becomes(job, "running", "RUNNING")
        queue = WatchedQueue(
            store=world.store,
            name=cast.name,
            settings=cast.settings,
            worker_id=run,
            clock=ProcessClock(world, process),
            chance=world.chance,
        ).watch(cast.judge, process)
        if not job.startswith("second-"):
            cast.workers[run] = process
        with suppress(QueueError):
            queue.refresh()
        dies_at = world.now + world.random.random() * (200.0 if cast.is_over else 60.0)
        driver = Driver(queue, self._work(queue, process, dies_at), seconds=RUN_SECONDS, threads=2)
        driver.heartbeat.changed = Flag(world)  # type: ignore[assignment]
        state = ended = "SUCCESS"
        try:
            driver.drain()
        except (NotOurs, RunLost, SparkGone, QueueError) as error:
            state = f"FAILED {type(error).__name__}"
            # As the entry point says it: it had nothing to do.
            ended = "SUCCESS" if isinstance(error, NotOurs) else state
        cast.judge.let_go(process)
        cast.counts[state] += 1
        process.on_death = None
        self.busy -= 1
        self._becomes(job, "ended", ended)

    def _work(self, queue: WatchedQueue, process: Process, dies_at: float) -> Work:
        """`dies_at`: when its session dies."""
        cast = self._cast

        def is_alive() -> bool:
            return cast.world.now < dies_at

        def per_message(spark: None, message: bytes, context: Context) -> Any:
            return cast.handle(message, context)

        if self._by_batch:
            return ScriptedBatches(cast, process, is_alive)
        return MessageWork(queue, per_message, None, parallel=2, is_alive=is_alive)
