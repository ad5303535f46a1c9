"""Schedules as operators and applications make, list, pause and remove them."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta

import pytest

from s3queue import InvalidName, InvalidPriority, InvalidRequest, MessageTooLarge, NotFound, Unavailable, define
from s3queue.documents.schedule import BODY_BYTES, StoredSchedule
from s3queue.errors import CorruptState, NewerFormat

KEY = "orders/schedules/report.json"


def test_a_schedule_is_stored_and_shows_its_next_five_times(queue):
    state = queue.every("15 9 * * 1-5", name="report", tz="Europe/Berlin", body={"kind": "daily"})

    # The bench's Monday, 16 November 2026, 10:15 UTC: in Berlin, 11:15.
    assert [f"{at:%a %d %H:%M}" for at in state.upcoming] == [
        "Tue 17 08:15",
        "Wed 18 08:15",
        "Thu 19 08:15",
        "Fri 20 08:15",
        "Mon 23 08:15",
    ]
    assert queue.schedules.list() == [state]
    assert queue.schedules.get("report").schedule.body == '{"kind":"daily"}'


def test_making_it_again_changes_nothing(bench, queue):
    queue.every("0 * * * *", name="report")
    written = bench.read(KEY)
    bench.clock.advance(7200)

    queue.every("0  *  * * *", name="report")

    assert bench.read(KEY) == written


def test_without_a_name_line_and_time_zone_are_the_name(queue):
    first = queue.every("0 * * * *", body="a")
    again = queue.every("0 * * * *", body="b")
    other = queue.every("0 * * * *", tz="Europe/Berlin", body="b")

    assert first.schedule.name == again.schedule.name != other.schedule.name
    assert {one.schedule.body for one in queue.schedules.list()} == {"b"}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"name": "Report"}, InvalidName),
        ({"name": "a/b"}, InvalidName),
        ({"name": ""}, InvalidName),
        ({"name": "x" * 900}, InvalidName),
        ({"name": 7}, InvalidName),
        ({"priority": 256}, InvalidPriority),
        ({"missed": "some"}, InvalidRequest),
        ({"body": b"\xff"}, InvalidRequest),
        ({"body": object()}, InvalidRequest),
        ({"body": "x" * (BODY_BYTES + 1)}, MessageTooLarge),
        ({"tz": "Mars/Olympus"}, InvalidRequest),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(bench, queue, options, error):
    with pytest.raises(error):
        queue.every("0 * * * *", **options)
    with pytest.raises(error):
        define("orders").every("0 * * * *", **options)

    assert bench.store.take() == {}


def test_a_body_larger_than_a_message_may_be_is_refused(bench):
    queue = bench.queue(max_message_size=10)

    with pytest.raises(MessageTooLarge, match="max_message_size"):
        queue.every("0 * * * *", body="x" * 11)


def test_two_schedules_of_one_name_in_code_are_refused():
    definition = define("orders")
    definition.every("0 * * * *", body=1)

    with pytest.raises(InvalidRequest, match="give each a name"):
        definition.every("0 * * * *", body=2)
    assert [one.body for one in definition.schedules] == ["1"]


def test_an_installation_without_cronsim_says_what_to_install(queue, monkeypatch):
    monkeypatch.setitem(sys.modules, "cronsim", None)

    with pytest.raises(InvalidRequest, match=r"pip install 's3queue\[schedules\]'"):
        queue.every("0 * * * *")


def test_pause_resume_and_remove(bench, queue):
    queue.every("0 * * * *", name="report")

    assert queue.schedules.pause("report").upcoming == ()
    assert queue.schedules.get("report").paused
    assert len(queue.schedules.resume("report").upcoming) == 5
    queue.schedules.remove("report")

    assert bench.keys("orders/schedules/") == []
    for act in (queue.schedules.pause, queue.schedules.resume, queue.schedules.remove, queue.schedules.get):
        with pytest.raises(NotFound, match="no schedule 'report'"):
            act("report")


def test_a_schedule_of_code_is_changed_and_removed_in_code_only(bench, queue):
    definition = define("orders")
    definition.every("0 * * * *", name="report")
    sweeper = bench.sweeper(queue)
    sweeper.schedules = definition.schedules
    sweeper.sweep()

    with pytest.raises(InvalidRequest, match="in code"):
        queue.every("5 * * * *", name="report")
    with pytest.raises(InvalidRequest, match="in code"):
        queue.schedules.remove("report")
    assert queue.schedules.pause("report").paused


def test_a_change_goes_on_after_another_writers_and_after_a_lost_answer(bench, queue):
    queue.every("0 * * * *", name="report")
    state = {"turns": 0}

    def around(operation, key, perform):
        if operation == "put" and key == KEY:
            state["turns"] += 1
            if state["turns"] == 1:
                bench.around = None
                bench.queue().every("0 * * * *", name="report", body="other")
                bench.around = around
            if state["turns"] == 2:
                perform()
                raise Unavailable("no answer")
        return perform()

    bench.around = around
    assert queue.schedules.pause("report").paused

    bench.around = None
    kept = queue.schedules.get("report")
    assert kept.paused
    assert kept.schedule.body == "other"


def test_there_is_a_limit_to_how_many(queue, monkeypatch):
    monkeypatch.setattr("s3queue.flow.schedules.MOST_SCHEDULES", 2)
    queue.every("0 * * * *", name="a")
    queue.every("0 * * * *", name="b")

    queue.every("1 * * * *", name="b")
    with pytest.raises(InvalidRequest, match="remove some first"):
        queue.every("0 * * * *", name="c")


def test_a_document_is_read_back_as_it_was_written(queue):
    queue.every("0 0 1 1 *", name="report", tz="Asia/Kolkata", body="ä", priority=200, missed="all")

    stored = StoredSchedule.read(queue.store.open(KEY))
    assert StoredSchedule.from_bytes(stored.to_bytes("n"), KEY) == stored
    assert (stored.schedule.priority, stored.schedule.missed, stored.source) == (200, "all", "runtime")
    assert stored.after == datetime(2026, 11, 16, 10, 15, tzinfo=UTC)


@pytest.mark.parametrize(
    "forged",
    [
        b"{}",
        b'{"v":1}',
        b'{"v":1,"name":"report","cron":1,"tz":"UTC","source":"code","missed":"last","after":"2026-11-16T10:15:00Z"}',
        b"[" * 1000,
        b"x" * 600_000,
    ],
)
def test_a_forged_document_is_corrupt_and_can_be_removed(bench, queue, forged):
    bench.put(KEY, forged)

    with pytest.raises(CorruptState):
        queue.schedules.get("report")
    with pytest.raises(CorruptState):
        queue.every("0 * * * *", name="report")
    assert queue.schedules.list() == []
    queue.schedules.remove("report")
    assert bench.keys() == []


@pytest.mark.parametrize(
    "path", ["messages/x", "delayed/20261116T101500Z/scheduled-other", "delayed/x/scheduled-report"]
)
def test_a_forged_document_cannot_name_other_messages(queue, path):
    queue.every("0 * * * *", name="report")
    body = StoredSchedule.read(queue.store.open(KEY)).to_bytes("n")[:-1] + f',"placing":["{path}"]}}'.encode()

    with pytest.raises(CorruptState, match="not a message of this schedule"):
        StoredSchedule.from_bytes(body, KEY)


def test_a_newer_document_is_left_alone(bench, queue):
    bench.put(KEY, b'{"v":2,"name":"report"}')

    with pytest.raises(NewerFormat):
        queue.every("0 * * * *", name="report")


def test_a_line_that_this_machine_cannot_read_is_shown_with_the_problem(bench, queue):
    queue.every("0 * * * *", name="report")
    bench.put(KEY, bench.read(KEY).replace(b"UTC", b"Mars"))

    (state,) = queue.schedules.list()
    assert state.upcoming == ()
    assert "time zone 'Mars'" in state.problem


def test_what_passed_before_a_change_of_the_line_is_not_missed(bench, queue):
    queue.every("0 9 * * *", name="report")
    bench.clock.advance(timedelta(days=1))
    state = queue.every("0 10 * * *", name="report")

    assert state.after == bench.clock.now()
