"""The last hour over HTTP: of one queue, and of all, those without figures among them."""

from __future__ import annotations

from support.api_calls import Ask
from support.finished_messages import put_record, record
from support.workbench import Workbench


def swept(bench: Workbench, name: str, finished: int) -> None:
    queue = bench.queue(name)
    for number in range(finished):
        put_record(bench.memory, name, record(f"messages/x{number}", wait=3, run=1))
    bench.clock.advance(5)
    bench.sweeper(queue, counts_hour=True).sweep()


def test_the_last_hour_of_one_queue(bench: Workbench, ask: Ask) -> None:
    swept(bench, "orders", 4)
    found = ask("GET", "/api/queues/orders/last-hour")
    assert found.status == 200
    assert (found.body["available"], found.body["finished"], found.body["completed"]) == (True, 4, 4)
    assert abs(found.body["wait_p95_seconds"] - 3) <= 3 * (found.body["value_error"] + 0.005)
    assert sum(minute["finished"] for minute in found.body["minutes"]) == 4
    assert ask("GET", "/api/queues/nobody/last-hour").status == 404


def test_the_last_hour_of_all_queues_says_why_one_has_no_figures(bench: Workbench, ask: Ask) -> None:
    swept(bench, "orders", 2)
    bench.queue("emails").enqueue(b"x")
    bench.put("garbled/stats.json", b"?")
    bench.put("garbled/messages/x", b"?")
    emails, garbled, orders = ask("GET", "/api/last-hour").body["queues"]
    assert (orders["queue"], orders["finished"], orders["reason"]) == ("orders", 2, "")
    for one in (emails, garbled):
        assert (one["available"], one["finished"], one["wait_p50_seconds"]) == (False, 0, None)
        assert "no sweeper" in one["reason"]
