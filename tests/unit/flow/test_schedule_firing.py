"""What sweepers make of schedules: each instant once, whoever sweeps, whatever breaks.  [P10]"""

from __future__ import annotations

import json
import sys
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from s3queue import Unavailable, define
from s3queue.errors import AccessDenied
from s3queue.flow.schedule_firing import LEAD, MOST_MISSED
from s3queue.paths import due_of, runs_once
from s3queue.stores.memory import MemoryStore
from support.forged_documents import forgeries
from support.manual_clock import ManualClock

START = datetime(2026, 11, 16, 10, 15, tzinfo=UTC)
KEY = "orders/schedules/report.json"


def delayed(bench):
    return [key.removeprefix("orders/delayed/") for key in bench.keys("orders/delayed/")]


def ran(bench):
    return [key.removeprefix("orders/records/delayed/") for key in bench.keys("orders/records/delayed/")]


class Sweeps:
    """A sweeper function, once a minute, and its worker."""

    def __init__(self, bench, queue, sweepers=1, schedules=None):
        self.bench = bench
        self.due: list[str] = []
        self.sweepers = [bench.sweeper(queue, self.due) for _ in range(sweepers)]
        for one in self.sweepers:
            one.schedules = schedules
        self.runs: Counter[str] = Counter()
        self.processor = bench.processor(queue, self._handle)

    def _handle(self, body, context):
        self.runs[context.metadata["scheduled-at"]] += 1

    def once(self):
        for sweeper in self.sweepers:
            report = sweeper.sweep()
            assert not report.corrupt
        while self.due:
            self.processor.run(self.due.pop(0), read_first=True)

    def go(self, minutes):
        for _ in range(minutes):
            self.once()
            self.bench.clock.advance(60)


def test_a_message_that_nobody_may_describe_does_not_end_a_schedule(bench, queue):
    """Its sweeper died right after the PUT, and its HEAD is refused: a foreign key."""
    queue.every("20 10 * * *", name="report")
    path = "orders/delayed/20261116T102000Z/scheduled-report"

    def dies(operation, key, perform):
        found = perform()
        if key == path:
            raise KeyboardInterrupt
        return found

    def refuse(operation, key, perform):
        if operation in ("get", "head", "copy") and key == path:
            raise AccessDenied(f"HEAD {key}: 400")
        return perform()

    bench.sweeper(queue).sweep()
    bench.clock.advance(200)
    bench.around = dies
    with pytest.raises(KeyboardInterrupt):
        bench.sweeper(queue).sweep()
    bench.around = refuse
    bench.clock.advance(timedelta(days=1))

    assert bench.sweeper(queue).sweep().scheduled == 1
    assert len(delayed(bench)) == 2


def test_a_message_is_put_before_it_is_due_and_says_what_it_is(bench, queue):
    queue.every("20 10 * * *", name="report", body={"a": 1}, priority=9)
    sweeper = bench.sweeper(queue)

    sweeper.sweep()
    assert delayed(bench) == []
    bench.clock.advance(timedelta(minutes=5) - LEAD)
    assert sweeper.sweep().scheduled == 1

    path = "delayed/20261116T102000Z/p009/scheduled-report"
    assert delayed(bench) == [path.removeprefix("delayed/")]
    found = bench.memory.open(f"orders/{path}")
    assert json.loads(found.read()) == {"a": 1}
    assert found.metadata == {"schedule": "report", "scheduled-at": "2026-11-16T10:20:00Z"}
    assert found.content_type == "application/json"
    assert runs_once(path)
    assert sweeper.sweep().scheduled == 0


@pytest.mark.parametrize("sweepers", [1, 2])
def test_each_instant_runs_once_and_on_time(bench, queue, sweepers):
    queue.every("*/3 * * * *", name="report")
    sweeps = Sweeps(bench, queue, sweepers)

    sweeps.go(61)

    expected = [START + timedelta(minutes=minutes) for minutes in range(3, 61, 3)]
    assert sweeps.runs == {f"{at:%Y-%m-%dT%H:%M:%SZ}": 1 for at in expected}


