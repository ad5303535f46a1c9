"""Groups and shares over Spark runs: launchers, drivers, sweepers that watch the runs, and faults at every request.

Two runs may be at work at once; drivers die, and sleep for longer than their leases.  [P9] Some schedules have batches
that are deleted or PUT anew, handlers that ask for more time, and second jobs of a run.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

from s3queue.errors import QueueError
from s3queue.settings import QueueSettings
from s3queue.spark_runs.launcher import Launcher
from s3queue.spark_runs.watch import RunWatch
from s3queue.worker.invocation import InvocationRunner

from .actors import sweeping
from .cast import Cast
from .checks import check_quiet, leftovers, tally
from .faults import DrawnFaults, Profile, draw_profile
from .functions import Notification
from .judge import Judge
from .machines import Process
from .producers import Producers
from .spark_jobs import Jobs
from .violations import Violation
from .world import QUEUE, Fault, World

#: Seeds of this remainder have Spark runs.
ON_SPARK = 36
GROUPS = ("a", "b/c")
#: What a message does, attempt by attempt.
PLANS = ("k", "k", "k", "k", "fk", "fk", "f", "r")
REPAIR_SECONDS = 900.0
#: An invocation of the worker function may take so long; it only launches.
LAUNCH_SECONDS = 60.0


def _draw(chance: random.Random) -> Profile:
    profile = draw_profile(chance)
    while profile.exact or profile.pulls_only:
        profile = draw_profile(chance)
    return replace(profile, configures=0.0, operator=False, multipart=False, long_handlers=0.2, lost_events=0.1)


class _Faults(DrawnFaults):
    """Most of them meet a driver that works on a partition: else few runs would come to that in time."""

    def draw(self, process: Process, operation: str, key: str) -> Fault:
        is_at_work = process.name.startswith(("driver", "producer")) and "/@" in key
        if not is_at_work and self._chance.random() < 0.8:
            return Fault(there=self._chance.random() * self._latency)
        return super().draw(process, operation, key)


class SparkSchedule:
    """One seed's world."""

    def __init__(self, world: World) -> None:
        self.world = world
        chance = world.random
        self.profile = _draw(chance)
        self.faults = _Faults(self.profile, chance)
        world.faults = self.faults
        self.settings = QueueSettings(
            engine="spark",
            visibility_timeout=timedelta(seconds=6),
            max_attempts=chance.choice((1, 2, 3)),
            retry_base=timedelta(seconds=1),
            retry_cap=timedelta(seconds=2),
            rescue_after=timedelta(seconds=4),
            partitions=chance.choice((0, 1, 2)),
            messages_per_run=chance.choice((1, 2, 20)),
            max_runs=chance.choice((1, 2, 2)),
        )
        self.judge = Judge(world, self.settings.max_attempts)
        self.cast = Cast(world, self.judge, self.settings, self.profile)
        by_batch = chance.random() < 0.5
        self.jobs = Jobs(self.cast, by_batch=by_batch)
        # Of its own: what other schedules mean stays the same.
        self._batches = random.Random(f"{world.seed} batches")
        self._has_batches = self._batches.random() < 0.7
        #: What a handler asks for may count for longer than its heartbeat; a query's messages cannot ask.
        self._asks = () if by_batch else (20.0, 40.0)
        self.jobs.on_end = self._job_ended
        self.cast.check_runs = lambda: RunWatch(self.jobs, "simulation").check
        self.lasts = 30.0 + chance.random() * 25.0
        self.producers = Producers(self.cast, self.lasts)
        self._launching = 0
        self._is_quiet = False

    # The watcher

    def performed(self, process: Process, operation: str, key: str, sent_at: float, before: Any, after: Any) -> None:
        self.judge.performed(process, operation, key, sent_at, before, after)
        if after and key.startswith(f"{QUEUE}/messages/"):
            self._event(key.removeprefix(f"{QUEUE}/"), after.etag)

    def stepped(self) -> None:
        self.judge.stepped()

    def hold(self, process: Process, claim: Any) -> None:
        self.judge.hold(process, claim)

    def let_go(self, process: Process) -> None:
        self.judge.let_go(process)

    def broken(self, promise: str, what: str) -> None:
        self.judge.broken(promise, what)

    def violations(self) -> list[Violation]:
        return self.judge.violations

    def counts(self) -> Counter[str]:
        return tally(self.judge)

    # The worker function: it only launches runs

    def _event(self, path: str, etag: str) -> None:
        """S3 tells of a PUT: once, twice, late, or not at all."""
        chance, profile, sent_at = self.world.random, self.profile, self.world.now
        copies = 0 if chance.random() < profile.lost_events else 2 if chance.random() < profile.double_events else 1
        for _ in range(copies):
            after = chance.random() * (10.0 if chance.random() < profile.late_events else 0.5)
            self.world.at(sent_at + after, lambda: self._invoke(Notification((path,), sent_at, etag)))

    def _dispatch(self, paths: Sequence[str]) -> None:
        self._invoke(Notification(tuple(paths), self.world.now, is_dispatch=True))

    def _invoke(self, notification: Notification) -> None:
        process = self.cast.process("function")
        process.on_death = self._launched
        self._launching += 1
        self.world.spawn(process, self._run, process, notification)

    def _launched(self) -> None:
        self._launching -= 1

    def _run(self, process: Process, notification: Notification) -> None:
        ends_at = self.world.now + LAUNCH_SECONDS

        def launch(queue: Any, paths: Sequence[str], time_left: Callable[[], float]) -> None:
            Launcher(self.jobs, "simulation", threads=2).launch(queue, paths, time_left)

        runner = InvocationRunner(self.cast.queue(process), self.cast.definition, launch=launch)
        with suppress(QueueError):
            runner.run(notification.read(), lambda: ends_at - self.world.now)
        process.on_death = None
        self._launched()

    # The sweeper function: it is told when a job has ended

    def _job_ended(self, job: str) -> None:
        process = self.cast.process("sweeper")
        process.on_death = self._launched
        self._launching += 1
        self.world.spawn(process, self._look_after, process, job)

    def _look_after(self, process: Process, job: str) -> None:
        with suppress(QueueError):
            RunWatch(self.jobs, "simulation").job_changed({QUEUE: self.cast.queue(process)}, {"jobRunId": job})
        process.on_death = None
        self._launched()

    # The plot

    def run(self) -> None:
        chance = self.world.random
        works: list[Any] = [self._enqueue_in_order] * chance.choice((1, 2, 3))
        if self.settings.partitions:
            works += [self._share] * chance.choice((1, 2))
        if self._has_batches:
            works += [self._change_batches] * 2
        for work in works:
            process = self.cast.process("producer")
            self.producers.keep(process, lambda work=work, process=process: work(process))  # type: ignore[misc]
        for _ in range(chance.choice((1, 1, 2))):
            sweeping(self.cast, self._dispatch, chance.uniform(1.5, 4.0))
        self.world.run(self.lasts)
        self.faults.is_over = self.cast.is_over = True
        self._watch_for_quiet()
        self.world.run(self.lasts + REPAIR_SECONDS, done=lambda: self._is_quiet)
        check_quiet(self.world, self.judge, self.cast)
        slots = [key for key in self.world.objects if key.startswith(f"{QUEUE}/runs/slot-")]
        if slots and not self.judge.violations:
            self.judge.broken("P6", f"{slots[0]} is still there, and nothing is left to do")

    def _watch_for_quiet(self) -> None:
        is_busy = self.jobs.busy or self._launching or self.world.in_flight or self.producers.at_work
        slots = any(key.startswith(f"{QUEUE}/runs/slot-") for key in self.world.objects)
        self._is_quiet = bool(self.judge.violations) or not (leftovers(self.world) or is_busy or slots)
        if not self._is_quiet:
            self.world.at(self.world.now + 1.0, self._watch_for_quiet)

    def _script(self, name: str) -> bytes:
        script, chance = json.loads(self.producers.script(name)), self.world.random
        return json.dumps(script | {"plan": chance.choice(PLANS)}).encode()

    def _enqueue_in_order(self, process: Process) -> None:
        queue, chance = self.cast.queue(process), self.world.random
        group = chance.choice(GROUPS)
        for number in range(chance.choice((2, 3, 4, 5))):
            self.world.sleep(chance.random() * chance.choice((0.1, 5.0)))
            with suppress(QueueError):
                queue.enqueue(self._script(f"{process.name}-{number}"), group=group)

    def _share(self, process: Process) -> None:
        queue, chance = self.cast.queue(process), self.world.random
        for number in range(chance.choice((2, 4, 6))):
            self.world.sleep(chance.random() * chance.choice((0.1, 3.0)))
            with suppress(QueueError):
                queue.enqueue(self._script(f"{process.name}-{number}"))

    def _change_batches(self, process: Process) -> None:
        """Batches that are deleted, or PUT anew, once a driver has adopted them: it reads their lines soon after."""
        queue, chance = self.cast.queue(process), self._batches
        for number in range(3):
            name = f"{process.name}-{number}.ndjson"
            self.world.sleep(chance.random() * 5.0)
            with suppress(QueueError):
                path = queue.enqueue(self._lines(name), name=name)
                leases: set[str] = set()
                for _ in range(400):
                    lease = self.world.objects.get(queue.keys.lease(path))
                    leases |= {lease.etag} if lease else set()
                    if len(leases) > 1:
                        break
                    self.world.sleep(0.05)
                self.world.sleep(chance.random() * chance.choice((0.0, 0.2, 3.0)))
                change = chance.choice(("removed", "put anew", "both"))
                if change != "put anew":
                    queue.remove(path)
                if change == "both":
                    # Those who find that it is gone may still be at it.
                    self.world.sleep(chance.random() * 15.0)
                if change != "removed":
                    queue.enqueue(self._lines(f"{name}-anew"), name=name)

    def _lines(self, name: str) -> bytes:
        lines = []
        for number in (1, 2):
            script = json.loads(self._script(f"{name}-{number}"))
            if self._asks and self._batches.random() < 0.5:
                script["asks"] = self._batches.choice(self._asks)
            lines.append(json.dumps(script).encode() + b"\n")
        return b"".join(lines)
