"""The estimate: runs, bills, shards and concurrency follow from the load."""

from __future__ import annotations

import math

import pytest

from s3queue import InvalidRequest, QueueSettings
from s3queue.costs import requests as operations
from s3queue.costs.bill import RECORD_BYTES, SQS_MOST, bill_of, break_even, sqs_bill_of
from s3queue.costs.estimate import MOST_SHARDS, Prefix, estimate
from s3queue.costs.monitoring import GB
from s3queue.costs.workload import Workload, light_object
from support.worker_function import WorkerFunction

MILLION = 1_000_000


def test_runs_are_as_many_as_the_work_needs():
    seldom = estimate(Workload(rate=1 / 86400, heavy=1.0, heavy_seconds=30)).runs
    assert seldom.messages == pytest.approx(1, abs=0.01)
    assert seldom.started * 86400 == pytest.approx(1, abs=0.01)
    assert seldom.seconds == 60 + 30

    often = estimate(Workload(rate=0.04, heavy=1.0, heavy_seconds=60)).runs
    assert often.messages > 10  # what comes while a run starts and works is its, too
    assert often.keep_up

    settings = QueueSettings.of(concurrency=1, max_runs=2)
    too_much = estimate(Workload(rate=1, heavy=1.0, heavy_seconds=60, settings=settings)).runs
    assert too_much.needed > 60
    assert not too_much.keep_up


def test_a_run_is_paid_for_a_minute_at_least():
    found = estimate(Workload(rate=1 / 86400, heavy=1.0, heavy_seconds=0)).runs
    assert found.billed_seconds == pytest.approx(found.started * 60 * (1 + QueueSettings().max_executors))


def test_a_run_is_paid_for_the_memory_that_it_asks_for():
    usual = estimate(Workload(rate=1, heavy=1.0)).runs
    large = estimate(
        Workload(rate=1, heavy=1.0, settings=QueueSettings.of(engine="spark", executor_python_mib=6 * 1024))
    ).runs
    # A driver and four executors of 5 GB; then executors of 8.
    assert (usual.gb, large.gb) == (25, 37)


def test_a_record_is_as_large_as_the_bill_says(bench):
    queue = bench.queue()
    WorkerFunction(queue, lambda body: None).invoke(queue.enqueue({}), notified_at=bench.clock.now())
    (key,) = bench.keys("orders/records/")
    assert len(bench.read(key)) == pytest.approx(RECORD_BYTES, rel=0.15)


@pytest.mark.parametrize(
    ("batch", "history", "expected"),
    [(1, True, 15.40), (1, False, 10.40), (10, True, 1.54), (100, True, 0.154), (1000, True, 0.0154)],
)
def test_a_million_messages_cost_what_the_protocol_says(batch, history, expected):
    settings = QueueSettings.of(history=history)
    load = Workload(rate=1000, batch=batch, handler_seconds=0.0, settings=settings)
    spent = light_object(load) * (1 / batch)
    cost = spent.total(operations.BILLED_AS_WRITES) * 5.00 + spent.total(operations.BILLED_AS_READS) * 0.40
    assert cost == pytest.approx(expected)


def test_kept_payloads_are_paid_for_by_request_and_by_the_month():
    kept, plain = (
        estimate(Workload(rate=10, size=100_000, settings=QueueSettings.of(keep_payload=keeps)))
        for keeps in (True, False)
    )
    assert kept.requests.total(frozenset({"COPY"})) - plain.requests.total(frozenset({"COPY"})) == pytest.approx(10)
    gigabytes = [line.count for one in (kept, plain) for line in bill_of(one).lines if line.what == "S3: storage"]
    assert gigabytes[0] - gigabytes[1] == pytest.approx(10 * 100_000 * 5 * 86_400 / GB, rel=0.001)


@pytest.mark.parametrize(("batched", "expected"), [(False, 0.48), (True, 0.12)])
def test_a_million_messages_cost_what_sqs_says(batched, expected):
    lines = sqs_bill_of(estimate(Workload(rate=1000)), batched=batched).lines
    requests = sum(line.cost for line in lines if line.what.startswith("SQS"))
    assert requests / (1000 * 30 * 86400) * MILLION == pytest.approx(expected)


def test_sqs_bills_every_64_kib_and_keeps_nothing_above_1_mib():
    def total(size: int) -> float:
        return sqs_bill_of(estimate(Workload(rate=100, size=size)), batched=False).total

    assert total(64 * 1024) < total(64 * 1024 + 1)
    large = sqs_bill_of(estimate(Workload(rate=100, size=SQS_MOST + 1)), batched=False)
    assert {"S3: PUT, payloads", "S3: GET, payloads"} <= {line.what for line in large.lines}


