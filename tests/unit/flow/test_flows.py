"""A flow's step runs once, after all members have an outcome, with their results, and never before.  [P8]"""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest

from s3queue import (
    Conflict,
    Context,
    DeadLetters,
    Flow,
    Flows,
    InvalidName,
    InvalidRequest,
    MessageNotFound,
    Queue,
    Reject,
    define,
)
from s3queue.documents.flow import MOST_MEMBERS, decision_key, named_node, reference
from s3queue.documents.flow_outcomes import Decision
from s3queue.documents.message import Generation
from s3queue.documents.record import Record
from s3queue.documents.sends import Send
from s3queue.errors import AccessDenied, CorruptState, NotSent, QueueError, Unavailable
from s3queue.flow.flow_repair import repair
from s3queue.sweeper.flow_step import MARKER_KEPT
from support.workbench import Workbench


class Shop:
    """Two queues, and what their handlers saw."""

    def __init__(self, bench: Workbench) -> None:
        self.bench = bench
        self.queues = {name: bench.queue(name) for name in ("thumbnails", "emails")}
        #: (queue, body, outcomes and results of what came before)
        self.seen: list[tuple[str, Any, list[tuple[str, Any]]]] = []

    def flow(self, **options: Any) -> Flow:
        return Flow(self.queues["thumbnails"], **options)

    def one_and_then(self) -> Flow:
        """One member and one step, started."""
        flow = self.flow()
        flow.add("thumbnails", {})
        flow.then("emails", {})
        flow.start()
        return flow

    def handle(self, body: dict[str, Any], context: Context) -> Any:
        before: list[tuple[str, Any]] = []
        if context.flow and context.queue == "emails":
            # A forged one has none.
            with contextlib.suppress(CorruptState):
                before = [(one.outcome, one.result or one.error) for one in context.flow.results]
        self.seen.append((context.queue, body, before))
        if body.get("do") == "reject":
            raise Reject("as asked")
        return {"made": body.get("n")}

    def run_one(self, name: str, path: str) -> Any:
        return self.bench.processor(self.queues[name], self.handle).run(path, read_first=True)

    def run(self, *names: str) -> int:
        """Run what lies there, until nothing does; how many messages."""
        count = 0
        for _ in range(20):
            found = [
                (name, key.removeprefix(f"{name}/"))
                for name in names or self.queues
                for key in self.bench.keys(f"{name}/messages/")
            ]
            if not found:
                return count
            for name, path in found:
                count += self.run_one(name, path) is not None
        raise AssertionError(f"never comes to its end: {found}")

    def steps(self) -> list[tuple[Any, list[tuple[str, Any]]]]:
        return [(body, before) for name, body, before in self.seen if name == "emails"]

    def sweep(self, name: str = "thumbnails", after: float = 60.0) -> None:
        self.bench.clock.advance(after)
        report = self.bench.sweeper(self.queues[name]).sweep()
        assert not report.corrupt, report.corrupt


@pytest.fixture
def shop(bench: Workbench) -> Shop:
    return Shop(bench)


def test_a_step_runs_once_after_all_members_with_their_results_in_order(shop: Shop) -> None:
    flow = shop.flow()
    for n in range(3):
        flow.add("thumbnails", {"n": n})
    flow.then("emails", {"say": "done"})
    flow.start()
    paths = [key.removeprefix("thumbnails/") for key in shop.bench.keys("thumbnails/messages/")]
    for path in reversed(paths[1:]):
        shop.run_one("thumbnails", path)
        assert shop.bench.keys("emails/messages/") == []
    shop.run_one("thumbnails", paths[0])
    shop.run()

    assert shop.steps() == [({"say": "done"}, [("completed", {"made": n}) for n in range(3)])]
    assert flow.state().state == "completed"
    assert shop.bench.keys("thumbnails/flows/") == []


def test_a_chain_hands_each_result_to_the_next(shop: Shop) -> None:
    flow = shop.flow()
    flow.add("emails", {"n": 1})
    flow.then("emails", {"n": 2}).then("emails", {"n": 3})
    flow.start()
    assert shop.run() == 3
    assert shop.steps() == [
        ({"n": 1}, []),
        ({"n": 2}, [("completed", {"made": 1})]),
        ({"n": 3}, [("completed", {"made": 2})]),
    ]
    state = flow.state()
    assert (state.state, state.steps, [node.state for node in state.nodes]) == ("completed", 2, ["completed"] * 3)


def test_a_dead_member_fails_the_flow_and_its_step_never_runs(shop: Shop) -> None:
    flow = shop.flow()
    flow.add("thumbnails", {"n": 0, "do": "reject"})
    flow.add("thumbnails", {"n": 1})
    flow.then("emails", {})
    flow.start()
    shop.run()
    shop.sweep()
    assert shop.steps() == []
    state = flow.state()
    assert state.state == "failed"
    assert "node 0" in state.reason
    assert [node.state for node in state.nodes] == ["dead", "completed", "waiting"]


def test_a_dead_member_is_seen_by_the_step_if_the_flow_continues(shop: Shop) -> None:
    flow = shop.flow(on_dead="continue")
    flow.add("thumbnails", {"n": 0, "do": "reject"})
    flow.add("thumbnails", {"n": 1})
    flow.then("emails", {})
    flow.start()
    shop.run()
    assert shop.steps() == [({}, [("dead", "Reject: as asked"), ("completed", {"made": 1})])]
    assert flow.state().state == "completed"


