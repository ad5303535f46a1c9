"""`run_until_empty` ends when nothing is left, and not before, whatever a rate or a breaker permits meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from s3queue import Breaker, Worker
from support.threads import PATIENCE, eventually


@contextmanager
def passing(bench, pace: float = 1000.0) -> Iterator[None]:
    """Time passes by itself, so much faster than for the test."""
    is_over = threading.Event()

    def tick() -> None:
        while not is_over.wait(0.001):
            bench.clock.advance(0.001 * pace)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def ends(worker: Worker) -> bool:
    """Whether it returns by itself, in good time."""
    thread = threading.Thread(target=worker.run_until_empty, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    is_over = not thread.is_alive()
    worker.stop()
    return is_over


@pytest.mark.parametrize("rate_key", ["", "folder"])
@pytest.mark.parametrize("concurrency", [1, 4])
def test_it_waits_for_the_tokens_of_a_rate(bench, rate_key, concurrency):
    queue = bench.queue(rate="3/min", rate_key=rate_key, visibility_timeout=3600)
    for number in range(9):
        queue.enqueue(str(number), name=f"customer/{number}")
    ran: list[int] = []

    with passing(bench):
        assert ends(Worker(queue, ran.append, concurrency=concurrency, sweep=False, poll_interval=0.01))

    assert sorted(ran) == list(range(9))


@pytest.mark.parametrize("seed", range(3))
def test_no_message_is_left_however_threads_and_tokens_meet(bench, seed):
    queue = bench.queue(rate="20/s", visibility_timeout=3600)
    for number in range(100):
        queue.enqueue(str(number))
    ran: list[int] = []

    with passing(bench, pace=50):
        assert ends(Worker(queue, ran.append, concurrency=8, sweep=False, poll_interval=0.01))

    assert sorted(ran) == list(range(100))


def _open(queue, breaker: str) -> None:
    if breaker == "forced":
        queue.force_breaker("open")
        queue.claim(queue.enqueue(b"1", name="first"))
        queue.store.delete(queue.keys.message("messages/first"))
    else:
        queue.fail(queue.claim(queue.enqueue(b"1", name="first")), ConnectionError("down"), dead=True)
    assert queue.held_for() > 0


@pytest.mark.parametrize("breaker", ["open", "forced"])
def test_an_empty_queue_is_empty_while_its_breaker_is_open(bench, breaker):
    queue = bench.queue(breaker=Breaker(failures=1, pause=3600))
    _open(queue, breaker)
    before = time.monotonic()

    assert ends(Worker(queue, lambda body: None, concurrency=2, sweep=False, poll_interval=0.01))

    assert time.monotonic() - before < PATIENCE / 2
    assert bench.clock.monotonic() == 0


def test_what_an_operator_has_stopped_is_not_waited_for(bench):
    queue = bench.queue(breaker=Breaker(failures=1))
    _open(queue, "forced")
    path = queue.enqueue(b"1")

    assert ends(Worker(queue, lambda body: None, concurrency=2, sweep=False, poll_interval=0.01))

    assert queue.status(path).state == "pending"


def test_the_pause_of_a_breaker_is_waited_for(bench):
    queue = bench.queue(breaker=Breaker(failures=1, pause=30), visibility_timeout=3600)
    _open(queue, "open")
    for number in range(5):
        queue.enqueue(str(number))
    ran: list[int] = []

    with passing(bench):
        assert ends(Worker(queue, ran.append, concurrency=2, sweep=False, poll_interval=0.01))

    assert sorted(ran) == list(range(5))


def test_a_worker_that_goes_on_asks_nothing_while_its_breaker_is_open(bench):
    queue = bench.queue(breaker=Breaker(failures=1, pause=3600))
    _open(queue, "open")
    worker = Worker(queue, lambda body: None, concurrency=2, sweep=False, poll_interval=0.001)
    worker.start()
    bench.store.take()
    rounds: list[int] = []
    original = worker._choose

    def count():
        rounds.append(1)
        return original()

    worker._choose = count  # type: ignore[method-assign]
    eventually(lambda: len(rounds) > 20)
    worker.stop()

    assert bench.store.take().get("list", 0) == 0


def test_a_message_that_was_held_back_last_is_not_forgotten(bench):
    queue, other = bench.queue(rate="1/min"), bench.queue(rate="1/min", worker_id="other")
    other.complete(other.claim(other.enqueue(b"1")))
    queue.enqueue(b"1")
    worker = Worker(queue, lambda body: None, concurrency=1, sweep=False)
    candidate = worker._next()
    assert candidate
    worker._work(candidate)

    assert worker._backlog.is_fruitless()
    assert not worker._busy
    assert not worker._is_idle()
