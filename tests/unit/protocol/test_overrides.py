"""Settings at run time: pause and configure reach every process, and nonsense changes nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest

from s3queue import InvalidRequest


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


COLLECTING = {"partitions": 2, "collect": 10}


def test_one_override_that_does_not_suit_keeps_no_other_from_counting(bench, caplog):
    worker = bench.queue(worker_id="worker", **COLLECTING)
    operator = bench.queue(worker_id="operator")
    operator.configure(max_attempts=1)  # nobody has published the definition, which collects
    operator.configure(concurrency=7)
    operator.pause()

    for _ in range(3):
        bench.clock.advance(10)
        assert worker.refresh()
    assert (worker.settings.paused, worker.settings.concurrency, worker.settings.max_attempts) == (True, 7, 3)
    said = [record.getMessage() for record in caplog.records]
    (warning,) = [line for line in said if "not applied" in line]
    assert "orders/queue.json" in warning
    assert "max_attempts (collect needs" in warning
    assert "queue.configure(max_attempts=None)" in warning


def test_an_override_that_does_not_suit_hinders_neither_a_pause_nor_another_change(bench):
    bench.queue(worker_id="operator").configure(max_attempts=1)
    owner = bench.queue(worker_id="owner", **COLLECTING)

    owner.pause()
    assert owner.settings.paused
    assert owner.configure(concurrency=7).max_attempts == 3
    with pytest.raises(InvalidRequest, match="collect needs max_attempts"):
        owner.configure(max_attempts=1)
    assert owner.overrides() == {"max_attempts": 1, "paused": True, "concurrency": 7}
    assert owner.configure(collect=0).max_attempts == 1  # now it suits
    owner.configure(max_attempts=None)
    assert owner.overrides() == {"paused": True, "concurrency": 7, "collect": 0}


def test_a_setting_of_a_newer_version_is_left_alone_and_kept(bench, queue, caplog):
    bench.store.put("orders/queue.json", b'{"from_next_year_seconds": 7, "max_attempts": 5, "rate": 5, "paused": true}')

    assert queue.refresh()
    assert (queue.settings.paused, queue.settings.max_attempts, queue.settings.rate) == (True, 5, None)
    assert "from_next_year_seconds (this version does not know it)" in caplog.text
    queue.resume()
    assert queue.overrides() == {"from_next_year_seconds": 7, "max_attempts": 5, "rate": 5}
    assert queue.configure(rate=None).max_attempts == 5


def test_overrides_that_need_each_other_count_in_any_order(bench, queue):
    bench.store.put("orders/queue.json", b'{"collect": 10, "max_attempts": 4, "no_such": 1, "partitions": 2}')

    queue.refresh()
    assert (queue.settings.collect, queue.settings.partitions, queue.settings.max_attempts) == (10, 2, 4)


def test_an_operator_without_the_definition_goes_by_what_was_published(bench):
    bench.queue(**COLLECTING).publish_settings("deployment")
    operator = bench.queue(worker_id="operator", retry_jitter=True)  # all as it is by default

    with pytest.raises(InvalidRequest, match="collect needs max_attempts"):
        operator.configure(max_attempts=1)
    assert operator.configure(max_attempts=5).collect == 10


@pytest.mark.parametrize("suffixed", ["concurrency_seconds", "paused_seconds"])
def test_only_durations_have_the_suffix_of_durations(queue, suffixed):
    with pytest.raises(InvalidRequest, match=suffixed):
        queue.configure(**{suffixed: 1})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"visibility_timeout": 25}, "handler_timeout .* must be shorter than visibility_timeout"),
        ({"handler_timeout": 60}, "must be shorter than visibility_timeout"),
        (
            {"handler_timeout": 60, "visibility_timeout": 90},
            "no room in the 0:01:00 of the deployed.* 0:00:55",
        ),
        # The engine of a queue is a matter of its deployment: its function stays, and runs handlers.
        ({"handler_timeout": 60, "engine": "pull"}, "must be shorter than visibility_timeout"),
    ],
)
def test_a_change_that_a_deployed_function_cannot_keep_is_refused_as_at_its_deployment(bench, change, says):
    for queue in (bench.queue(), bench.queue(engine="lambda", max_depth=7)):
        with pytest.raises(InvalidRequest, match=says):
            queue.configure(**change)
    bench.queue().publish_settings("deployment")
    with pytest.raises(InvalidRequest, match=says):
        bench.queue(worker_id="operator", retry_jitter=True).configure(**change)
    assert bench.keys() == ["orders/queue-settings.json"]


def test_a_pull_worker_can_keep_what_no_function_could(bench):
    operator = bench.queue(worker_id="operator", retry_jitter=True)  # all as it is by default
    assert operator.configure(visibility_timeout=3).visibility_timeout == timedelta(seconds=3)
    # Its deployment would be refused: there is no function.
    assert bench.queue(handler_timeout=600).configure(visibility_timeout=4).handler_timeout == timedelta(minutes=10)
    pulled = bench.queue(engine="pull")
    assert pulled.configure(handler_timeout=3600).visibility_timeout == timedelta(seconds=4)
    bench.clock.advance(10)
    other = bench.queue(worker_id="a pull worker beside a function")
    other.refresh()
    assert other.settings.handler_timeout == timedelta(hours=1)


def test_a_function_keeps_to_its_limits_whatever_engine_queue_json_names(bench):
    bench.store.put("orders/queue.json", b'{"engine": "pull", "handler_timeout_seconds": 3600, "concurrency": 9}')
    queue = bench.queue()
    queue.serve_function()

    queue.refresh()
    assert queue.settings.handler_timeout < queue.settings.visibility_timeout
    assert queue.settings.concurrency == 9


def test_what_a_function_cannot_keep_hinders_no_pause(bench):
    bench.store.put("orders/queue.json", b'{"handler_timeout_seconds": 3600}')
    queue = bench.queue()

    queue.pause()
    assert queue.overrides() == {"handler_timeout_seconds": 3600, "paused": True}