def test_the_last_step_that_dies_fails_the_flow_whatever_was_asked(shop: Shop) -> None:
    flow = shop.flow(on_dead="continue")
    flow.add("thumbnails", {})
    flow.then("emails", {"do": "reject"})
    flow.start()
    shop.run()
    assert flow.state().state == "failed"


def test_a_replayed_member_changes_nothing(shop: Shop) -> None:
    flow = shop.flow(on_dead="continue")
    flow.add("thumbnails", {"do": "reject"})
    flow.then("emails", {})
    flow.start()
    shop.run()
    shop.bench.clock.advance(5)
    letters = DeadLetters(shop.queues["thumbnails"])
    for letter in letters.list():
        letters.replay(letter.path)
    shop.run()
    assert len(shop.steps()) == 1
    assert len([name for name, *_ in shop.seen if name == "thumbnails"]) == 2


@pytest.mark.parametrize("how", ["dead", "completed"])
def test_a_step_that_is_replayed_sees_the_same_results(shop: Shop, bench: Workbench, how: str) -> None:
    queue = shop.queues["emails"] = bench.queue("emails", keep_payload=True)
    flow = shop.flow()
    flow.add("thumbnails", {"n": 7})
    flow.then("emails", {"do": "reject"} if how == "dead" else {})
    flow.start()
    shop.run()
    shop.bench.clock.advance(5)
    (path,) = [key.removeprefix("emails/records/") for key in bench.keys("emails/records/")]
    queue.replay(path)
    shop.run()
    results = [("completed", {"made": 7})]
    assert [before for _, before in shop.steps()] == [results, results]


def test_a_handler_reads_no_results_for_a_message_that_its_queue_has_not_in_the_flow(shop: Shop) -> None:
    """A stranger may PUT into `others` only, and would have its handler read what is for `emails`."""
    others = shop.queues["others"] = shop.bench.queue("others")
    flow = shop.flow(id="f")
    flow.add("thumbnails", {})
    flow.then("emails", {})
    flow.start()
    shop.run("thumbnails")
    seen: list[Any] = []

    def spy(body: Any, context: Context) -> None:
        assert context.flow
        with pytest.raises(CorruptState, match="did not write"):
            seen.extend(context.flow.results)

    for put_id in ("once-flow/f/0001/1/", "moved-0123456789abcdef"):
        shop.bench.put("others/messages/flow-f-0001", b"{}", metadata={"s3queue-put-id": put_id})
        assert shop.bench.processor(others, spy).run("messages/flow-f-0001", read_first=True) == "completed"
        shop.bench.memory.delete("others/records/messages/flow-f-0001")
    assert seen == []


def test_only_the_name_of_a_flows_message_names_one() -> None:
    assert named_node("messages/p200/flow-order-17.0003-0012") == ("order-17.0003", 12)
    assert named_node("delayed/20261116T101500Z/flow-f-0000") == ("f", 0)
    for path in (
        "messages/flow-f-12",
        "messages/flow-F-0012",
        "messages/x",
        "messages/flow--0001",
        "messages/flow-f-0001/x",
    ):
        assert named_node(path) is None, path


def test_a_cancelled_flow_cancels_its_members_and_its_step_never_runs(shop: Shop) -> None:
    flow = shop.flow()
    for n in range(3):
        flow.add("thumbnails", {"n": n})
    flow.then("emails", {})
    flow.start()
    first = shop.bench.keys("thumbnails/messages/")[0].removeprefix("thumbnails/")
    shop.run_one("thumbnails", first)
    state = flow.cancel("no longer wanted")
    assert (state.state, state.reason) == ("cancelled", "no longer wanted")
    assert shop.bench.keys("thumbnails/messages/") == []
    assert [node.state for node in flow.state().nodes] == ["completed", "cancelled", "cancelled", "waiting"]
    shop.run()
    shop.sweep()
    assert shop.steps() == []
    assert flow.cancel().reason == "no longer wanted"
    assert shop.bench.keys("thumbnails/flows/") == []


def test_cancelling_a_flow_whose_step_is_there_cancels_the_step(shop: Shop) -> None:
    flow = shop.flow()
    flow.add("thumbnails", {})
    flow.then("emails", {}).then("emails", {})
    flow.start()
    shop.run("thumbnails")
    assert len(shop.bench.keys("emails/messages/")) == 1
    assert flow.cancel().state == "cancelled"
    shop.run()
    assert shop.steps() == []


@pytest.mark.parametrize("started", ["flow-f-0000", "flow-f-0001", "flow-f-0002", "flow-f.0003-0000", "f/started"])
def test_a_flow_that_is_cancelled_while_it_is_started_runs_nothing(shop: Shop, started: str) -> None:
    """Whoever starts it is slow, and stores the rest afterwards."""
    flow, inner = shop.flow(id="f"), shop.flow()
    for n in range(3):
        flow.add("thumbnails", {"n": n})
    inner.add("thumbnails", {"n": 3})
    inner.then("emails", {})
    flow.add(inner)
    flow.then("emails", {})

    def around(operation: str, key: str, perform: Any) -> Any:
        if operation == "put" and key.endswith(started):
            shop.bench.around = None
            Flows(shop.bench.store, clock=shop.bench.clock).cancel("f")
        return perform()

    shop.bench.around = around
    flow.start()
    shop.run()
    shop.sweep()
    shop.run()
    assert shop.seen == []
    assert flow.state().state == "cancelled"
    assert shop.bench.keys("thumbnails/flows/") == []