def test_over_both_changes_of_the_clock(bench):
    for start, due in (
        (datetime(2026, 3, 29, 0, tzinfo=UTC), "2026-03-29T01:00:00Z"),
        (datetime(2026, 10, 24, 23, tzinfo=UTC), "2026-10-25T00:30:00Z"),
    ):
        bench.clock = ManualClock(start)
        bench.memory = MemoryStore("dst", clock=bench.clock)
        bench.store.inner = bench.memory
        queue = bench.queue()
        queue.every("30 2 * * *", name="report", tz="Europe/Berlin")
        sweeps = Sweeps(bench, queue, 2)

        sweeps.go(6 * 60)

        assert sweeps.runs == {due: 1}


@pytest.mark.parametrize(
    ("missed", "expected"),
    [("last", ["13:00"]), ("all", ["11:00", "12:00", "13:00"]), ("skip", [])],
)
def test_after_an_outage_the_last_one_or_all_or_none(bench, queue, missed, expected):
    queue.every("0 * * * *", name="report", missed=missed)
    Sweeps(bench, queue).once()
    bench.clock.advance(timedelta(hours=3))

    sweeps = Sweeps(bench, queue, 2)
    sweeps.go(30)

    assert sorted(sweeps.runs) == [f"2026-11-16T{at}:00Z" for at in expected]
    assert set(sweeps.runs.values()) <= {1}


@pytest.mark.parametrize("missed", ["last", "all", "skip"])
def test_a_sweeper_that_is_a_little_late_has_missed_nothing(bench, queue, missed):
    queue.every("20 10 * * *", name="report", missed=missed)
    bench.clock.advance(timedelta(minutes=5, seconds=50))

    Sweeps(bench, queue).once()

    assert ran(bench) == ["20261116T102000Z/scheduled-report"]


@pytest.mark.parametrize("missed", ["last", "all", "skip"])
def test_a_sweeper_that_is_late_for_several_instants_misses_none(bench, queue, missed):
    """Each of them passed less than a minute ago."""
    bench.clock.advance(50)
    queue.every("* * * * *", name="report", missed=missed)
    bench.clock.advance(70)

    Sweeps(bench, queue).once()

    put = {due_of(f"delayed/{path}") for path in (*delayed(bench), *ran(bench))}
    assert {datetime(2026, 11, 16, 10, minute, tzinfo=UTC) for minute in (16, 17)} <= put


def test_all_has_a_limit_however_long_the_outage(bench, queue, caplog):
    queue.every("* * * * *", name="report", missed="all")
    bench.clock.advance(timedelta(days=300))

    assert bench.sweeper(queue).sweep().scheduled == MOST_MISSED + 2
    assert "the last 100 are put" in caplog.text


def test_what_would_have_come_during_a_pause_does_not(bench, queue):
    queue.every("* * * * *", name="report", missed="all")
    queue.schedules.pause("report")
    Sweeps(bench, queue).go(10)
    assert delayed(bench) == []

    queue.schedules.resume("report")
    sweeps = Sweeps(bench, queue)
    sweeps.go(3)

    assert sorted(sweeps.runs) == ["2026-11-16T10:26:00Z", "2026-11-16T10:27:00Z"]


def test_a_paused_queue_keeps_what_its_schedules_put(bench, queue):
    queue.every("*/2 * * * *", name="report")
    queue.pause()

    sweeps = Sweeps(bench, queue)
    sweeps.go(7)

    assert sweeps.runs == {}
    assert len(delayed(bench)) == 4


def test_a_removed_schedule_ends_and_what_is_in_the_queue_stays(bench, queue):
    queue.every("*/2 * * * *", name="report")
    sweeps = Sweeps(bench, queue)
    sweeps.once()
    queue.schedules.remove("report")

    sweeps.go(10)

    assert len(sweeps.runs) == 1


# In code


