"""The estimate's requests are the library's: each path is run for real, counted, and compared."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from s3queue import InvalidRequest, QueueSettings, Reject
from s3queue.costs import requests as operations
from s3queue.costs.estimate import estimate
from s3queue.costs.requests import BILLED_AS_READS, BILLED_AS_WRITES, RequestCounts
from s3queue.costs.workload import Workload, invocations_per_object, light_object
from s3queue.deployment import SWEEPER_STAYS_SECONDS
from s3queue.spark_runs.launcher import Launcher
from s3queue.spark_runs.slots import as_run
from s3queue.spark_runs.watch import LAUNCH_GRACE
from spark.heavy.driver import Driver
from spark.heavy.messages import MessageWork
from support.fake_jobs import FakeJobs
from support.workbench import Workbench, next_tick
from support.worker_function import WorkerFunction

FOREVER = 10**6


def counted(bench: Workbench) -> RequestCounts:
    """What was asked since the last look, as the model counts. `queue.json` is read by the clock, not by message."""
    found = RequestCounts(Counter((verb.upper(), kind_of(key)) for verb, key in bench.store.log))
    bench.store.take()
    return RequestCounts({which: count for which, count in found.counts.items() if which != ("GET", "queue.json")})


def kind_of(key: str) -> str:
    return key.split("/")[1] or operations.ROOT


def same(found: RequestCounts, expected: RequestCounts, *, within: float = 1e-6) -> bool:
    """Request by request and kind by kind; pytest shows what differs."""
    kinds = found.counts.keys() | expected.counts.keys()
    real, predicted = ({which: one.counts.get(which, 0) for which in kinds} for one in (found, expected))
    assert real == pytest.approx(predicted, abs=within)
    assert found.total() == pytest.approx(expected.total())
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


@pytest.mark.parametrize("history", [True, False])
@pytest.mark.parametrize("batch", [1, 10, 100])
def test_the_happy_path(bench, batch, history):
    queue = bench.queue(history=history)
    function = WorkerFunction(queue, lambda body: None)
    bodies = [{"n": n} for n in range(batch)]
    path = queue.enqueue(bodies[0]) if batch == 1 else queue.enqueue_many(bodies, per_object=batch)[0]

    assert function.invoke(path, notified_at=bench.clock.now()) == {"completed": 1}

    assert same(counted(bench), light_object(load_of(queue, batch=batch)))


@pytest.mark.parametrize("batch", [1, 10])
def test_a_kept_payload_is_one_copy_more(bench, batch):
    queue = bench.queue(keep_payload=True)
    bodies = [{"n": n} for n in range(batch)]
    path = queue.enqueue(bodies[0]) if batch == 1 else queue.enqueue_many(bodies, per_object=batch)[0]

    WorkerFunction(queue, lambda body: None).invoke(path, notified_at=bench.clock.now())

    spent = counted(bench)
    assert same(spent, light_object(load_of(queue, batch=batch)))
    assert spent.total(frozenset({"COPY"}), "done") == 1


def test_what_the_claim_does_not_keep_is_read_again(bench):
    queue = bench.queue()
    body = b'{"n": 1}' + b" " * (9 * 1024 * 1024)
    path = queue.enqueue(body)

    WorkerFunction(queue, lambda body: None).invoke(path, notified_at=bench.clock.now())

    assert same(counted(bench), light_object(load_of(queue, size=len(body))))


def test_retries_and_what_they_end_in(bench):
    """Half of the attempts fail, and there are two: of four messages, two complete at once, one later, one dies."""
    queue = bench.queue(max_attempts=2)
    function = WorkerFunction(queue, failing())
    for number, fails in enumerate([0, 0, 1, 2]):
        path = queue.enqueue({"n": number, "fails": fails})
        function.invoke(path, notified_at=bench.clock.now())

    assert same(counted(bench), light_object(load_of(queue, retries=0.5)) * 4)


def test_a_batch_of_which_every_line_fails_until_it_is_dead(bench):
    queue = bench.queue(max_attempts=3)
    (path,) = queue.enqueue_many([{"n": n, "fails": 3} for n in range(10)], per_object=10)

    WorkerFunction(queue, failing()).invoke(path, notified_at=bench.clock.now())

    assert same(counted(bench), light_object(load_of(queue, batch=10, retries=1.0)))


@pytest.mark.parametrize("batch", [1, 10])
@pytest.mark.parametrize("history", [True, False])
def test_what_is_rejected(bench, batch, history):
    queue = bench.queue(history=history)
    bodies = [{"n": n} for n in range(batch)]
    path = queue.enqueue(bodies[0]) if batch == 1 else queue.enqueue_many(bodies, per_object=batch)[0]

    assert WorkerFunction(queue, rejecting).invoke(path, notified_at=bench.clock.now()) == {"dead": 1}

    assert same(counted(bench), light_object(load_of(queue, batch=batch, dead=1.0)))


@pytest.mark.parametrize("others", [0, 3])
def test_a_late_event_looks_first_and_around_afterwards(bench, others):
    queue = bench.queue()
    for _ in range(others):
        assert bench.queue(worker_id="busy").claim(queue.enqueue({}))
    counted(bench)
    function = WorkerFunction(queue, lambda body: None)
    notified_at = bench.clock.now()
    path = queue.enqueue({})
    bench.clock.advance(6)

    assert function.invoke(path, notified_at=notified_at) == {"completed": 1}

    assert same(counted(bench), light_object(load_of(queue, late=1.0), others=FOREVER if others else 0))


def test_an_event_whose_message_was_drained_meanwhile_only_looks(bench):
    queue = bench.queue()
    path = queue.enqueue({})
    queue.complete(queue.claim(path))
    bench.clock.advance(6)
    counted(bench)

    function = WorkerFunction(queue, lambda body: None)
    assert function.invoke(path, notified_at=bench.clock.now() - timedelta(seconds=6)) == {"not claimed": 1}

    assert same(counted(bench), operations.READ_FIRST)


@pytest.mark.parametrize("shards", [4, 16])
def test_a_late_event_looks_at_every_shard_that_has_something(bench, shards):
    queue = bench.queue(shards=shards)
    for _ in range(50 * shards):
        assert bench.queue(worker_id="busy").claim(queue.enqueue({}))
    counted(bench)
    path = queue.enqueue({})
    notified_at = bench.clock.now()
    bench.clock.advance(6)

    assert WorkerFunction(queue, lambda body: None).invoke(path, notified_at=notified_at) == {"completed": 1}

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

    assert WorkerFunction(queue, lambda body: None).invoke(*dispatched, notified_at=None) == {"completed": 1}

    assert same(spent + counted(bench), light_object(load_of(queue, rescued=1.0)))


def test_a_retry_that_is_due_later_is_the_sweepers_to_dispatch(bench):
    queue = bench.queue(max_attempts=2, retry_base=20)
    function = WorkerFunction(queue, failing())
    dispatched: list[str] = []
    sweeper = bench.sweeper(queue, dispatched)
    path = queue.enqueue({"fails": 2})
    assert function.invoke(path, notified_at=bench.clock.now()) == {"retried": 1}
    bench.clock.advance(21)
    spent = counted(bench)
    sweeper.sweep()
    dropped = RequestCounts({which: count for which, count in counted(bench).counts.items() if which[0] == "DELETE"})

    assert function.invoke(*dispatched, notified_at=None) == {"dead": 1}

    load = load_of(queue, retries=1.0)
    assert same(spent + dropped + counted(bench), light_object(load))
    assert invocations_per_object(load) == 2


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
    function.invoke(path, notified_at=bench.clock.now())
    invocations = 1
    spent = counted(bench)
    while bench.keys("orders/messages/"):
        sweeper.sweep()
        spent += RequestCounts({which: count for which, count in counted(bench).counts.items() if which[0] == "DELETE"})
        function.invoke(*dispatched, notified_at=None)
        dispatched.clear()
        invocations += 1
        spent += counted(bench)

    assert seen == list(range(90))
    load = load_of(queue, batch=90, handler_seconds=1.0)
    assert invocations_per_object(load) == invocations == 3
    assert same(spent, light_object(load))


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
    # Root and leases take turns, so one of them may have come once more.
    assert same(spent, without_queue_json(busy.sweeping * 60), within=0.5)
    # Its minute, and two seconds in which it counts the last hour.
    assert busy.sweeper.seconds == pytest.approx(56, abs=2)


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
    assert same(spent, without_queue_json(predicted) + once, within=0.5)


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
    """And without what counts the last hour, which has a test of its own: test_looking_back.py."""
    return RequestCounts(
        {which: count for which, count in spent.counts.items() if which[1] not in ("queue.json", "records")}
    )


@pytest.mark.parametrize(("messages", "adopted", "further"), [(1, 1, 0), (10, 10, 0), (30, 10, 2)])
def test_a_spark_run(bench, messages, adopted, further):
    queue = bench.queue("exports", engine="spark", visibility_timeout=60, messages_per_run=10)
    jobs = FakeJobs()
    paths = [queue.enqueue({}) for _ in range(messages)]
    assert Launcher(jobs, "bench", threads=1).launch(queue, paths[:1]) == "started"
    mine = as_run(queue, next(iter(jobs.started)))
    work = MessageWork(mine, lambda spark, message, context: None, None)

    Driver(mine, work, seconds=3600, threads=1, beats=False).drain()

    each = operations.ENQUEUE + operations.CLAIM + operations.BEGIN + operations.RECORD + operations.CLEAR
    run = without_queue_json(operations.LAUNCH + operations.DRIVE)
    assert same(counted(bench), each * messages + run + operations.ADOPT * adopted + operations.NEXT_ROUND * further)


def test_a_spark_batch_that_is_not_full_looks_for_more(bench):
    queue = bench.queue("exports", engine="spark", visibility_timeout=60, messages_per_run=10)
    jobs = FakeJobs()
    Launcher(jobs, "bench", threads=1).launch(queue, [queue.enqueue({})])
    for _ in range(5):
        queue.enqueue({})
    mine = as_run(queue, next(iter(jobs.started)))
    # Threads that claim at one time may race for a message, which costs a request.
    work = MessageWork(mine, lambda spark, message, context: None, None)
    Driver(mine, work, seconds=3600, threads=1, beats=False).drain()

    each = operations.ENQUEUE + operations.CLAIM + operations.BEGIN + operations.RECORD + operations.CLEAR
    run = (
        without_queue_json(operations.LAUNCH + operations.DRIVE)
        + operations.ADOPT
        + operations.NEXT_ROUND
        + operations.LIST_FOR_MORE
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

    assert same(counted(bench), operations.NOTIFICATION_DURING_RUN)


def test_a_call_under_a_rate_costs_at_most_a_get_and_a_put_more(bench):
    queue = bench.queue(rate="100/min", visibility_timeout=600)
    processor = bench.processor(queue, lambda body: None)
    processor.run(queue.enqueue(b"{}"))
    for pause in (5, 5, 0, 0, 0, 0):
        bench.clock.advance(pause)
        path = queue.enqueue(b"{}")
        counted(bench)
        processor.run(path)
        found = counted(bench) + operations.ENQUEUE
        if pause:
            assert same(found, light_object(load_of(queue)))
        else:
            assert found.total(kind="limits") <= 1


def test_the_calls_of_a_batch_count_under_a_rate(bench):
    limited, free = (Workload(rate=1, batch=50, settings=QueueSettings.of(rate=rate)) for rate in ("9/s", None))
    assert light_object(limited).total(kind="limits") == 2 * 50
    assert light_object(free).total(kind="limits") == 0


@pytest.mark.parametrize("history", [True, False])
def test_a_message_whose_dedup_id_counts_for_a_while(bench, history):
    queue = bench.queue(history=history)
    processor = bench.processor(queue, lambda body: None)
    processor.run(queue.enqueue(b"{}", dedup_id="a", dedup_for=60))
    assert same(counted(bench), light_object(load_of(queue, dedup=1.0)))
    processor.run(queue.enqueue(b"{}", dedup_id="b", dedup_for=60))
    processor.run(queue.enqueue(b"{}"))
    assert same(counted(bench), light_object(load_of(queue, dedup=0.5)) * 2)


def test_what_is_rejected_with_a_dedup_id(bench):
    queue = bench.queue()
    bench.processor(queue, rejecting).run(queue.enqueue(b"{}", dedup_id="a", dedup_for=60))
    assert same(counted(bench), light_object(load_of(queue, dedup=1.0, dead=1.0)))


def test_a_dedup_id_costs_what_the_document_says():
    more = light_object(Workload(rate=1, dedup=1.0)).total(BILLED_AS_WRITES) * 5
    assert more + light_object(Workload(rate=1, dedup=1.0)).total(BILLED_AS_READS) * 0.4 == pytest.approx(21.20)


@pytest.mark.parametrize("batch", [1, 10])
def test_what_is_cancelled_while_it_waits(bench, batch):
    queue = bench.queue()
    (path,) = queue.enqueue_many([{}] * batch) if batch > 1 else [queue.enqueue(b"{}")]
    queue.cancel(path)
    found = counted(bench)
    assert same(found, operations.ENQUEUE + operations.CANCEL)
    # If every object is cancelled, nothing else is asked for, and no function runs.
    load = Workload(rate=10, batch=batch, cancelled=1.0, settings=queue.settings)
    estimated = estimate(load)
    assert same(estimated.requests, found * (10 / batch))
    assert estimated.worker.invocations == 0


def test_half_of_them_cancelled_leaves_half_of_the_rest():
    every, half = (estimate(Workload(rate=1000, dead=0.1, cancelled=share)) for share in (0.0, 0.5))
    assert half.worker.invocations == pytest.approx(every.worker.invocations / 2)
    assert half.workload.letters == pytest.approx(every.workload.letters / 2)
    assert half.requests.total(kind="dead") == pytest.approx(every.requests.total(kind="dead") / 2)


@pytest.mark.parametrize("what", ["dedup", "cancelled"])
def test_what_is_not_counted_for_partitions_is_refused(what):
    with pytest.raises(InvalidRequest, match="not counted for partitions"):
        Workload(rate=1, settings=QueueSettings.of(partitions=4), **{what: 0.5})
    with pytest.raises(InvalidRequest, match=f"{what} must be a share from 0 to 1"):
        Workload(rate=1, **{what: 1.5})


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_minute_of_the_sweeper_of_a_queue_with_schedules(bench, is_busy):
    queue = bench.queue(visibility_timeout=600)
    for number in range(3):
        queue.every("0 3 1 1 *", name=f"yearly-{number}")
    if is_busy:
        for _ in range(100):
            assert queue.claim(queue.enqueue({}))
    sweeper = bench.sweeper(queue)
    minute_of(bench, sweeper)  # its first reads the schedules, and looks for old dead letters

    spent = minute_of(bench, sweeper)

    load = Workload(rate=100 if is_busy else 0, handler_seconds=0.5, schedules=3)
    assert same(spent, without_queue_json(estimate(load).sweeping * 60), within=0.5)
    assert spent.total(kind="schedules") >= (2 if is_busy else 1)


def test_fewer_schedules_than_queues_are_listed_in_so_many_queues():
    few, one = (estimate(Workload(rate=0, queues=queues, schedules=3)) for queues in (10, 1))
    assert few.sweeping.total(kind="schedules") == pytest.approx(3 * one.sweeping.total(kind="schedules"))
    with pytest.raises(InvalidRequest, match="schedules must be 0 or more"):
        Workload(rate=0, schedules=-1)