def test_who_cancels_a_flow_and_may_not_store_what_is_missing_leaves_it_to_the_sweeper(shop: Shop) -> None:
    flow, inner = shop.flow(id="f"), shop.flow()
    flow.add("thumbnails", {})
    inner.add("thumbnails", {})
    inner.then("emails", {})
    flow.add(inner)
    shop.bench.store.put("thumbnails/flows/f", b"")
    shop.bench.store.put("flows/f/flow.json", flow.document().to_bytes())

    def around(operation: str, key: str, perform: Any) -> Any:
        if operation == "put" and key.startswith(("thumbnails/messages/", "thumbnails/flows/", "flows/f.0001/flow")):
            raise AccessDenied("no")
        return perform()

    shop.bench.around = around
    assert flow.cancel().state == "cancelled"
    shop.bench.around = None
    assert shop.bench.keys("thumbnails/flows/") == ["thumbnails/flows/f"]
    shop.sweep()
    assert shop.bench.keys("thumbnails/flows/") == []
    flow.start()
    shop.run()
    assert shop.seen == []


def test_a_step_that_the_sweeper_may_not_store_does_not_keep_a_cancelled_flow(shop: Shop) -> None:
    flow = shop.one_and_then()
    queue = shop.queues["thumbnails"]
    queue.flows, queue.sends_to = True, ()
    shop.run()
    Flows(shop.bench.store, clock=shop.bench.clock).cancel(flow.id, seconds=0)
    assert shop.bench.keys("thumbnails/flows/")
    shop.sweep()
    assert shop.bench.keys("thumbnails/flows/") == []


@pytest.mark.parametrize("by", ["an operator", "the sweeper"])
def test_who_cancels_a_flow_stores_nothing_that_a_record_asks_for(shop: Shop, by: str) -> None:
    """Who may write all of one queue forges a record there, with sends that only the flow's home may make."""
    shop.queues["others"] = others = shop.bench.queue("others")
    flow = shop.flow(id="f")
    flow.add("thumbnails", {})
    flow.add("others", {})
    flow.start()
    written = shop.bench.put("others/messages/flow-f-0001", b"{}")
    generation = Generation(etag="another", put_at=written.at)
    send = Send.of("emails", {"forged": True}, now=written.at)
    record = Record(
        path="messages/flow-f-0001", outcome="completed", generation=generation, finished_at=written.at, sends=(send,)
    )
    others.outcomes.write_record(record, lambda: True)
    Flows(shop.bench.store, clock=shop.bench.clock).cancel("f", seconds=0 if by == "the sweeper" else None)
    queue = shop.queues["thumbnails"]
    queue.flows, queue.sends_to = True, ("emails", "others")
    if by == "the sweeper":
        shop.sweep()
    assert shop.bench.keys("emails/") == []
    assert shop.bench.keys("thumbnails/flows/") == ["thumbnails/flows/f"]


def test_a_flow_that_has_ended_cannot_be_cancelled(shop: Shop) -> None:
    flow = shop.flow()
    flow.add("thumbnails", {})
    flow.start()
    shop.run()
    assert flow.state().state == "completed"
    assert flow.cancel().state == "completed"


def test_a_member_that_is_cancelled_counts_as_one_that_died(shop: Shop) -> None:
    flow = shop.flow(on_dead="continue")
    flow.add("thumbnails", {"n": 0})
    flow.add("thumbnails", {"n": 1})
    flow.then("emails", {})
    flow.start()
    path = shop.bench.keys("thumbnails/messages/")[0].removeprefix("thumbnails/")
    shop.queues["thumbnails"].cancel(path)
    shop.run()
    assert shop.steps() == [({}, [("cancelled", ""), ("completed", {"made": 1})])]


def test_a_running_member_that_is_cancelled_tells_its_flow(shop: Shop) -> None:
    flow = shop.flow(on_dead="continue")
    flow.add("thumbnails", {})
    flow.then("emails", {})
    flow.start()
    queue = shop.queues["thumbnails"]
    path = shop.bench.keys("thumbnails/messages/")[0].removeprefix("thumbnails/")

    def work(body: dict[str, Any], context: Context) -> None:
        shop.bench.queue("thumbnails").cancel(path)
        context.check()

    assert shop.bench.processor(queue, work).run(path) == "cancelled"
    assert len(shop.bench.keys("emails/messages/")) == 1


def test_a_flow_within_a_flow_is_one_member(shop: Shop) -> None:
    flow, inner = shop.flow(), shop.flow()
    inner.add("thumbnails", {"n": 1})
    inner.add("thumbnails", {"n": 2})
    inner.then("emails", {"n": 3})
    flow.add("thumbnails", {"n": 0})
    flow.add(inner)
    flow.then("emails", {"n": 9})
    flow.start()
    shop.run("thumbnails")
    assert len(shop.bench.keys("emails/messages/")) == 1
    shop.run()
    assert shop.steps() == [
        ({"n": 3}, [("completed", {"made": 1}), ("completed", {"made": 2})]),
        ({"n": 9}, [("completed", {"made": 0}), ("completed", {"made": 3})]),
    ]
    state = flow.state()
    assert state.state == "completed"
    assert Flows(shop.bench.store).show(state.nodes[1].flow_id).state == "completed"
    assert shop.bench.keys("thumbnails/flows/") == []
    assert [one.id for one in Flows(shop.bench.store).list()] == [flow.id]


