"""Forged state in one queue: nobody who reads it fails, and the other messages and queues go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from s3queue import Breaker, Definition, Lock
from s3queue.dashboard.api import build
from s3queue.errors import AccessDenied, CorruptState
from s3queue.protocol.locks import list_locks
from s3queue.spark_runs.slots import RunStore
from s3queue.spark_runs.watch import RunWatch
from s3queue.worker.invocation import InvocationRunner
from s3queue.worker.notifications import Notification
from support.api_calls import asking
from support.counting_store import CountingStore
from support.fake_jobs import FakeJobs
from support.forged_documents import (
    ARCHIVED,
    FOREIGN,
    HUGE,
    KEYS,
    VICTIM,
    ForgedStore,
    drawn_forgeries,
    forgeries,
    put_forged,
)
from support.heavy_queue import SPARK, launcher
from support.workbench import Workbench

#: Drawn from all forgeries of a kind: each takes a world of its own.
FEW = 25
#: A flow of which the sweeper finds the marker.
FLOW = "2026-nightly"
#: Where state lies, beside KEYS.
ELSEWHERE = [
    "orders/sweep.json",
    "orders/locks/sweeper",
    "orders/queue-breaker.json",
    "orders/queue-settings.json",
    "orders/queue-acknowledged.json",
    "orders/limits/queue.json",
    "orders/schedules/nightly.json",
    f"flows/{FLOW}/flow.json",
    "orders/leases/messages/stranger",
]


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
    for forged in [real, HUGE, ARCHIVED, FOREIGN, *forgeries(real, few=FEW)]:
        tried(kind, forged)


@pytest.mark.parametrize("kind", KEYS)
@settings(max_examples=10)
@given(some.data())
def test_state_forged_in_several_places_stops_nobody_else(kind, data):
    tried(kind, data.draw(drawn_forgeries(KEYS[kind][1])))


@pytest.mark.parametrize("kind", ["lease", "heartbeat", "slot", "manifest", "settings", "record"])
def test_forged_state_of_one_run_stops_neither_the_launcher_nor_the_watch(kind):
    for forged in [HUGE, ARCHIVED, FOREIGN, *forgeries(KEYS[kind][1], seed=1, few=FEW)]:
        world = World(**SPARK, max_runs=2)
        world.forge(kind, forged)
        path = world.queue.enqueue({"n": 1})
        watch = RunWatch(world.jobs, "bench")
        launched = launcher(world.jobs).launch(world.queue, [path])
        for _ in range(3):
            world.bench.clock.advance(700)
            watch.check(world.queue)
        assert launched in ("started", "busy", "nothing"), forged


@pytest.mark.parametrize("how", [ARCHIVED, FOREIGN], ids=["archived", "foreign key"])
@pytest.mark.parametrize("key", [*(f"orders/{key}" for key, _ in KEYS.values()), *ELSEWHERE])
def test_state_that_nobody_can_read_stops_no_sweep_and_no_claim(key, how):  # [P6]
    world = World(rate="1000/s", breaker=Breaker(failures=3))
    bench, queue = world.bench, world.queue
    crashed, late = queue.enqueue(b"1"), queue.enqueue(b"2", delay=60)
    assert bench.queue(worker_id="w").claim(crashed)
    bench.put(f"orders/flows/{FLOW}", b"{}")
    for path in (VICTIM, "messages/stranger"):
        bench.put(f"orders/{path}", b"3")
    bench.put(key, how)
    ran, dispatched = list[int](), list[str]()
    sweeper, processor = bench.sweeper(queue, dispatched, counts_hour=True), bench.processor(queue, ran.append)
    sweeper.check_runs = RunWatch(world.jobs, "bench").check

    for _ in range(10):
        bench.clock.advance(60)
        report = sweeper.tick()
        assert report is None or report.error is None
        assert sweeper.tick_delayed().error is None
        while dispatched:
            processor.run(dispatched.pop(0), read_first=True)

    assert {1, 2} <= set(ran)
    assert [queue.status(path).state for path in (crashed, late)] == ["completed"] * 2
    assert not bench.keys("orders/messages/")
    if "leases" in key:
        assert queue.status(key.removeprefix("orders/leases/")).state == "dead", "as of a lease that is garbage"
    path = queue.enqueue(b"4")
    assert [claim.path for claim in queue.claim_next()] == [path]


@pytest.mark.parametrize("how", [ARCHIVED, FOREIGN], ids=["archived", "foreign key"])
def test_a_lease_that_nobody_can_read_hides_no_message_from_claim_next(how):
    world = World()
    world.bench.put("orders/messages/p255/x", b"{}")
    world.bench.put("orders/leases/messages/p255/x", how)
    paths = {world.queue.enqueue({"n": number}) for number in range(5)}
    world.bench.clock.advance(60)

    assert {claim.path for claim in world.queue.claim_next(10)} == paths


@pytest.mark.parametrize("how", [ARCHIVED, FOREIGN], ids=["archived", "foreign key"])
def test_a_partition_whose_lease_nobody_can_read_is_taken_over(how):  # [P9]
    world = World(partitions=1)
    ran, dispatched = list[dict[str, int]](), list[str]()
    sweeper, processor = world.bench.sweeper(world.queue, dispatched), world.bench.processor(world.queue, ran.append)
    world.bench.put("orders/leases/@=0", how)
    for number in range(3):
        world.queue.enqueue({"n": number})

    for _ in range(10):
        world.bench.clock.advance(60)
        sweeper.tick()
        while dispatched:
            processor.run(dispatched.pop(0), read_first=True)

    assert sorted(one["n"] for one in ran) == [0, 1, 2]


@pytest.mark.parametrize("kind", ["lease", "heartbeat", "settings", "stats", "record"])
def test_state_that_this_role_may_not_read_is_not_taken_for_garbage(bench, queue, kind):
    """A permission is missing, or the credentials have expired: that says nothing about what is stored."""
    path = queue.enqueue(b"1")
    assert queue.claim(path)
    key, _ = KEYS[kind]
    key = f"orders/{key}".replace(VICTIM, path).replace("workers/w", f"workers/{queue.worker_id}")
    bench.put(key, b"garbage") if kind != "lease" else None
    before = bench.read(key)

    def deny(operation: str, at: str, perform: Callable[[], Any]) -> Any:
        if operation in ("get", "head") and at == key:
            raise AccessDenied(f"{operation} {at}: AccessDenied; allow s3:GetObject")
        return perform()

    bench.around = deny
    sweeper = bench.sweeper(bench.queue(worker_id="sweeper"))
    for _ in range(5):
        bench.clock.advance(60)
        sweeper.tick()

    bench.around = None
    assert queue.status(path).state != "dead"
    if kind != "stats":  # which a sweep writes without reading it
        assert bench.read(key) == before
