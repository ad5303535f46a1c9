"""Redelivery: a message whose worker crashed can be claimed again within its visibility timeout and three seconds."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

import pytest

from s3queue import Queue, Sweeper, Worker
from s3queue.protocol.claim import Claim
from s3queue.protocol.liveness import HeartbeatWriter
from s3queue.worker.sweep_turn import SweepTurn
from s3queue.worker.sweep_turns import SweepTurns
from support.virtual_processes import Process, VirtualProcesses
from support.workbench import Workbench

TIMEOUT = 5.0
BOUND = timedelta(seconds=TIMEOUT + 3)
SETTINGS = {"visibility_timeout": TIMEOUT, "rescue_after": 60}


def sweeping(sweeper: Sweeper) -> Process:
    """A sweeper function that stays awake."""
    while True:
        report = sweeper.tick()
        assert not (report and report.error), report
        yield 2.0 if report is None or report.next_tick is None else report.next_tick


def beating(heartbeat: HeartbeatWriter) -> Process:
    while True:
        assert heartbeat.beat({})
        yield TIMEOUT / 3


def taking_turns(worker: Worker) -> Process:
    turns = SweepTurns(worker.queue)
    while True:
        yield worker._sweep_in_turn(turns)


class PulledQueue:
    """Pull workers, without their handlers: a heartbeat each, and turns in sweeping."""

    def __init__(self, bench: Workbench, count: int) -> None:
        self.processes = VirtualProcesses(bench.clock)
        self.workers = [
            Worker(bench.queue(worker_id=f"w{number}", **SETTINGS), lambda body: None, concurrency=1)
            for number in range(count)
        ]
        self._started = {
            worker.queue.worker_id: (
                self.processes.start(beating(worker._heartbeat), after=number * 0.7),
                self.processes.start(taking_turns(worker), after=number * 0.3),
            )
            for number, worker in enumerate(self.workers)
        }

    def crash(self, worker: Worker) -> None:
        for process in self._started[worker.queue.worker_id]:
            self.processes.kill(process)


def polling(worker: Worker, claims: list[Claim]) -> Process:
    """Its one thread, without the handler: what it claims stays in its hand."""

    def run(claim: Claim) -> bool:
        claims.append(claim)
        return False

    worker._run = run
    while True:
        candidate = worker._next()
        if candidate:
            worker._work(candidate)
        yield 0.0 if candidate else 1.0


def beside_a_sleeping_function(
    bench: Workbench, processes: VirtualProcesses, claims: list[Claim], after: float, **settings: Any
) -> Worker:
    """A pull worker with one thread, and the sweeper function has looked at an idle queue just now."""
    worker = Worker(bench.queue(worker_id="idle", **settings), lambda body: None, concurrency=1)
    bench.queue(worker_id="plans", **settings).enqueue(b"keeps nobody awake", delay=3600)
    bench.sweeper(bench.queue(worker_id="function", **settings)).sweep()
    processes.start(taking_turns(worker), after=after)
    processes.start(polling(worker, claims))
    return worker


def can_claim(queue: Queue, path: str) -> bool:
    held = queue.read_lease(path)
    return held is not None and held.is_due()


def shown(at: datetime) -> datetime:
    """As S3's clock shows it."""
    return at.replace(microsecond=0)


@pytest.mark.parametrize("seed", range(40))
def test_by_the_sweeper_function_at_any_moment(bench, dispatched, seed):  # [P6]
    chance = random.Random(seed)
    queue = bench.queue(**SETTINGS)
    processes = VirtualProcesses(bench.clock)
    queue.enqueue(b"x", name="keeps it awake", delay=30)
    bench.clock.advance(chance.random())
    processes.start(sweeping(bench.sweeper(bench.queue(worker_id="sweeper", **SETTINGS), dispatched)))
    processes.run(3 + chance.random() * 10)
    path = queue.enqueue(b"x")
    assert bench.queue(worker_id="crashes", **SETTINGS).claim(path)
    crashed_at = bench.clock.now()

    assert processes.run(60, until=lambda: path in dispatched)

    assert can_claim(queue, path)
    assert shown(bench.clock.now()) - shown(crashed_at) <= BOUND


