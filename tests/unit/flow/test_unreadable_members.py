"""A member of a flow that nobody can read dies where it lies, and its flow goes on.  [P8]"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from s3queue import Flow, Queue
from s3queue.errors import AccessDenied, Unreadable
from s3queue.flow.flow_repair import LIES_FOR_LONG, repair
from s3queue.flow.flow_states import Flows
from support.workbench import Workbench

BAD = "messages/flow-f-0000"
HOUR = LIES_FOR_LONG.total_seconds()


def lock(bench: Workbench, *operations: str, path: str = BAD) -> None:
    """From now on, these operations on a member, the first one, are refused."""
    error = AccessDenied if "head" in operations else Unreadable

    def refuse(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        copied = operation == "copy" and key == f"orders/dead/{path}"
        if operation in operations and (copied or key == f"orders/{path}"):
            raise error(f"{operation} {key}")
        return perform()

    bench.around = refuse


def started(bench: Workbench, on_dead: str = "fail", **settings: Any) -> tuple[Queue, Flow]:
    """A flow with two members and a step."""
    queue = bench.queue(**({"max_attempts": 1} | settings))
    flow = Flow(queue, id="f", on_dead=on_dead)  # type: ignore[arg-type]
    flow.add("orders", {"n": 1})
    flow.add("orders", {"n": 2})
    flow.then("orders", {"n": 3})
    flow.start()
    return queue, flow


def run_all(bench: Workbench, queue: Queue) -> list[int]:
    """Run what can be read; which of them did."""
    ran: list[int] = []
    processor = bench.processor(queue, lambda body: ran.append(body["n"]))
    for _ in range(2):
        for key in bench.keys("orders/messages/"):
            processor.run(key.removeprefix("orders/"), read_first=True)
    return ran


@pytest.mark.parametrize(("on_dead", "state", "ran"), [("fail", "failed", [2]), ("continue", "completed", [2, 3])])
def test_one_that_can_be_described_tells_its_flow_when_it_dies(
    bench: Workbench, on_dead: str, state: str, ran: list[int]
) -> None:
    queue, flow = started(bench, on_dead)
    lock(bench, "get", "copy")

    assert run_all(bench, queue) == ran

    assert flow.state().state == state
    assert queue.status(BAD).state == "dead"
    assert f"orders/{BAD}" in bench.keys("orders/messages/")


def test_one_that_could_be_read_in_an_earlier_attempt_tells_its_flow_when_it_dies(bench: Workbench) -> None:
    queue, flow = started(bench, max_attempts=2)
    queue.fail(queue.claim(BAD), "once")
    bench.clock.advance(60)
    lock(bench, "get", "head", "copy")

    assert queue.claim(BAD, read_first=True) is None

    bench.around = None
    assert flow.state().state == "failed"
    assert queue.status(BAD).record.put_id == bench.memory.head(f"orders/{BAD}").metadata["s3queue-put-id"]


@pytest.mark.parametrize(("on_dead", "state", "ran"), [("fail", "failed", []), ("continue", "completed", [3])])
def test_the_sweeper_tells_the_flow_of_one_that_nobody_could_even_describe(
    bench: Workbench, on_dead: str, state: str, ran: list[int]
) -> None:
    queue, flow = started(bench, on_dead)
    lock(bench, "get", "head", "copy")
    assert run_all(bench, queue) == [2]
    sweeper = bench.sweeper(queue)
    bench.clock.advance(HOUR / 2)
    sweeper.sweep()
    assert flow.state().state == "running"

    bench.clock.advance(HOUR)
    sweeper.sweep()

    assert run_all(bench, queue) == ran
    bench.clock.advance(HOUR)
    sweeper.sweep()
    bench.around = None
    assert flow.state().state == state
    assert bench.keys("orders/flows/") == []


def test_a_cancelled_flow_within_another_ends_when_what_nobody_could_describe_is_dead(bench: Workbench) -> None:
    """Nobody can cancel that, and the other flow waits for the end of this one."""
    queue = bench.queue(max_attempts=1)
    within = Flow(queue)
    within.add("orders", {"n": 1})
    within.then("orders", {"n": 2})
    flow = Flow(queue, id="g")
    flow.add(within)
    flow.then("orders", {"n": 3})
    flow.start()
    bad = "messages/flow-g.0000-0000"
    lock(bench, "get", "head", "copy", path=bad)
    sweeper = bench.sweeper(queue)

    assert Flows(bench.store, clock=bench.clock).cancel("g.0000").state == "cancelled"
    assert queue.claim(bad) is None
    for _ in range(4):
        bench.clock.advance(HOUR)
        sweeper.sweep()

    bench.around = None
    assert flow.state().state == "failed"
    assert bench.keys("orders/flows/") == []


def test_the_sweeper_of_the_home_tells_a_flow_whose_member_is_of_a_queue_without_flows(bench: Workbench) -> None:
    queue, flow = started(bench)
    member = bench.queue(max_attempts=1)
    member.flows = False
    lock(bench, "get", "copy")
    assert member.claim(BAD) is None
    bench.clock.advance(HOUR + 60)

    bench.sweeper(queue).sweep()

    bench.around = None
    assert flow.state().state == "failed"


def test_what_was_put_there_since_is_not_what_died(bench: Workbench) -> None:
    """[P3] A replay where it lies has an outcome of its own."""
    queue, _ = started(bench)
    lock(bench, "get", "head", "copy")
    assert queue.claim(BAD) is None
    bench.around = None
    bench.clock.advance(10)
    found = bench.memory.open(f"orders/{BAD}")
    assert found is not None
    bench.put(f"orders/{BAD}", found.read(), metadata=found.metadata)
    bench.clock.advance(2 * HOUR)

    repair(queue, "f")

    assert bench.keys("flows/f/done/") == []


@pytest.mark.parametrize("delay", [0, 5 * HOUR], ids=["just stored", "due just now"])
def test_a_flow_whose_messages_do_not_lie_for_long_costs_nothing_more(bench: Workbench, delay: float) -> None:
    queue = bench.queue()
    flow = Flow(queue, id="f")
    flow.add("orders", {}, delay=delay)
    flow.start()
    bench.clock.advance(delay + HOUR - 60)
    bench.store.take()

    repair(queue, "f")

    assert not [key for operation, key in bench.store.log if operation != "get" and "records" in key]
    assert len(bench.store.log) == 3  # flow.json, what lies under flows/f/, and the messages


def test_a_flow_whose_messages_lie_for_long_costs_one_list_more(bench: Workbench) -> None:
    queue = bench.queue()
    flow = Flow(queue, id="f")
    for _ in range(30):
        flow.add("orders", {})
    flow.start()
    bench.clock.advance(HOUR + 60)
    bench.store.take()

    repair(queue, "f")

    assert [operation for operation, key in bench.store.log if "records" in key] == ["list"]


@pytest.mark.parametrize("max_attempts", [1, 2])
def test_the_lease_of_one_that_nobody_may_describe_ends_when_its_worker_dies(
    bench: Workbench, max_attempts: int
) -> None:
    """[P6] HEAD is refused to the sweeper as well."""
    queue, flow = started(bench, max_attempts=max_attempts)
    assert queue.claim(BAD)
    lock(bench, "get", "head", "copy")
    bench.clock.advance(60)
    dispatched: list[str] = []

    report = bench.sweeper(queue, dispatched).sweep()

    assert report.endings == ({"dead": 1} if max_attempts == 1 else {"retried": 1})
    for path in {*dispatched} & {BAD}:
        assert queue.claim(path, read_first=True) is None
    assert queue.outcome_of(BAD).outcome == "dead"
    bench.clock.advance(HOUR)
    bench.sweeper(queue).sweep()
    assert flow.state().state == "failed"
