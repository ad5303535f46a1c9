"""Forged state in one queue: nobody who reads it fails, and the other messages and queues go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from s3queue import Definition, Lock
from s3queue.dashboard.api import build
from s3queue.errors import CorruptState
from s3queue.protocol.locks import list_locks
from s3queue.spark_runs.slots import RunStore
from s3queue.spark_runs.watch import RunWatch
from s3queue.worker.invocation import InvocationRunner
from s3queue.worker.notifications import Notification
from support.api_calls import asking
from support.counting_store import CountingStore
from support.fake_jobs import FakeJobs
from support.forged_documents import HUGE, KEYS, VICTIM, ForgedStore, drawn_forgeries, forgeries, put_forged
from support.heavy_queue import SPARK, launcher
from support.workbench import Workbench

#: Drawn from all forgeries of a kind: each takes a world of its own.
FEW = 25


class World:
    """Two queues in one bucket; in the first, someone forges state. Reading gigabytes fails the test."""

    def __init__(self, **options: Any) -> None:
        self.bench = Workbench()
        self.bench.memory = ForgedStore("bench", clock=self.bench.clock)
        self.bench.store = CountingStore(self.bench.memory)
        self.queue = self.bench.queue("orders", **options)
        self.other = self.bench.queue("invoices")
        self.jobs = FakeJobs()

    def forge(self, kind: str, body: bytes) -> None:
        put_forged(self.bench.memory, "orders", kind, body)

    def ask(self) -> None:
        """Everything that an operator may look at."""
        ask = asking(build(self.bench.store))
        views = ("", "/stats", "/flow", "/stuck", "/workers", "/runs", "/messages", "/dead", "/locks")
        paths = [f"/api/queues/orders{view}" for view in views] + ["/api/queues", "/api/statistics"]
        for path in paths:
            answer = ask("GET", path)
            assert answer.status < 500 or answer.body["error"] == "CorruptState", (path, answer)
        for state in ("processing", "waiting", "completed", "dead", "pending"):
            answer = ask("GET", "/api/queues/orders/messages", query={"state": state})
            assert answer.status < 500 or answer.body["error"] == "CorruptState", (state, answer)
        answer = ask("GET", "/api/queues/orders/message", query={"path": VICTIM})
        assert answer.status < 500 or answer.body["error"] == "CorruptState", answer

    def look(self) -> None:
        """Everything that reads a document for a caller: CorruptState and nothing else."""
        calls: list[Callable[[], object]] = [
            lambda: self.queue.status(VICTIM).to_json(),
            lambda: self.queue.claim(VICTIM, read_first=True),
            lambda: self.queue.adopt(VICTIM),
            lambda: self.queue.overrides(),
            lambda: self.queue.refresh(),
            lambda: self.queue.published_stats(),
            lambda: list(list_locks(self.bench.store, self.queue.keys)),
            lambda: Lock(self.bench.store, self.queue.keys.lock("nightly"), 30, clock=self.bench.clock).acquire(),
            lambda: RunStore(self.queue).slot(0),
            lambda: RunStore(self.queue).manifest("run-1"),
            lambda: RunWatch(self.jobs, "bench").check(self.queue),
        ]
        for call in calls:
            try:
                call()
            except CorruptState as error:
                said = str(error)
            else:
                continue
            assert "orders/" in said

    def others_go_on(self, kind: str) -> None:
        """Sweep and work: the neighbour and the other queue's message are completed."""
        neighbours = [(self.queue, self.queue.enqueue(b'"x"')), (self.other, self.other.enqueue(b'"y"'))]
        for _ in range(4):
            self.bench.clock.advance(120)
            for queue, _path in neighbours:
                dispatched: list[str] = []
                sweeper = self.bench.sweeper(queue, dispatched)
                sweeper.check_runs = RunWatch(self.jobs, "bench").check
                sweeper.sweep()
                self._invoke(queue, dispatched)
        for queue, path in neighbours:
            assert queue.status(path).state == "completed", (kind, queue.name)

    def _invoke(self, queue: Any, paths: list[str]) -> None:
        definition = Definition(queue.name, queue.settings)
        definition.handler(lambda body: None)
        runner = InvocationRunner(queue, definition)
        notifications = [Notification(path=path, notified_at=None, size=None) for path in paths]
        try:
            runner.run(notifications, lambda: 60.0)
        except CorruptState:
            return


def tried(kind: str, forged: bytes) -> None:
    world = World()
    world.forge(kind, forged)
    world.look()
    world.ask()
    world.others_go_on(kind)


@pytest.mark.parametrize("kind", KEYS)
def test_forged_state_stops_nobody_else(kind):
    _, real = KEYS[kind]
    for forged in [real, HUGE, *forgeries(real, few=FEW)]:
        tried(kind, forged)


@pytest.mark.parametrize("kind", KEYS)
@settings(max_examples=10)
@given(some.data())
def test_state_forged_in_several_places_stops_nobody_else(kind, data):
    tried(kind, data.draw(drawn_forgeries(KEYS[kind][1])))


@pytest.mark.parametrize("kind", ["lease", "heartbeat", "slot", "manifest", "settings", "record"])
def test_forged_state_of_one_run_stops_neither_the_launcher_nor_the_watch(kind):
    for forged in [HUGE, *forgeries(KEYS[kind][1], seed=1, few=FEW)]:
        world = World(**SPARK, max_runs=2)
        world.forge(kind, forged)
        path = world.queue.enqueue({"n": 1})
        watch = RunWatch(world.jobs, "bench")
        launched = launcher(world.jobs).launch(world.queue, [path])
        for _ in range(3):
            world.bench.clock.advance(700)
            watch.check(world.queue)
        assert launched in ("started", "busy", "nothing"), forged
