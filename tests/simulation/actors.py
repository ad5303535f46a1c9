"""The players: a producer, functions woken by events and dispatches, a pull worker with a heartbeat, sweepers, an
operator. They call the real code, as the deployed handlers do.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from s3queue.errors import QueueError, Reject, Unavailable
from s3queue.protocol.backlog import Backlog
from s3queue.protocol.claim import Claim
from s3queue.protocol.dead_letters import DeadLetters
from s3queue.protocol.liveness import HeartbeatWriter, keep_beating
from s3queue.settings import QueueSettings
from s3queue.sweeper.sweeper import SWEEP_REQUESTS, Sweeper
from s3queue.worker.context import Context
from s3queue.worker.definition import Definition
from s3queue.worker.processor import Processor

from .faults import Profile
from .judge import Judge
from .ledger import WatchedQueue
from .world import QUEUE, Crash, Process, ProcessClock, World


class HandlerFailed(Exception):
    """What the simulated handlers raise."""


@dataclass(frozen=True, slots=True)
class Notification:
    """What wakes a function: an S3 event, or a dispatch of the sweeper."""

    paths: tuple[str, ...]
    sent_at: float
    etag: str = ""
    is_dispatch: bool = False


class Cast:
    """Makes processes and what they run."""

    def __init__(self, world: World, judge: Judge, settings: QueueSettings, profile: Profile) -> None:
        self.world = world
        self.judge = judge
        self.settings = settings
        self.profile = profile
        #: How often the sweeper had to end a lease or rescue a message.
        self.counts: Counter[str] = Counter()
        self.is_over = False
        #: What the sweeper dispatches where there is no worker function: it is the pull worker that sweeps.
        self.inbox: deque[str] = deque()
        #: The latest sweeper; a crowded schedule kills it.
        self.sweeper: Process | None = None
        #: Called before each tick of a sweeper, and with what it dispatches; and the budget of its sweeps.
        self.on_tick: Callable[[], None] = lambda: None
        self.on_dispatch: Callable[[Sequence[str]], None] = lambda paths: None
        self.sweep_requests = SWEEP_REQUESTS
        self._numbers: Counter[str] = Counter()
        self.workers: dict[str, Process] = {}
        self._definition = Definition(QUEUE, settings)
        self._definition.handler(self._handle)

    def count(self, what: str) -> int:
        self._numbers[what] += 1
        return self._numbers[what]

    def process(self, role: str) -> Process:
        chance, profile = self.world.random, self.profile
        skew = chance.uniform(-profile.skew, profile.skew) if profile.skew else 0.0
        rate = 1.0 + chance.uniform(-profile.drift, profile.drift) if profile.drift else 1.0
        return Process(f"{role}-{self.count(role)}", skew=skew, started=chance.random() * 1000, rate=rate)

    def queue(self, process: Process) -> WatchedQueue:
        queue = WatchedQueue(
            store=self.world.store,
            name=QUEUE,
            settings=self.settings,
            worker_id=f"{process.name}-{self.world.chance.token()}",
            clock=ProcessClock(self.world, process),
            chance=self.world.chance,
        )
        return queue.watch(self.world, process)

    def processor(self, queue: WatchedQueue, process: Process, **options: Any) -> Processor:
        self.workers[queue.worker_id] = process
        return Processor(queue=queue, definition=self._definition, **options)

    def _handle(self, body: bytes, context: Context) -> Any:
        """Does what the message says: takes so long, extends or not, then succeeds, fails or rejects."""
        script = json.loads(body)
        run = self.judge.start(self.workers[context.worker_id], context.claim, context.line)
        self.world.sleep(script["takes"])
        if script.get("extends"):
            context.extend()
            self.world.sleep(script["takes"])
        run.ended_at = self.world.now
        plan = script["plan"]
        step = plan[min(context.attempt, len(plan)) - 1]
        if step == "r":
            run.ended = "rejected"
            raise Reject("as scripted")
        if step == "f":
            run.ended = "failed"
            raise HandlerFailed("as scripted")
        run.ended = "ok"
        return script["id"]


class Fleet:
    """The queue's worker function: as many containers as its concurrency allows, one invocation at a time each."""

    def __init__(self, cast: Cast, size: int, *, drains: bool) -> None:
        self._cast = cast
        self._world = cast.world
        self._drains = drains
        self._idle: list[Container] = []
        self._waiting: deque[Notification] = deque()
        self.busy = 0
        for _ in range(size):
            self._idle.append(Container(cast))

    def event(self, path: str, etag: str) -> None:
        """S3 tells of a PUT: once, twice, late, or not at all."""
        chance, profile = self._world.random, self._cast.profile
        sent_at = self._world.now
        copies = 1
        if profile.lost_events and chance.random() < profile.lost_events:
            copies = 0
        elif profile.double_events and chance.random() < profile.double_events:
            copies = 2
        for _ in range(copies):
            late = profile.late_events and chance.random() < profile.late_events
            after = chance.random() * (10.0 if late else 0.5)
            self._world.at(sent_at + after, lambda: self.ring(Notification((path,), sent_at, etag)))

    def dispatch(self, paths: Sequence[str]) -> None:
        self.ring(Notification(tuple(paths), self._world.now, is_dispatch=True))

    def ring(self, notification: Notification) -> None:
        self._waiting.append(notification)
        self._wake()

    def _wake(self) -> None:
        while self._idle and self._waiting:
            container = self._idle.pop(0)
            container.process.thaw(self._world.now)
            notification = self._waiting.popleft()
            self.busy += 1
            container.process.on_death = lambda bell=notification: self._replace(bell)
            self._world.spawn(container.process, self._invoke, container, notification)

    def _replace(self, notification: Notification) -> None:
        """The container died. The platform starts another one, and may send the event again."""
        self.busy -= 1
        self._idle.append(Container(self._cast))
        if self._world.random.random() < 0.3:
            self._waiting.append(notification)
        self._wake()

    def _invoke(self, container: Container, notification: Notification) -> None:
        late_after = self._cast.settings.late_after.total_seconds()
        looks = notification.is_dispatch or self._world.now - notification.sent_at > late_after
        container.serve(notification.paths, looks=looks, drains=looks and self._drains, etag=notification.etag)
        self.busy -= 1
        if self._cast.profile.freezes:
            container.process.freeze(self._world.now)
        self._idle.append(container)
        self._wake()