@pytest.mark.parametrize("how", ["a member dies", "cancelled"])
def test_a_flow_within_that_ends_badly_fails_the_flow_around_it(shop: Shop, how: str) -> None:
    flow, inner = shop.flow(), shop.flow()
    inner.add("thumbnails", {"do": "reject"})
    inner.then("emails", {})
    flow.add(inner)
    flow.then("emails", {})
    flow.start()
    if how == "cancelled":
        flow.cancel()
    shop.run()
    shop.sweep()
    assert shop.steps() == []
    assert flow.state().state == ("cancelled" if how == "cancelled" else "failed")
    assert shop.bench.keys("thumbnails/flows/") == []


def test_a_thousand_members_cost_little_more_than_their_messages(shop: Shop) -> None:
    """In order: one PUT and one HEAD a member, and few LISTs in all."""
    flow = shop.flow()
    for n in range(1000):
        flow.add("thumbnails", {"n": n})
    flow.then("emails", {})
    flow.start()
    shop.bench.store.take()
    log = shop.bench.store.log
    assert shop.run("thumbnails") == 1000
    asked = [verb for verb, key in log if key.startswith("flows/")]
    assert len(shop.bench.keys("emails/messages/")) == 1
    assert asked.count("put") == 1001
    assert asked.count("list") <= 5
    assert asked.count("head") <= 1100
    shop.run()
    assert shop.steps() == [({}, [("completed", {"made": n}) for n in range(1000)])]


def test_whatever_their_order_few_members_list_the_others(bench: Workbench) -> None:
    shop = Shop(bench)
    flow = shop.flow()
    for n in range(200):
        flow.add("thumbnails", {"n": n})
    flow.then("emails", {})
    flow.start()
    bench.store.take()
    paths = [key.removeprefix("thumbnails/") for key in bench.keys("thumbnails/messages/")]
    for path in reversed(paths):
        shop.run_one("thumbnails", path)
    asked = [verb for verb, key in bench.store.log if key.startswith("flows/")]
    assert asked.count("list") <= 70
    assert len(bench.keys("emails/messages/")) == 1


def test_starting_twice_runs_nothing_twice(shop: Shop) -> None:
    for _ in range(2):
        flow = shop.flow(id="order-17")
        flow.add("thumbnails", {"n": 1})
        flow.then("emails", {})
        assert flow.start() == "order-17"
        shop.run()
    assert len(shop.seen) == 2
    shop.bench.clock.advance(3600)
    flow.start()
    assert shop.run() == 0


@pytest.mark.parametrize("is_within", [False, True])
def test_starting_again_after_records_are_gone_runs_nothing_twice(shop: Shop, is_within: bool) -> None:
    flow = shop.flow(id="order-17")
    members = shop.flow() if is_within else flow
    members.add("thumbnails", {"n": 0})
    members.add("thumbnails", {"n": 1})
    if is_within:
        members.then("emails", {})
        flow.add(members)

    def around(operation: str, key: str, perform: Any) -> Any:
        if key.endswith("-0001"):
            raise KeyboardInterrupt
        return perform()

    shop.bench.around = around
    with pytest.raises(KeyboardInterrupt):
        flow.start()
    shop.bench.around = None
    shop.run()
    for key in shop.bench.keys("thumbnails/records/"):
        shop.bench.memory.delete(key)
    flow.start()
    shop.run()
    assert [body for name, body, _ in shop.seen if name == "thumbnails"] == [{"n": 0}, {"n": 1}]
    assert flow.state().state == "completed"


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_start_whose_document_has_no_answer_runs_nothing_twice(shop: Shop, is_stored: bool) -> None:
    """[P8] Whose the bytes are that lie there, nobody can tell: those of every start are the same."""
    flow = shop.flow(id="order-17")
    flow.add("thumbnails", {"n": 0})
    flow.then("emails", {})
    flow.start()
    shop.run()
    for key in [*shop.bench.keys("thumbnails/records/"), *shop.bench.keys("emails/records/")]:
        shop.bench.memory.delete(key)

    def silent(operation: str, key: str, perform: Any) -> Any:
        if operation != "put" or not key.endswith("/flow.json"):
            return perform()
        shop.bench.around = None
        if is_stored:
            with contextlib.suppress(Conflict):
                perform()
        raise Unavailable("503")

    shop.bench.around = silent
    flow.start()
    assert shop.bench.around is None
    assert shop.run() == 0

    # One that was not there before is started, whatever was answered.
    other = shop.flow(id="order-18")
    other.add("thumbnails", {"n": 1})
    shop.bench.around = silent
    other.start()
    assert shop.run() == 1
    assert other.state().state == "completed"


