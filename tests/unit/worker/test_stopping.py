"""A worker that stops finishes what runs and gives back the rest, by `stop` and by a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import s3queue
from s3queue import Queue, QueueSettings, Worker
from support.threads import PATIENCE, eventually, hurry


def test_the_heartbeat_of_a_worker_that_stops_waits_for_a_handler_that_is_about_to_start(bench):
    queue = bench.queue()
    queue.enqueue(b"1")
    is_about, go_on = threading.Event(), threading.Event()
    worker = Worker(queue, lambda message: None, concurrency=1, sweep=False)

    def hold(claim: Any) -> None:
        is_about.set()
        go_on.wait(PATIENCE)
        real_hold(claim)

    real_hold, worker._heartbeat.hold = worker._heartbeat.hold, hold  # type: ignore[method-assign]
    worker.start()
    assert is_about.wait(PATIENCE)
    worker.stop(timeout=0)
    assert not worker._supervisor._is_over()

    go_on.set()
    assert worker.stop(PATIENCE)


def test_stop_lets_running_handlers_finish_and_claims_nothing_more(bench):
    queue = bench.queue()
    paths = [queue.enqueue(str(number)) for number in range(20)]
    begun, finish = threading.Event(), threading.Event()
    ran = []

    def handler(body: int) -> None:
        begun.set()
        finish.wait(PATIENCE)
        ran.append(body)

    worker = Worker(queue, handler, concurrency=2, sweep=False)
    assert not worker.is_running
    worker.start()
    assert begun.wait(PATIENCE)
    assert not worker.stop(timeout=0.05)  # not finished in that time, and it says so
    assert worker.is_running
    finish.set()
    assert worker.stop(PATIENCE)
    assert not worker.is_running

    assert 1 <= len(ran) <= 2
    states = [queue.status(path).state for path in paths]
    assert states.count("completed") == len(ran)
    assert states.count("pending") == 20 - len(ran)


@pytest.mark.parametrize("place", ["handler", "hook", "hook of a partition"])
def test_a_handler_or_a_hook_may_stop_its_worker(bench, place):
    queue = bench.queue(concurrency=1, partitions=1 if place == "hook of a partition" else 0)
    paths = [queue.enqueue(str(number)) for number in range(100)]
    answers: list[bool] = []

    def stop(*told: Any) -> None:
        answers.append(worker.stop())

    worker = Worker(queue, stop if place == "handler" else lambda body: None, sweep=False)
    if place != "handler":
        queue.events.on("message.completed", stop)
    hurry(worker)
    worker.run_until_empty()

    assert answers
    assert not any(answers)
    assert not worker.is_running
    assert bench.keys("orders/workers/") == bench.keys("orders/leases/") == []
    ended = [queue.outcome_of(path) for path in paths]
    assert all(one.outcome == "completed" for one in ended if one)
    assert len(answers) == sum(one is not None for one in ended)


@pytest.mark.parametrize("place", ["first", "second"])
def test_a_hook_may_stop_either_worker_of_its_queue(bench, place):
    queue = Queue(store=bench.store, name="orders", settings=QueueSettings.of(concurrency=1, handler_timeout=2))
    for number in range(20):
        queue.enqueue(str(number))
    answers: list[bool] = []
    queue.events.on("message.completed", lambda told: answers.append(worker.stop()))
    workers = {name: Worker(queue, lambda body: None, sweep=False) for name in ("first", "second")}
    worker = workers[place]
    hurry(worker)
    worker.run_until_empty()

    assert answers
    assert not any(answers)


def test_stop_releases_the_rest_of_a_batch_without_an_attempt(bench):  # [P5]
    queue = bench.queue()
    (path,) = queue.enqueue_many(range(1000), per_object=1000)
    ran = []
    enough = threading.Event()

    def handler(body: int) -> None:
        ran.append(body)
        if len(ran) == 6:
            enough.set()
            assert worker._stopping.wait(PATIENCE)

    worker = Worker(queue, handler, concurrency=1, sweep=False)
    worker.start()
    assert enough.wait(PATIENCE)
    worker.stop()

    assert worker.stats()["released"] == 1
    lease = queue.status(path).lease
    assert (lease.state, lease.attempt, len(lease.lines.done)) == ("waiting", 0, 6)
    bench.clock.advance(1)  # due by S3's clock, which tells whole seconds
    second = Worker(queue, handler, concurrency=1, sweep=False)
    second.run_until_empty()
    assert ran == list(range(1000))


def test_what_is_claimed_while_stopping_is_released_and_never_begins(bench):  # [P5]
    queue = bench.queue()
    path = queue.enqueue(b"1")
    ran: list[int] = []
    worker = Worker(queue, ran.append, concurrency=1, sweep=False)
    original = queue.store.inner.put

    def slow(key: str, *args: Any, **options: Any) -> Any:
        written = original(key, *args, **options)
        if key.startswith("orders/leases/"):
            worker._stopping.set()  # SIGTERM arrives between the claim and the handler
        return written

    queue.store.inner.put = slow
    worker.start()
    eventually(worker._stopping.is_set)
    assert worker.stop(PATIENCE)

    assert ran == []
    assert queue.status(path).state == "pending"
    assert worker.stats()["released"] == 1


_SCRIPT = """
import sys
from pathlib import Path
from s3queue import Context, Queue, QueueSettings, Worker
from s3queue.stores.memory import MemoryStore

folder = Path(sys.argv[1])
queue = Queue(store=MemoryStore(), name="orders", settings=QueueSettings.of(concurrency=2))
paths = [queue.enqueue(str(number)) for number in range(10)]
paths += queue.enqueue_many(range(5000), per_object=5000)

def handler(body: int, context: Context) -> int:
    if context.line == 0:
        (folder / "began").touch()
    # Until the signal has come: a message takes as long as it must, and the batch is never at its end before.
    worker._stopping.wait(60)
    return body

worker = Worker(queue, handler)
worker.run()
states = [queue.status(path).state for path in paths]
leases = [queue.status(path).lease for path in paths]
print(states.count("completed"), sum(state in ("pending", "waiting") for state in states),
      sum(lease is not None and lease.state == "processing" for lease in leases),
      sum(len(lease.attempts) for lease in leases if lease), worker.stats()["running"])
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_running_handlers_and_releases_the_rest(tmp_path, number):  # [P5]
    functions = Path(s3queue.__file__).resolve().parents[1]
    process = subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(functions)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        eventually((tmp_path / "began").exists)
        process.send_signal(number)
        output, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()

    assert process.returncode == 0
    completed, given_back, at_work, attempts, running = map(int, output.split())
    assert 1 <= completed <= 2
    assert completed + given_back == 11
    assert at_work == attempts == running == 0
