"""Outcomes of partitions lie in journals: verdicts, charts, the live tail and lists tell of them as of all others."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from s3queue import Queue
from s3queue.costs.prices import requests_cost
from s3queue.dashboard import journals, live_tail
from s3queue.dashboard.overview import overview
from s3queue.dashboard.recent import BUDGET, PARTITION_PAGES, Recent
from s3queue.dashboard.throughput import flow
from s3queue.paths import partition_of
from s3queue.worker.partition_run import run_partition
from support.api_calls import Ask
from support.workbench import Workbench

AT = "/api/queues/orders"
KINDS = [{"group": "ada"}, {"partitions": 1}]


def _burst(bench: Workbench, many: int, *, group: str | None = None, **settings: Any) -> tuple[Queue, list[str]]:
    queue = bench.queue(**settings)
    paths = [queue.enqueue({"n": number}, group=group) for number in range(many)]
    bench.clock.advance(400)
    return queue, paths


def _run(bench: Workbench, queue: Queue, path: str, many: int) -> None:
    """So many messages of its partition, a second each."""
    done = []

    def handle(body: Any) -> None:
        done.append(body)
        bench.clock.advance(1)

    run_partition(
        bench.processor(queue, handle), partition_of(path), should_stop=lambda: len(done) >= many, count=lambda _: None
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_partition_that_drains_is_healthy_and_its_outcomes_are_in_the_chart(
    bench: Workbench, kind: dict[str, Any]
) -> None:
    queue, paths = _burst(bench, 90, **kind)
    _run(bench, queue, paths[0], 60)
    bench.sweeper(queue).sweep()
    seen = overview(bench.store, "orders", settings=queue.settings)
    assert (seen.health, "it drains" in seen.reason) == ("healthy", True)

    bench.clock.advance(60)
    found = flow(queue)
    assert (found.finished_per_minute, found.entered_per_minute) == (12, 0)
    assert found.drain_seconds == 30 / 12 * 60
    assert sum(minute.finished for minute in found.minutes) == 60
    assert [minute.entered for minute in found.minutes if minute.entered] == [90]
    assert (found.exact, found.unknown_entries) == (True, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_partition_has_cost_at_least_what_is_shown_and_not_much_more(
    bench: Workbench, ask: Ask, kind: dict[str, Any]
) -> None:
    queue, paths = _burst(bench, 90, **kind)
    _run(bench, queue, paths[0], 90)
    sent = bench.store.take()
    writes, reads = (sum(sent.get(verb, 0) for verb in verbs) for verbs in (("put", "list"), ("get", "head")))
    really = requests_cost(puts=writes, gets=reads)

    (listed,) = ask("GET", "/api/queues").body["queues"]
    assert listed["stats"]["journaled_objects"] == 90
    assert listed["stats"]["journals"] == len(bench.keys("orders/records/"))
    assert 0.8 * really < listed["cost"]["dollars"] <= really


@pytest.mark.parametrize("kind", KINDS)
def test_a_partition_that_stands_still_is_stuck(bench: Workbench, kind: dict[str, Any]) -> None:
    queue, paths = _burst(bench, 90, **kind)
    _run(bench, queue, paths[0], 60)
    bench.clock.advance(600)
    bench.sweeper(queue).sweep()
    assert overview(bench.store, "orders", settings=queue.settings).health == "stuck"


def test_of_many_journals_a_few_are_read_and_the_others_waited_as_long(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "MOST_READ", 2)
    queue, paths = _burst(bench, 90, group="ada")
    for _ in range(12):
        _run(bench, queue, paths[0], 5)
    bench.sweeper(queue).sweep()
    bench.store.take()
    seen = overview(bench.store, "orders", settings=queue.settings)
    assert (seen.health, "it drains" in seen.reason) == ("healthy", True)
    found = flow(queue)
    assert found.unknown_entries > 0
    assert sum(minute.entered for minute in found.minutes) == 90
    assert found.entered_per_minute == 0
    assert sum(key.startswith("orders/records/") for verb, key in bench.store.log if verb == "get") == 4


def _journals(bench: Workbench, queue: Queue, partition: str, many: int) -> None:
    for _ in range(many):
        bench.memory.put(queue.keys.journal(partition, f"{bench.chance.name(bench.clock.now())}-10"), b"{}")


@pytest.mark.parametrize(
    ("partitions", "old", "lists"),
    [
        # Each has a history of its own, which is passed over.
        ([f"@={number}" for number in range(4)], 2100, 6),
        # Many with little in them are read a thousand at a time.
        ([f"@customer-{number:04d}" for number in range(1500)], 1, 5),
    ],
)
def test_a_long_history_is_passed_over(bench: Workbench, partitions: list[str], old: int, lists: int) -> None:
    queue = bench.queue()
    for partition in partitions:
        _journals(bench, queue, partition, old)
    bench.clock.advance(86_400)
    for partition in partitions[-3:]:
        _journals(bench, queue, partition, 2)
    recent = Recent(queue, bench.clock.now() - timedelta(hours=1), timedelta())
    bench.store.take()
    assert sum(queue.keys.records_at(entry.key) for entry in recent.objects("records")) == 3 * 2 * 10
    assert recent.exact
    assert bench.store.take() == {"list": lists}


def test_more_partitions_than_may_be_listed_are_not_said_to_be_all(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("s3queue.dashboard.recent.PARTITION_PAGES", 3)
    queue = bench.queue()
    for number in range(5):
        _journals(bench, queue, f"@={number}", 1100)
    recent = Recent(queue, bench.clock.now() - timedelta(hours=1), timedelta())
    bench.store.take()
    assert sum(1 for _ in recent.objects("records")) == 3000
    assert not recent.exact
    assert bench.store.take() == {"list": 4}
    assert not flow(queue).exact
    assert bench.store.billed < 4 * BUDGET + PARTITION_PAGES


def test_messages_that_wait_in_many_groups_are_all_counted(bench: Workbench) -> None:
    queue = bench.queue()
    for number in range(40):
        queue.enqueue({}, group=f"customer-{number}")
    queue.enqueue({})
    recent = Recent(queue, bench.clock.now() - timedelta(hours=1), timedelta())
    assert len([*recent.objects("")]) == 41
    assert recent.exact


def test_the_live_tail_and_the_newest_tell_of_a_partition(
    bench: Workbench, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, paths = _burst(bench, 6, group="ada")
    _run(bench, queue, paths[0], 3)
    _run(bench, queue, paths[0], 3)
    bench.clock.advance(1)
    assert len(bench.keys("orders/records/@ada/")) > 1
    events = ask("GET", f"{AT}/tail", query={"after": "2026-11-16T10:00:00Z"}).body
    assert [(event["path"], event["state"]) for event in events["events"]] == [(path, "completed") for path in paths]

    def newest(limit: int) -> list[str]:
        asked = {"state": "completed", "newest": "true", "limit": limit}
        return [row["path"] for row in ask("GET", f"{AT}/messages", query=asked).body["messages"]]

    assert newest(50) == paths[::-1]
    assert newest(2) == paths[:-3:-1]

    monkeypatch.setattr(live_tail, "MOST_READ", 0)
    assert ask("GET", f"{AT}/tail", query={"after": "2026-11-16T10:00:00Z"}).body["missed"] == 6


def test_messages_of_a_partition_are_found_by_their_prefix(bench: Workbench, ask: Ask) -> None:
    queue = bench.queue(retry_base=300)
    groups = {group: [queue.enqueue({"n": number}, group=group) for number in range(2)] for group in ("ada", "adam")}

    def fail_the_second(body: dict[str, int]) -> None:
        if body["n"]:
            raise ValueError("no")

    for first, _ in groups.values():
        bench.processor(queue, fail_the_second).run(first)

    def found(state: str) -> list[str]:
        asked = {"state": state, "prefix": "messages/@ada/"}
        return [row["path"] for row in ask("GET", f"{AT}/messages", query=asked).body["messages"]]

    done, waits = groups["ada"]
    assert (found("completed"), found("waiting"), found("processing")) == ([done], [waits], [])
    for state in ("completed", "waiting"):
        assert found(state) == [one.path for one in queue.list(state, prefix="messages/@ada/").messages]
