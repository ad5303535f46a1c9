"""The estimate's requests are the library's: each path is run for real, counted, and compared; then the arithmetic."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest

from s3queue import InvalidRequest, QueueSettings, Reject
from s3queue.costs import requests as operations
from s3queue.costs.bill import RECORD_BYTES, SQS_MOST, bill_of, break_even, sqs_bill_of
from s3queue.costs.estimate import MOST_SHARDS, Prefix, estimate
from s3queue.costs.requests import RequestCounts
from s3queue.costs.workload import Workload, light_object, rings
from s3queue.settings import SWEEPER_STAYS_SECONDS
from s3queue.spark_runs.launcher import Launcher
from s3queue.spark_runs.slots import as_run
from s3queue.spark_runs.watch import LAUNCH_GRACE
from spark.driver import Driver
from spark.messages import MessageWork
from support.fake_jobs import FakeJobs
from support.workbench import Workbench, next_tick
from support.worker_function import WorkerFunction

REPOSITORY = Path(__file__).parents[2]
MILLION = 1_000_000
FOREVER = 10**6


@pytest.fixture
def bench():
    return Workbench()


def counted(bench: Workbench) -> RequestCounts:
    """What was asked since the last look, as the model counts. `queue.json` is read by the clock, not by message."""
    found = RequestCounts(Counter((verb.upper(), kind_of(key)) for verb, key in bench.store.log))
    bench.store.take()
    return RequestCounts({which: count for which, count in found.counts.items() if which != ("GET", "queue.json")})


def kind_of(key: str) -> str:
    return key.split("/")[1] or operations.ROOT


def same(found: RequestCounts, expected: RequestCounts) -> bool:
    """Request by request and kind by kind; pytest shows what differs."""
    kinds = found.counts.keys() | expected.counts.keys()
    real, predicted = ({which: one.counts.get(which, 0) for which in kinds} for one in (found, expected))
    assert real == pytest.approx(predicted)
    return True


def load_of(queue, **described) -> Workload:
    return Workload(rate=1, settings=queue.settings, **described)


def failing():
    """A handler that fails so many attempts at each body as the body says."""
    tries: Counter[str] = Counter()

    def handler(body: dict) -> None:
        tries[str(body)] += 1
        if tries[str(body)] <= body["fails"]:
            raise ValueError("not this time")

    return handler


def rejecting(body: dict) -> None:
    raise Reject("never")


# Light messages


@pytest.mark.parametrize("history", [True, False])
@pytest.mark.parametrize("batch", [1, 10, 100])
def test_the_happy_path(bench, batch, history):
    queue = bench.queue(history=history)
    function = WorkerFunction(queue, lambda body: None)
    bodies = [{"n": n} for n in range(batch)]
    path = queue.enqueue(bodies[0]) if batch == 1 else queue.enqueue_many(bodies, per_object=batch)[0]

    assert function.invoke(path, rung_at=bench.clock.now()) == {"completed": 1}

    assert same(counted(bench), light_object(load_of(queue, batch=batch)))


def test_what_the_claim_does_not_keep_is_read_again(bench):
    queue = bench.queue()
    body = b'{"n": 1}' + b" " * (9 * 1024 * 1024)
    path = queue.enqueue(body)

    WorkerFunction(queue, lambda body: None).invoke(path, rung_at=bench.clock.now())

    assert same(counted(bench), light_object(load_of(queue, size=len(body))))


def test_retries_and_what_they_end_in(bench):
    """Half of the attempts fail, and there are two: of four messages, two complete at once, one later, one dies."""
    queue = bench.queue(max_attempts=2)
    function = WorkerFunction(queue, failing())
    for number, fails in enumerate([0, 0, 1, 2]):
        path = queue.enqueue({"n": number, "fails": fails})
        function.invoke(path, rung_at=bench.clock.now())

    assert same(counted(bench), light_object(load_of(queue, retries=0.5)) * 4)


def test_a_batch_of_which_every_line_fails_until_it_is_dead(bench):
    queue = bench.queue(max_attempts=3)
    (path,) = queue.enqueue_many([{"n": n, "fails": 3} for n in range(10)], per_object=10)

    WorkerFunction(queue, failing()).invoke(path, rung_at=bench.clock.now())

    assert same(counted(bench), light_object(load_of(queue, batch=10, retries=1.0)))


@pytest.mark.parametrize("batch", [1, 10])
@pytest.mark.parametrize("history", [True, False])
def test_what_is_rejected(bench, batch, history):
    queue = bench.queue(history=history)
    bodies = [{"n": n} for n in range(batch)]
    path = queue.enqueue(bodies[0]) if batch == 1 else queue.enqueue_many(bodies, per_object=batch)[0]

    assert WorkerFunction(queue, rejecting).invoke(path, rung_at=bench.clock.now()) == {"dead": 1}

    assert same(counted(bench), light_object(load_of(queue, batch=batch, dead=1.0)))


@pytest.mark.parametrize("others", [0, 3])
def test_a_late_event_looks_first_and_around_afterwards(bench, others):
    queue = bench.queue()
    for _ in range(others):
        assert bench.queue(worker_id="busy").claim(queue.enqueue({}))
    counted(bench)
    function = WorkerFunction(queue, lambda body: None)
    rung_at = bench.clock.now()
    path = queue.enqueue({})
    bench.clock.advance(5)

    assert function.invoke(path, rung_at=rung_at) == {"completed": 1}

    assert same(counted(bench), light_object(load_of(queue, late=1.0), others=FOREVER if others else 0))


@pytest.mark.parametrize("shards", [4, 16])
def test_a_late_event_looks_at_every_shard_that_has_something(bench, shards):
    queue = bench.queue(shards=shards)
    for _ in range(50 * shards):
        assert bench.queue(worker_id="busy").claim(queue.enqueue({}))
    counted(bench)
    path = queue.enqueue({})
    rung_at = bench.clock.now()
    bench.clock.advance(5)

    assert WorkerFunction(queue, lambda body: None).invoke(path, rung_at=rung_at) == {"completed": 1}

    assert same(counted(bench), light_object(load_of(queue, late=1.0), shards, others=FOREVER))


def test_a_message_whose_event_was_lost_is_rescued(bench):
    queue = bench.queue()
    dispatched: list[str] = []
    sweeper = bench.sweeper(queue, dispatched)
    queue.enqueue({})
    bench.clock.advance(61)
    spent = counted(bench)
    sweeper.sweep()
    counted(bench)  # the sweeper's own are asked with or without it

    assert WorkerFunction(queue, lambda body: None).invoke(*dispatched, rung_at=None) == {"completed": 1}

    assert same(spent + counted(bench), light_object(load_of(queue, rescued=1.0)))


def test_a_retry_that_is_due_later_is_the_sweepers_to_dispatch(bench):
    queue = bench.queue(max_attempts=2, retry_base=20)
    function = WorkerFunction(queue, failing())
    dispatched: list[str] = []
    sweeper = bench.sweeper(queue, dispatched)
    path = queue.enqueue({"fails": 2})
    assert function.invoke(path, rung_at=bench.clock.now()) == {"retried": 1}
    bench.clock.advance(21)
    spent = counted(bench)
    sweeper.sweep()
    dropped = RequestCounts({which: count for which, count in counted(bench).counts.items() if which[0] == "DELETE"})

    assert function.invoke(*dispatched, rung_at=None) == {"dead": 1}

    load = load_of(queue, retries=1.0)
    assert same(spent + dropped + counted(bench), light_object(load))
    assert rings(load) == 2


def test_a_batch_that_outlives_its_invocation_is_handed_on(bench):
    queue = bench.queue()
    seen: list[int] = []

    def slow(body: dict) -> None:
        bench.clock.advance(1)
        seen.append(body["n"])

    function = WorkerFunction(queue, slow)
    dispatched: list[str] = []
    sweeper = bench.sweeper(queue, dispatched)
    (path,) = queue.enqueue_many([{"n": n} for n in range(90)], per_object=90)
    function.invoke(path, rung_at=bench.clock.now())
    invocations = 1
    spent = counted(bench)
    while bench.keys("orders/messages/"):
        sweeper.sweep()
        spent += RequestCounts({which: count for which, count in counted(bench).counts.items() if which[0] == "DELETE"})
        function.invoke(*dispatched, rung_at=None)
        dispatched.clear()
        invocations += 1
        spent += counted(bench)

    assert seen == list(range(90))
    load = load_of(queue, batch=90, handler_seconds=1.0)
    assert rings(load) == invocations == 3
    assert same(spent, light_object(load))


# The sweeper


def test_a_minute_of_the_sweeper_while_nothing_comes(bench):
    queue = bench.queue()
    queue.complete(queue.claim(queue.enqueue({})))
    sweeper = bench.sweeper(queue)
    sweeper.sweep()
    counted(bench)

    spent = minute_of(bench, sweeper)

    idle = estimate(Workload(rate=0))
    assert same(spent, idle.sweeping * 60)
    assert idle.sweeper.seconds < 2


def test_a_minute_of_the_sweeper_while_something_is_always_in_flight(bench):
    queue = bench.queue(visibility_timeout=600)
    for _ in range(100):
        assert queue.claim(queue.enqueue({}))
    sweeper = bench.sweeper(queue)
    minute_of(bench, sweeper)  # its first looks for old dead letters, which is once an hour

    # A hundred in flight all the time: enough to call it always.
    busy = estimate(Workload(rate=100, handler_seconds=0.5))

    spent = minute_of(bench, sweeper)
    assert same(spent, without_queue_json(busy.sweeping * 60))
    assert busy.sweeper.seconds == pytest.approx(54, abs=2)


def test_a_minute_of_the_sweeper_while_retries_wait_and_letters_lie_there(bench):
    queue = bench.queue(visibility_timeout=600)
    for _ in range(100):
        queue.fail(queue.claim(queue.enqueue({})), "later", retry_after=3600)
    queue.fail(queue.claim(queue.enqueue({})), "never", dead=True)
    sweeper = bench.sweeper(queue)
    for _ in range(3):
        assert queue.claim(queue.enqueue({}))
    counted(bench)

    spent = minute_of(bench, sweeper)

    # So many attempts that few die of it: one page of letters.
    settings = QueueSettings.of(max_attempts=9)
    predicted = estimate(Workload(rate=100, retries=0.2, handler_seconds=0.5, settings=settings)).sweeping * 60
    # Dead letters are looked through once an hour, and this was the minute.
    once = operations.RETAIN * (1 - 60 / 3600)
    assert same(spent, without_queue_json(predicted) + once)


def minute_of(bench: Workbench, sweeper) -> RequestCounts:
    """Ticks as the sweeper function has them, until nothing is worth another look or the minute is over."""
    began = bench.clock.monotonic()
    bench.store.take()
    pause = next_tick(sweeper)
    while pause is not None and bench.clock.monotonic() + pause < began + SWEEPER_STAYS_SECONDS:
        bench.clock.advance(pause)
        pause = next_tick(sweeper)
    bench.clock.advance(began + 60 - bench.clock.monotonic())
    return counted(bench)


def without_queue_json(spent: RequestCounts) -> RequestCounts:
    return RequestCounts({which: count for which, count in spent.counts.items() if which != ("GET", "queue.json")})


# Heavy messages


@pytest.mark.parametrize(("messages", "adopted", "further"), [(1, 1, 0), (10, 10, 0), (30, 10, 2)])
def test_a_spark_run(bench, messages, adopted, further):
    queue = bench.queue("exports", engine="spark", visibility_timeout=60, batch=10)
    jobs = FakeJobs()
    paths = [queue.enqueue({}) for _ in range(messages)]
    assert Launcher(jobs, "bench", threads=1).launch(queue, paths[:1]) == "started"
    mine = as_run(queue, next(iter(jobs.started)))
    work = MessageWork(mine, lambda spark, message, context: None, None)

    Driver(mine, work, seconds=3600, threads=1, beats=False).drain()

    each = operations.ENQUEUE + operations.CLAIM + operations.BEGIN + operations.RECORD + operations.CLEAR
    run = without_queue_json(operations.LAUNCH + operations.DRIVE)
    assert same(counted(bench), each * messages + run + operations.ADOPT * adopted + operations.NEXT_BATCH * further)


def test_a_spark_batch_that_is_not_full_looks_for_more(bench):
    queue = bench.queue("exports", engine="spark", visibility_timeout=60, batch=10)
    jobs = FakeJobs()
    Launcher(jobs, "bench", threads=1).launch(queue, [queue.enqueue({})])
    for _ in range(5):
        queue.enqueue({})
    mine = as_run(queue, next(iter(jobs.started)))
    Driver(mine, MessageWork(mine, lambda spark, message, context: None, None), seconds=3600, beats=False).drain()

    each = operations.ENQUEUE + operations.CLAIM + operations.BEGIN + operations.RECORD + operations.CLEAR
    run = (
        without_queue_json(operations.LAUNCH + operations.DRIVE)
        + operations.ADOPT
        + operations.NEXT_BATCH
        + operations.LOOK_FOR_MORE
    )
    assert same(counted(bench), each * 6 + run)


def test_a_heavy_message_that_finds_a_run_at_work(bench):
    queue = bench.queue("exports", engine="spark")
    launcher = Launcher(FakeJobs(), "bench", threads=1)
    launcher.launch(queue, [queue.enqueue({})])
    bench.clock.advance(LAUNCH_GRACE.total_seconds() + 5)
    path = queue.enqueue({})
    counted(bench)

    assert launcher.launch(queue, [path]) == "busy"

    assert same(counted(bench), operations.RING_IN_VAIN)


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


# What follows from it


def test_a_record_is_as_large_as_the_bill_says(bench):
    queue = bench.queue()
    WorkerFunction(queue, lambda body: None).invoke(queue.enqueue({}), rung_at=bench.clock.now())
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
    billed = sum(line.count for line in lines if line.unit == "requests" and line.price)
    assert billed == pytest.approx((asked.total() - asked.total(frozenset({"DELETE"}))) * 30 * 86400)


@pytest.mark.parametrize("rate", [1, 1000, 100_000])
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
        ({"retries": 1.5}, "retries is a share"),
        ({"dead": -0.1}, "dead is a share"),
        ({"late": 0.6, "rescued": 0.6}, "more than all events"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"queues": 0}, "queues must be at least 1"),
        ({"handler_seconds": -1}, "handler_seconds"),
    ],
)
def test_nonsense_is_refused_by_name(described, reason):
    with pytest.raises(InvalidRequest, match=reason):
        Workload(**({"rate": 1.0} | described))


# README


def readme_row(rate: int, batch: int) -> str:
    found = estimate(Workload(rate=rate, batch=batch))
    asked = {one.kind: one for one in found.prefixes}
    ours, theirs = bill_of(found), sqs_bill_of(found, batched=batch > 1)
    cells = [
        *(f"{rate:,}", f"{batch:,}", *(asked_of(asked[kind]) for kind in ("messages", "leases", "records"))),
        *(figure(found.shards), figure(found.worker.concurrency)),
        *(f"{ours.per_million:.2f} $", f"{theirs.per_million:.2f} $"),
        "**s3queue**" if ours.total <= theirs.total else "SQS",
    ]
    return f"| {' | '.join(cells)} |"


def asked_of(prefix: Prefix) -> str:
    """Writes + reads; a few looks of the sweeper are not worth a figure."""
    told = figure(prefix.writes)
    return f"{told} + {figure(prefix.reads)}" if prefix.reads > 0.15 * prefix.writes else told


def figure(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


@pytest.mark.parametrize("batch", [1, 10, 100, 1000])
@pytest.mark.parametrize("rate", [1, 1000, 100_000])
def test_the_readme_shows_what_the_model_says(rate, batch):
    assert readme_row(rate, batch) in (REPOSITORY / "README.md").read_text()


def test_the_readme_tells_where_it_turns():
    text = " ".join((REPOSITORY / "README.md").read_text().split())
    bare = QueueSettings.of(history=False)
    turns = {
        "from {} messages to an object on at 1/s": break_even(Workload(rate=1), batched=False),
        "{} at 1,000/s": break_even(Workload(rate=1000), batched=False),
        "({} without history)": break_even(Workload(rate=1000, settings=bare), batched=False),
        "from {} on at 1,000/s": break_even(Workload(rate=1000), batched=True),
    }
    assert [told for told, batch in turns.items() if told.format(batch) not in text] == []
    assert break_even(Workload(rate=100), batched=True) is None
