"""A flow that a handler starts exists if and only if its message is completed, and once.  [P7] [P8]"""

from __future__ import annotations

import json

import pytest

from s3queue import Context, Flow, Flows, InvalidRequest, Sweeper, define
from s3queue.documents.flow import FlowDocument
from s3queue.documents.sends import STARTS, Send
from s3queue.errors import CorruptState, NotSent, Unavailable
from s3queue.worker.processor import Processor
from support.killed_store import Killed, KilledStore

TARGETS = ("thumbnails", "emails")


def processor(queue, handler, **options) -> Processor:
    definition = define(queue.name, **({"sends_to": TARGETS, "flows": True} | options))
    definition.handler(handler)
    queue.sends_to, queue.flows = definition.sends_to, definition.flows
    return Processor(queue=queue, definition=definition)


def album(body: dict, context: Context) -> str:
    """Start a flow with so many members, a nested one among them, and a step."""
    flow = Flow(context.store, on_dead="continue")
    for number in range(body["images"]):
        flow.add("thumbnails", {"n": number})
    within = Flow(context.store)
    within.add("thumbnails", {"n": "within"})
    within.then("thumbnails", {"n": "after"})
    flow.add(within)
    flow.then("emails", {"to": "ada"})
    return context.start(flow)


def run_to_the_end(bench) -> list[tuple[str, dict]]:
    """Run the messages of both queues until there are none."""
    seen: list[tuple[str, dict]] = []
    for _ in range(10):
        for name in TARGETS:
            queue = bench.queue(name)

            def handler(body: dict, context: Context) -> dict:
                seen.append((context.queue, body))
                return body

            for key in bench.keys(f"{name}/messages/"):
                processor(queue, handler).run(key.removeprefix(f"{name}/"), read_first=True)
    return seen


def test_a_flow_starts_when_its_message_is_completed(bench, queue):
    path = queue.enqueue({"images": 3})

    assert processor(queue, album).run(path) == "completed"

    flow_id = queue.status(path).record.result
    assert Flows(bench.store).state(flow_id).state == "running"
    assert FlowDocument.read(bench.memory.open(f"flows/{flow_id}/flow.json"), flow_id).home == "orders"
    assert f"orders/flows/{flow_id}" in bench.keys("orders/flows/")
    seen = run_to_the_end(bench)
    assert len(seen) == 6
    assert seen[-1] == ("emails", {"to": "ada"})
    assert Flows(bench.store).state(flow_id).state == "completed"
    Sweeper(queue=queue, dispatch=lambda paths: None).sweep()
    bench.clock.advance(3600)
    Sweeper(queue=queue, dispatch=lambda paths: None).sweep()
    assert bench.keys("orders/flows/") == []


def test_an_attempt_that_fails_starts_nothing_and_the_next_one_gets_the_same_id(bench, queue):
    ids: list[str] = []

    def fails_first(body: dict, context: Context) -> None:
        ids.append(album(body, context))
        if len(ids) == 1:
            raise ValueError("first try")

    path = queue.enqueue({"images": 1})
    assert processor(queue, fails_first).run(path) == "retried"
    assert bench.keys("flows/") == bench.keys("thumbnails/") == []

    bench.clock.advance(60)
    assert processor(queue, fails_first).run(path, read_first=True) == "completed"
    assert ids[0] == ids[1]
    assert [one.id for one in Flows(bench.store).list()] == ids[:1]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("group", [None, "ada"])
def test_a_crash_at_any_request_loses_and_repeats_nothing(bench, group, late):
    crashes = 0
    for at in range(1, 80):
        for key in bench.keys(""):
            bench.memory.delete(key)
        queue = bench.queue(worker_id=f"worker-{at}")
        path = queue.enqueue({"images": 2}, group=group)
        dying = bench.queue(worker_id=f"dying-{at}")
        dying.store = KilledStore(bench.memory, at, late=late)
        try:
            processor(dying, album).run(path)
            is_killed = False
        except Killed:
            is_killed = True
            crashes += 1
        seen = run_to_the_end(bench)
        dispatched: list[str] = []
        healthy = bench.queue()
        healthy.sends_to, healthy.flows = TARGETS, True
        for _ in range(5):
            bench.clock.advance(600)
            Sweeper(queue=healthy, dispatch=dispatched.extend).sweep()
            for one in dict.fromkeys(dispatched):
                processor(bench.queue(), album).run(one, read_first=True)
            dispatched.clear()
            seen += run_to_the_end(bench)

        assert sorted(str(body) for _, body in seen) == sorted(
            map(str, [{"n": 0}, {"n": 1}, {"n": "within"}, {"n": "after"}, {"to": "ada"}])
        ), at
        (flow,) = Flows(bench.store).list()
        assert flow.state == "completed", at
        if not is_killed:
            break
    assert crashes > 8