@pytest.mark.parametrize("seed", range(40))
def test_by_the_sweeper_function_when_a_heartbeat_stops_at_any_moment(bench, dispatched, seed):  # [P2] [P6]
    chance = random.Random(seed)
    queue = bench.queue(worker_id="beats", **SETTINGS)
    processes = VirtualProcesses(bench.clock)
    path = queue.enqueue(b"x")
    heartbeat = HeartbeatWriter(queue, queue.settings.visibility_timeout)
    heartbeat.hold(queue.claim(path))
    beats = processes.start(beating(heartbeat))
    bench.clock.advance(chance.random())
    processes.start(sweeping(bench.sweeper(bench.queue(worker_id="sweeper", **SETTINGS), dispatched)))
    assert not processes.run(5 + chance.random() * 40, until=lambda: path in dispatched)
    processes.kill(beats)
    crashed_at = bench.clock.now()

    assert processes.run(60, until=lambda: path in dispatched)

    assert can_claim(queue, path)
    assert shown(bench.clock.now()) - shown(crashed_at) <= BOUND


@pytest.mark.parametrize("who", ["sweeps", "does not sweep"])
@pytest.mark.parametrize("seed", range(20))
def test_by_the_other_pull_workers_whoever_crashed_at_any_moment(bench, who, seed):  # [P6]
    chance = random.Random(seed)
    pulled = PulledQueue(bench, 3)
    queue = pulled.workers[0].queue
    pulled.processes.run(20 + chance.random() * 60)
    victim = pulled.workers[0] if who == "sweeps" else pulled.workers[1]
    path = queue.enqueue(b"x")
    claim = victim.queue.claim(path)
    assert claim
    victim._heartbeat.hold(claim)
    for worker in pulled.workers:
        worker._backlog.refill()  # as its idle threads do every second or so
    pulled.processes.run(chance.random() * 12)
    pulled.crash(victim)
    crashed_at = bench.clock.now()

    others = [worker for worker in pulled.workers if worker is not victim]
    assert pulled.processes.run(60, until=lambda: any(len(worker._inbox) for worker in others))

    assert can_claim(queue, path)
    assert shown(bench.clock.now()) - shown(crashed_at) <= BOUND


@pytest.mark.parametrize("seed", range(40))
def test_by_a_pull_worker_beside_a_function_that_sleeps_at_any_moment(bench, seed):  # [P2] [P6]
    chance = random.Random(seed)
    processes, claims = VirtualProcesses(bench.clock), []
    crashes = bench.queue(worker_id="crashes", **SETTINGS)
    beside_a_sleeping_function(bench, processes, claims, chance.random(), **SETTINGS)
    processes.run(30 + chance.random())
    path = crashes.enqueue(b"x")
    claim = crashes.claim(path)
    assert claim
    if chance.random() < 0.5:
        heartbeat = HeartbeatWriter(crashes, crashes.settings.visibility_timeout)
        heartbeat.hold(claim)
        beats = processes.start(beating(heartbeat))
        assert not processes.run(5 + chance.random() * 30, until=lambda: bool(claims))
        processes.kill(beats)
    crashed_at = bench.clock.now()

    assert processes.run(60, until=lambda: can_claim(crashes, path))

    assert shown(bench.clock.now()) - shown(crashed_at) <= BOUND
    assert processes.run(2, until=lambda: bool(claims))
    assert [(claim.path, claim.attempt) for claim in claims] == [(path, 2)]


