"""Partitions over HTTP: who holds them, what waits, a page at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from s3queue.dashboard import letters
from s3queue.dashboard.api import build
from s3queue.flow.partitions import hold_partition
from support.api_calls import Ask, asking
from support.workbench import Workbench

AT = "/api/queues/orders/partitions"


def test_partitions_are_listed_with_holder_and_waiting_retries(bench: Workbench, ask: Ask) -> None:
    queue = bench.queue(retry_base=60)
    first = queue.enqueue({"n": 1}, group="ada")
    queue.enqueue({"n": 2}, group="ada")
    queue.enqueue({"n": 3}, group="bob")

    def fail(body: dict[str, int]) -> None:
        raise ValueError("no such customer")

    bench.processor(queue, fail).run(first)
    ada, bob = ask("GET", AT).body["partitions"]

    assert (ada["partition"], ada["group"], ada["state"], ada["messages"], ada["waiting"]) == (
        "@ada",
        "ada",
        "open",
        2,
        1,
    )
    assert ada["failure"] == {"type": "ValueError", "message": "no such customer"}
    assert (ada["next_path"], ada["until"]) == (first, None)
    assert (bob["state"], bob["messages"], bob["worker"]) == ("free", 1, None)
    assert [one["partition"] for one in ask("GET", AT, query={"leased": "true"}).body["partitions"]] == ["@ada"]


def test_a_held_partition_says_by_whom_and_until_when(bench: Workbench, ask: Ask) -> None:
    queue = bench.queue(worker_id="worker-7", visibility_timeout=60)
    queue.enqueue({}, group="ada")
    assert hold_partition(queue.leases, "@ada")

    (ada,) = ask("GET", AT).body["partitions"]

    assert (ada["state"], ada["worker"], ada["taken"]) == ("held", "worker-7", 1)
    assert ada["until"] == "2026-11-16T10:16:02Z"


def test_pages_show_each_partition_once(bench: Workbench, ask: Ask) -> None:
    queue = bench.queue()
    for number in range(7):
        queue.enqueue({}, group=f"customer-{number}")

    seen, cursor = [], ""
    for _ in range(10):
        page = ask("GET", AT, query={"limit": "3", "cursor": cursor}).body
        seen += [one["group"] for one in page["partitions"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break

    assert seen == [f"customer-{number}" for number in range(7)]
    assert ask("GET", AT, query={"cursor": "customer-3"}).status == 422
    assert ask("GET", AT, query={"limit": "0"}).status == 422
    assert ask("GET", "/api/queues/nobody/partitions").status == 404


def test_a_queue_says_whether_it_has_partitions(bench: Workbench, ask: Ask) -> None:
    bench.queue().enqueue({}, name="@looks-like-one")
    assert ask("GET", "/api/queues/orders").body["has_partitions"] is False
    assert ask("GET", AT).body["partitions"] == []

    bench.queue().enqueue({}, group="ada")
    assert ask("GET", "/api/queues/orders").body["has_partitions"] is True


def test_a_reader_sees_partitions(bench: Workbench) -> None:
    bench.queue().enqueue({}, group="ada")
    answer = asking(build(bench.store, role="reader"))("GET", AT)
    assert (answer.status, len(answer.body["partitions"])) == (200, 1)


def _dead_of_groups(bench: Workbench, many: int) -> list[str]:
    queue = bench.queue(max_attempts=1)
    paths = [queue.enqueue({"n": number}, group=group) for group in ("ada", "bob") for number in range(many)]

    def fail(body: dict[str, int]) -> None:
        raise ValueError("no such customer")

    bench.settle(queue, fail)
    bench.clock.advance(5)
    return paths


def test_letters_of_a_group_are_replayed_one_after_the_other(bench: Workbench, ask: Ask) -> None:
    """A replay goes to the end of its group: side by side, they would come in any order."""
    paths = _dead_of_groups(bench, 6)
    bench.store.take()

    def slow(verb: str, key: str, perform: Callable[[], Any]) -> Any:
        time.sleep(0.002)  # for others, if they may
        return perform()

    bench.around = slow
    said = ask("POST", "/api/queues/orders/dead/replay", body={"error_type": "ValueError"})

    assert (said.body["replayed"], said.body["failed"]) == (12, [])
    for group in ("@ada", "@bob"):
        dead = [f"orders/dead/{path}" for path in paths if group in path]
        seen = [(verb, key) for verb, key in bench.store.log if key in dead and verb in ("get", "delete")]
        assert seen == [(verb, key) for key in dead for verb in ("get", "delete")]
        assert [bench.read(key) for key in bench.keys(f"orders/messages/{group}/")] == [
            b'{"n":%d}' % number for number in range(6)
        ]


def test_one_call_replays_only_so_many_of_a_group(bench: Workbench, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letters, "MOST_IN_TURN", 4)
    paths = _dead_of_groups(bench, 6)
    cursor, replayed = "", []
    while cursor is not None:
        said = ask("POST", "/api/queues/orders/dead/replay", body={"error_type": "ValueError", "cursor": cursor}).body
        cursor = said["next_cursor"]
        replayed.append(said["replayed"])
    assert replayed == [4, 6, 2]
    assert bench.keys("orders/dead/") == []
    assert len(paths) == len(bench.keys("orders/messages/"))