def test_a_schedule_of_the_definition_needs_no_document_before(bench, queue):
    definition = define("orders")
    definition.every("*/2 * * * *", name="report", body=[1])
    sweeps = Sweeps(bench, queue, 2, definition.schedules)

    sweeps.go(8)

    assert sorted(sweeps.runs) == [f"2026-11-16T10:{minute}:00Z" for minute in (16, 18, 20, 22)]
    assert queue.schedules.get("report").source == "code"


@pytest.mark.parametrize("gap", [59, 61, 300])
def test_the_first_instant_of_a_new_schedule_in_code_is_not_missed(bench, queue, gap):
    """[P10] The sweep that finds it puts what comes within the lead, however late the next one is."""
    definition = define("orders")
    definition.every("16 10 * * *", name="report", missed="skip")
    bench.clock.advance(59)
    sweeps = Sweeps(bench, queue, schedules=definition.schedules)

    sweeps.once()
    assert delayed(bench) == ["20261116T101600Z/scheduled-report"]
    bench.clock.advance(gap)
    sweeps.once()

    assert sweeps.runs == {"2026-11-16T10:16:00Z": 1}


def test_a_new_schedule_in_code_that_is_due_later_costs_one_put(bench, queue):
    definition = define("orders")
    definition.every("20 11 * * *", name="report")
    sweeper = bench.sweeper(queue)
    sweeper.schedules = definition.schedules

    sweeper.sweep()

    assert [one for one in bench.store.log if one[1].startswith(KEY)] == [("put", KEY)]


def test_a_schedule_that_is_taken_out_of_the_code_ends_and_is_forgotten_after_a_day(bench, queue):
    definition = define("orders")
    definition.every("0 * * * *", name="report")
    Sweeps(bench, queue, schedules=definition.schedules).go(1)

    sweeps = Sweeps(bench, queue, schedules=())
    sweeps.go(120)
    assert sweeps.runs == {}
    assert bench.keys(KEY) == [KEY]

    bench.clock.advance(timedelta(days=1))
    # A process that does not know the definition leaves it alone.
    Sweeps(bench, queue, schedules=None).go(2)
    assert bench.keys(KEY) == [KEY]
    assert delayed(bench) == []
    sweeps.once()
    assert bench.keys(KEY) == []


def test_the_code_wins_over_what_an_operator_made_and_its_pause_stays(bench, queue):
    queue.every("0 0 1 1 *", name="report", body="1")
    definition = define("orders")
    definition.every("*/2 * * * *", name="report", body="2")
    sweeps = Sweeps(bench, queue, schedules=definition.schedules)

    sweeps.go(4)
    assert len(sweeps.runs) == 2
    assert queue.schedules.get("report").schedule.body == "2"

    queue.schedules.pause("report")
    changed = define("orders")
    changed.every("*/2 * * * *", name="report", body="3")
    sweeps = Sweeps(bench, queue, schedules=changed.schedules)
    sweeps.go(6)
    assert queue.schedules.get("report").paused
    # What was put before the pause.
    assert len(sweeps.runs) <= 1


# What breaks


def test_a_late_repetition_of_a_put_is_cleared_and_not_run(bench):
    """Also without a history: what a schedule put is recorded, so that it is known."""
    queue = bench.queue(history=False)
    queue.every("20 10 * * *", name="report")
    sweeps = Sweeps(bench, queue)
    sweeps.go(7)
    path = "delayed/20261116T102000Z/scheduled-report"
    record = bench.read(f"orders/records/{path}")

    bench.put(f"orders/{path}", b"null")
    sweeps.go(3)

    assert sweeps.runs == {"2026-11-16T10:20:00Z": 1}
    assert delayed(bench) == bench.keys("orders/leases/") == []
    assert bench.read(f"orders/records/{path}") == record