def test_a_pull_worker_beside_a_function_asks_about_a_healthy_message_once_per_timeout(bench):
    settings = SETTINGS | {"visibility_timeout": 30}
    processes, claims = VirtualProcesses(bench.clock), []
    holder = bench.queue(worker_id="holds", **settings)
    heartbeat = HeartbeatWriter(holder, holder.settings.visibility_timeout)
    heartbeat.hold(holder.claim(holder.enqueue(b"x")))
    processes.start(beating(heartbeat))
    beside_a_sleeping_function(bench, processes, claims, 0.3, **settings)
    processes.run(60)
    bench.store.take()

    processes.run(60)

    assert not claims
    assert not [key for verb, key in bench.store.log if verb == "get" and "/leases/" in key]
    assert len([key for verb, key in bench.store.log if verb == "get" and key.endswith("/workers/holds")]) <= 3


def test_a_pull_worker_beside_a_function_sends_nothing_more_in_an_idle_queue(bench):
    processes, claims = VirtualProcesses(bench.clock), []
    beside_a_sleeping_function(bench, processes, claims, 0.3, **SETTINGS)
    processes.run(30)
    bench.store.take()

    processes.run(60)

    asked = {(verb, key) for verb, key in bench.store.log if verb != "list"}
    assert asked <= {("get", "orders/queue.json")}
    assert ("list", "orders/leases/") not in bench.store.log


def test_a_busy_pull_worker_beside_a_function_leaves_leases_to_idle_ones(bench):
    processes = VirtualProcesses(bench.clock)
    queue = bench.queue(worker_id="works", **SETTINGS)
    bench.sweeper(bench.queue(worker_id="function", **SETTINGS)).sweep()
    worker = Worker(queue, lambda body: None, concurrency=1)
    assert queue.claim(queue.enqueue(b"runs"))
    queue.enqueue(b"waits")
    worker._backlog.refill()
    assert worker._backlog.saw_leases
    processes.start(taking_turns(worker))
    bench.store.take()

    processes.run(60)

    assert not [key for verb, key in bench.store.log if verb == "list"]


def test_a_pull_worker_that_looks_after_leases_forgets_what_it_counted_in_its_own_turn(bench):
    queue = bench.queue(worker_id="works", **SETTINGS)
    bench.sweeper(bench.queue(worker_id="function", **SETTINGS)).sweep()
    counted: list[object] = []
    turn, turns = SweepTurn(queue, lambda paths: 0, counted=counted.append), SweepTurns(queue)
    turn.sweep(turns, expects_leases=True, is_idle=True)
    assert turn._sweeper.tick_leases(are_expected=True), "there is a report, without a count"
    counted.clear()

    turn.sweep(turns, expects_leases=True, is_idle=True)

    assert turns.is_functions
    assert counted == [None]


def test_only_one_pull_worker_sweeps_and_the_others_ask_once_per_timeout(bench):
    pulled = PulledQueue(bench, 3)
    pulled.processes.run(60)
    bench.store.take()

    pulled.processes.run(60)

    publishers = {key for verb, key in bench.store.log if verb == "put" and "/locks/" in key}
    assert publishers == {"orders/locks/sweeper"}
    looks = [key for verb, key in bench.store.log if verb == "get" and ("/workers/" in key or "/locks/" in key)]
    # Two others; the holder's heartbeat is at most a third of the timeout old when they look.
    assert len(looks) <= 2 * 60 / TIMEOUT
    assert ("get", "orders/stats.json") not in bench.store.log


def test_wall_clocks_do_not_decide_who_sweeps(bench):
    class Behind:
        """A worker's machine whose wall clock is an hour slow."""

        def now(self) -> datetime:
            return bench.clock.now() - timedelta(hours=1)

        def monotonic(self) -> float:
            return bench.clock.monotonic()

        def sleep(self, seconds: float) -> None:
            bench.clock.sleep(seconds)

    bench.queue(**SETTINGS).enqueue(b"x", delay=3600)
    bench.sweeper(bench.queue(worker_id="function", **SETTINGS)).sweep()
    queue = bench.queue(worker_id="slow", **SETTINGS)
    queue.clock = Behind()
    turns = SweepTurns(queue)

    assert not turns.is_ours()
    bench.clock.advance(119)
    assert not turns.is_ours()
    bench.clock.advance(2)
    assert turns.is_ours()
