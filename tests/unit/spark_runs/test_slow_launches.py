"""A launch that is slow, or has little time, costs no message an attempt, and starts nothing in vain."""

from __future__ import annotations

import pytest

from s3queue.errors import Unavailable
from s3queue.spark_runs.launcher import CLAIMING_PART, SHORTEST_SECONDS
from s3queue.spark_runs.service import NotStarted
from s3queue.spark_runs.slots import RunStore
from s3queue.spark_runs.watch import LAUNCH_GRACE, RunWatch
from support.heavy_queue import SPARK, launcher, leases

SLOW = SPARK | {"visibility_timeout": 300, "messages_per_run": 100}


def claims_take(bench, seconds):
    def around(operation, key, perform):
        if operation == "put" and "/leases/" in key:
            bench.clock.advance(seconds)
        return perform()

    return around


@pytest.mark.parametrize("left", [30.0, 900.0])
def test_claiming_leaves_time_to_start_the_run(bench, jobs, left):
    queue = bench.queue("exports", **SLOW)
    for n in range(60):
        queue.enqueue({"n": n})
    ends_at = bench.clock.monotonic() + left
    bench.around = claims_take(bench, 1)
    asked_at = []
    jobs.before = lambda request: asked_at.append(bench.clock.monotonic())

    assert launcher(jobs).launch(queue, [], lambda: ends_at - bench.clock.monotonic()) == "started"

    bench.around = None
    longest = min(left, LAUNCH_GRACE.total_seconds()) / CLAIMING_PART
    assert longest - 1 <= len(leases(bench, queue)) <= longest + 1
    assert asked_at[0] < ends_at - left / 2


def test_with_too_little_time_left_nothing_is_claimed(bench, jobs):
    queue = bench.queue("exports", **SLOW)
    path = queue.enqueue({"n": 1})

    with pytest.raises(NotStarted, match="too little time"):
        launcher(jobs).launch(queue, [path], lambda: SHORTEST_SECONDS - 1)

    assert bench.keys() == [queue.keys.message(path)]
    assert jobs.asked == []


def sweeper_comes(bench, queue, jobs, *, when, after=None):
    """The function stands still for longer than a launch may take, and a sweep comes meanwhile."""
    state = {"has_come": False}

    def around(operation, key, perform):
        if not state["has_come"] and operation == "put" and when in key:
            state["has_come"] = True
            bench.clock.advance(LAUNCH_GRACE.total_seconds() + 1)
            RunWatch(jobs, "bench").check(queue)
            if after:
                after()
        return perform()

    return around


@pytest.mark.parametrize("when", ["/leases/", "/runs/run-"])
@pytest.mark.parametrize("is_taken", [False, True])
def test_a_launch_whose_slot_was_given_away_gives_its_messages_back_and_starts_nothing(bench, jobs, when, is_taken):
    queue = bench.queue("exports", **SLOW)
    paths = [queue.enqueue({"n": n}) for n in range(3)]
    book = RunStore(queue)

    def after():
        assert book.slot(0) is None
        if is_taken:
            book.open_slot(0, "run-of-another")

    bench.around = sweeper_comes(bench, queue, jobs, when=when, after=after)
    with pytest.raises(NotStarted):
        launcher(jobs).launch(queue, paths)

    bench.around = None
    assert jobs.asked == []
    assert leases(bench, queue) == {}
    assert bench.keys("exports/workers/") == []
    assert bench.keys("exports/runs/") == (["exports/runs/slot-0"] if is_taken else [])
    assert [queue.claim(path).attempt for path in paths] == [1, 1, 1]


def test_a_launch_that_the_sweeper_has_gone_on_with_loses_no_message(bench, jobs):
    queue = bench.queue("exports", **SLOW)
    paths = [queue.enqueue({"n": n}) for n in range(3)]
    written = []

    def around(operation, key, perform):
        answer = perform()
        if operation == "put" and "/runs/run-" in key and not written:
            written.append(key)
            bench.clock.advance(LAUNCH_GRACE.total_seconds() + 1)
            RunWatch(jobs, "bench").check(queue)
        return answer

    bench.around = around
    with pytest.raises(NotStarted):
        launcher(jobs).launch(queue, paths)

    bench.around = None
    assert len(jobs.started) == 1
    assert bench.keys("exports/runs/") == bench.keys("exports/workers/") == [], "its driver finds nothing, and ends"
    assert [queue.claim(path).attempt for path in paths] == [1, 1, 1]


def test_a_sweeper_frees_only_the_slot_that_it_has_read(bench, jobs):
    """The launcher has written it anew meanwhile, with its manifest before."""
    queue = bench.queue("exports", **SLOW)
    book = RunStore(queue)
    held = book.open_slot(0, book.new_run())
    bench.clock.advance(LAUNCH_GRACE.total_seconds() + 1)

    def around(operation, key, perform):
        if operation == "delete":
            bench.around = None
            book.write_slot(held)
        return perform()

    bench.around = around
    RunWatch(jobs, "bench").check(queue)

    assert book.slot(0).slot.run == held.slot.run


def test_a_heartbeat_that_cannot_be_written_gives_the_messages_back(bench, jobs):
    queue = bench.queue("exports", **SLOW)
    path = queue.enqueue({"n": 1})

    def around(operation, key, perform):
        if operation == "put" and "/workers/" in key:
            raise Unavailable("503 SlowDown")
        return perform()

    bench.around = around
    with pytest.raises(NotStarted, match="heartbeat not written"):
        launcher(jobs).launch(queue, [path])

    bench.around = None
    assert bench.keys() == [queue.keys.message(path)]
    assert jobs.asked == []
