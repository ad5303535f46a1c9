"""Flows over HTTP: listed a page at a time, shown with their messages, cancelled by operators only."""

from __future__ import annotations

import pytest

from s3queue import Flow
from s3queue.dashboard import flows
from s3queue.dashboard.api import build
from support.api_calls import Ask, asking
from support.workbench import Workbench


def started(bench: Workbench, flow_id: str, members: int = 2) -> Flow:
    flow = Flow(bench.queue(), id=flow_id, on_dead="continue")
    for number in range(members):
        flow.add("orders", {"secret": number})
    flow.then("orders", {"secret": "step"})
    flow.start()
    return flow


def test_a_flow_is_shown_with_the_outcome_of_each_message(bench: Workbench, ask: Ask) -> None:
    queue = bench.queue(max_attempts=1)
    started(bench, "order-17", members=3)
    first, second, third = (node["path"] for node in ask("GET", "/api/flows/order-17").body["nodes"][:3])
    queue.complete(queue.claim(first))
    queue.fail(queue.claim(second), ValueError("no"))
    queue.cancel(third)

    found = ask("GET", "/api/flows/order-17")
    assert found.status == 200
    told = {name: found.body[name] for name in ("state", "on_dead", "members", "done", "steps", "stage", "ended_at")}
    assert told == {
        "state": "running",
        "on_dead": "continue",
        "members": 3,
        "done": 3,
        "steps": 1,
        "stage": 1,
        "ended_at": None,
    }
    assert [(node["stage"], node["state"]) for node in found.body["nodes"]] == [
        (0, "completed"),
        (0, "dead"),
        (0, "cancelled"),
        (1, "waiting"),
    ]
    assert {node["queue"] for node in found.body["nodes"]} == {"orders"}
    queue.complete(queue.claim(found.body["nodes"][3]["path"]))
    assert ask("GET", "/api/flows/order-17").body["state"] == "completed"
    (listed,) = ask("GET", "/api/flows").body["flows"]
    assert (listed["id"], listed["state"], listed["done"]) == ("order-17", "completed", 3)


def test_a_flow_within_another_is_a_node_with_an_id_and_is_not_listed(bench: Workbench, ask: Ask) -> None:
    outer, inner = Flow(bench.queue(), id="outer"), Flow(bench.queue())
    inner.add("orders", {})
    inner.then("orders", {})
    outer.add(inner)
    outer.start()
    (node,) = ask("GET", "/api/flows/outer").body["nodes"]
    assert (node["flow_id"], node["path"]) == ("outer.0000", "")
    within = ask("GET", "/api/flows/outer.0000")
    assert (within.status, within.body["members"]) == (200, 1)
    assert [one["id"] for one in ask("GET", "/api/flows").body["flows"]] == ["outer"]


def test_the_list_comes_a_page_at_a_time_the_last_first(bench: Workbench, ask: Ask) -> None:
    assert ask("GET", "/api/flows").body == {"flows": [], "next_cursor": None}
    for number in range(5):
        started(bench, f"flow-{number}")
    seen, cursor = [], ""
    for _ in range(3):
        page = ask("GET", "/api/flows", query={"limit": 2, "cursor": cursor} if cursor else {"limit": 2}).body
        seen.append([one["id"] for one in page["flows"]])
        cursor = page["next_cursor"]
    assert seen == [["flow-4", "flow-3"], ["flow-2", "flow-1"], ["flow-0"]]
    assert cursor is None


def test_one_that_cannot_be_read_is_listed_with_the_reason(bench: Workbench, ask: Ask) -> None:
    started(bench, "fine")
    bench.put("flows/broken/flow.json", b"garbage")
    # Its document is gone.
    bench.put("flows/left/done/0000.orders", b"{}")
    found = {one["id"]: one for one in ask("GET", "/api/flows").body["flows"]}
    assert set(found) == {"fine", "broken"}
    assert found["broken"]["state"] == "unknown"
    assert "flows/broken/flow.json" in found["broken"]["problem"]
    refused = ask("GET", "/api/flows/broken")
    assert (refused.status, refused.body["error"]) == (500, "CorruptState")


def test_a_flow_is_cancelled_once_and_for_all(bench: Workbench, ask: Ask) -> None:
    started(bench, "order-17")
    done = ask("POST", "/api/flows/order-17/cancel", query={"reason": "wrong address"})
    assert (done.status, done.body["state"], done.body["reason"]) == (200, "cancelled", "wrong address")
    assert bench.keys("orders/messages/") == []
    assert bench.keys("orders/flows/") == []
    again = ask("POST", "/api/flows/order-17/cancel", query={"reason": "again"})
    assert (again.status, again.body["reason"]) == (200, "wrong address")
    assert [node["state"] for node in ask("GET", "/api/flows/order-17").body["nodes"]] == [
        "cancelled",
        "cancelled",
        "waiting",
    ]


def test_what_a_cancellation_does_not_reach_in_time_is_left_to_the_sweeper(
    bench: Workbench, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flows, "CANCEL_SECONDS", 0.0)
    flow = started(bench, "order-17", members=3)
    assert ask("POST", "/api/flows/order-17/cancel").body["state"] == "cancelled"
    assert len(bench.keys("orders/messages/")) == 3
    assert bench.keys("orders/flows/") == ["orders/flows/order-17"]
    for _ in range(2):
        bench.clock.advance(600)
        bench.sweeper(bench.queue()).sweep()
    assert bench.keys("orders/messages/") == []
    assert bench.keys("orders/flows/") == []
    assert [node.state for node in flow.state().nodes] == ["cancelled"] * 3 + ["waiting"]


def test_mistakes_are_named(bench: Workbench, ask: Ask) -> None:
    for method, path in (("GET", "/api/flows/none"), ("POST", "/api/flows/none/cancel")):
        refused = ask(method, path)
        assert (refused.status, refused.body["error"]) == (404, "NotFound")
        assert "GET /api/flows" in refused.body["way_out"]
    assert ask("GET", "/api/flows/No_Flow").status == 422
    assert ask("GET", "/api/flows", query={"limit": 0}).status == 422
    assert ask("GET", "/api/flows", query={"state": "dead"}).status == 422
    assert ask("DELETE", "/api/flows/none").status == 405
    assert bench.keys() == []


def test_a_reader_sees_flows_but_no_payload_and_cancels_none(bench: Workbench) -> None:
    started(bench, "order-17")
    read = asking(build(bench.store, role="reader"))
    shown = [read("GET", "/api/flows"), read("GET", "/api/flows/order-17")]
    assert [answer.status for answer in shown] == [200, 200]
    assert "secret" not in str([answer.body for answer in shown])
    refused = read("POST", "/api/flows/order-17/cancel")
    assert (refused.status, refused.body["error"]) == (403, "ReadOnly")
    assert Flow(bench.queue(), id="order-17").state().state == "running"


def test_a_large_flow_is_read_whole(bench: Workbench, ask: Ask) -> None:
    queue = bench.queue()
    started(bench, "large", members=40)
    for claim in queue.claim_next(limit=40):
        queue.complete(claim)
    found = ask("GET", "/api/flows/large").body
    assert [node["state"] for node in found["nodes"]] == ["completed"] * 40 + ["waiting"]
