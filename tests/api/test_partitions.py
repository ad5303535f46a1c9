"""Partitions over HTTP: who holds them, what waits, a page at a time."""

from __future__ import annotations

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
