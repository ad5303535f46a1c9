"""MemoryBucket: an application's queues in the memory of a test, with virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import count
from typing import Any

from s3queue.clock import RandomChance
from s3queue.documents.dead_letter import DeadLetter
from s3queue.encoding import decode_metadata
from s3queue.errors import InvalidRequest
from s3queue.paths import due_of, is_batch, partition_of, priority_of
from s3queue.protocol.backlog import Backlog, Candidate
from s3queue.protocol.dead_letters import DeadLetters
from s3queue.queue import Queue
from s3queue.settings import QueueSettings
from s3queue.store import listing
from s3queue.stores.memory import MemoryStore
from s3queue.sweeper.sweeper import Sweeper
from s3queue.worker.definition import Definition, definition_for
from s3queue.worker.partition_run import run_partition
from s3queue.worker.processor import AttemptEnding, Processor

from .clock import VirtualClock
from .handled import definition_of
from .sent import Sent, readable

#: So many attempts at one instant are a loop: a handler that sends to its own queue, without a delay.
MOST_ATTEMPTS = 10_000
#: What waits without a due time (a rate, a breaker, a lease that nobody holds any more) is looked at after a second,
#: then after two, and so on, up to an hour.
LONGEST_STEP_SECONDS = 3600.0


class MemoryBucket:
    """A bucket whose queues run in this thread, when the test says so: `run`, or `clock.advance`. In an `async`
    test, `async` handlers run in another one, in a loop of their own, and the test's loop waits.

    orders = bucket.serve(definition)
    path = orders.enqueue({"id": 17})
    bucket.clock.advance(3600)
    assert orders.status(path).state == "completed"
    """

    def __init__(self, clock: VirtualClock | None = None, *, name: str = "testing") -> None:
        self.clock = clock or VirtualClock()
        self.clock.run_until = self._run_until
        self.store = MemoryStore(name, clock=self.clock, around=self._note_order)
        #: What S3QUEUE_URL names, so that definitions enqueue to this bucket.
        self.url = self.store.url
        self._chance = _InOrder()
        #: Key → the number of the PUT that made it: names do not always tell the order.
        self._order: dict[str, int] = {}
        self._puts = count()
        self._served: dict[str, _Served] = {}
        self._is_running = False

    def serve(self, definition: Definition) -> Queue:
        """The definition's queue: its handler runs its messages from now on. Without jitter, so that a test knows when.

        Raises:
            InvalidRequest: it has no handler, its messages run on Spark, or another definition has this name.
        """
        definition_of(definition)
        served = self._served.get(definition.name)
        if served and served.definition is not definition:
            raise InvalidRequest(f"another definition of queue {definition.name!r} is served by this bucket already")
        if definition.settings.engine == "spark":
            raise InvalidRequest(f"the messages of {definition.name!r} run on Spark, not in a handler")
        if served is None:
            queue = self._queue(definition.name, replace(definition.settings, retry_jitter=False))
            queue.check_body = definition.check
            served = self._served[definition.name] = _Served.of(queue, definition)
            definition.connected[self.url] = queue
        return served.queue

    def queue(self, name: str, **settings: Any) -> Queue:
        """A queue that nobody serves, or that of a definition that is served: to enqueue, and to look at."""
        if name in self._served and not settings:
            return self._served[name].queue
        return self._queue(name, QueueSettings.of(**settings))

    def run(self) -> int:
        """Run whatever may run now, and what comes of it; returns how many attempts that were.

        Raises:
            RuntimeError: there is no end of it.
        """
        if self._is_running:
            return 0  # a handler that asks for it is itself being run
        made: list[AttemptEnding] = []
        with self._running():
            before = -1
            while before != len(made):
                before = len(made)
                for served in list(self._served.values()):
                    served.work(made)
        return len(made)

    def messages(self, queue: str) -> list[Sent]:
        """The messages that wait in a queue, and those that are delayed or wait for a retry, in the order in which they
        were enqueued; of a batch, each line.
        """
        keys = self._queue(queue, QueueSettings()).keys
        stored = [
            entry.key
            for kind in ("messages", "delayed")
            for page in listing(self.store, keys.prefix(kind))
            for entry in page.objects
        ]
        found: list[Sent] = []
        for key in sorted(stored, key=self._order.__getitem__):
            path, message = keys.path(key), self.store.open(key)
            if path and message:
                body, metadata = message.read(), dict(decode_metadata(message.metadata))
                for one in [line for line in body.splitlines() if line.strip()] if is_batch(path) else [body]:
                    content = readable(one, message.content_type)
                    found.append(Sent(queue, content, priority_of(path), due_of(path), metadata))
        return found

    def dead(self, queue: str) -> list[DeadLetter]:
        """The dead letters of a queue: each has its path, and the error that it died of."""
        return list(DeadLetters(self._queue(queue, QueueSettings())).list())

    def close(self) -> None:
        """Definitions that were served forget this bucket."""
        for served in self._served.values():
            served.definition.connected.pop(self.url, None)
        self.clock.run_until = None

    def _queue(self, name: str, settings: QueueSettings) -> Queue:
        return Queue(store=self.store, name=name, settings=settings, clock=self.clock, chance=self._chance)

    def _note_order(self, operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if operation in ("put", "copy"):
            self._order[key] = next(self._puts)
        return perform()

    @contextmanager
    def _running(self) -> Iterator[None]:
        self._is_running = True
        try:
            yield
        finally:
            self._is_running = False

    def _run_until(self, instant: float) -> None:
        """Go from one due time to the next, and run what is due there."""
        if self._is_running:
            return
        step = 1.0
        while True:
            step = 1.0 if self.run() else min(step * 2, LONGEST_STEP_SECONDS)
            now = self.clock.monotonic()
            waits = [wait for served in self._served.values() if (wait := served.next_within(step)) is not None]
            if now >= instant or not waits or now + min(waits) >= instant:
                break
            self.clock.reach(now + min(waits))
        self.clock.reach(instant)
        self.run()


class _InOrder(RandomChance):
    """Names in the order in which they are made, also at one instant: messages then run in the order of the test."""

    def __init__(self) -> None:
        super().__init__()
        self._names = count()

    def name(self, at: datetime) -> str:
        parts = super().name(at).split("-")
        return "-".join((*parts[:2], "7000", "8000", f"{next(self._names):012x}"))


@dataclass(slots=True)
class _Served:
    """A queue of the bucket, and what runs it."""

    queue: Queue
    definition: Definition
    processor: Processor
    sweeper: Sweeper
    #: Paths that the sweeper handed over.
    handed: list[str]

    @classmethod
    def of(cls, queue: Queue, definition: Definition) -> _Served:
        definition_for(queue, definition)
        definition.events.pass_on(queue.events)
        handed: list[str] = []
        sweeper = Sweeper(queue=queue, dispatch=lambda paths: handed.extend(paths), schedules=definition.schedules)
        return cls(queue, definition, Processor(queue=queue, definition=definition), sweeper, handed)

    def work(self, made: list[AttemptEnding]) -> None:
        """Sweep, then run what may run now; how each attempt ended is added to `made`."""
        self.sweeper.sweep()
        self.queue.refresh()
        while self.handed:
            path = self.handed.pop(0)
            self._try(Candidate(path, priority_of(path), self.queue.clock.now(), read_first=True), made)
        backlog = Backlog(self.queue, competes=False, partitions=True)
        while not self._is_held() and backlog.refill():
            while not self._is_held() and (candidate := backlog.take()):
                backlog.report(won=self._try(candidate, made), is_hint=candidate.is_hint)
            if backlog.is_fruitless():
                break

    def _is_held(self) -> bool:
        return self.queue.settings.paused or self.queue.held_for() > 0

    def _try(self, candidate: Candidate, made: list[AttemptEnding]) -> bool:
        """Claim and run a message, or the messages of a partition; whether that was possible."""
        if len(made) > MOST_ATTEMPTS:
            raise RuntimeError(
                f"more than {MOST_ATTEMPTS:,} attempts at one instant: does a handler send to its own queue?"
            )
        queue, path, held_back = self.queue, candidate.path, self.queue.held_back
        if partition := partition_of(path):
            won = run_partition(self.processor, partition, should_stop=lambda: False, count=made.append)
        else:
            claim = queue.claim(path, read_first=candidate.read_first, etag=candidate.etag)
            won = claim is not None
            while claim is not None:
                made.append(self.processor.process(claim))
                claim = self.processor.claim_again(claim)
        if candidate.reminder and (won or queue.held_back == held_back):
            queue.leases.forget(candidate.reminder)
        return won

    def next_within(self, step: float) -> float | None:
        """Seconds until something is due, as far as the bucket tells; else `step` if anything waits; else None."""
        queue, waits = self.queue, list[float]()
        now = queue.clock.now()
        for kind in ("delayed", "retries"):
            first = queue.store.list(queue.keys.prefix(kind), limit=1).objects
            if first and (due_at := self._due(kind, first[0].key)) and due_at > now:
                waits.append((due_at - now).total_seconds())
        if upcoming := [one.upcoming[0] for one in queue.schedules.list() if one.upcoming]:
            waits.append((min(upcoming) - now).total_seconds())
        elif self.definition.schedules:
            waits.append(step)
        if any(queue.store.list(queue.keys.prefix(kind), limit=1).objects for kind in ("messages", "leases", "flows")):
            waits.append(step)
        positive = [wait for wait in waits if wait > 0]
        return min(positive) if positive else (step if waits else None)

    def _due(self, kind: str, key: str) -> datetime | None:
        if kind == "delayed":
            return due_of(self.queue.keys.path(key) or "")
        reminded = self.queue.keys.reminded(key)
        return reminded[0] if reminded else None
