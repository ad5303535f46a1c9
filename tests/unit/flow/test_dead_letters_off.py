"""`dead_letters=False`: what dies is recorded, and nothing of it is kept."""

from __future__ import annotations

import pytest

from s3queue import Reject
from s3queue.errors import Unreadable
from support.killed_store import Killed


@pytest.fixture
def queue(bench):
    return bench.queue(dead_letters=False, max_attempts=2)


def test_a_dead_message_is_recorded_and_gone(bench, queue):
    """[P1]"""
    path = queue.enqueue(b"x")

    record = queue.fail(queue.claim(path), "no", dead=True)

    assert (record.outcome, record.failure.message) == ("dead", "no")
    assert bench.keys("orders/dead/") == bench.keys("orders/messages/") == bench.keys("orders/leases/") == []
    assert queue.status(path).state == "dead"
    assert [one.path for one in queue.list("dead").messages] == [path]


def test_a_death_costs_no_copy(bench, queue):
    path = queue.enqueue(b"x")
    claim = queue.claim(path)
    bench.store.take()
    queue.fail(claim, "no", dead=True)
    assert bench.store.take() == {"put": 2, "delete": 2}


def test_the_dead_lines_of_a_batch_are_in_its_record_alone(bench, queue):
    (path,) = queue.enqueue_many([{"n": 1}, {"n": 2}])

    def handle(body: dict) -> None:
        if body["n"] == 2:
            raise Reject("no")

    assert bench.processor(queue, handle).run(path) == "completed"
    assert queue.status(path).record.dead_lines == 1
    assert bench.keys("orders/dead/") == []


def test_a_burial_that_crashed_is_finished_without_a_letter(bench, queue):
    """[P6]"""
    for requests in range(1, 5):
        path = queue.enqueue({})
        claim = queue.claim(path)
        left = [requests]

        def die(operation, key, perform, left=left):
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return perform()

        bench.around = die
        try:
            queue.fail(claim, "no", dead=True)
        except Killed:
            bench.around = None
            bench.settle(queue, lambda body: pytest.fail("it runs again"))
        bench.around = None
        assert queue.status(path).state == "dead"
        assert bench.keys("orders/dead/") == []


def test_a_name_that_no_lease_can_have_and_a_message_that_nobody_can_read_go_too(bench, queue):
    bench.put("orders/delayed/tomorrow/x", b"{}")
    assert queue.claim("delayed/tomorrow/x") is None
    path = queue.enqueue(b"x")

    def refuse(operation, key, perform):
        if operation == "get" and key == f"orders/{path}":
            raise Unreadable("archived")
        return perform()

    bench.around = refuse
    queue.claim(path)
    bench.clock.advance(100)
    queue.claim(path, read_first=True)
    bench.around = None

    assert bench.keys("orders/dead/") == bench.keys("orders/messages/") == bench.keys("orders/delayed/") == []
    assert len(bench.keys("orders/records/")) == 2


def test_it_can_be_switched_at_run_time(bench):
    queue = bench.queue()
    queue.configure(dead_letters=False)
    path = queue.enqueue(b"x")
    queue.fail(queue.claim(path), "no", dead=True)
    assert bench.keys("orders/dead/") == []