def test_the_lines_of_a_bill_are_all_that_was_asked():
    found = estimate(Workload(rate=100, retries=0.1, dead=0.01, late=0.1, heavy=0.001))
    lines = bill_of(found).lines
    asked = found.requests + found.sweeping + found.running
    billed = sum(line.count for line in lines if line.what.startswith("S3") and line.unit == "requests" and line.price)
    assert billed == pytest.approx((asked.total() - asked.total(frozenset({"DELETE"}))) * 30 * 86400)


@pytest.mark.parametrize("rate", [10, 1000, 100_000])
def test_the_break_even_batch_is_the_first_that_costs_no_more(rate):
    def dearer(batch: int) -> bool:
        found = estimate(Workload(rate=rate, batch=batch))
        return bill_of(found).total > sqs_bill_of(found, batched=False).total

    batch = break_even(Workload(rate=rate), batched=False)
    assert batch > 1
    assert dearer(1)
    assert dearer(batch - 1)
    assert not dearer(batch)


def test_a_message_costs_less_the_more_of_them_share_an_object():
    """What `break_even` relies on when it halves."""
    for rate in (0.1, 10, 10_000):
        bills = [bill_of(estimate(Workload(rate=rate, batch=batch))).total for batch in (1, 2, 5, 10, 50, 100, 500)]
        assert bills == sorted(bills, reverse=True)


def test_unbatched_messages_cost_more_than_with_sqs():
    for rate in (1, 1000, 100_000):
        found = estimate(Workload(rate=rate))
        assert bill_of(found).total > 10 * sqs_bill_of(found, batched=True).total


def test_shards_are_what_the_busiest_prefix_needs():
    assert estimate(Workload(rate=1000)).shards == 1
    found = estimate(Workload(rate=100_000))
    busiest = max(found.prefixes, key=lambda one: one.shards)
    assert busiest.kind == "messages"  # PUT, GET and DELETE: two writes and a read
    assert found.shards == busiest.shards == math.ceil(200_000 / 3500 + 100_002 / 5500)
    # As many queues share it: each has its own prefixes.
    assert estimate(Workload(rate=100_000, queues=10)).shards == math.ceil(20_000 / 3500 + 10_000 / 5500)
    assert Prefix(kind="leases", writes=3500, reads=0).shards == 1
    assert Prefix(kind="leases", writes=3500, reads=55).shards == 2


def test_a_load_that_one_queue_cannot_take_is_said_to_need_several():
    assert estimate(Workload(rate=100_000)).queues_needed == 1
    assert estimate(Workload(rate=1_000_000)).shards > MOST_SHARDS
    assert estimate(Workload(rate=1_000_000)).queues_needed > 1
    # Reminders lie in the order of their time: no shards help there.
    assert estimate(Workload(rate=100_000, batch=1, retries=0.05)).queues_needed > 1


def test_concurrency_is_littles_law():
    found = estimate(Workload(rate=100, handler_seconds=1.0))
    # Five requests, one after the other, and the second that the handler takes.
    seconds = 1.0 + 5 * found.workload.seconds_per_request
    assert found.worker.concurrency == pytest.approx(100 * seconds)
    assert found.worker.gb_seconds == pytest.approx(100 * seconds / 2)


def test_more_memory_makes_requests_faster_up_to_one_core():
    def seconds(memory: int) -> float:
        return Workload(rate=1, settings=QueueSettings.of(memory_mib=memory)).seconds_per_request

    assert seconds(256) > seconds(512) > seconds(1769) == seconds(3000)


@pytest.mark.parametrize(
    ("described", "reason"),
    [
        ({"rate": -1}, "rate"),
        ({"rate": math.inf}, "rate"),
        ({"rate": math.nan}, "rate"),
        ({"retries": 1.5}, "retries must be a share"),
        ({"dead": -0.1}, "dead must be a share"),
        ({"late": 0.6, "rescued": 0.6}, "must not be more than 1 together"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"queues": 0}, "queues must be at least 1"),
        ({"handler_seconds": -1}, "handler_seconds"),
    ],
)
def test_nonsense_is_refused_by_name(described, reason):
    with pytest.raises(InvalidRequest, match=reason):
        Workload(**({"rate": 1.0} | described))