def test_a_late_repetition_whose_claim_died_is_cleared_by_the_sweeper(bench):
    queue = bench.queue(max_attempts=1)
    queue.every("20 10 * * *", name="report")
    sweeps = Sweeps(bench, queue)
    sweeps.go(7)
    path = "delayed/20261116T102000Z/scheduled-report"
    bench.put(f"orders/{path}", b"null")

    def around(operation, key, perform):
        # The lease is written, and the process dies.
        if operation == "get" and key == f"orders/{path}":
            raise KeyboardInterrupt
        return perform()

    bench.around = around
    with pytest.raises(KeyboardInterrupt):
        bench.queue().claim(path, read_first=True)
    bench.around = None
    sweeps.go(3)

    assert sweeps.runs == {"2026-11-16T10:20:00Z": 1}
    assert delayed(bench) == bench.keys("orders/leases/") == bench.keys("orders/dead/") == []


def test_a_letter_that_is_moved_back_by_hand_runs(bench, queue):
    queue.every("20 10 * * *", name="report")
    sweeps = Sweeps(bench, queue)
    path = "delayed/20261116T102000Z/scheduled-report"
    sweeps.go(4)
    bench.clock.advance(60)
    claim = queue.claim(path)
    queue.fail(claim, "broken", dead=True)

    bench.memory.copy(f"orders/dead/{path}", f"orders/{path}")
    bench.memory.delete(f"orders/dead/{path}")
    sweeps.go(2)

    assert sweeps.runs == {"2026-11-16T10:20:00Z": 1}


@pytest.mark.parametrize("number", range(1, 8))
@pytest.mark.parametrize("how", ["before", "after", "lost"])
def test_a_crash_or_a_lost_answer_at_any_request_of_a_firing_sweep(bench, queue, number, how):
    queue.every("*/10 * * * *", name="report")
    bench.clock.advance(timedelta(minutes=3))
    seen = 0

    def around(operation, key, perform):
        nonlocal seen
        if "schedules/" not in key and "delayed/" not in key:
            return perform()
        seen += 1
        if seen != number:
            return perform()
        if how != "before":
            perform()
        if how == "lost":
            raise Unavailable("no answer")
        raise KeyboardInterrupt

    bench.around = around
    with suppress(KeyboardInterrupt, Unavailable):
        bench.sweeper(queue).sweep()
    bench.around = None

    sweeps = Sweeps(bench, queue, 2)
    sweeps.go(20)

    assert sweeps.runs == {"2026-11-16T10:20:00Z": 1, "2026-11-16T10:30:00Z": 1}
    finished = [entry.key for entry in queue.store.list(queue.keys.prefix("records")).objects]
    assert len(finished) == 2
    assert not any("/p0" in key for key in finished), "whoever puts it, an instant has one name"


def test_a_sweeper_that_slept_too_long_puts_nothing(bench, queue):
    """It would be after its record was forgotten."""
    queue.every("20 10 * * *", name="report")
    bench.clock.advance(timedelta(minutes=3))

    def around(operation, key, perform):
        answer = perform()
        if operation == "put" and key == KEY:
            bench.clock.advance(timedelta(days=6))
        return answer

    bench.around = around
    bench.sweeper(queue).sweep()
    bench.around = None

    assert delayed(bench) == []
    # Nobody knows whether it ran: at most once.
    Sweeps(bench, queue).once()
    assert "20261116T102000Z/scheduled-report" not in ran(bench) + delayed(bench)


def test_two_sweepers_at_the_same_request_put_each_instant_once(bench, queue):
    """The second one sweeps between any two requests of the first."""
    for pause in range(1, 7):
        queue.every("*/10 * * * *", name=f"report{pause}")
    bench.clock.advance(timedelta(minutes=3))
    inside = False
    requests = 0

    def around(operation, key, perform):
        nonlocal inside, requests
        if inside:
            return perform()
        requests += 1
        inside = True
        bench.sweeper(queue).sweep()
        inside = False
        return perform()

    bench.around = around
    bench.sweeper(queue).sweep()
    bench.around = None
    sweeps = Sweeps(bench, queue, 2)
    sweeps.go(10)

    assert requests > 6
    assert sweeps.runs == {"2026-11-16T10:20:00Z": 6}


