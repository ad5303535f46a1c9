"""Heavy messages become runs: at most `max_runs` of them, none lost, none doubled, no attempt burned by the service."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import pytest

from s3queue import Queue, QueueSettings
from s3queue.documents.lease import Lease
from s3queue.spark_runs.launcher import Launcher
from s3queue.spark_runs.service import NotStarted
from s3queue.spark_runs.slots import START_WITHIN, RunStore
from s3queue.spark_runs.watch import COOL, LAUNCH_GRACE, RunWatch
from s3queue.stores.memory import MemoryStore
from support.fake_jobs import FakeJobs, silent, throttled
from support.workbench import Workbench

SPARK = {"engine": "spark", "visibility_timeout": 60, "batch": 10}


@pytest.fixture
def bench():
    return Workbench()


@pytest.fixture
def jobs():
    return FakeJobs()


def launcher(jobs: FakeJobs) -> Launcher:
    return Launcher(jobs, "bench", threads=1)


def leases(bench: Workbench, queue: Queue) -> dict[str, Lease]:
    return {
        key.removeprefix(queue.keys.prefix("leases")): Lease.from_bytes(bench.read(key), key)
        for key in bench.keys(queue.keys.prefix("leases"))
    }


def manifest(bench: Workbench, queue: Queue, run: str) -> dict:
    return json.loads(bench.read(queue.keys.manifest(run)))


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


def test_the_most_urgent_messages_go_first(bench, jobs):
    queue = bench.queue("exports", **(SPARK | {"batch": 3}))
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
    store = MemoryStore("burst")
    queues = [
        Queue(store=store, name="exports", settings=QueueSettings.of(**SPARK, max_runs=max_runs)) for _ in range(20)
    ]
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
    assert len(named) == len(set(named)) == 10 * max_runs


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
    queue = bench.queue("files", heavy_above="1 KiB", batch=10)
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


def test_a_launch_whose_answer_was_lost_is_found_again_and_not_doubled(bench, jobs):
    queue = bench.queue("exports", **SPARK)
    path = queue.enqueue({"n": 1})
    jobs.after = silent

    assert launcher(jobs).launch(queue, [path]) == "unknown"
    assert launcher(jobs).launch(queue, [queue.enqueue({"n": 2})]) == "busy"
    jobs.after = lambda request: None
    bench.clock.advance(LAUNCH_GRACE.total_seconds() + 1)
    RunWatch(jobs, "bench").look_after(queue)

    assert len(jobs.started) == 1
    assert len(set(jobs.asked)) == 1
    held = RunStore(queue).slot(0)
    assert (held.slot.state, held.slot.job) == ("started", f"job-{held.slot.run}")
    assert leases(bench, queue)[path].attempt == 1


def test_a_launch_that_never_arrived_is_made_up_for_with_the_same_token(bench, jobs):
    queue = bench.queue("exports", **SPARK)
    queue.enqueue({"n": 1})
    jobs.before = silent
    launcher(jobs).launch(queue, [])
    assert jobs.started == {}

    jobs.before = lambda request: None
    bench.clock.advance(LAUNCH_GRACE.total_seconds() + 1)
    RunWatch(jobs, "bench").look_after(queue)

    assert list(jobs.started) == [jobs.asked[0]]


def test_an_old_launch_is_looked_for_by_name_because_tokens_do_not_live_for_ever(bench, jobs):
    queue = bench.queue("exports", **SPARK)
    queue.enqueue({"n": 1})
    jobs.after = silent
    launcher(jobs).launch(queue, [])
    jobs.after = lambda request: None
    bench.clock.advance(START_WITHIN.total_seconds() * 2)

    RunWatch(jobs, "bench").look_after(queue)

    assert len(jobs.asked) == 1
    assert RunStore(queue).slot(0).slot.job == f"job-{jobs.asked[0]}"


def test_a_launcher_that_crashed_before_it_asked_leaves_no_slot_taken(bench, jobs):
    queue = bench.queue("exports", **SPARK)
    path = queue.enqueue({"n": 1})
    book = RunStore(queue)
    book.open_slot(0, book.new_run())

    assert launcher(jobs).launch(queue, [path]) == "busy"
    bench.clock.advance(LAUNCH_GRACE.total_seconds() + 1)
    assert launcher(jobs).launch(queue, [path]) == "started"


def test_a_run_that_waits_for_capacity_keeps_its_messages(bench, jobs):
    queue = bench.queue("exports", **SPARK)
    path = queue.enqueue({"n": 1})
    launcher(jobs).launch(queue, [path])
    watch, sweeper = RunWatch(jobs, "bench"), bench.sweeper(queue)
    sweeper.look_after_runs = watch.look_after

    for _ in range(60):
        bench.clock.advance(60)
        sweeper.sweep()

    lease = leases(bench, queue)[path]
    assert (lease.state, lease.attempt) == ("processing", 1)


def test_a_run_that_failed_before_it_started_gives_its_messages_back(bench, jobs):
    queue = bench.queue("exports", **SPARK)
    path = queue.enqueue({"n": 1})
    launcher(jobs).launch(queue, [path])
    job = jobs.becomes("ended", "FAILED")

    RunWatch(jobs, "bench").job_changed({"exports": queue}, {"jobRunId": job, "state": "FAILED"})

    assert leases(bench, queue) == {}
    assert RunStore(queue).slot(0) is None
    assert bench.keys(queue.keys.prefix("workers")) == []
    assert queue.claim(path).attempt == 1


def test_a_failed_run_fails_what_it_had_started_and_gives_back_the_rest(bench, jobs):
    queue = bench.queue("exports", **SPARK)
    for n in range(3):
        queue.enqueue({"n": n})
    launcher(jobs).launch(queue, [])
    book = RunStore(queue)
    (run,) = jobs.started
    at_work, etag = book.manifest(run)
    book.write_manifest(replace(at_work, state="running", started=1), etag)
    jobs.becomes("ended", "FAILED")
    sweeper = bench.sweeper(queue)
    sweeper.look_after_runs = RunWatch(jobs, "bench").look_after

    sweeper.sweep()

    held = leases(bench, queue)
    assert list(held) == [at_work.paths[0]]
    assert held[at_work.paths[0]].state == "waiting"
    assert held[at_work.paths[0]].failure.type == "RunFailed"
    assert "said the service" in held[at_work.paths[0]].failure.message
    assert book.slot(0) is None
    assert manifest(bench, queue, run)["state"] == "failed"


def test_a_run_that_runs_and_is_silent_is_cancelled(bench, jobs):
    queue = bench.queue("exports", **SPARK)
    queue.enqueue({"n": 1})
    launcher(jobs).launch(queue, [])
    job = jobs.becomes("running", "RUNNING")
    watch = RunWatch(jobs, "bench")

    watch.look_after(queue)
    assert jobs.cancelled == []
    bench.clock.advance(START_WITHIN.total_seconds() + 60)
    watch.look_after(queue)
    assert jobs.cancelled == [job]


def test_a_job_that_is_not_ours_changes_nothing(bench, jobs):
    queue = bench.queue("exports", **SPARK)
    queue.enqueue({"n": 1})
    launcher(jobs).launch(queue, [])
    before = bench.keys()

    RunWatch(jobs, "bench").job_changed({"exports": queue}, {"jobRunId": "somebody-elses", "state": "FAILED"})

    assert bench.keys() == before


def test_a_manifest_of_many_messages_keeps_them_with_one_heartbeat(bench, jobs):
    queue = bench.queue("exports", **(SPARK | {"batch": 300}))
    for n in range(300):
        queue.enqueue({"n": n})
    launcher(jobs).launch(queue, [])
    (run,) = jobs.started
    beat = json.loads(bench.read(queue.keys.worker(run)))

    assert beat["run"] == run
    assert "holds" not in beat
    bench.clock.advance(queue.settings.visibility_timeout.total_seconds() * 3)
    report = bench.sweeper(queue).sweep()
    assert report.endings == {}