def test_a_marker_that_is_written_anew_is_not_deleted_with_the_old_one(shop: Shop) -> None:
    """A start died before its document, long ago; it is called again while the sweeper gives it up."""
    flow = shop.flow(id="order-17")
    flow.add("thumbnails", {})

    def dies(operation: str, key: str, perform: Any) -> Any:
        if key.endswith("/flow.json"):
            raise KeyboardInterrupt
        return perform()

    shop.bench.around = dies
    with pytest.raises(KeyboardInterrupt):
        flow.start()
    shop.bench.clock.advance(MARKER_KEPT.total_seconds() + 60)

    def again(operation: str, key: str, perform: Any) -> Any:
        if operation == "delete" and key == "thumbnails/flows/order-17":
            shop.bench.around = dies
            with pytest.raises(KeyboardInterrupt):
                flow.start()
            shop.bench.around = None
        return perform()

    shop.bench.around = again
    shop.sweep()
    assert shop.bench.around is None
    assert shop.bench.keys("thumbnails/flows/") == ["thumbnails/flows/order-17"]


def test_a_flow_that_is_started_again_is_looked_at_as_a_new_one(shop: Shop) -> None:
    """By a sweeper that lives on, and has looked at the old marker for hours."""
    flow = shop.flow(id="order-17")
    flow.add("thumbnails", {"n": 1})
    flow.start()
    sweeper = shop.bench.sweeper(shop.queues["thumbnails"])
    for _ in range(20):
        shop.bench.clock.advance(3600)
        sweeper.sweep()
    flow.start()
    (key,) = shop.bench.keys("thumbnails/messages/")
    shop.bench.memory.delete(key)
    shop.bench.clock.advance(60)
    sweeper.sweep()
    assert flow.state().nodes[0].state == "dead", "someone deleted its message, and the sweeper has seen that"


def test_a_sweeper_forgets_flows_that_workers_have_ended(shop: Shop) -> None:
    """A queue may never be without a flow, and the process lives for weeks."""
    sweeper = shop.bench.sweeper(shop.queues["thumbnails"])
    for _ in range(3):
        shop.one_and_then()
        shop.bench.clock.advance(70)
        sweeper.sweep()
        shop.run()
    shop.one_and_then()
    shop.bench.clock.advance(70)
    sweeper.sweep()
    assert sweeper._flow_step._next.keys() == {*shop.bench.keys("thumbnails/flows/")}


def test_a_decision_for_a_step_that_the_flow_has_not_keeps_no_sweep_from_its_end(shop: Shop) -> None:
    """Whoever may write into `flows/` may write any decision; the leases of the queue come after its flows."""
    flow = shop.one_and_then()
    going_on = Decision(decided="continue", at=shop.bench.clock.now()).to_bytes()
    for step in (1, 2):
        shop.bench.put(decision_key(flow.id, step), going_on)
    shop.bench.clock.advance(60)

    report = shop.bench.sweeper(shop.queues["thumbnails"]).sweep()

    assert list(report.corrupt) == [f"flows/{flow.id}"]
    with pytest.raises(CorruptState, match="0002"):
        flow.state()
    assert [one.state for one in Flows(shop.bench.store, clock=shop.bench.clock).list()] == ["unknown"]


def test_another_flow_of_the_same_id_is_refused(shop: Shop) -> None:
    shop_flow = shop.flow(id="order-17")
    shop_flow.add("thumbnails", {"n": 1})
    shop_flow.start()
    other = shop.flow(id="order-17")
    other.add("thumbnails", {"n": 2})
    with pytest.raises(Conflict, match="another id"):
        other.start()
    assert len(shop.bench.keys("thumbnails/messages/")) == 1


def test_a_crash_anywhere_in_start_is_repaired_by_the_sweeper(bench: Workbench) -> None:
    """[P6] Once the document stands, the flow comes to its end."""
    for last in range(12):
        shop = Shop(Workbench(seed=last))
        flow = shop.flow()
        for n in range(3):
            flow.add("thumbnails", {"n": n})
        flow.then("emails", {})
        requests = 0

        def around(operation: str, key: str, perform: Any) -> Any:
            nonlocal requests
            requests += 1
            if requests > last:  # noqa: B023
                raise KeyboardInterrupt
            return perform()

        shop.bench.around = around
        with contextlib.suppress(KeyboardInterrupt):
            flow.start()
        is_over, shop.bench.around = requests <= last, None
        is_written = f"flows/{flow.id}/flow.json" in shop.bench.keys("flows/")
        shop.run()
        shop.sweep()
        shop.run()
        assert len(shop.steps()) == is_written, last
        if is_over:
            return
    pytest.fail("start never came to its end")


def test_a_member_that_someone_deleted_counts_as_dead(shop: Shop) -> None:
    flow = shop.flow(on_dead="continue")
    flow.add("thumbnails", {"n": 0})
    flow.add("thumbnails", {"n": 1})
    flow.then("emails", {})
    flow.start()
    shop.bench.memory.delete(shop.bench.keys("thumbnails/messages/")[0])
    shop.run()
    assert shop.steps() == []
    shop.sweep()
    shop.run()
    ((_, before),) = shop.steps()
    assert [outcome for outcome, _ in before] == ["dead", "completed"]
    assert "MessageVanished" in before[0][1]


def test_a_worker_of_a_queue_without_flows_leaves_it_to_the_sweeper(shop: Shop) -> None:
    """Of an older version, or undeclared: the record is there, and the sweeper of the flow's home finds it."""
    shop.one_and_then()
    shop.queues["thumbnails"].flows = False
    shop.run()
    assert shop.steps() == []
    shop.queues["thumbnails"].flows = None
    shop.sweep()
    shop.run()
    assert len(shop.steps()) == 1


