"""The estimate of delays, sends and flows, held against counted requests."""

from __future__ import annotations

from collections import Counter

import pytest

from s3queue import Context, Flow, InvalidRequest, QueueSettings
from s3queue.costs import requests as operations
from s3queue.costs.delays import requests_of_delay
from s3queue.costs.estimate import estimate
from s3queue.costs.requests import RequestCounts
from s3queue.costs.workload import Workload, light_object
from support.workbench import Workbench
from support.worker_function import WorkerFunction


def counted(bench: Workbench) -> RequestCounts:
    """As the model counts: what lies under `flows/` is of one kind; `queue.json` is read by the clock."""

    def kind(key: str) -> str:
        return "flows" if key.startswith("flows/") else key.split("/")[1] or operations.ROOT

    found = Counter((verb.upper(), kind(key)) for verb, key in bench.store.log)
    bench.store.take()
    return RequestCounts({which: count for which, count in found.items() if which != ("GET", "queue.json")})


def plain(counts: RequestCounts) -> dict[tuple[str, str], float]:
    return {which: round(count, 6) for which, count in counts.counts.items() if count > 1e-9}


@pytest.mark.parametrize("history", [True, False])
def test_a_delayed_message(bench, history):
    queue = bench.queue(history=history)
    path = queue.enqueue({}, delay=5)
    bench.clock.advance(6)
    WorkerFunction(queue, lambda body: None).invoke(path, notified_at=None)

    load = Workload(rate=1, delayed=1.0, settings=queue.settings)
    assert plain(light_object(load)) == plain(counted(bench))


def test_half_of_them_delayed(bench):
    queue = bench.queue()
    function = WorkerFunction(queue, lambda body: None)
    path = queue.enqueue({}, delay=5)
    bench.clock.advance(6)
    function.invoke(path, notified_at=None)
    function.invoke(queue.enqueue({}), notified_at=bench.clock.now())

    assert plain(light_object(Workload(rate=1, delayed=0.5)) * 2) == plain(counted(bench))


@pytest.mark.parametrize("delay", [2, 5, 30, 60])
def test_few_short_delays_cost_the_sweeper_what_one_alone_does(delay):
    """`requests_of_delay` itself is held against the sweeper function by tests/functions/test_sweeper.py."""
    rate = 1e-7
    some, none = (estimate(Workload(rate=rate, delayed=share, delay_seconds=delay)) for share in (1.0, 0.0))
    alone = requests_of_delay(delay)
    more = {verb: some.sweeping.total(frozenset({verb}), kind) / rate for verb, kind in alone.counts}
    less = {verb: none.sweeping.total(frozenset({verb}), kind) / rate for verb, kind in alone.counts}
    # The messages in flight wake it as well, a little.
    assert {verb: more[verb] - less[verb] for verb in more} == pytest.approx(alone.by_verb(), rel=0.02)
    awake = some.sweeper.concurrency - none.sweeper.concurrency
    assert awake / rate == pytest.approx(delay + alone.total() * some.workload.seconds_per_request, rel=0.05)


def test_delays_that_overlap_share_the_sweeper():
    busy = estimate(Workload(rate=100, delayed=1.0, delay_seconds=5))
    assert busy.sweeping.total(frozenset({"LIST"}), "delayed") == pytest.approx(0.5, rel=0.01)


def test_a_long_delay_costs_the_sweeps_of_its_queue_two_lists(bench):
    from s3queue.deployment import SWEEPER_STAYS_SECONDS
    from support.workbench import next_tick

    queue = bench.queue()
    queue.enqueue({}, delay=36_000)
    sweeper = bench.sweeper(queue)
    for _ in range(2):
        bench.store.take()
        began, pause = bench.clock.monotonic(), next_tick(sweeper)
        while pause is not None and bench.clock.monotonic() + pause < began + SWEEPER_STAYS_SECONDS:
            bench.clock.advance(pause)
            pause = next_tick(sweeper)
        bench.clock.advance(began + 60 - bench.clock.monotonic())
        spent = plain(counted(bench))

    load = Workload(rate=0.001, delayed=1.0, delay_seconds=36_000, handler_seconds=0.0)
    estimated = plain(estimate(load).sweeping * 60)
    assert spent == {which: pytest.approx(count, abs=0.05) for which, count in estimated.items() if which in spent}


@pytest.mark.parametrize("history", [True, False])
@pytest.mark.parametrize("size", [100, 70_000])
def test_a_message_that_another_one_has_sent(bench, history, size):
    queue = bench.queue(history=history)

    def pass_on(body: str, context: Context) -> None:
        if body == "first":
            context.send("orders", "x" * size)

    queue.sends_to = ("orders",)
    processor = bench.processor(queue, pass_on, sends_to=["orders"])
    processor.run(queue.enqueue("first"))
    (sent,) = bench.keys("orders/messages/")
    processor.run(sent.removeprefix("orders/"))

    load = Workload(rate=1, size=size, sends=0.5, settings=queue.settings)
    assert plain(light_object(load) * 2) == plain(counted(bench))


@pytest.mark.parametrize("members", [1, 2, 3, 10, 100])
@pytest.mark.parametrize("history", [True, False])
def test_a_flow_of_members_and_a_step(bench, members, history):
    queue = bench.queue(history=history)
    flow = Flow(queue)
    for _ in range(members):
        flow.add("orders", {})
    flow.then("orders", {})
    flow.start()
    processor = bench.processor(queue, lambda body: None)
    for _ in range(2):
        for key in bench.keys("orders/messages/"):
            processor.run(key.removeprefix("orders/"))

    load = Workload(rate=1, flows=1.0, members=members, settings=queue.settings)
    assert plain(light_object(load) * (members + 1)) == plain(counted(bench))


@pytest.mark.parametrize("what", ["delayed", "sends", "flows"])
def test_what_is_not_counted_is_refused(what):
    with pytest.raises(InvalidRequest, match="not counted for partitions"):
        Workload(rate=1, settings=QueueSettings.of(partitions=4), **{what: 0.5})
    with pytest.raises(InvalidRequest, match=f"{what} must be a share from 0 to 1"):
        Workload(rate=1, **{what: 1.5})
