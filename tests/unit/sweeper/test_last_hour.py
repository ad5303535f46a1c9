"""The figures of the last hour: counted by whoever sweeps, without Spark, for a few requests."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import pytest

from s3queue import Sweeper
from s3queue.documents.hour_document import VALUE_ERROR, HourDocument, bucket_of, seconds_of
from s3queue.documents.partition import journal_bytes
from s3queue.errors import Unavailable
from s3queue.paths import name_before
from s3queue.sweeper.last_hour import LISTS, SAMPLE
from support.finished_messages import put_record, record
from support.manual_clock import ManualClock


def counting(queue):
    """A sweeper as the function and pull workers have it."""
    return Sweeper(queue=queue, dispatch=lambda paths: None, counts_hour=True)


def finish(bench, queue, count=1, *, wait=1.0, run=2.0, error=None):
    """Messages that waited and ran for so long; with an error, they die of it."""
    for _ in range(count):
        path = queue.enqueue(b"x")
        bench.clock.advance(wait)
        claim = queue.claim(path)
        bench.clock.advance(run)
        if error:
            queue.fail(claim, error, dead=True)
        else:
            queue.complete(claim)


def close_to(seconds):
    return pytest.approx(seconds, rel=VALUE_ERROR + 0.005)


def test_a_sweeper_tells_what_finished_in_the_last_hour(bench, queue):
    finish(bench, queue, 8)
    finish(bench, queue, 2, wait=10, run=30, error=ValueError("no"))
    bench.clock.advance(5)
    counting(queue).sweep()

    found = bench.queue(worker_id="reader").last_hour()

    assert found.available
    assert (found.finished, found.messages, found.completed, found.dead, found.cancelled) == (10, 10, 8, 2, 0)
    assert found.success_rate == 0.8
    assert (found.wait["p50"], found.wait["p95"]) == (close_to(1), close_to(10))
    assert (found.run["p50"], found.run["p99"]) == (close_to(2), close_to(30))
    assert found.errors == (("ValueError", 2),)
    assert sum(count for _, count in found.minutes) == 10
    assert (found.read, found.sampled, found.rank_error, found.complete) == (10, False, 0.0, True)


def test_each_outcome_counts_once_however_often_and_by_whomever_the_queue_is_swept(bench, queue):
    first, second = counting(queue), counting(bench.queue(worker_id="another"))
    total = 0
    for turn in range(12):
        finish(bench, queue, turn % 3)
        total += turn % 3
        bench.clock.advance(61)
        first.sweep()
        if turn % 2:
            second.sweep()
    bench.clock.advance(600)
    second.sweep()
    assert queue.last_hour().finished == total
    counting(bench.queue(worker_id="a new process")).sweep()
    assert queue.last_hour().finished == total, "it goes on where the last process ended"


def test_what_came_and_went_between_two_sweeps_of_an_idle_queue_is_found_within_ten_minutes(bench, queue):
    sweeper = counting(queue)
    finish(bench, queue)
    bench.clock.advance(5)
    sweeper.sweep()
    finish(bench, queue, 3)
    for _ in range(11):
        bench.clock.advance(60)
        sweeper.sweep()
    assert queue.last_hour().finished == 4


def test_the_sweeper_of_a_function_that_is_frozen_between_its_minutes_looks_all_the_same(bench, queue):
    class Frozen(ManualClock):
        """It stands still while the others' time passes, as an execution environment's between two invocations."""

        def now(self) -> datetime:
            return bench.clock.now()

    finish(bench, queue)
    function = bench.queue(worker_id="function")
    function.clock = Frozen()
    sweeper = counting(function)
    bench.clock.advance(5)
    sweeper.sweep()
    finish(bench, queue, 3)
    for _ in range(11):
        bench.clock.advance(60)
        sweeper.sweep()

    assert queue.last_hour().finished == 4


def test_an_idle_queue_pays_a_look_every_ten_minutes_and_no_put(bench, queue):
    sweeper = counting(queue)
    finish(bench, queue)
    bench.clock.advance(5)
    sweeper.sweep()
    bench.store.take()
    for _ in range(60):
        bench.clock.advance(60)
        sweeper.sweep()
    assert bench.store.take() == {"list": 60 + 6 * 2}, "two folders: records/ and records/messages/"


def test_an_hour_later_nothing_is_left_although_nobody_wrote_again(bench, queue):
    finish(bench, queue, 3)
    bench.clock.advance(5)
    counting(queue).sweep()
    assert queue.last_hour().finished == 3
    bench.clock.advance(3600)
    found = queue.last_hour()
    assert (found.finished, found.success_rate, found.wait["p50"], found.minutes) == (0, None, None, ())


def test_of_many_a_sample_is_read_and_the_error_is_said(bench, queue):
    finish(bench, queue, 900, wait=0.1, run=0.5)
    finish(bench, queue, 100, wait=0.1, run=1.0)
    finish(bench, queue, 3, wait=0.1, run=0.5, error=ValueError("rare"))
    bench.clock.advance(5)
    bench.store.take()
    counting(queue).sweep()
    assert bench.store.take()["get"] == SAMPLE

    found = queue.last_hour()

    assert (found.finished, found.read, found.sampled) == (1003, SAMPLE, True)
    assert found.messages == pytest.approx(1003)
    assert found.dead >= 3, "letters are counted one by one: a sample may have none of three in a thousand"
    assert found.rank_error == pytest.approx(0.3037, abs=0.001)
    assert found.run["p50"] == close_to(0.5)


def test_the_error_that_is_said_is_kept_nineteen_times_in_twenty(bench):
    """Each of 200 durations is different: how many are shorter than a percentile is its true rank."""
    off = 0
    durations = [0.01 * 1.02**index for index in range(200)]
    for number in range(40):
        queue = bench.queue(f"q{number}")
        for index, run in enumerate(durations):
            put_record(bench.memory, queue.name, record(f"messages/x{index}", run=run, nonce=f"{number} {index}"))
        bench.clock.advance(5)
        counting(queue).sweep()
        found = queue.last_hour()
        assert (found.finished, found.read) == (200, SAMPLE)
        rank = sum(run <= found.run["p50"] for run in durations) / 200
        off += abs(rank - 0.5) > found.rank_error
    assert off <= 4


def test_batches_count_their_lines_and_journals_their_records(bench, queue):
    lines = {"total": 5, "completed": 4, "dead": 1, "dead_lines": [[3, "Late", ""]]}
    put_record(bench.memory, "orders", record("messages/b.ndjson", lines=lines))
    journal = (record("messages/@=1/a", tries=1), record("messages/@=1/b"))
    name = name_before(bench.clock.now() + timedelta(seconds=1))
    bench.put(f"orders/records/@=1/{name}-2.json", journal_bytes(journal))
    bench.clock.advance(5)
    counting(queue).sweep()
    found = queue.last_hour()
    assert (found.finished, found.messages, found.completed, found.dead, found.retried) == (3, 7, 6, 1, 1)
    assert found.errors == (("Flaky", 1),)


def test_delayed_priorities_and_names_of_ones_own_are_found(bench, queue):
    paths = [
        queue.enqueue(b"x", priority=200),
        queue.enqueue(b"x", name="zebra"),
        queue.enqueue(b"x", delay=20),
        queue.enqueue(b"x"),
    ]
    bench.clock.advance(30)
    for path in paths:
        queue.complete(queue.claim(path, read_first=True))
    bench.clock.advance(5)
    counting(queue).sweep()
    found = queue.last_hour()
    assert (found.finished, found.complete) == (4, True)
    assert found.wait["p50"] == close_to(30)


def test_a_message_that_waited_for_hours_is_found_although_its_name_is_old(bench, queue):
    path = queue.enqueue(b"x")
    sweeper = counting(queue)
    for _ in range(6):
        finish(bench, queue)
        bench.clock.advance(3600)
        sweeper.sweep()
    queue.complete(queue.claim(path))
    bench.clock.advance(61)
    sweeper.sweep()
    found = queue.last_hour()
    assert found.wait["p99"] == close_to(6 * 3600)


def test_more_records_than_may_be_listed_make_a_lower_bound(bench, queue):
    for number in range(40):
        for one in range(2):
            bench.put(f"orders/records/@group-{number}/{one}-5.json", b"garbage")
    bench.clock.advance(5)
    bench.store.take()
    counting(queue).sweep()
    found = queue.last_hour()
    assert bench.store.requests["list"] <= LISTS + 1
    assert not found.complete
    assert 0 < found.finished < 400


def test_without_history_or_a_sweeper_there_are_no_figures_and_the_reason_is_said(bench, queue):
    assert not queue.last_hour().available
    assert "sweeper" in queue.last_hour().reason
    silent = bench.queue("silent", history=False)
    finish(bench, silent)
    counting(silent).sweep()
    assert "history" in silent.last_hour().reason


def test_a_look_that_fails_fails_no_sweep_and_is_made_up_for(bench, queue):
    finish(bench, queue, 2)
    bench.clock.advance(5)

    def refuse(operation, key, perform):
        if operation == "list" and "/records/" in key:
            raise Unavailable("no answer")
        return perform()

    sweeper = counting(queue)
    bench.around = refuse
    report = sweeper.sweep()
    assert report.error is None
    assert report.stats
    bench.around = None
    sweeper.sweep()
    assert queue.last_hour().finished == 2


@pytest.mark.parametrize("garbage", [[], {}, {"slices": 3}, {"slices": [{"at": "x"}]}, "x", None])
def test_a_forged_hour_is_as_if_there_were_none(bench, queue, garbage):
    assert HourDocument.from_json(garbage) is None
    bench.put("orders/stats.json", json.dumps({"v": 1, "hour": garbage}).encode())
    assert not queue.last_hour().available
    finish(bench, queue)
    bench.clock.advance(5)
    counting(queue).sweep()
    assert queue.last_hour().finished == 1


def test_a_bucket_of_a_histogram_tells_its_durations_within_the_error_that_is_said():
    for milliseconds in (2, 17, 250, 1000, 61_000, 86_400_000):
        seconds = milliseconds / 1000
        assert seconds_of(bucket_of(seconds)) == close_to(seconds)
    assert seconds_of(bucket_of(0)) == 0.0
    assert seconds_of(bucket_of(-5)) == 0.0


FORGED = {"at": "2026-11-16T12:00:00Z", "minutes": [1] * 5, "objects": 5, "read": 1, "effort": 5, "letters": 0}
FORGED |= {"sums": {}, "wait": {}, "run": {}, "errors": {}}


@pytest.mark.parametrize(
    "forged",
    [{"effort": -5}, {"sums": {"completed": 1.7e308, "dead": 1.7e308}}, {"errors": {"x": 1e308}}, {"wait": {"3": -1}}],
)
def test_sums_that_no_sweeper_can_have_written_are_no_figures(forged):
    at = FORGED["at"]
    document = {"looked_at": at, "oldest_at": at, "slices": [FORGED]}
    assert HourDocument.from_json(document) is not None
    assert HourDocument.from_json(document | {"slices": [FORGED | forged]}) is None


def test_no_sweep_fails_for_its_figures_whatever_happens(bench, queue, caplog):
    sweeper = counting(queue)
    finish(bench, queue, 2)
    bench.clock.advance(5)
    orphan = queue.enqueue(b"x")
    bench.clock.advance(60)

    def break_down(operation, key, perform):
        if operation == "get" and "/records/" in key:
            raise ArithmeticError("nobody has thought of this")
        return perform()

    bench.around = break_down
    report = sweeper.sweep()
    bench.around = None
    assert report.stats.pending == 1
    assert queue.status(orphan).state == "pending"
    assert "beginning anew" in caplog.text
    bench.clock.advance(61)
    sweeper.sweep()
    assert queue.last_hour().finished == 2
