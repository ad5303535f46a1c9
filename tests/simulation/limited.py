"""A queue with a rate or a breaker, and a crowd of workers in virtual time: when each handler started."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from s3queue.errors import QueueError
from s3queue.protocol.backlog import Backlog
from s3queue.queue import Queue
from s3queue.settings import QueueSettings
from s3queue.sweeper.sweeper import Sweeper
from s3queue.worker.context import Context
from s3queue.worker.definition import Definition
from s3queue.worker.invocation import InvocationRunner
from s3queue.worker.notifications import Notification
from s3queue.worker.processor import Processor

from .machines import EPOCH, Process, ProcessClock
from .rates import Grants
from .world import QUEUE, Fault, World


@dataclass(slots=True)
class Trouble:
    """How slow and how faulty requests are: parts of all requests."""

    slowest: float = 0.04
    pauses: float = 0.0
    longest_pause: float = 6.0
    lost: float = 0.0
    #: Of the writes of limits: the answer is lost, which is known after up to a second.
    lost_grants: float = 0.0


@dataclass(frozen=True, slots=True)
class Start:
    """A handler was called."""

    #: The true time, and the date of its claim.
    at: float
    claimed_at: float
    worker: str
    path: str
    attempt: int


@dataclass(eq=False)
class Crowd:
    """So many workers on one queue. It is the world's faults and its watcher, too."""

    settings: QueueSettings
    seed: int = 0
    trouble: Trouble = field(default_factory=Trouble)
    takes: float = 0.1
    #: What a handler does, if not nothing.
    handler: Callable[[Start], Any] = lambda start: None
    starts: list[Start] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    events: list[tuple[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.world = World(self.seed, self, self)
        self.definition = Definition(QUEUE, self.settings)
        self.definition.handler(self._handle)
        self.queues: list[Queue] = []
        self._grants = Grants(self.broken)

    # The world's faults

    def draw(self, process: Process, operation: str, key: str) -> Fault:
        chance, trouble = self.world.random, self.trouble
        fault = Fault(there=chance.uniform(0.002, trouble.slowest / 2), back=chance.uniform(0.002, trouble.slowest / 2))
        if chance.random() < trouble.pauses:
            fault.pause = chance.uniform(0.0, trouble.longest_pause)
        if chance.random() < trouble.lost:
            fault.kind = chance.choice(("lost", "answer lost"))
        is_grant = operation == "put" and "/limits/" in key
        if is_grant and trouble.lost_grants and chance.random() < trouble.lost_grants:
            fault.kind, fault.back = "answer lost", chance.random()
        return fault

    # The world's watcher

    def performed(self, process: Process, operation: str, key: str, sent_at: float, before: Any, after: Any) -> None:
        self._grants.written(process.name, key, before, after)

    def stepped(self) -> None: ...
    def hold(self, *_: Any) -> None: ...
    def let_go(self, *_: Any) -> None: ...
    def broken(self, promise: str, what: str) -> None:
        self.problems.append(f"{promise}: {what}")

    # The players

    def put(self, count: int, folder: str = "") -> None:
        for number in range(count):
            self.world.store.put(f"{QUEUE}/messages/{folder}{number:06d}", b"{}")

    def queue(self, process: Process) -> Queue:
        queue = Queue(
            store=self.world.store,
            name=QUEUE,
            settings=self.settings,
            worker_id=process.name,
            clock=ProcessClock(self.world, process),
            chance=self.world.chance,
        )
        for name in ("breaker.opened", "breaker.closed"):
            queue.events.on(name, lambda fields: self.events.append((fields["event"], self.world.now)))
        self.queues.append(queue)
        return queue

    def _process(self, name: str) -> Process:
        chance = self.world.random
        return Process(name, skew=chance.uniform(-30, 30), started=chance.random() * 1000)

    def pull(self, count: int, after: float = 0.0) -> None:
        """Workers that look for messages themselves, as the threads of a pull worker do."""
        for number in range(count):
            process = self._process(f"pull-{number}")
            self.world.spawn(process, self._pull, process, after=after + self.world.random.random())

    def _pull(self, process: Process) -> None:
        queue = self.queue(process)
        backlog, processor = Backlog(queue), Processor(queue=queue, definition=self.definition)
        while True:
            with suppress(QueueError):
                queue.refresh()
            if wait := queue.held_for():
                self.world.sleep(min(wait, 1.0))
                continue
            candidate = backlog.take()
            if candidate is None:
                if backlog.is_fruitless():
                    self.world.sleep(1.0)
                with suppress(QueueError):
                    backlog.refill()
                candidate = backlog.take()
            if candidate is None:
                continue
            with suppress(QueueError):
                held_back = queue.held_back
                won = processor.run(candidate.path, read_first=candidate.read_first, etag=candidate.etag)
                if won or queue.held_back == held_back:
                    queue.leases.forget(candidate.reminder)
                backlog.report(won=won is not None, is_hint=candidate.is_hint)

    def serve(self, count: int) -> None:
        """Functions that are told of messages, and a sweeper that tells them again."""
        idle = [self._process(f"function-{number}") for number in range(count)]
        waiting: list[tuple[str, ...]] = []
        runners = {process.name: InvocationRunner(self.queue(process), self.definition) for process in idle}

        def invoke(process: Process, paths: tuple[str, ...]) -> None:
            ends_at = self.world.now + 60.0
            runners[process.name].run([Notification(path=path) for path in paths], lambda: ends_at - self.world.now)
            idle.append(process)
            wake()

        def wake() -> None:
            while idle and waiting:
                process = idle.pop()
                self.world.spawn(process, invoke, process, waiting.pop(0))

        def dispatch(paths: Any) -> None:
            waiting.append(tuple(paths))
            wake()

        def sweep(process: Process) -> None:
            sweeper = Sweeper(queue=self.queue(process), dispatch=dispatch)
            while True:
                report = sweeper.tick()
                pause = report.next_tick if report else None
                self.world.sleep(30.0 if pause is None else pause)

        process = self._process("sweeper")
        self.world.spawn(process, sweep, process)

    def _handle(self, body: bytes, context: Context) -> Any:
        claimed_at = (context.claimed_at - EPOCH).total_seconds()
        start = Start(self.world.now, claimed_at, context.worker_id, context.path, context.attempt)
        self.starts.append(start)
        self.world.sleep(self.takes)
        return self.handler(start)

    def run(self, seconds: float) -> None:
        try:
            self.world.run(seconds)
        finally:
            self.world.close()
        assert self.problems == []


def most_in_any(times: list[float], window: float) -> int:
    """The most of these in any window [t, t + window)."""
    times = sorted(times)
    most = first = 0
    for last, time in enumerate(times):
        while time - times[first] >= window:
            first += 1
        most = max(most, last - first + 1)
    return most