def test_a_step_that_the_definition_may_not_send_to_is_left_to_the_home(shop: Shop) -> None:
    shop.one_and_then()
    queue = shop.queues["thumbnails"]
    queue.flows, queue.sends_to = True, ()
    shop.run()
    assert shop.steps() == []
    queue.sends_to = ("emails",)
    shop.sweep()
    shop.run()
    assert len(shop.steps()) == 1


def test_a_member_that_nobody_could_store_has_not_vanished(shop: Shop) -> None:
    """Whoever started the flow died, and the sweeper of its home may not store all of it: the flow waits."""
    flow = shop.flow()
    flow.add("thumbnails", {"n": 0})
    flow.add("emails", {"n": 1})

    def around(operation: str, key: str, perform: Any) -> Any:
        if key.startswith("emails/"):
            raise KeyboardInterrupt
        return perform()

    shop.bench.around = around
    with pytest.raises(KeyboardInterrupt):
        flow.start()
    shop.bench.around = None
    queue = shop.queues["thumbnails"]
    queue.flows, queue.sends_to = True, ()
    for _ in range(3):
        shop.sweep(after=3600)
    assert flow.state().state == "running"
    queue.sends_to = ("emails",)
    shop.sweep(after=3600)
    shop.run()
    assert flow.state().state == "completed"


def test_whoever_may_not_store_a_member_is_told_when_the_flow_is_started(shop: Shop) -> None:
    flow = shop.flow()
    flow.add("thumbnails", {"n": 0})
    flow.add("emails", {"n": 1})

    def around(operation: str, key: str, perform: Any) -> Any:
        if key.startswith("emails/"):
            raise AccessDenied("no PUT for you")
        return perform()

    shop.bench.around = around
    with pytest.raises(AccessDenied, match="no PUT"):
        flow.start()
    shop.bench.around = None
    flow.start()
    shop.run()
    assert flow.state().state == "completed"


def test_a_worker_that_may_not_write_flows_keeps_the_message(shop: Shop) -> None:
    shop.one_and_then()
    queue = shop.queues["thumbnails"]
    path = shop.bench.keys("thumbnails/messages/")[0].removeprefix("thumbnails/")
    claim = queue.claim(path)
    assert claim

    def around(operation: str, key: str, perform: Any) -> Any:
        if operation == "put" and key.startswith("flows/"):
            raise AccessDenied("no")
        return perform()

    shop.bench.around = around
    with pytest.raises(NotSent, match="flows=True"):
        queue.complete(claim)
    shop.bench.around = None
    assert shop.bench.keys("thumbnails/messages/")
    shop.sweep(after=600)
    shop.run()
    assert len(shop.steps()) == 1


def test_a_forged_member_counts_for_nothing(shop: Shop) -> None:
    """One of another queue, one of another name, one of a flow that is not there."""
    flow = shop.flow(id="f")
    flow.add("thumbnails", {})
    flow.add("thumbnails", {})
    flow.then("emails", {})
    flow.start()
    forged = "once-flow/f/0000/2/0001.emails"
    for key, put_id in {
        "emails/messages/flow-f-0000": forged,
        "emails/messages/flow-f-0001": forged.replace("0000", "0001").replace("0001.emails", "0000.emails"),
        "emails/messages/x": forged,
        "emails/messages/flow-g-0000": "once-flow/g/0000/1/",
        "emails/messages/flow-f-0009": "once-flow/f/0009/1/",
    }.items():
        shop.bench.put(key, b'{"do":"reject"}' if key.endswith("9") else b"{}", metadata={"s3queue-put-id": put_id})
    shop.run("emails")
    assert flow.state().state == "running"
    assert flow.state().done == 0
    shop.seen.clear()
    shop.run("thumbnails")
    assert flow.state().done == 2


@pytest.mark.parametrize("beside", [0, 1, 2])
@pytest.mark.parametrize("body", [b"{}", b'{"do":"reject"}'])
@pytest.mark.parametrize("node", [1, 2])
def test_a_stranger_who_forges_a_step_moves_no_other_queue(shop: Shop, node: int, body: bytes, beside: int) -> None:
    """He may PUT into `thumbnails` only. What comes after his step waits for its turn, and the flow is not ended."""
    flow = shop.flow(id="f")
    flow.add("emails", {"n": 0})
    flow.then("thumbnails", {}).then("thumbnails", {}).then("emails", {"n": 3})
    flow.start()
    put_id = f"once-flow/f/{node:04d}/{beside}/"
    shop.bench.put(f"thumbnails/messages/flow-f-{node:04d}", body, metadata={"s3queue-put-id": put_id})
    shop.run("thumbnails")
    shop.sweep("emails")
    shop.run("thumbnails")
    assert len(shop.bench.keys("emails/messages/")) == 1
    assert not shop.bench.keys("flows/f/decided/")
    assert shop.bench.keys("emails/flows/")
    assert flow.state().state == "running"


@pytest.mark.parametrize(
    "put_id",
    [
        "once-flow/",
        "once-flow/f/0000/2",
        "once-flow/f/0000/2/../../x",
        "once-flow/F/0000/2/",
        "once-flow/f/0000/2/0001.emails,0001.emails,0001.emails,0001.emails,0001.emails",
        "once-flow/f/0000/2/1.emails",
        "once-flow/f/00000/2/",
        "once-flow/f/0000/99999/",
        "x",
    ],
)
def test_a_reference_is_parsed_strictly(put_id: str) -> None:
    assert reference("messages/flow-f-0000", put_id) is None


