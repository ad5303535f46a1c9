"""Flows from the command line: listed, shown, cancelled."""

from __future__ import annotations

from s3queue import Flow


def test_an_operator_sees_flows_and_cancels_one(cli):
    assert cli("flows", "list").out.strip() == "no flows"
    queue = cli.queue()
    for name in ("order-17", "order-18"):
        flow = Flow(queue, id=name)
        flow.add(queue.name, {"n": 1})
        flow.add(queue.name, {"n": 2})
        flow.then("emails", {})
        flow.start()
    claim = queue.claim("messages/flow-order-17-0000")
    queue.complete(claim)

    listed = cli("flows", "list", "--json").json
    assert [(one["id"], one["state"], one["done"], one["members"]) for one in listed] == [
        ("order-18", "running", 0, 2),
        ("order-17", "running", 1, 2),
    ]
    assert "1/2" in cli("flows", "list").out
    assert len(cli("flows", "list", "--limit", "1", "--json").json) == 1
    shown = cli("flows", "show", "order-17", "--json").json
    assert [node["state"] for node in shown["nodes"]] == ["completed", "waiting", "waiting"]
    assert "step 1" in cli("flows", "show", "order-17").out

    ended = cli("flows", "cancel", "order-17", "--reason", "not wanted", "--json").json
    assert (ended["state"], ended["reason"]) == ("cancelled", "not wanted")
    assert "cancelled" in cli("flows", "cancel", "order-17").out
    assert queue.claim_next(10) != []
    assert "no flow has the id" in cli("flows", "show", "nobody", code=1).err


def test_one_flow_that_cannot_be_read_hides_no_other(cli):
    queue = cli.queue()
    flow = Flow(queue, id="order-17")
    flow.add(queue.name, {})
    flow.start()
    queue.store.put("flows/order-18/flow.json", b"garbage")

    listed = cli("flows", "list", "--json").json

    assert [(one["id"], one["state"]) for one in listed] == [("order-18", "unknown"), ("order-17", "running")]
    assert "flows/order-18/flow.json" in listed[0]["problem"]
    said = cli("flows", "list")
    assert "unknown" in said.out
    assert "order-18 cannot be read" in said.err
    assert "order-18" in cli("flows", "show", "order-18", code=1).err