def test_a_priority_that_is_changed_while_a_message_is_put_makes_no_second_one(bench, queue):
    queue.every("20 10 * * *", name="report")
    bench.clock.advance(timedelta(minutes=3))

    def around(operation, key, perform):
        answer = perform()
        if operation == "put" and "/delayed/" in key:
            raise KeyboardInterrupt
        return answer

    bench.around = around
    with pytest.raises(KeyboardInterrupt):
        bench.sweeper(queue).sweep()
    bench.around = None
    queue.every("20 10 * * *", name="report", priority=200)
    sweeps = Sweeps(bench, queue)
    sweeps.go(5)

    assert sweeps.runs == {"2026-11-16T10:20:00Z": 1}


@pytest.mark.parametrize("delay", [0, 62, 124])
def test_a_line_and_a_priority_that_are_changed_while_messages_are_put_make_no_second_ones(bench, queue, delay):
    """[P10] The sweep that finishes the placing comes when what was placed is due, and later than the edit."""
    bench.clock.advance(20)
    queue.every("* * * * *", name="report")
    is_edited = False

    def around(operation, key, perform):
        nonlocal is_edited
        if operation == "put" and "/delayed/" in key and not is_edited:
            is_edited = True
            queue.every("*/1 * * * *", name="report", priority=9)
        return perform()

    bench.around = around
    bench.sweeper(queue).sweep()
    bench.around = None
    assert is_edited
    bench.clock.advance(delay)
    sweeps = Sweeps(bench, queue)
    for path in delayed(bench):
        if path < f"{bench.clock.now():%Y%m%dT%H%M%SZ}":
            sweeps.processor.run(f"delayed/{path}", read_first=True)
    sweeps.go(6)

    assert len(sweeps.runs) >= 5
    assert set(sweeps.runs.values()) == {1}


def assert_each_minute_once(runs):
    """From the first minute on: no instant twice, and none left out."""
    expected = [START + timedelta(minutes=minutes) for minutes in range(1, len(runs) + 1)]
    assert len(runs) >= 6
    assert runs == {f"{at:%Y-%m-%dT%H:%M:%SZ}": 1 for at in expected}


@pytest.mark.parametrize("lag", [1, 61, 200])
def test_old_code_that_sweeps_within_a_sweep_of_new_code_makes_no_instant_run_twice(bench, queue, lag):
    """[P10] What the old code has put and dropped may be due later than the first LIST of the new code's sweep."""
    old, new = define("orders"), define("orders")
    old.every("* * * * *", name="report", missed="all")
    new.every("*/1 * * * *", name="report", missed="all", priority=9)
    sweeps, others = (Sweeps(bench, queue, schedules=code.schedules) for code in (new, old))
    others.once()
    bench.clock.advance(59)
    is_late = False

    def around(operation, key, perform):
        nonlocal is_late
        if operation == "get" and key == KEY and not is_late:
            is_late = True
            bench.clock.advance(lag)
            others.once()
        return perform()

    bench.around = around
    sweeps.once()
    bench.around = None
    assert is_late
    sweeps.go(6)

    assert_each_minute_once(sweeps.runs + others.runs)


@pytest.mark.parametrize("how", ["in code", "by an operator"])
def test_a_schedule_that_is_made_anew_does_not_run_again_what_ran_meanwhile(bench, queue, how):
    """[P10] What the removed one has put is due, and gone, between the look at the clock and the look at the queue."""
    queue.every("* * * * *", name="report")
    others = Sweeps(bench, queue)
    others.once()
    queue.schedules.remove("report")
    bench.clock.advance(59)
    definition = define("orders")
    definition.every("* * * * *", name="report", priority=9)
    sweeps = Sweeps(bench, queue, schedules=definition.schedules if how == "in code" else None)
    is_late = False

    def around(operation, key, perform):
        nonlocal is_late
        if operation == "list" and key.startswith("orders/delayed/") and not is_late:
            is_late = True
            bench.clock.advance(1)
            others.once()
        return perform()

    bench.around = around
    if how == "in code":
        sweeps.once()
    else:
        queue.every("* * * * *", name="report", priority=9)
    bench.around = None
    assert is_late
    sweeps.go(6)

    assert_each_minute_once(sweeps.runs + others.runs)


