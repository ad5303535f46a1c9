"""What an operator changed at run time holds when a run ends; what a run was asked for stays as it was asked."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from s3queue import Queue, QueueSettings
from s3queue.spark_runs.service import JobRequest, asked_of
from s3queue.spark_runs.slots import RunStore
from s3queue.spark_runs.watch import LAUNCH_GRACE, RunWatch
from support.fake_jobs import silent
from support.heavy_queue import SPARK, launcher, leases, manifest

DEFINED = SPARK | {"max_attempts": 1}


def cold(bench):
    """The queue as a function knows it that has just started."""
    settings = QueueSettings.of(**DEFINED)
    return Queue(store=bench.store, name="exports", settings=settings, clock=bench.clock, chance=bench.chance)


def end(bench, jobs, job, *, by):
    watch, queue = RunWatch(jobs, "bench"), cold(bench)
    if by == "event":
        watch.job_changed({"exports": queue}, {"jobRunId": job})
    else:
        sweeper = bench.sweeper(queue)
        sweeper.check_runs = watch.check
        sweeper.sweep()


@pytest.mark.parametrize("by", ["event", "sweep"])
@pytest.mark.parametrize("changed", [{"max_attempts": 5}, {"dead_letters": False}])
def test_the_end_of_a_run_heeds_what_an_operator_has_changed(bench, jobs, by, changed):
    queue = bench.queue("exports", **DEFINED)
    path = queue.enqueue({"n": 1})
    launcher(jobs).launch(queue, [path])
    (run,) = jobs.started
    book = RunStore(queue)
    at_work, etag = book.manifest(run)
    book.write_manifest(replace(at_work, state="running", started=1), etag)
    queue.configure(**changed)

    end(bench, jobs, jobs.becomes("ended", "FAILED"), by=by)

    assert bench.keys("exports/dead/") == []
    assert (path in leases(bench, queue)) == ("max_attempts" in changed), "it waits for its next attempt"


def test_a_run_that_goes_on_does_not_ask_for_settings(bench, jobs):
    queue = cold(bench)
    launcher(jobs).launch(queue, [queue.enqueue({"n": 1})])
    jobs.becomes("running", "RUNNING")
    bench.store.take()

    RunWatch(jobs, "bench").check(queue)

    assert bench.store.take() == {"list": 1, "get": 1}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_request_that_is_repeated_is_the_same_whatever_has_changed_since(bench, jobs, when):
    queue = bench.queue("exports", **DEFINED)
    changed = {"max_executors": 8, "run_timeout": 1800, "executor_memory_mib": 4096}
    if when == "before":
        queue.configure(**changed)
    path = queue.enqueue({"n": 1})
    jobs.after = silent
    assert launcher(jobs).launch(queue, [path]) == "unknown"
    if when == "after":
        queue.configure(**changed)

    jobs.after = lambda request: None
    bench.clock.advance(LAUNCH_GRACE.total_seconds() + 1)
    RunWatch(jobs, "bench").check(cold(bench))  # other bytes for the same token are an error there

    (run,) = jobs.started
    assert jobs.asked == [run, run]
    assert RunStore(queue).slot(0).slot.state == "started"


def test_a_manifest_of_an_older_version_is_asked_for_with_the_settings_of_now(bench, jobs):
    queue = bench.queue("exports", **DEFINED)
    queue.configure(max_executors=8)
    jobs.after = silent
    launcher(jobs).launch(queue, [queue.enqueue({"n": 1})])
    (run,) = jobs.started
    older = manifest(bench, queue, run)
    del older["asked"]
    bench.put(queue.keys.manifest(run), json.dumps(older).encode())

    jobs.after = lambda request: None
    bench.clock.advance(LAUNCH_GRACE.total_seconds() + 1)
    RunWatch(jobs, "bench").check(cold(bench))

    assert RunStore(queue).slot(0).slot.state == "started"


@pytest.mark.parametrize("forged", [{"max_executors": -1}, {"run_timeout_seconds": 1e300}, {"max_executors": "many"}])
def test_a_forged_request_is_refused_and_its_messages_are_given_back(bench, jobs, forged):
    queue = bench.queue("exports", **DEFINED)
    path = queue.enqueue({"n": 1})
    jobs.before = silent
    launcher(jobs).launch(queue, [path])
    (run,) = jobs.asked
    bench.put(queue.keys.manifest(run), json.dumps(manifest(bench, queue, run) | {"asked": forged}).encode())

    bench.clock.advance(LAUNCH_GRACE.total_seconds() + 1)
    RunWatch(jobs, "bench").check(cold(bench))

    assert jobs.started == {}
    assert queue.claim(path).attempt == 1


def test_what_was_asked_for_is_read_as_it_was_written():
    settings = QueueSettings.of(**DEFINED, run_timeout=1234.5, max_executors=7, driver_python_mib=4000)
    asked = json.loads(json.dumps(asked_of(settings)))

    again = JobRequest.of("run-1", "exports", "bench", QueueSettings.of(**DEFINED), asked)

    assert again == JobRequest.of("run-1", "exports", "bench", settings)
