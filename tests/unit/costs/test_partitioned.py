"""The estimate of partitions, held against counted requests."""

from __future__ import annotations

import math

import pytest

from s3queue.costs.partitioned import messages_per_hold, partitioned_message
from s3queue.costs.workload import Workload
from s3queue.errors import InvalidRequest
from s3queue.settings import QueueSettings

NAMES = {"put": "PUT", "get": "GET", "list": "LIST", "delete": "DELETE", "delete_many": "DELETE"}


@pytest.mark.parametrize("messages", [1, 5, 100, 400])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"history": False},
        {"max_attempts": 1},
        {"collect": 20, "within_seconds": 2},
        {"collect": 250, "within_seconds": 2},
    ],
    ids=str,
)
def test_a_hold_costs_what_it_asks_for(bench, monkeypatch, messages, options):
    queue = bench.queue(partitions=1, **options)
    for number in range(messages):
        path = queue.enqueue({"number": number})

    def one(body: dict) -> None: ...
    def many(bodies: list[dict]) -> None: ...

    bench.processor(queue, many if "collect" in options else one).run(path)
    counted: dict[str, int] = {}
    for verb, count in bench.store.take().items():
        counted[NAMES[verb]] = counted.get(NAMES[verb], 0) + count
    # The events of the others.
    counted["GET"] += messages - 1

    load = Workload(rate=100, settings=QueueSettings.of(partitions=1, **options))
    monkeypatch.setattr("s3queue.costs.partitioned.messages_per_hold", lambda load: float(messages))
    estimated = {verb: round(count * messages, 6) for verb, count in partitioned_message(load).by_verb().items()}
    if options.get("collect") == 250 and messages == 400:
        # On average 1.6 windows; this time two.
        assert {verb: math.ceil(count) for verb, count in estimated.items()} == counted
    else:
        assert estimated == counted


def test_gathering_holds_a_partition_for_what_comes_meanwhile():
    options = {"partitions": 4, "collect": 100}
    alone = Workload(rate=4, settings=QueueSettings.of(**options, within_seconds=0))
    gathered = Workload(rate=4, settings=QueueSettings.of(**options, within_seconds=10))
    assert messages_per_hold(gathered) == pytest.approx(messages_per_hold(alone) + 10, rel=0.01)
    assert partitioned_message(gathered).total() < partitioned_message(alone).total()


def test_what_the_estimate_does_not_know_it_refuses():
    with pytest.raises(InvalidRequest, match="partitions of messages that go to Spark are not counted"):
        Workload(rate=1, heavy=1.0, settings=QueueSettings.of(partitions=2))


def test_a_busy_partition_is_held_for_many_messages_and_an_idle_one_for_each():
    settings = QueueSettings.of(partitions=4)
    assert messages_per_hold(Workload(rate=0.001, settings=settings)) == pytest.approx(1, rel=0.01)
    assert messages_per_hold(Workload(rate=1000, settings=settings)) > 1000


def test_a_million_messages_in_busy_partitions_cost_five_dollars_and_a_half():
    load = Workload(rate=1000, settings=QueueSettings.of(partitions=8))
    spent = partitioned_message(load)
    writes, reads = spent.total(frozenset({"PUT", "LIST"})), spent.total(frozenset({"GET"}))
    # A function's event that finds the partition held is a GET more than a pull worker needs.
    assert writes * 5 + (reads - 1) * 0.4 <= 5.60