class Container:
    """One process of the worker function."""

    def __init__(self, cast: Cast, role: str = "function") -> None:
        self._cast = cast
        self._stops_at = float("inf")
        self.process = cast.process(role)
        self.queue = cast.queue(self.process)
        self.processor = cast.processor(self.queue, self.process, should_stop=self._is_out_of_time)

    def out_of_time_at(self, at: float) -> None:
        self._stops_at = at

    def _is_out_of_time(self) -> bool:
        return self._cast.world.now >= self._stops_at

    def serve(self, paths: Sequence[str], *, looks: bool, drains: bool, etag: str = "") -> None:
        world = self._cast.world
        with suppress(QueueError):
            self.queue.refresh()
        stops = self._cast.profile.stops and world.random.random() < 0.3
        self._stops_at = world.now + world.random.random() * 2.0 if stops else float("inf")
        for path in paths:
            self._run(path, looks, etag)
        if drains:
            try:
                backlog = Backlog(self.queue)
                for candidate in backlog.drain():
                    if self._is_out_of_time():
                        return
                    won = self._run(candidate.path, candidate.read_first, candidate.etag)
                    backlog.report(won=won, is_hint=candidate.is_hint)
            except QueueError:
                return

    def _run(self, path: str, read_first: bool, etag: str) -> bool:
        try:
            outcome = self.processor.run(path, read_first=read_first, etag=etag)
        except QueueError:
            outcome = None
        self._cast.judge.let_go(self.process)
        return outcome is not None


