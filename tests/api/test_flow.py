"""The last hour's flow: told from names and dates that are there anyway, within a bounded number of LISTs."""

from __future__ import annotations

from datetime import timedelta

import pytest

from s3queue.clock import RandomChance
from s3queue.dashboard import throughput
from s3queue.dashboard.recent import BUDGET, floor_name, made_at
from s3queue.dashboard.throughput import flow
from support.workbench import Workbench


def test_what_came_and_went_is_counted_by_the_minute(bench: Workbench) -> None:
    queue = bench.queue()
    for minute in range(10):
        for _ in range(minute):
            bench.processor(queue, lambda body: None).run(queue.enqueue({}))
        bench.clock.advance(60)
    queue.enqueue({})
    found = flow(queue)
    assert [minute.finished for minute in found.minutes[-11:]] == [*range(10), 0]
    assert [minute.entered for minute in found.minutes[-11:]] == [*range(10), 1]
    assert (found.entered_per_minute, found.finished_per_minute) == (7, 7)
    assert (found.exact, found.drain_seconds) == (True, None), "as much comes as goes"


def test_a_queue_that_empties_says_when(bench: Workbench) -> None:
    queue = bench.queue()
    paths = [queue.enqueue({}) for _ in range(20)]
    for _ in range(6):
        bench.clock.advance(60)
        for path in [paths.pop(), paths.pop()]:
            bench.processor(queue, lambda body: None).run(path)
    found = flow(queue)
    assert found.finished_per_minute < 2.1
    assert found.drain_seconds == len(paths) / found.finished_per_minute * 60


def test_messages_with_names_that_others_chose_are_not_forgotten_once_they_complete(bench: Workbench) -> None:
    queue = bench.queue()
    path = queue.enqueue({}, name="mine")
    bench.clock.advance(180)
    before = [minute.entered for minute in flow(queue).minutes]
    bench.processor(queue, lambda body: None).run(path)
    found = flow(queue)
    assert [minute.entered for minute in found.minutes] == before
    assert [minute.finished for minute in found.minutes[-4:]] == [0, 0, 0, 1]
    assert found.unknown_entries == 0


def test_of_very_many_such_names_the_newest_are_read_and_none_is_forgotten(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throughput, "RECORDS_READ", 2)
    queue = bench.queue()
    for number in range(5):
        path = queue.enqueue({}, name=f"mine-{number}")
        bench.clock.advance(60)
        bench.processor(queue, lambda body: None).run(path)
    found = flow(queue)
    assert sum(minute.entered for minute in found.minutes) == 5
    assert found.unknown_entries == 3


def test_a_name_tells_when_it_was_made() -> None:
    at = Workbench().clock.now()
    name = RandomChance().name(at)
    assert made_at(f"messages/p200/{name}.ndjson") == at
    assert floor_name(at) <= name < floor_name(at + timedelta(seconds=1))
    assert made_at("messages/dedup-1") is None


def test_days_of_history_are_skipped_and_the_last_minutes_are_right(bench: Workbench) -> None:
    queue = bench.queue()
    for _minute in range(180):
        for _ in range(40):
            bench.memory.put(queue.keys.record(f"messages/{bench.chance.name(bench.clock.now())}"), b"{}")
        bench.clock.advance(60)
    bench.store.take()
    found = flow(queue)
    assert found.finished_per_minute == 40
    assert sum(minute.finished for minute in found.minutes) == 40 * 59
    assert bench.store.billed <= 4 * BUDGET


def test_priorities_and_shards_are_looked_into(bench: Workbench) -> None:
    queue = bench.queue(shards=16)
    for number in range(30):
        bench.processor(queue, lambda body: None).run(queue.enqueue({}, priority=number % 3))
    assert sum(minute.finished for minute in flow(queue).minutes) >= 10