@pytest.mark.parametrize(
    "garbage", [b"", b"[]", b'{"v":1}', b'{"v":1,"id":"f","home":"thumbnails","members":[]}', b"\xff"]
)
def test_a_flow_that_someone_overwrote_holds_up_nothing(shop: Shop, garbage: bytes) -> None:
    flow = shop.flow(id="f")
    flow.add("thumbnails", {"do": "reject"})
    flow.add("thumbnails", {})
    flow.start()
    shop.bench.memory.put("flows/f/flow.json", garbage)
    assert shop.run() == 2
    shop.bench.clock.advance(60)
    report = shop.bench.sweeper(shop.queues["thumbnails"]).sweep()
    assert list(report.corrupt) == ["flows/f"]


def test_the_marker_of_a_flow_that_never_was_is_removed(shop: Shop) -> None:
    shop.bench.put("thumbnails/flows/f", b"")
    shop.bench.put("thumbnails/flows/Not an id", b"")
    shop.sweep()
    assert len(shop.bench.keys("thumbnails/flows/")) == 2
    shop.sweep(after=MARKER_KEPT.total_seconds())
    assert shop.bench.keys("thumbnails/flows/") == []


def test_the_marker_of_whoever_found_the_id_taken_is_removed(shop: Shop) -> None:
    """Its flow has another home, whose sweeper looks after it: this one must not look at it for 400 days."""
    flow = shop.flow(id="order-17")
    flow.add("thumbnails", {}, delay=7 * 86400)
    flow.start()
    other = shop.flow(id="order-17")
    other.add("emails", {})
    with pytest.raises(Conflict):
        other.start()
    assert shop.bench.keys("emails/flows/")
    shop.sweep("emails")
    shop.sweep("emails", after=MARKER_KEPT.total_seconds())
    assert shop.bench.keys("emails/flows/") == []
    assert shop.bench.keys("thumbnails/flows/")


def test_a_flow_at_work_is_looked_at_less_and_less_often(shop: Shop) -> None:
    flow = shop.flow()
    flow.add("thumbnails", {}, delay=30 * 86400)
    flow.start()
    sweeper = shop.bench.sweeper(shop.queues["thumbnails"])
    shop.bench.store.take()
    for _ in range(24 * 60):
        shop.bench.clock.advance(60)
        sweeper.sweep()
    looks = [key for verb, key in shop.bench.store.log if verb == "get" and key.endswith("flow.json")]
    assert 10 < len(looks) < 50


def test_mistakes_are_told_before_anything_is_written(shop: Shop) -> None:
    flow = shop.flow()
    with pytest.raises(InvalidRequest, match="no member"):
        flow.start()
    with pytest.raises(InvalidRequest, match="no member"):
        flow.then("emails", {})
    with pytest.raises(InvalidName, match="queue name"):
        flow.add("No Such Queue", {})
    with pytest.raises(InvalidName, match="reserved"):
        flow.add("flows", {})
    with pytest.raises(InvalidRequest, match="body"):
        flow.add("thumbnails", {"x": object()})
    with pytest.raises(InvalidRequest, match="at most"):
        flow.add("thumbnails", b"x" * (shop.queues["emails"].settings.max_message_size + 1))
    with pytest.raises(InvalidName, match="flow id"):
        shop.flow(id="Order 17")
    with pytest.raises(InvalidName, match="flow id"):
        shop.flow(id="x" * 64)
    with pytest.raises(InvalidRequest, match="on_dead"):
        shop.flow(on_dead="ignore")
    with pytest.raises(InvalidRequest, match="not for flows"):
        flow.add(define("emails"), {})
    inner = shop.flow()
    inner.add("thumbnails", {})
    with pytest.raises(InvalidRequest, match="needs a step"):
        flow.add(inner)
    with pytest.raises(InvalidRequest, match="nested once"):
        flow.add(flow)
    flow.add("thumbnails", {}, metadata={"x": "y" * 1700})
    with pytest.raises(InvalidRequest, match="leaves no room"):
        flow.start()
    flow = shop.flow()
    flow.add("thumbnails", {})
    flow.then("emails", {})
    with pytest.raises(InvalidRequest, match="members first"):
        flow.add("thumbnails", {})
    for _ in range(99):
        flow.then("emails", {})
    with pytest.raises(InvalidRequest, match="100 steps"):
        flow.then("emails", {})
    flow = shop.flow()
    for _ in range(MOST_MEMBERS):
        flow.add("thumbnails", "x" * 20_000)
    with pytest.raises(InvalidRequest, match="1000 members"):
        flow.add("thumbnails", {})
    with pytest.raises(InvalidRequest, match="at most 16777216"):
        flow.start()
    assert shop.bench.keys() == []


def test_a_flow_whose_bodies_are_full_of_commas_can_be_read(shop: Shop) -> None:
    flow = shop.flow()
    for _ in range(50):
        flow.add("thumbnails", "," * 100_000)
    flow.then("emails", {})
    flow.start()
    assert flow.state().members == 50
    assert shop.bench.read(shop.bench.keys("thumbnails/messages/")[0]) == b"," * 100_000


