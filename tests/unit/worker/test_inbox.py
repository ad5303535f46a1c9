"""The inbox of a pull worker: bounded, and never before more urgent messages."""

from __future__ import annotations

from s3queue import Worker
from s3queue.worker.inbox import Inbox


def test_what_does_not_fit_is_not_taken():
    inbox = Inbox(3)

    assert inbox.accept(["messages/a", "messages/b"]) == 2
    assert inbox.accept(["messages/c", "messages/d"]) == 1
    assert [inbox.take() for _ in range(4)] == ["messages/a", "messages/b", "messages/c", None]


def test_a_path_that_is_in_it_already_is_taken_once():
    inbox = Inbox(9)

    assert inbox.accept(["messages/a", "messages/b"]) == 2
    assert inbox.accept(["messages/a"]) == 1
    assert len(inbox) == 2


def test_the_most_urgent_comes_first():
    inbox = Inbox(9)
    inbox.accept(["messages/a", "messages/p200/b", "messages/p009/c"])

    assert inbox.take(above=201) is None
    assert inbox.take(above=200) == "messages/p200/b"
    assert inbox.take() == "messages/p009/c"


def test_what_the_sweep_found_waits_for_more_urgent_messages(bench):
    queue = bench.queue()
    plain = queue.enqueue(b"1")
    bench.clock.advance(1)
    urgent = queue.enqueue(b"2", priority=255)
    worker = Worker(queue, lambda body: None, concurrency=1, sweep=False)
    worker._accept([plain])

    assert [worker._choose().path for _ in range(2)] == [urgent, plain]


def test_a_worker_with_one_thread_takes_the_oldest_first(bench):
    queue = bench.queue()
    ran: list[int] = []
    for number in range(50):
        queue.enqueue(str(number))
        bench.clock.advance(1)

    Worker(queue, ran.append, concurrency=1, sweep=False).run_until_empty()

    assert ran == list(range(50))