class PullWorker:
    """A long-lived worker: threads that pull, one heartbeat that keeps what they hold."""

    def __init__(self, cast: Cast, until: float, threads: int = 2) -> None:
        self._cast = cast
        self._world = cast.world
        self._until = until
        self.process = cast.process("pull")
        self._queue = cast.queue(self.process)
        self._processor = cast.processor(self._queue, self.process, renew=self._renew)
        self._heartbeat = HeartbeatWriter(self._queue)
        for number in range(threads):
            self._world.spawn(self.process, self._pull, after=1.0 + number * 0.1)
        self._world.spawn(self.process, self._beat, after=0.5)
        self.process.on_death = lambda: PullWorker(cast, until)

    def _renew(self, claim: Claim, timeout: timedelta | None) -> None:
        claim.check_alive()

    def _pull(self) -> None:
        backlog = Backlog(self._queue)
        while self._world.now < self._until:
            try:
                self._queue.refresh()
                while self._cast.inbox:
                    self.work(self._cast.inbox.popleft(), True)
                for candidate in backlog.drain():
                    won = self.work(candidate.path, candidate.read_first, candidate.etag)
                    self._queue.leases.forget(candidate.reminder)
                    backlog.report(won=won, is_hint=candidate.is_hint)
                    if self._world.now >= self._until:
                        break
            except QueueError:
                pass
            self._world.sleep(2.0)

    def work(self, path: str, read_first: bool, etag: str = "") -> bool:
        claim = self._queue.claim(path, read_first=read_first, etag=etag)
        won = claim is not None
        while claim:
            self._heartbeat.hold(claim)
            try:
                self._processor.process(claim)
            finally:
                self._heartbeat.drop(claim)
                self._cast.judge.drop(claim)
            claim = self._processor.claim_again(claim)
        return won

    def _beat(self) -> None:
        def wait(seconds: float) -> None:
            until = self._world.now + seconds
            while self._world.now < until and not self._heartbeat.changed.is_set():
                self._world.sleep(min(until - self._world.now, 0.2))

        keep_beating(
            self._heartbeat,
            lambda: self._heartbeat.beat({}),
            lambda: self._world.now >= self._until and not len(self._heartbeat),
            wait,
        )


def sweeping(cast: Cast, dispatch: Callable[[Sequence[str]], None], every: float) -> Process:
    """A sweeper function; when it dies, the schedule starts the next one."""
    process = cast.sweeper = cast.process("sweeper")

    def send(paths: Sequence[str]) -> None:
        if not process.is_alive:
            raise Crash
        if cast.profile.pulls_only:
            cast.inbox.extend(paths)
            return
        if cast.profile.lost_events and not cast.is_over and cast.world.random.random() < cast.profile.lost_events:
            raise Unavailable("the dispatch was refused")
        cast.on_dispatch(paths)
        dispatch(paths)

    def run() -> None:
        sweeper = Sweeper(queue=cast.queue(process), dispatch=send)
        while True:
            cast.on_tick()
            report = sweeper.tick(requests=cast.sweep_requests)
            cast.judge.let_go(process)
            if report:
                # Whatever an outage does not explain is a bug, and ends the schedule.
                if report.error and not isinstance(report.error, QueueError):
                    raise report.error
                cast.counts.update(report.endings)
                cast.counts["rescued"] += report.orphans
            if cast.profile.freezes:
                process.freeze(cast.world.now)
            next_tick = report.next_tick if report else None
            cast.world.sleep(every if next_tick is None else min(every, next_tick))
            process.thaw(cast.world.now)

    cast.world.spawn(process, run, after=cast.world.random.random() * every)
    process.on_death = lambda: sweeping(cast, dispatch, every)
    return process


def replaying(cast: Cast, at: float) -> None:
    """An operator who replays whatever is dead at that time."""
    process = cast.process("operator")

    def run() -> None:
        queue = cast.queue(process)
        letters = DeadLetters(queue)
        try:
            page = queue.store.list(queue.keys.prefix("dead"))
            letters.replay_many(path for entry in page.objects if (path := queue.keys.path_under("dead", entry.key)))
        except QueueError:
            return

    cast.world.spawn(process, run, after=at)


def configuring(cast: Cast, every: float) -> None:
    """An operator who lowers the visibility timeout, and raises it again, while everything is at work."""
    process = cast.process("operator")
    # In a second, a slow worker cannot claim a message and name it in a heartbeat: then a lease may run out.
    timeouts = (2, 4, 12, 30) if cast.profile.undisturbed else (1, 2, 4, 12, 30)

    def run() -> None:
        queue = cast.queue(process)
        while not cast.is_over:
            cast.world.sleep(every * cast.world.random.random())
            with suppress(QueueError):
                queue.configure(visibility_timeout=cast.world.random.choice(timeouts))

    cast.world.spawn(process, run)