def test_a_definition_checks_the_body_at_once(shop: Shop) -> None:
    definition = define("emails", flows=True)

    @definition.handler
    def handle(body: list[int]) -> None: ...

    with pytest.raises(InvalidRequest, match="cannot take"):
        shop.flow().add(definition, {"to": "x"})


def test_one_flow_that_cannot_be_read_hides_no_other(shop: Shop) -> None:
    for name in ("order-1", "order-1-again", "order-10", "order-2"):
        flow = shop.flow(id=name)
        flow.add("thumbnails", {})
        flow.start()
    shop.bench.put("flows/order-2/flow.json", b"garbage")
    shop.bench.put("flows/order-3/flow.json", b'{"v":7}')
    shop.bench.put("flows/order-4/done/0000.thumbnails", b"{}")
    flows = Flows(shop.bench.store)
    assert [(one.id, one.state) for one in flows.list()] == [
        ("order-3", "unknown"),
        ("order-2", "unknown"),
        ("order-10", "running"),
        ("order-1-again", "running"),
        ("order-1", "running"),
    ]
    assert flows.ids() == sorted(flows.ids(), reverse=True)


def test_an_unknown_flow_is_not_found(shop: Shop) -> None:
    flows = Flows(shop.bench.store)
    for wrong in ("nobody", "../x", "X", "a.0001"):
        with pytest.raises(MessageNotFound, match="no flow"):
            flows.show(wrong)
        with pytest.raises(MessageNotFound, match="no flow"):
            flows.cancel(wrong)
    assert flows.list() == []


def test_a_result_that_cannot_be_stored_is_missing_and_says_why(shop: Shop) -> None:
    shop.one_and_then()
    queue = shop.queues["thumbnails"]
    path = shop.bench.keys("thumbnails/messages/")[0].removeprefix("thumbnails/")
    shop.bench.processor(queue, lambda body: "x" * 300_000).run(path)
    shop.run()
    ((_, before),) = shop.steps()
    assert "at most" in before[0][1]


def test_priority_and_delay_are_a_members_as_any_messages(shop: Shop) -> None:
    flow = shop.flow()
    flow.add("thumbnails", {}, priority=200)
    flow.add("thumbnails", {}, delay=60)
    flow.then("emails", {}, priority=7)
    flow.start()
    assert shop.bench.keys("thumbnails/messages/p200/")
    (delayed,) = shop.bench.keys("thumbnails/delayed/")
    shop.run()
    shop.sweep(after=61)
    assert flow.state().done == 1
    shop.run_one("thumbnails", delayed.removeprefix("thumbnails/"))
    assert shop.bench.keys("emails/messages/p007/")


def test_without_history_a_member_is_recorded_all_the_same(shop: Shop, bench: Workbench) -> None:
    queue = shop.queues["thumbnails"] = bench.queue("thumbnails", history=False)
    shop.one_and_then()
    stored = bench.memory.open(bench.keys("thumbnails/messages/")[0])
    shop.run()
    # A repeated PUT that lands late is cleared, not run.
    assert stored
    bench.put(stored.key, stored.read(), metadata=stored.metadata)
    assert shop.run() == 0
    assert len(shop.seen) == 2
    assert queue.settings.history is False


def test_a_queue_without_flows_pays_nothing(queue: Queue, bench: Workbench) -> None:
    bench.processor(queue, lambda body: None).run(queue.enqueue({}))
    bench.sweeper(queue).sweep()
    assert not [key for _, key in bench.store.log if "flows" in key]


def test_repairing_at_any_time_changes_nothing_that_is_well(shop: Shop) -> None:
    flow = shop.flow()
    for n in range(3):
        flow.add("thumbnails", {"n": n})
    flow.then("emails", {})
    flow.start()
    while found := [*shop.bench.keys("thumbnails/messages/"), *shop.bench.keys("emails/messages/")]:
        repair(shop.queues["thumbnails"], flow.id)
        name, _, path = found[0].partition("/")
        shop.run_one(name, path)
        repair(shop.queues["thumbnails"], flow.id)
    assert len(shop.seen) == 4
    assert json.loads(shop.bench.read(f"flows/{flow.id}/decided/0002"))["decided"] == "completed"


def test_a_flow_that_cannot_be_repaired_now_does_not_end_the_sweep(shop: Shop) -> None:
    flow = shop.flow()
    flow.add("thumbnails", {})
    flow.start()

    def around(operation: str, key: str, perform: Any) -> Any:
        if key.startswith("flows/"):
            raise QueueError("no")
        return perform()

    shop.bench.clock.advance(60)
    shop.bench.around = around
    report = shop.bench.sweeper(shop.queues["thumbnails"]).sweep()
    shop.bench.around = None
    assert not report.complete
    assert report.stats
    assert report.stats.pending == 1


def test_the_newest_of_very_many_flows_is_listed(bench):
    """More than 20,000 names: the newest are the last of them."""
    for number in range(21_000):
        bench.memory.put(f"flows/f{number:06d}/started", b"{}")
    flow = Flow(bench.queue(), id="newest")
    flow.add("orders", {})
    flow.start()

    assert Flows(bench.store).ids()[0] == "newest"
    assert [one.id for one in Flows(bench.store).list(1)] == ["newest"]
