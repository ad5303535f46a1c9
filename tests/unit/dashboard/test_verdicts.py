"""The verdict on a queue: no false alarm in a week of ordinary traffic, and none missed when something is wrong."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from s3queue import DeadLetters, QueueSettings, Reject
from s3queue.dashboard.overview import overview
from s3queue.dashboard.verdicts import SEVERITY, judge
from s3queue.protocol.stats import Stats
from support.workbench import Workbench

DAY = 24 * 60
WEEK = 7 * DAY
MONDAY, TUESDAY, WEDNESDAY, THURSDAY, FRIDAY = range(5)
#: What the workers do in a minute.
CAPACITY = 10


def arrivals(minute: int) -> int:
    """Messages per minute, Monday to Sunday, as a shop has them: a nightly batch, office hours, a burst, a weekend."""
    day, of_day = divmod(minute, DAY)
    hour = of_day // 60
    if day > FRIDAY:
        return 0
    if of_day == 2 * 60:
        return 150  # the nightly batch, which takes longer than five minutes
    if day == THURSDAY and of_day == 11 * 60:
        return 100
    if 8 <= hour < 18:
        return 2 if of_day % 30 == 0 else of_day % 5 == 0
    return of_day % 97 == 0


@dataclass
class Site:
    """One queue with its workers, its sweeper and what it is sent, minute by minute."""

    bench: Workbench
    #: Numbers of messages that fail, and how often.
    failures: dict[int, int] = field(default_factory=dict)
    settings: dict[str, object] = field(default_factory=dict)
    capacity: int = CAPACITY
    is_working: bool = True
    is_swept: bool = True
    sent: int = 0
    seen: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.queue = self.bench.queue(**self.settings)
        self.events: deque[str] = deque()
        #: What the sweeper hands over is read before it is claimed: it may wait for a retry.
        self.late: set[str] = set()
        self.dispatched: list[str] = []
        self.sweeper = self.bench.sweeper(self.queue, self.dispatched)
        self.processor = self.bench.processor(self.queue, self.handle)
        self.minute = 0

    def handle(self, body: int) -> None:
        if self.failures.get(body):
            self.failures[body] -= 1
            raise TimeoutError(f"no answer for {body}")

    def pass_minute(self, many: int) -> None:
        is_awake = bool(self.events)
        for _ in range(many):
            self.events.append(self.queue.enqueue(self.sent))
            self.sent += 1
        if many and not is_awake:
            self.look()  # before any sweeper has seen it
        for _ in range(self.capacity if self.is_working else 0):
            if not self.events:
                break
            path = self.events.popleft()
            self.processor.run(path, read_first=path in self.late)
            self.late.discard(path)
        if self.is_swept:
            self.sweeper.tick()
            known = {*self.events}
            self.late.update(self.dispatched)
            self.events.extend(path for path in self.dispatched if path not in known)
            self.dispatched.clear()
        if self.events or self.minute % 60 == 0:
            self.look()
        self.minute += 1
        self.bench.clock.advance(60)

    def look(self) -> str:
        found = overview(self.bench.memory, self.queue.name, settings=self.queue.settings)
        self.seen.setdefault(found.health, []).append(f"minute {self.minute}: {found.reason}")
        return found.health

    def alarms(self) -> dict[str, list[str]]:
        return {health: said[:3] for health, said in self.seen.items() if health not in ("healthy", "idle")}


def test_a_week_of_ordinary_traffic_raises_no_alarm():
    site = Site(Workbench(), failures=dict.fromkeys(range(0, 5000, 20), 1))
    for minute in range(WEEK):
        deploy = WEDNESDAY * DAY + 14 * 60
        site.is_working = not deploy <= minute < deploy + 3
        site.is_swept = not deploy <= minute < deploy + 2
        site.pass_minute(arrivals(minute))
    # Monday again: an idle queue wakes.
    for _ in range(3):
        site.pass_minute(1)

    assert site.alarms() == {}
    assert site.sent > 1000
    assert any("it drains" in said for said in site.seen["healthy"])


def run(site: Site, minutes: int, many: int) -> Site:
    for _ in range(minutes):
        site.pass_minute(many)
    return site


@pytest.fixture
def site() -> Site:
    return run(Site(Workbench()), 25, 5)


def test_workers_that_stand_still_are_noticed(site):
    site.is_working = False
    run(site, 30, 1)
    assert site.look() == "stuck"


def test_a_queue_that_gets_more_than_it_can_do_is_behind_before_its_messages_are_old(site):
    site.capacity = 40
    run(site, 22, 50)
    assert site.look() == "behind"
    assert "came and" in site.seen["behind"][-1]
    assert "the backlog grows" in site.seen["behind"][0]


def test_a_message_that_never_has_its_turn_is_noticed(site):
    """Others pass it, and nothing drains: it is not enough that something is finished."""
    site.queue.enqueue(-1, name="zzz")
    site.is_swept = False  # its event was lost, and nobody looks for it
    for _ in range(12):
        site.pass_minute(5)
        site.sweeper.tick()
        site.dispatched.clear()
    assert site.look() == "behind"
    assert "the oldest message has waited for 12 min" in site.seen["behind"][-1]


def test_everything_fails_on_every_attempt_and_nothing_has_died():
    site = Site(Workbench(), settings={"max_attempts": 20, "retry_base": 120, "retry_cap": 600})
    site.failures = dict.fromkeys(range(1000), 99)
    run(site, 20, 1)
    assert site.queue.stats().dead == 0
    assert site.look() == "failing"
    assert "nothing was completed" in site.seen["failing"][-1]


def test_one_failure_of_many_is_no_alarm():
    site = Site(Workbench(), settings={"max_attempts": 20, "retry_base": 600, "retry_cap": 600}, failures={5: 5})
    run(site, 30, 5)
    assert site.queue.stats().failed == 1
    assert site.alarms() == {}


def test_a_silent_sweeper_is_noticed_while_there_is_work(site):
    site.is_swept = False
    site.is_working = False
    site.pass_minute(1)
    assert site.look() == "healthy"
    run(site, 5, 0)
    site.queue.claim(site.events[0])
    site.bench.clock.advance(60)
    assert site.look() == "unswept"


def test_a_queue_that_was_never_swept_gets_its_time():
    bench = Workbench()
    bench.queue().enqueue("x")
    assert overview(bench.memory, "orders").health == "healthy"
    bench.queue().claim(bench.keys("orders/messages/")[0].removeprefix("orders/"))
    bench.clock.advance(301)
    found = overview(bench.memory, "orders")
    assert (found.health, "never swept" in found.reason) == ("unswept", True)


def test_old_dead_letters_do_not_hide_a_backlog_and_can_be_acknowledged(site):
    def reject(_):
        raise Reject("mailbox 7 is full")

    site.bench.processor(site.queue, reject).run(site.queue.enqueue({"bad": 1}))
    assert site.look() == "failing"

    DeadLetters(site.queue).acknowledge(message="mailbox * is full")
    assert site.look() in ("healthy", "idle")

    site.bench.processor(site.queue, reject).run(site.queue.enqueue({"bad": 2}))
    assert site.look() == "failing"
    site.is_working = False
    run(site, 10, 1)
    assert site.look() == "stuck"


def test_without_a_trend_nothing_is_taken_to_be_better_than_it_looks():
    at = Workbench().clock.now()
    old = Stats(pending=9, processing=1, oldest_seconds=600, busy_seconds=600, at=at)
    fresh = Stats(pending=9, at=at - timedelta(seconds=20))
    assert judge(old, QueueSettings(), fresh)[0] == "behind"
    assert judge(Stats(pending=9, oldest_seconds=600, at=at), QueueSettings(), fresh)[0] == "stuck"


def test_what_nobody_runs_comes_before_what_nobody_could_run():
    assert SEVERITY.index("behind") < SEVERITY.index("failing")
    assert SEVERITY.index("stuck") < SEVERITY.index("failing")


def test_a_queue_that_nobody_here_defines_is_judged_by_its_published_settings(bench):
    queue = bench.queue(paused=True)
    queue.publish_settings()
    queue.enqueue("x")
    bench.clock.advance(600)
    found = overview(bench.memory, "orders")
    assert (found.health, found.settings.paused) == ("paused", True)

    # What an operator changed at run time still wins.
    queue.configure(paused=False)
    found = overview(bench.memory, "orders")
    assert (found.health, found.settings.paused) == ("stuck", False)


def test_outcomes_without_records_are_not_said_to_be_none(bench):
    queue = bench.queue(history=False)
    queue.publish_settings()
    paths = [queue.enqueue(number) for number in range(120)]
    bench.clock.advance(360)
    for path in paths[:60]:
        queue.complete(queue.claim(path))
    queue.claim(paths[60])
    found = overview(bench.memory, "orders")
    assert "finished" not in found.reason
    assert found == overview(bench.memory, "orders", settings=queue.settings)
