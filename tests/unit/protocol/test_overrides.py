"""Settings at run time: pause and configure reach every process, and nonsense changes nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest

from s3queue import (
    InvalidRequest,
)


def test_a_paused_queue_gives_out_nothing_and_finishes_what_runs(bench, queue):
    path = queue.enqueue(b"x")
    running = queue.claim(path)
    queue.enqueue(b"y")
    queue.pause()

    assert queue.claim_next() == []
    assert bench.queue(worker_id="another process").claim_next() == []
    queue.complete(running)

    queue.resume()
    assert len(queue.claim_next()) == 1
    other = bench.queue(worker_id="another process")
    queue.enqueue(b"z")
    assert len(other.claim_next()) == 1


def test_a_pause_is_seen_by_other_processes_within_ten_seconds(bench, queue):
    other = bench.queue(worker_id="another process")
    assert other.claim_next() == []
    queue.enqueue(b"x")
    queue.pause()

    bench.clock.advance(10)
    assert other.claim_next() == []
    queue.resume()
    bench.clock.advance(10)
    assert len(other.claim_next()) == 1


def test_settings_change_at_run_time_for_every_process(bench, queue):
    assert queue.configure(visibility_timeout=120, max_attempts=7).max_attempts == 7

    other = bench.queue(worker_id="another process")
    assert other.refresh()
    assert other.settings.visibility_timeout == timedelta(seconds=120)
    assert other.settings.max_attempts == 7


def test_settings_are_read_at_most_every_ten_seconds(bench, queue):
    queue.refresh()
    bench.store.take()
    for _ in range(30):
        bench.clock.advance(1)
        queue.refresh()

    assert bench.store.take() == {"get": 3}


def test_a_setting_that_is_taken_back_is_what_it_was_defined_as(queue):
    queue.configure(max_attempts=9)

    assert queue.configure(max_attempts=None).max_attempts == 3
    assert queue.overrides() == {}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"visibility_timeout": timedelta(seconds=60)}, {"visibility_timeout": 45}),
        ({"visibility_timeout": 60}, {"visibility_timeout_seconds": 45}),
        ({"visibility_timeout_seconds": 60}, {"visibility_timeout": timedelta(seconds=45)}),
    ],
)
def test_the_last_change_of_a_duration_wins_however_it_was_written(bench, queue, first, second):
    queue.configure(**first)
    assert queue.configure(**second).visibility_timeout == timedelta(seconds=45)

    other = bench.queue(worker_id="another process")
    other.refresh()
    assert other.settings.visibility_timeout == timedelta(seconds=45)


def test_a_duration_that_is_taken_back_is_gone_however_it_was_written(queue):
    queue.configure(visibility_timeout=timedelta(seconds=60))

    assert queue.configure(visibility_timeout=None).visibility_timeout == timedelta(seconds=30)
    assert queue.overrides() == {}


def test_an_override_with_its_old_name_counts_until_it_is_changed_or_taken_back(bench, queue):
    bench.store.put("orders/queue.json", b'{"batch": 7, "max_attempts": 5}')
    queue.refresh()
    assert queue.settings.messages_per_run == 7

    assert queue.configure(messages_per_run=8).messages_per_run == 8
    assert queue.overrides() == {"max_attempts": 5, "messages_per_run": 8}

    bench.store.put("orders/queue.json", b'{"batch": 7}')
    assert queue.configure(messages_per_run=None).messages_per_run == 100
    assert queue.overrides() == {}


@pytest.mark.parametrize("change", [{"no_such": 1}, {"max_attempts": 0}, {"visibility_timeout": "soon"}])
def test_a_change_that_makes_no_sense_changes_nothing(bench, queue, change):
    with pytest.raises(InvalidRequest, match=next(iter(change))):
        queue.configure(**change)

    assert bench.keys() == []


def test_two_operators_who_configure_at_once_both_get_their_way(bench, queue):
    other = bench.queue(worker_id="other operator")
    original = bench.memory.put
    raced = []

    def put_late(key, body, **options):
        if key.endswith("queue.json") and not raced:
            raced.append(True)
            other.configure(max_attempts=8)
        return original(key, body, **options)

    bench.memory.put = put_late
    queue.configure(concurrency=4)

    assert queue.overrides() == {"max_attempts": 8, "concurrency": 4}
