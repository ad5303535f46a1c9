"""A dedup id that counts for a while: one message within the time, whatever becomes of that message or of a call."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from s3queue import AccessDenied, DeadLetters, InvalidRequest, Unavailable
from s3queue.encoding import METADATA_BYTES
from s3queue.errors import NewerFormat
from support.forged_documents import forgeries
from support.killed_store import Killed


def marker(bench) -> str:
    (key,) = bench.keys("orders/dedup/")
    return key


def finish(bench, path, how="complete") -> None:
    worker = bench.queue(worker_id="worker")
    claim = worker.claim(path)
    if how == "complete":
        worker.complete(claim)
    else:
        worker.fail(claim, "no", dead=True)


@pytest.mark.parametrize("how", ["pending", "complete", "dies"])
def test_a_second_enqueue_within_the_time_adds_nothing_and_returns_the_first_path(bench, queue, how):
    path = queue.enqueue(b"first", dedup_id="order-17", dedup_for=300)
    if how != "pending":
        finish(bench, path, how)
    bench.clock.advance(299)

    assert queue.enqueue(b"second", dedup_id="order-17", dedup_for=300, priority=9, delay=60) == path

    assert bench.keys("orders/messages/") == ([f"orders/{path}"] if how == "pending" else [])
    assert bench.keys("orders/delayed/") == []


def test_after_the_time_the_id_may_be_used_again_and_the_marker_names_the_new_message(bench, queue):
    first = queue.enqueue(b"first", dedup_id="order-17", dedup_for=300)
    bench.clock.advance(303)

    second = queue.enqueue(b"second", dedup_id="order-17", dedup_for=300)

    assert second != first
    assert json.loads(bench.read(marker(bench)))["path"] == second
    assert queue.enqueue(b"third", dedup_id="order-17", dedup_for=300) == second


def test_a_first_enqueue_is_a_get_and_two_puts_and_a_repetition_a_get_and_a_head(bench, queue):
    path = queue.enqueue(b"x", dedup_id="a", dedup_for=60)
    assert bench.store.take() == {"get": 1, "put": 2}

    queue.enqueue(b"x", dedup_id="a", dedup_for=60)
    assert bench.store.take() == {"get": 1, "head": 1}

    finish(bench, path)
    bench.store.take()
    queue.enqueue(b"x", dedup_id="a", dedup_for=60)
    assert bench.store.take() == {"get": 2, "head": 1}


def test_a_message_of_its_own_kind_costs_one_get_more_to_process(bench, queue):
    path = queue.enqueue({}, dedup_id="a", dedup_for=60)
    bench.store.take()

    bench.processor(queue, lambda body: None).run(path)

    assert bench.store.take() == {"put": 2, "get": 2, "delete": 2}


def test_a_crash_between_marker_and_message_is_repaired_by_the_next_call(bench, queue):
    """[P1]"""

    def die(operation, key, perform):
        if operation == "put" and key.startswith("orders/messages/"):
            raise Killed
        return perform()

    bench.around = die
    with pytest.raises(Killed):
        queue.enqueue(b"first", dedup_id="order-17", dedup_for=300)
    bench.around = None
    named = json.loads(bench.read(marker(bench)))["path"]

    assert queue.enqueue(b"second", dedup_id="order-17", dedup_for=300) == named

    assert bench.read(f"orders/{named}") == b"second"


@pytest.mark.parametrize("history", [True, False])
@pytest.mark.parametrize("how", ["complete", "dies"])
def test_the_put_of_a_paused_producer_that_comes_after_the_message_was_finished_is_not_run(bench, history, how):
    """[P4] Another call stored the message in its place, and a worker finished it."""
    paused, other = bench.queue(history=history), bench.queue(history=history)
    ran: list[bytes] = []

    def pause(operation, key, perform):
        if operation == "put" and key.startswith("orders/messages/"):
            bench.around = None
            path = other.enqueue(b"x", dedup_id="order-17", dedup_for=300)
            finish_as(other, path, how, ran)
            bench.clock.advance(1)
        return perform()

    bench.around = pause
    path = paused.enqueue(b"x", dedup_id="order-17", dedup_for=300)
    assert bench.keys("orders/messages/") == [f"orders/{path}"]

    assert bench.processor(other, ran.append).run(path) is None

    assert ran == [b"ran"]
    assert bench.keys("orders/messages/") == bench.keys("orders/leases/") == []
    assert queue_state(other, path) == ("completed" if how == "complete" else "dead")


def finish_as(queue, path, how, ran) -> None:
    claim = queue.claim(path)
    ran.append(b"ran")
    if how == "complete":
        queue.complete(claim)
    else:
        queue.fail(claim, "no", dead=True)


def queue_state(queue, path) -> str:
    return queue.status(path).state


def test_a_replayed_message_runs_although_it_has_a_record(bench, queue):
    path = queue.enqueue({}, dedup_id="order-17", dedup_for=300)
    finish(bench, path, "dies")
    bench.clock.advance(1)
    DeadLetters(queue).replay(path)

    assert bench.processor(queue, lambda body: None).run(path) == "completed"


def test_two_producers_at_once_store_one_message(bench):
    """Both find no marker; the PUT of one of them wins."""
    first, second = bench.queue(), bench.queue()
    paths: list[str] = []

    def meet(operation, key, perform):
        if operation == "put" and key.startswith("orders/dedup/"):
            bench.around = None
            paths.append(second.enqueue(b"x", dedup_id="a", dedup_for=60))
        return perform()

    bench.around = meet
    paths.append(first.enqueue(b"x", dedup_id="a", dedup_for=60))

    assert len(set(paths)) == 1
    assert bench.keys("orders/messages/") == [f"orders/{paths[0]}"]


def test_two_producers_that_find_an_old_marker_replace_it_once(bench):
    first, second = bench.queue(), bench.queue()
    first.enqueue(b"x", dedup_id="a", dedup_for=60)
    bench.clock.advance(100)
    paths: list[str] = []

    def meet(operation, key, perform):
        if operation == "put" and key.startswith("orders/dedup/"):
            bench.around = None
            paths.append(second.enqueue(b"x", dedup_id="a", dedup_for=60))
        return perform()

    bench.around = meet
    paths.append(first.enqueue(b"x", dedup_id="a", dedup_for=60))

    assert len(set(paths)) == 1


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("of", ["orders/dedup/", "orders/messages/"])
def test_a_lost_answer_makes_no_second_message(bench, queue, of, stored):
    """[P1]"""

    def lose(operation, key, perform):
        if operation == "put" and key.startswith(of):
            bench.around = None
            if stored:
                perform()
            raise Unavailable("time-out")
        return perform()

    bench.around = lose

    path = queue.enqueue(b"x", dedup_id="a", dedup_for=60)

    assert queue.enqueue(b"x", dedup_id="a", dedup_for=60) == path
    assert bench.keys("orders/messages/") == [f"orders/{path}"]


def test_without_an_answer_to_the_question_for_the_first_message_nothing_is_written(bench, queue):
    path = queue.enqueue(b"x", dedup_id="a", dedup_for=60)
    finish(bench, path)

    def silent(operation, key, perform):
        if operation == "get" and "/records/" in key:
            raise Unavailable("time-out")
        return perform()

    bench.around = silent
    with pytest.raises(Unavailable, match=path):
        queue.enqueue(b"x", dedup_id="a", dedup_for=60)
    assert bench.keys("orders/messages/") == []


def test_a_producer_that_may_not_list_finds_a_missing_marker_forbidden_and_goes_on(bench, queue):
    def forbid(operation, key, perform):
        if operation in ("get", "head") and bench.memory.head(key) is None:
            raise AccessDenied("403")
        return perform()

    bench.around = lambda operation, key, perform: perform() if operation == "head" else forbid(operation, key, perform)
    path = queue.enqueue(b"x", dedup_id="a", dedup_for=60)

    assert queue.enqueue(b"x", dedup_id="a", dedup_for=60) == path
    assert bench.keys("orders/messages/") == [f"orders/{path}"]


@pytest.mark.parametrize(
    "garbage", [b"", b"{}", b"x" * 70_000, b'{"v":1,"path":"locks/x","put_id":"once-1","nonce":""}']
)
def test_a_marker_that_cannot_be_read_is_replaced(bench, queue, garbage):
    first = queue.enqueue(b"x", dedup_id="a", dedup_for=60)
    bench.put(marker(bench), garbage)

    second = queue.enqueue(b"x", dedup_id="a", dedup_for=60)

    assert second != first
    assert json.loads(bench.read(marker(bench)))["path"] == second


def test_whatever_lies_in_the_place_of_a_marker_the_message_is_stored_or_a_newer_version_named(bench, queue):
    queue.enqueue(b"x", dedup_id="a", dedup_for=60)
    key = marker(bench)
    for forged in forgeries(bench.read(key)):
        bench.put(key, forged)
        try:
            path = queue.enqueue(b"x", dedup_id="a", dedup_for=60)
        except NewerFormat:
            continue
        assert bench.memory.head(f"orders/{path}")


def test_a_marker_of_a_newer_version_is_left_alone(bench, queue):
    queue.enqueue(b"x", dedup_id="a", dedup_for=60)
    bench.put(marker(bench), b'{"v":2}')

    with pytest.raises(NewerFormat, match="upgrade"):
        queue.enqueue(b"x", dedup_id="a", dedup_for=60)

    assert bench.read(marker(bench)) == b'{"v":2}'


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dedup_for": 60}, "dedup_id"),
        ({"dedup_id": "", "dedup_for": 60}, "dedup_id"),
        ({"dedup_id": "a", "dedup_for": 0}, "dedup_for"),
        ({"dedup_id": "a", "dedup_for": -1}, "dedup_for"),
        ({"dedup_id": "a", "dedup_for": float("nan")}, "dedup_for"),
        ({"dedup_id": "a", "dedup_for": timedelta(days=4000)}, "record_retention"),
        ({"dedup_id": "a", "dedup_for": 60, "name": "b"}, "not both"),
        ({"dedup_id": "\ud800", "dedup_for": 60}, "Unicode"),
        ({"dedup_id": "a", "dedup_for": 60, "metadata": {"a": "x" * (METADATA_BYTES - 1)}}, "metadata"),
    ],
)
def test_a_wrong_call_is_refused_before_anything_is_written(bench, queue, options, said):
    with pytest.raises(InvalidRequest, match=said):
        queue.enqueue(b"x", **options)

    assert bench.keys() == []


def test_a_message_that_is_too_large_leaves_no_marker(bench):
    with pytest.raises(InvalidRequest, match="too large"):
        bench.queue(max_message_size=10).enqueue(b"x" * 11, dedup_id="a", dedup_for=60)

    assert bench.keys() == []


@pytest.mark.parametrize("by", ["sweeper", "cleanup"])
def test_old_markers_are_deleted_and_young_ones_kept(bench, by):
    queue = bench.queue(record_retention=3600)
    queue.enqueue(b"x", dedup_id="old", dedup_for=60)
    bench.clock.advance(3000)
    queue.enqueue(b"x", dedup_id="young", dedup_for=60)
    bench.clock.advance(1000)
    assert len(bench.keys("orders/dedup/")) == 2

    _ = bench.sweeper(queue).sweep() if by == "sweeper" else queue.cleanup()

    assert bench.keys("orders/dedup/") == [queue.keys.dedup("young")]


def test_the_sweeper_deletes_old_markers_of_an_idle_queue(bench):
    queue = bench.queue(record_retention=3600)
    finish(bench, queue.enqueue(b"x", dedup_id="old", dedup_for=60))
    bench.clock.advance(4000)

    bench.sweeper(queue).sweep()

    assert bench.keys("orders/dedup/") == []


def test_an_id_still_counts_after_its_message_was_replayed(bench):
    """[P4] A replay has an id of its own; the name is the marker's, whatever became of it."""
    queue = bench.queue(max_attempts=1)
    path = queue.enqueue({"n": 1}, dedup_id="order-17", dedup_for=3600)
    queue.fail(queue.claim(path), "down", dead=True)
    bench.clock.advance(5)
    queue.replay(path)
    queue.complete(queue.claim(path))

    assert queue.enqueue({"n": 2}, dedup_id="order-17", dedup_for=3600) == path

    assert bench.keys("orders/messages/") == []