def test_one_schedule_that_cannot_be_read_holds_up_no_other(bench, queue, caplog):
    queue.every("*/2 * * * *", name="report")
    queue.every("*/2 * * * *", name="zone")
    bench.put("orders/schedules/zone.json", bench.read("orders/schedules/zone.json").replace(b"UTC", b"Mars"))
    bench.put("orders/schedules/bad.json", b"x")
    bench.put("orders/schedules/other.json", bench.read(KEY))
    bench.put("orders/schedules/Not A Name.json", b"x")
    sweeper = bench.sweeper(queue)

    for _ in range(3):
        report = sweeper.sweep()
        bench.clock.advance(60)

    assert set(report.corrupt) == {"orders/schedules/bad.json", "orders/schedules/other.json"}
    assert delayed(bench) == ["20261116T101600Z/scheduled-report", "20261116T101800Z/scheduled-report"]
    assert caplog.text.count("time zone 'Mars'") == 1


def test_whatever_lies_in_a_document_the_others_are_fired_and_nobody_loops(bench, queue, caplog):
    queue.every("* * * * *", name="forged", missed="all")
    real = bench.read("orders/schedules/forged.json")
    queue.every("*/2 * * * *", name="report")
    sweeper = bench.sweeper(queue)

    for forged in forgeries(real, seed=5):
        bench.memory.put("orders/schedules/forged.json", forged[:600_000])
        report = sweeper.sweep()
        assert report.error is None
        assert report.requests < 3 * (MOST_MISSED + 10)
        queue.schedules.list()
        bench.clock.advance(60)

    assert "unexpected error" not in caplog.text
    assert any(key.endswith("scheduled-report") for key in delayed(bench))


def test_a_small_budget_gets_through_all_of_them(bench, queue):
    for number in range(40):
        queue.every("17 10 * * *", name=f"s{number}")
    sweeper = bench.sweeper(queue)

    for _ in range(60):
        sweeper.sweep(requests=40)

    assert len(delayed(bench)) == 40


def test_a_line_that_is_changed_loses_no_instant_of_the_next_minutes(bench, queue):
    """[P10] What the former line has put already may be later than the first instant of the new one."""
    queue.every("21 10 * * *", name="report")
    bench.clock.advance(timedelta(minutes=4))
    sweeps = Sweeps(bench, queue)
    sweeps.once()
    assert delayed(bench) == ["20261116T102100Z/scheduled-report"]

    queue.every("20 10 * * *", name="report")
    sweeps.go(5)

    assert sweeps.runs == {"2026-11-16T10:20:00Z": 1, "2026-11-16T10:21:00Z": 1}


@pytest.mark.parametrize("how", ["removed", "another line", "in code"])
def test_an_instant_has_one_message_also_if_its_schedule_is_made_anew_with_another_priority(bench, queue, how):
    """[P10] Its name is another one then."""
    queue.every("20 10 * * *", name="report")
    bench.clock.advance(timedelta(minutes=3))
    sweeps = Sweeps(bench, queue)
    sweeps.once()
    assert delayed(bench) == ["20261116T102000Z/scheduled-report"]

    if how != "another line":
        queue.schedules.remove("report")
    if how == "in code":
        definition = define("orders")
        definition.every("20 10 * * *", name="report", priority=200)
        sweeps = Sweeps(bench, queue, schedules=definition.schedules)
    else:
        queue.every("20 10 * * *" if how == "removed" else "*/20 10 * * *", name="report", priority=200)
    sweeps.go(5)

    assert sweeps.runs == {"2026-11-16T10:20:00Z": 1}