def test_a_completion_that_is_finished_again_does_not_wake_a_cancelled_flow(bench, queue):
    path = queue.enqueue({"images": 2})
    claim = queue.claim(path)
    runner = processor(queue, album)
    context = runner.context(claim)
    flow_id = album({"images": 2}, context)
    record = queue.complete(claim, sends=context.sends)
    Flows(bench.store, clock=bench.clock).cancel(flow_id)
    for key in [*bench.keys("thumbnails/messages/"), f"flows/{flow_id}/started"]:
        bench.memory.delete(key)

    queue.perform(record)

    assert bench.keys("thumbnails/messages/") == []


def test_each_line_of_a_batch_starts_a_flow_of_its_own(bench, queue):
    (path,) = queue.enqueue_many([{"images": 1}, {"images": 1}])

    assert processor(queue, album).run(path) == "completed"

    assert len(Flows(bench.store).list()) == 2


def test_a_flow_of_more_than_a_record_holds_is_staged(bench, queue):
    def large(body: dict, context: Context) -> str:
        flow = Flow(context.store)
        for number in range(40):
            flow.add("thumbnails", {"n": number, "text": "x" * 5000})
        return context.start(flow)

    path = queue.enqueue({})
    assert processor(queue, large).run(path) == "completed"

    assert len(bench.keys("thumbnails/messages/")) == 40
    assert queue.status(path).record.outbox
    assert bench.keys("orders/outbox/") == []


@pytest.mark.parametrize(
    ("options", "flow_options", "said"),
    [
        ({"flows": False}, {}, "flows=True"),
        ({"sends_to": ["thumbnails"]}, {}, "'emails'"),
        ({}, {"id": "order-17"}, "id of its own"),
    ],
)
def test_what_cannot_be_started_is_refused_in_the_handler(bench, queue, options, flow_options, said):
    def handler(body: dict, context: Context) -> None:
        flow = Flow(context.store, **flow_options)
        flow.add("thumbnails", {})
        flow.then("emails", {})
        with pytest.raises(InvalidRequest, match=said):
            context.start(flow)

    assert processor(queue, handler, **options).run(queue.enqueue({})) == "completed"
    assert bench.keys("flows/") == []


def test_a_flow_without_a_member_is_refused(bench, queue):
    def handler(body: dict, context: Context) -> None:
        with pytest.raises(InvalidRequest, match="no member"):
            context.start(Flow(context.store))

    assert processor(queue, handler).run(queue.enqueue({})) == "completed"


def test_a_handler_of_lists_starts_no_flow(bench, queue):
    def handler(bodies: list[dict], context: Context) -> None:
        with pytest.raises(InvalidRequest, match="lists of messages"):
            album({"images": 1}, context)

    (path,) = queue.enqueue_many([{}, {}])
    assert processor(queue, handler).run(path) == "completed"


@pytest.mark.parametrize(
    ("home", "sends_to", "flows"), [("orders", TARGETS, True), ("emails", ("secrets",), True), ("orders", None, False)]
)
def test_a_forged_record_starts_no_flow_that_its_queue_may_not(bench, queue, home, sends_to, flows):
    """The sweeper may write more than the queue: it stores what the definition allows, and nothing else."""
    flow = Flow(bench.store)
    flow.add("secrets", {})
    path = queue.enqueue({})
    claim = queue.claim(path)

    def around(operation, key, perform):
        if operation == "put" and "/flows/" in key:
            raise Unavailable("no answer")
        return perform()

    bench.around = around
    with pytest.raises((Unavailable, NotSent)):
        queue.complete(claim, sends=[Send(queue=home, place=STARTS, body=flow.document(home).to_bytes())])
    bench.around = None
    bench.clock.advance(300)

    queue.sends_to, queue.flows = sends_to, flows
    Sweeper(queue=queue, dispatch=lambda paths: None).sweep()

    assert bench.keys("flows/") == bench.keys("secrets/") == []
    assert f"orders/{path}" in bench.keys("orders/messages/")


@pytest.mark.parametrize("place", [STARTS, "messages/@ada/"])
def test_a_member_of_a_forged_flow_is_a_plain_message(place):
    body = {"v": 1, "id": "f", "home": "orders", "members": [{"queue": "emails", "place": place, "body": ""}]}
    with pytest.raises(CorruptState):
        FlowDocument.from_body(json.dumps(body).encode(), "flows/f/flow.json")
