"""Heavy messages become runs: at most `max_runs` of them, none lost, none doubled, no attempt burned."""

from __future__ import annotations

import gc
import threading

import pytest

from s3queue import Queue, QueueSettings
from s3queue.protocol.claim import Claim
from s3queue.spark_runs.launcher import Launcher
from s3queue.spark_runs.service import NotStarted
from s3queue.spark_runs.slots import COOL, RunStore
from s3queue.spark_runs.watch import LAUNCH_GRACE
from s3queue.stores.memory import MemoryStore
from support.fake_jobs import throttled
from support.heavy_queue import SPARK, launcher, leases, manifest, take_over
from support.manual_clock import StandingClock


def test_one_run_takes_a_batch_and_is_asked_for_once(bench, jobs):
    queue = bench.queue("exports", **SPARK)
    paths = [queue.enqueue({"n": n}) for n in range(15)]

    assert launcher(jobs).launch(queue, [paths[3]]) == "started"

    (run,) = jobs.started
    held = leases(bench, queue)
    assert len(held) == 10
    assert paths[3] in held
    assert {lease.owner for lease in held.values()} == {run}
    assert sorted(manifest(bench, queue, run)["paths"]) == sorted(held)
    request = jobs.started[run]
    assert (request.queue, request.bucket, request.timeout) == ("exports", "bench", queue.settings.run_timeout)


def test_a_launch_keeps_no_payload_in_its_memory(bench, jobs):
    queue = bench.queue("videos", **SPARK)
    paths = [queue.enqueue(b"x" * 1000) for _ in range(10)]
    kept = []
    jobs.before = lambda request: kept.extend(one.message for one in gc.get_objects() if type(one) is Claim)

    launcher(jobs).launch(queue, paths)

    mine = [message for message in kept if message.queue == "videos"]
    assert len(mine) == 10
    assert [message.inline for message in mine] == [None] * 10


def test_the_most_urgent_messages_go_first(bench, jobs):
    queue = bench.queue("exports", **(SPARK | {"messages_per_run": 3}))
    low = [queue.enqueue({"n": n}) for n in range(5)]
    high = [queue.enqueue({"n": n}, priority=200) for n in range(2)]

    launcher(jobs).launch(queue, [])

    assert set(high) < set(leases(bench, queue))
    assert len(set(low) & set(leases(bench, queue))) == 1


def test_while_a_run_is_there_further_messages_cost_two_reads_and_start_nothing(bench, jobs):
    queue = bench.queue("exports", **SPARK)
    queue.enqueue({"n": 1})
    launcher(jobs).launch(queue, [])
    bench.clock.advance(LAUNCH_GRACE.total_seconds() + 5)
    late = queue.enqueue({"n": 2})
    bench.store.take()

    assert launcher(jobs).launch(queue, [late]) == "busy"

    assert bench.store.take() == {"get": 2}
    assert len(jobs.started) == 1
    assert late not in leases(bench, queue)


@pytest.mark.parametrize("max_runs", [1, 3])
def test_a_thousand_heavy_messages_at_once_start_at_most_max_runs_runs(max_runs, jobs):
    clock = StandingClock()
    store = MemoryStore("burst", clock=clock)
    settings = QueueSettings.of(**SPARK, max_runs=max_runs)
    queues = [Queue(store=store, name="exports", settings=settings, clock=clock) for _ in range(20)]
    paths = [queues[0].enqueue({"n": n}) for n in range(1000)]
    barrier = threading.Barrier(len(queues))

    def ring(number: int) -> None:
        barrier.wait()
        for path in paths[number :: len(queues)]:
            Launcher(jobs, "bench", threads=1).launch(queues[number], [path])

    threads = [threading.Thread(target=ring, args=(number,)) for number in range(len(queues))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(jobs.started) == max_runs
    named = [path for run in jobs.started for path in RunStore(queues[0]).manifest(run)[0].paths]
    assert len(named) == len(set(named))
    leased = store.list(queues[0].keys.prefix("leases")).objects
    assert set(named) == {queues[0].keys.path_under("leases", entry.key) for entry in leased}
    # Two launches may compete for the same ten messages. Each has some, and their drivers claim the others.
    assert max_runs <= len(named) <= 10 * max_runs


def test_a_second_run_starts_only_if_a_full_batch_more_is_waiting(bench, jobs):
    queue = bench.queue("exports", **SPARK, max_runs=2)
    for n in range(15):
        queue.enqueue({"n": n})

    assert launcher(jobs).launch(queue, []) == "started"
    assert launcher(jobs).launch(queue, []) == "busy"
    for n in range(5):
        queue.enqueue({"n": n})
    assert launcher(jobs).launch(queue, []) == "started"
    assert len(jobs.started) == 2


def test_of_a_mixed_queue_only_the_large_messages_go_to_spark(bench, jobs):
    queue = bench.queue("files", heavy_above="1 KiB", messages_per_run=10)
    light = [queue.enqueue(b"x" * 100) for _ in range(5)]
    heavy = [queue.enqueue(b"x" * 2000) for _ in range(3)]

    # Even if a light one is named: whoever rang may have been mistaken.
    launcher(jobs).launch(queue, [light[0], heavy[0]])

    assert set(leases(bench, queue)) == set(heavy)
    assert launcher(jobs).launch(bench.queue("other", heavy_above="1 KiB"), []) == "nothing"


def test_throttling_gives_everything_back_and_burns_no_attempt(bench, jobs):
    queue = bench.queue("exports", **SPARK)
    path = queue.enqueue({"n": 1})
    jobs.before = throttled

    with pytest.raises(NotStarted, match="ThrottlingException"):
        launcher(jobs).launch(queue, [path])

    assert leases(bench, queue) == {}
    assert bench.keys(queue.keys.prefix("workers")) == []
    claim = queue.claim(path)
    assert claim is not None
    assert claim.attempt == 1


def test_throttling_in_a_later_attempt_burns_none_either(bench, jobs):
    queue = bench.queue("exports", **SPARK)
    path = queue.enqueue({"n": 1})
    queue.fail(queue.claim(path), "once", retry_after=0)
    jobs.before = throttled

    with pytest.raises(NotStarted):
        launcher(jobs).launch(queue, [path])

    assert leases(bench, queue)[path].state == "waiting"
    assert queue.claim(path, read_first=True).attempt == 2


def test_a_request_that_is_refused_when_it_is_repeated_may_have_started_the_run(bench, jobs):
    queue = bench.queue("exports", **SPARK)
    path = queue.enqueue({"n": 1})

    def repeated(request):
        take_over(queue, request.run)
        throttled(request)

    jobs.after = repeated
    assert launcher(jobs).launch(queue, [path]) == "unknown"

    (run,) = jobs.started
    assert leases(bench, queue)[path].state == "processing"
    assert manifest(bench, queue, run)["state"] == "running"
    assert bench.keys(queue.keys.prefix("workers")) == [queue.keys.worker(run)]


def test_after_a_refusal_nobody_asks_again_for_a_while_and_then_it_works(bench, jobs):
    queue = bench.queue("exports", **SPARK)
    path = queue.enqueue({"n": 1})
    jobs.before = throttled
    with pytest.raises(NotStarted):
        launcher(jobs).launch(queue, [path])

    for _ in range(100):
        assert launcher(jobs).launch(queue, [path]) == "busy"
    assert len(jobs.asked) == 1

    jobs.before = lambda request: None
    bench.clock.advance(COOL.total_seconds() + 1)
    assert launcher(jobs).launch(queue, [path]) == "started"