def test_a_paused_schedule_stays_paused_if_the_code_that_defines_it_is_rolled_back_and_comes_again(bench, queue):
    definition = define("orders")
    definition.every("*/2 * * * *", name="report")
    Sweeps(bench, queue, schedules=definition.schedules).once()
    queue.schedules.pause("report")

    former = Sweeps(bench, queue, schedules=())
    for _ in range(3):
        bench.clock.advance(timedelta(days=1))
        former.once()
    sweeps = Sweeps(bench, queue, schedules=definition.schedules)
    sweeps.go(6)

    assert queue.schedules.get("report").paused
    assert not sweeps.runs


@pytest.mark.parametrize("is_new", [False, True], ids=["one process", "a new process each time"])
def test_no_schedule_waits_for_ever_behind_others_that_use_up_the_budget(bench, queue, is_new):
    """[P10]"""
    names = {f"s{number:02}" for number in range(25)}
    for name in names:
        queue.every("* * * * *", name=name)
    sweeper = bench.sweeper(queue)
    seen: set[str] = set()

    for _ in range(150):
        bench.clock.advance(60)
        (bench.sweeper(queue) if is_new else sweeper).sweep(requests=40)
        seen |= {key.rpartition("scheduled-")[2] for key in delayed(bench)}

    assert seen == names


@pytest.mark.parametrize(("strangers", "is_code"), [(1500, False), (1500, True), (10_500, True)])
def test_a_schedule_is_found_behind_thousands_of_other_objects(bench, queue, strangers, is_code):
    """[P10]"""
    for number in range(strangers):
        bench.put(f"orders/schedules/{number:06}", b"")
    definition = define("orders")
    if is_code:
        definition.every("*/2 * * * *", name="report")
    else:
        queue.every("*/2 * * * *", name="report")
    sweeps = Sweeps(bench, queue, schedules=definition.schedules)
    sweeps.go(5)

    assert sum(sweeps.runs.values()) == 2
    if strangers < 10_000:
        assert queue.schedules.names() == ["report"]


# What it costs


def test_a_queue_without_a_schedule_pays_nothing_and_imports_nothing(bench, queue, monkeypatch):
    monkeypatch.setitem(sys.modules, "cronsim", None)
    monkeypatch.delitem(sys.modules, "s3queue.flow.schedule_firing", raising=False)
    sweeper = bench.sweeper(queue)
    sweeper.sweep()
    bench.store.take()

    sweeper.sweep()

    assert bench.store.take() == {"list": 1}
    assert "s3queue.flow.schedule_firing" not in sys.modules


def test_a_schedule_costs_one_list_per_sweep_and_three_puts_per_message(bench, queue):
    queue.every("20 10 * * *", name="report")
    sweeper = bench.sweeper(queue)
    sweeper.sweep()
    bench.store.take()

    sweeper.sweep()
    assert bench.store.take() == {"list": 2}

    bench.clock.advance(timedelta(minutes=3))
    bench.store.log.clear()
    sweeper.sweep()
    path = "orders/delayed/20261116T102000Z/scheduled-report"
    assert [one for one in bench.store.log if one[0] == "put"][:3] == [("put", KEY), ("put", path), ("put", KEY)]
    assert bench.store.requests["get"] == 1  # queue.json, as in every sweep of a queue that is not idle


def test_a_scheduled_message_costs_one_get_more_than_a_delayed_one(bench, queue):
    queue.every("20 10 * * *", name="report")
    bench.clock.advance(timedelta(minutes=3))
    bench.sweeper(queue).sweep()
    ordinary = queue.enqueue({}, delay=1)
    bench.clock.advance(timedelta(minutes=3))
    processor = bench.processor(queue, lambda body: None)

    bench.store.take()
    processor.run(ordinary, read_first=True)
    usual = bench.store.take()
    processor.run("delayed/20261116T102000Z/scheduled-report", read_first=True)

    assert bench.store.take() == usual | {"get": usual["get"] + 1}
