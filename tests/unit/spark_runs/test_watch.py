"""Runs are watched: what was lost, failed or fell silent gives its messages back."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest

from s3queue.errors import Unreadable
from s3queue.protocol.liveness import HeartbeatWriter
from s3queue.spark_runs.slots import COOL, FORGED_AFTER, MOST_COOL, NEWER_AFTER, START_WITHIN, RunStore, as_run
from s3queue.spark_runs.watch import LAUNCH_GRACE, RunWatch
from support.fake_jobs import silent, throttled
from support.heavy_queue import SPARK, is_taken, launcher, leases, manifest, take_over


def test_a_launch_whose_answer_was_lost_is_found_again_and_not_doubled(bench, jobs):
    queue = bench.queue("exports", **SPARK)
    path = queue.enqueue({"n": 1})
    jobs.after = silent

    assert launcher(jobs).launch(queue, [path]) == "unknown"
    assert launcher(jobs).launch(queue, [queue.enqueue({"n": 2})]) == "busy"
    jobs.after = lambda request: None
    bench.clock.advance(LAUNCH_GRACE.total_seconds() + 1)
    RunWatch(jobs, "bench").check(queue)

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
    RunWatch(jobs, "bench").check(queue)

    assert list(jobs.started) == [jobs.asked[0]]


def test_an_old_launch_is_looked_for_by_name_because_tokens_do_not_live_for_ever(bench, jobs):
    queue = bench.queue("exports", **SPARK)
    queue.enqueue({"n": 1})
    jobs.after = silent
    launcher(jobs).launch(queue, [])
    jobs.after = lambda request: None
    bench.clock.advance(START_WITHIN.total_seconds() * 2)

    RunWatch(jobs, "bench").check(queue)

    assert len(jobs.asked) == 1
    assert RunStore(queue).slot(0).slot.job == f"job-{jobs.asked[0]}"


def start_without_answer(bench, jobs):
    """A run that was started, and nobody knows it: its queue, its message and its name."""
    queue = bench.queue("exports", **SPARK)
    path = queue.enqueue({"n": 1})
    jobs.after = silent
    launcher(jobs).launch(queue, [path])
    (run,) = jobs.started
    return queue, path, run


def test_a_refusal_takes_nothing_from_a_run_whose_driver_is_at_work(bench, jobs):
    queue, path, run = start_without_answer(bench, jobs)
    take_over(queue, run)
    jobs.becomes("running", "RUNNING")
    before = bench.read(queue.keys.manifest(run))

    jobs.before = throttled
    bench.clock.advance(LAUNCH_GRACE.total_seconds() + 1)
    RunWatch(jobs, "bench").check(queue)

    assert bench.keys(queue.keys.prefix("workers")) == [queue.keys.worker(run)]
    assert bench.read(queue.keys.manifest(run)) == before
    assert leases(bench, queue)[path].state == "processing"
    held = RunStore(queue).slot(0)
    assert (held.slot.state, held.slot.job) == ("started", ""), "of two jobs, the service may name the other one"


def test_a_driver_that_starts_while_its_run_is_refused_keeps_it(bench, jobs):
    queue, path, run = start_without_answer(bench, jobs)

    def too_late(request):
        take_over(queue, run)
        throttled(request)

    jobs.before = too_late
    bench.clock.advance(LAUNCH_GRACE.total_seconds() + 1)
    RunWatch(jobs, "bench").check(queue)

    assert bench.keys(queue.keys.prefix("workers")) == [queue.keys.worker(run)]
    assert manifest(bench, queue, run)["state"] == "running"
    assert leases(bench, queue)[path].state == "processing"


def test_whoever_gives_a_refused_run_up_may_crash_in_between(bench, jobs):
    queue = bench.queue("exports", **SPARK)
    path = queue.enqueue({"n": 1})
    jobs.before = silent
    launcher(jobs).launch(queue, [path])
    (run,) = jobs.asked

    def crash(operation, key, perform):
        if "/leases/" in key:
            raise KeyboardInterrupt
        return perform()

    jobs.before, bench.around = throttled, crash
    bench.clock.advance(LAUNCH_GRACE.total_seconds() + 1)
    with pytest.raises(KeyboardInterrupt):
        RunWatch(jobs, "bench").check(queue)
    assert manifest(bench, queue, run)["state"] == "failed", "a driver that starts now touches nothing"

    bench.around = None
    watch = RunWatch(jobs, "bench")
    for _ in range(2):
        watch.check(queue)
        bench.clock.advance(START_WITHIN.total_seconds() + 60)
    watch.check(queue)

    assert len(jobs.asked) == 2, "it is not asked for again"
    assert not is_taken(queue)
    assert leases(bench, queue) == {}
    assert queue.claim(path).attempt == 1


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
    sweeper.check_runs = watch.check

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
    assert not is_taken(queue)
    assert bench.keys(queue.keys.prefix("workers")) == []
    assert queue.claim(path).attempt == 1


def fail_before_start(bench, jobs, queue, watch):
    """A run is launched, and its job fails before a driver is there: whether there was one."""
    before = len(jobs.started)
    launcher(jobs).launch(queue, [])
    if len(jobs.started) == before:
        return False
    job = jobs.becomes("ended", "FAILED")
    watch.job_changed({"exports": queue}, {"jobRunId": job})
    return True


def test_a_job_that_cannot_start_is_launched_less_and_less_often(bench, jobs, caplog):
    """No attempt is used, so nothing else would end it: an import error would be paid for once a minute."""
    queue = bench.queue("exports", **SPARK)
    path = queue.enqueue({"n": 1})
    watch, begun_at, starts = RunWatch(jobs, "bench"), bench.clock.monotonic(), []
    for _ in range(12 * 360):
        watch.check(queue)
        if fail_before_start(bench, jobs, queue, watch):
            starts.append(bench.clock.monotonic() - begun_at)
        bench.clock.advance(10)

    assert [round(later - sooner, -1) for sooner, later in pairwise(starts)][:9] == [
        *(COOL.total_seconds() * 2**n + 10 for n in range(8)),
        MOST_COOL.total_seconds() + 10,
    ]
    assert len(starts) <= 20, "in twelve hours"
    held = RunStore(queue).slot(0)
    assert held.slot.reason.startswith(
        f"failed before it started a message ({len(starts)} in a row), no run for 3600 s"
    )
    assert "said the service" in held.slot.reason
    assert held.slot.reason in caplog.text
    assert queue.claim(path).attempt == 1


def test_one_end_of_a_run_counts_once_however_often_it_is_told(bench, jobs):
    queue = bench.queue("exports", **SPARK)
    queue.enqueue({"n": 1})
    watch = RunWatch(jobs, "bench")
    fail_before_start(bench, jobs, queue, watch)
    bench.clock.advance(5)

    watch.check(queue)
    watch.job_changed({"exports": queue}, {"jobRunId": f"job-{next(iter(jobs.started))}"})

    held = RunStore(queue).slot(0)
    assert (held.slot.failures, held.age.total_seconds()) == (1, 5)


def test_a_run_that_started_a_message_lets_the_failures_before_it_be_forgotten(bench, jobs):
    queue = bench.queue("exports", **SPARK)
    queue.enqueue({"n": 1})
    watch, book = RunWatch(jobs, "bench"), RunStore(queue)
    for _ in range(3):
        assert fail_before_start(bench, jobs, queue, watch)
        bench.clock.advance(MOST_COOL.total_seconds())
    assert book.slot(0).slot.failures == 3

    assert launcher(jobs).launch(queue, []) == "started"
    at_work, etag = book.manifest(list(jobs.started)[-1])
    book.write_manifest(replace(at_work, state="running", started=1), etag)
    watch.job_changed({"exports": queue}, {"jobRunId": jobs.becomes("ended", "FAILED")})

    assert book.slot(0) is None


def test_a_slot_that_cools_is_gone_when_nobody_has_asked_for_long(bench, jobs):
    queue = bench.queue("exports", **SPARK)
    queue.enqueue({"n": 1})
    watch = RunWatch(jobs, "bench")
    fail_before_start(bench, jobs, queue, watch)

    bench.clock.advance((COOL + MOST_COOL).total_seconds())
    watch.check(queue)
    assert RunStore(queue).slot(0) is not None
    bench.clock.advance(1)
    watch.check(queue)
    assert RunStore(queue).slot(0) is None


def test_a_run_that_held_only_partitions_is_not_taken_for_one_that_could_not_start(bench, jobs):
    """The partition's lease counts the attempts."""
    queue = bench.queue("exports", **SPARK)
    queue.enqueue({"n": 1}, group="a")
    launcher(jobs).launch(queue, ["messages/@a/x"])
    (run,) = jobs.started
    take_over(queue, run)

    RunWatch(jobs, "bench").job_changed({"exports": queue}, {"jobRunId": jobs.becomes("ended", "FAILED")})

    assert RunStore(queue).slot(0) is None


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
    sweeper.check_runs = RunWatch(jobs, "bench").check

    sweeper.sweep()

    held = leases(bench, queue)
    assert list(held) == [at_work.paths[0]]
    assert held[at_work.paths[0]].state == "waiting"
    assert held[at_work.paths[0]].failure.type == "RunFailed"
    assert "said the service" in held[at_work.paths[0]].failure.message
    assert book.slot(0) is None
    assert manifest(bench, queue, run)["state"] == "failed"


def is_untouched(bench, queue, path, run):
    return (
        leases(bench, queue)[path].state == "processing"
        and manifest(bench, queue, run)["state"] == "running"
        and bench.keys(queue.keys.prefix("workers")) == [queue.keys.worker(run)]
        and RunStore(queue).slot(0) is not None
    )


@pytest.mark.parametrize("state", ["SUCCESS", "FAILED", "CANCELLED"])
@pytest.mark.parametrize("is_known", [True, False])
def test_the_end_of_a_second_job_of_a_run_does_not_end_the_run(bench, jobs, is_known, state):
    """Its token was forgotten, or someone has started one like it: its driver touches nothing, nor does its end."""
    if is_known:
        queue = bench.queue("exports", **SPARK)
        path = queue.enqueue({"n": 1})
        launcher(jobs).launch(queue, [path])
        (run,) = jobs.started
    else:
        queue, path, run = start_without_answer(bench, jobs)
    take_over(queue, run)
    watch = RunWatch(jobs, "bench")
    jobs.becomes("running", "RUNNING")
    copy = jobs.copy(run, "ended", state)

    watch.job_changed({"exports": queue}, {"jobRunId": copy})
    assert is_untouched(bench, queue, path, run)
    for _ in range(3):
        bench.clock.advance(LAUNCH_GRACE.total_seconds() + 1)
        watch.check(queue)
        assert is_untouched(bench, queue, path, run)

    # What the run holds is not lost with its own job: at once if that is known, or when its heartbeat is over.
    job = jobs.becomes("ended", "FAILED")
    watch.job_changed({"exports": queue}, {"jobRunId": job})
    bench.clock.advance(0 if is_known else START_WITHIN.total_seconds() + 60)
    watch.check(queue)
    assert path not in leases(bench, queue)
    assert not is_taken(queue)


def test_a_token_that_was_forgotten_makes_a_second_job_whose_success_ends_nothing(bench, jobs):
    """The slot has the second job's id then. If a driver was at work and its job succeeded, its heartbeat is gone."""
    queue, path, run = start_without_answer(bench, jobs)
    copy = jobs.copy(run)
    book = RunStore(queue)
    book.write_slot(book.slot(0), state="started", job=copy)
    take_over(queue, run)
    jobs.phases[copy] = ("ended", "SUCCESS")
    watch = RunWatch(jobs, "bench")

    watch.job_changed({"exports": queue}, {"jobRunId": copy})
    assert is_untouched(bench, queue, path, run)

    bench.store.delete(queue.keys.worker(run))
    bench.clock.advance(SPARK["visibility_timeout"] + 5)
    watch.check(queue)
    assert not is_taken(queue)


@pytest.mark.parametrize("woke", ["before its lease is read", "after its lease was read"])
def test_a_driver_that_was_silent_and_is_at_work_again_keeps_its_messages(bench, jobs, woke):
    """It beats, and then it writes its leases anew. The watch found it silent, because of another job's end."""
    queue, path, run = start_without_answer(bench, jobs)
    take_over(queue, run)
    copy = jobs.copy(run, "ended", "SUCCESS")
    bench.clock.advance(START_WITHIN.total_seconds() + 60)
    silent_lease = bench.read(queue.keys.lease(path))

    def waking(operation, key, perform):
        if (operation, key) != ("get", queue.keys.lease(path)):
            return perform()
        bench.around = None
        found = perform() if woke == "after its lease was read" else None
        bench.put(queue.keys.worker(run), bench.read(queue.keys.worker(run)))
        bench.put(queue.keys.lease(path), silent_lease)
        return found or perform()

    bench.around = waking
    RunWatch(jobs, "bench").job_changed({"exports": queue}, {"jobRunId": copy})

    assert bench.around is None, "it did not come to the lease"
    assert is_untouched(bench, queue, path, run)


@pytest.mark.parametrize("extends", ["before it is silent", "when it wakes up"])
def test_a_silent_driver_keeps_what_it_asked_an_hour_for(bench, jobs, extends):
    """[P2] Its lease counts by itself, whatever becomes of its heartbeats; the queue's other messages do not wait."""
    queue, path, run = start_without_answer(bench, jobs)
    take_over(queue, run)
    mine = as_run(queue, run)
    claim = mine.adopt(path)
    copy = jobs.copy(run, "ended", "SUCCESS")
    if extends == "before it is silent":
        mine.extend(claim, timedelta(hours=10))
    bench.clock.advance(START_WITHIN.total_seconds() + 60)
    if extends == "when it wakes up":
        mine.extend(claim := mine.adopt(path))

    RunWatch(jobs, "bench").job_changed({"exports": queue}, {"jobRunId": copy})
    assert mine.read_lease(path).etag == claim.lease_etag
    assert manifest(bench, queue, run)["state"] == "failed"
    assert RunStore(queue).slot(0).slot.state == "cooling", "its run is over"
    assert mine.complete(claim).outcome == "completed"


def test_a_silent_driver_of_partitions_that_is_at_work_again_keeps_its_run(bench, jobs):
    """[P9] Its manifest names no message: only its heartbeat says that it is at work."""
    queue = bench.queue("exports", **SPARK)
    path = queue.enqueue({"n": 1}, group="g")
    launcher(jobs).launch(queue, [path])
    (run,) = jobs.started
    take_over(queue, run)
    copy = jobs.copy(run, "ended", "SUCCESS")
    bench.clock.advance(START_WITHIN.total_seconds() + 60)

    def wake(operation, key, perform):
        if (operation, key) == ("get", queue.keys.manifest(run)):
            bench.around = None
            bench.put(queue.keys.worker(run), bench.read(queue.keys.worker(run)))
        return perform()

    bench.around = wake
    RunWatch(jobs, "bench").job_changed({"exports": queue}, {"jobRunId": copy})

    assert bench.around is None
    assert RunStore(queue).manifest(run)[0].paths == ()
    assert manifest(bench, queue, run)["state"] == "running"
    assert bench.keys(queue.keys.prefix("workers")) == [queue.keys.worker(run)]
    assert is_taken(queue)


def test_a_heartbeat_that_comes_when_its_run_has_ended_is_not_deleted(bench, jobs):
    """[P2] Its driver counts on it, for what it holds: that runs out, or is finished."""
    queue, _, run = start_without_answer(bench, jobs)
    take_over(queue, run)
    copy = jobs.copy(run, "ended", "SUCCESS")
    bench.clock.advance(START_WITHIN.total_seconds() + 60)
    mine = as_run(queue, run)
    driver = HeartbeatWriter(mine, run=run)

    def beat(operation, key, perform):
        if (operation, key) == ("put", queue.keys.manifest(run)):
            bench.around = None
            assert driver.beat({}) or driver.beat({})
        return perform()

    bench.around = beat
    RunWatch(jobs, "bench").job_changed({"exports": queue}, {"jobRunId": copy})

    assert bench.around is None
    assert RunWatch.is_fresh(queue, run)
    assert not is_taken(queue)


def test_a_run_that_changes_while_its_end_is_told_is_left_to_the_next_sweep(bench, jobs):
    """Its driver writes its manifest: nothing failed, and the sweeper function must not."""
    queue, _, run = start_without_answer(bench, jobs)
    take_over(queue, run)
    copy = jobs.copy(run, "ended", "SUCCESS")
    bench.clock.advance(START_WITHIN.total_seconds() + 60)

    def write(operation, key, perform):
        if (operation, key) == ("put", queue.keys.manifest(run)):
            bench.around = None
            take_over(queue, run)
        return perform()

    bench.around = write
    RunWatch(jobs, "bench").job_changed({"exports": queue}, {"jobRunId": copy})

    assert bench.around is None
    assert is_taken(queue)


def test_of_two_watches_one_records_what_vanished_and_the_other_waits(bench, jobs):
    """[P3] Else the slow one replaces the outcome of what was PUT there since."""
    queue = bench.queue("exports", **SPARK)
    path = queue.enqueue({"n": 1}, name="a")
    launcher(jobs).launch(queue, [path])
    (run,) = jobs.started
    at_work, etag = RunStore(queue).manifest(run)
    RunStore(queue).write_manifest(replace(at_work, state="running", started=1), etag)
    mine = as_run(queue, run)
    mine.extend(mine.adopt(path))
    jobs.becomes("ended", "FAILED")
    bench.memory.delete(queue.keys.message(path))
    seen = []

    def meanwhile(operation, key, perform):
        if (operation, key) == ("put", queue.keys.record(path)):
            bench.around = None
            before = leases(bench, queue)
            RunWatch(jobs, "bench").check(queue)
            seen.append(leases(bench, queue) == before)
        return perform()

    bench.around = meanwhile
    RunWatch(jobs, "bench").check(queue)

    assert seen == [True]
    assert queue.status(path).record.failure.type == "MessageVanished"
    assert leases(bench, queue) == {}


def test_of_two_watches_that_end_a_run_one_buries_its_message(bench, jobs):
    """Both act in the run's name: what one of them buries is not what the run has left."""
    queue = bench.queue("exports", **SPARK | {"max_attempts": 1})
    path = queue.enqueue({"n": 1})
    launcher(jobs).launch(queue, [path])
    (run,) = jobs.started
    at_work, etag = RunStore(queue).manifest(run)
    RunStore(queue).write_manifest(replace(at_work, state="running", started=1), etag)
    jobs.becomes("ended", "FAILED")
    seen = []

    def meanwhile(operation, key, perform):
        if (operation, key) == ("put", queue.keys.record(path)):
            bench.around = None
            before = leases(bench, queue)
            RunWatch(jobs, "bench").check(queue)
            seen.append(leases(bench, queue) == before)
        return perform()

    bench.around = meanwhile
    RunWatch(jobs, "bench").check(queue)

    assert seen == [True]
    assert queue.status(path).state == "dead"
    assert leases(bench, queue) == {}


def test_a_run_that_runs_and_is_silent_is_cancelled(bench, jobs):
    queue = bench.queue("exports", **SPARK)
    queue.enqueue({"n": 1})
    launcher(jobs).launch(queue, [])
    job = jobs.becomes("running", "RUNNING")
    watch = RunWatch(jobs, "bench")

    watch.check(queue)
    assert jobs.cancelled == []
    bench.clock.advance(START_WITHIN.total_seconds() + 60)
    watch.check(queue)
    assert jobs.cancelled == [job]


def test_a_job_that_is_not_ours_changes_nothing(bench, jobs):
    queue = bench.queue("exports", **SPARK)
    queue.enqueue({"n": 1})
    launcher(jobs).launch(queue, [])
    before = bench.keys()

    RunWatch(jobs, "bench").job_changed({"exports": queue}, {"jobRunId": "somebody-elses", "state": "FAILED"})

    assert bench.keys() == before


def test_a_manifest_of_many_messages_keeps_them_with_one_heartbeat(bench, jobs):
    queue = bench.queue("exports", **(SPARK | {"messages_per_run": 300}))
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


def unreadable(operation, key, perform):
    if operation == "get" and key.endswith("/slot-0"):
        raise Unreadable(f"GET s3://bench/{key}: InvalidObjectState: archived")
    return perform()


@pytest.mark.parametrize("forged", [b"", b"garbage", b'{"v":1}', b'{"v":1,"state":"started"}', b'{"v":9}', None])
def test_a_slot_that_cannot_be_read_does_not_block_the_queue_for_ever(bench, jobs, caplog, forged):
    queue = bench.queue("exports", **SPARK | {"max_runs": 1})
    path = queue.enqueue({"n": 1})
    bench.put(queue.keys.slot(0), forged or b"archived")
    bench.around = unreadable if forged is None else None
    watch = RunWatch(jobs, "bench")

    watch.check(queue)
    assert launcher(jobs).launch(queue, [path]) == "busy", "it may be half of something: wait a moment"
    assert bench.keys("exports/runs/") == ["exports/runs/slot-0"]
    bench.clock.advance(((NEWER_AFTER if forged == b'{"v":9}' else FORGED_AFTER) + LAUNCH_GRACE).total_seconds())
    assert watch.check(queue) == 0
    assert "slot deleted, it cannot be read: " in caplog.text
    assert "exports/runs/slot-0" in caplog.text

    bench.around = None
    assert launcher(jobs).launch(queue, [path]) == "started"


def newer(bench, queue):
    """The manifest of a run, as a newer version might have written it."""
    (key,) = [key for key in bench.keys("exports/runs/") if key.endswith(".json")]
    found = json.loads(bench.read(key)) | {"v": 99, "paths": {"of": "another form"}}
    bench.put(key, json.dumps(found).encode())
    return key


@pytest.mark.parametrize("state", ["launching", "started"])
def test_a_manifest_of_a_newer_version_loses_nothing_and_says_what_to_do(bench, jobs, caplog, state):
    queue = bench.queue("exports", **SPARK | {"max_runs": 1})
    path = queue.enqueue({"n": 1})
    jobs.after = silent if state == "launching" else lambda request: None
    launcher(jobs).launch(queue, [path])
    jobs.after = lambda request: None
    key = newer(bench, queue)
    held, before = RunStore(queue).slot(0), bench.read(key)
    jobs.becomes("ended", "FAILED")
    bench.clock.advance(LAUNCH_GRACE.total_seconds() + 1)

    RunWatch(jobs, "bench").check(queue)
    # The service's own word comes to the same end.
    RunWatch(jobs, "bench").job_changed({"exports": queue}, {"jobRunId": f"job-{held.slot.run}"})

    assert f"{key} has format 99" in caplog.text
    assert "upgrade this side" in caplog.text
    assert bench.read(key) == before
    assert RunStore(queue).slot(0).etag == held.etag, "the newer version finds its run as it was"
    assert queue.status(path).state != "dead"
    # Whatever becomes of the run, its message is not lost: the lease runs out, and it runs again.
    bench.clock.advance(10 * START_WITHIN.total_seconds())
    dispatched = []
    for _ in range(3):
        bench.clock.advance(600)
        bench.sweeper(queue, dispatched).sweep()
    assert path in dispatched
    assert queue.status(path).state in ("pending", "waiting")


def test_a_run_may_send_no_more_than_its_queue(queue):
    """Whoever may write the records of a queue must not reach another one through the sweeper, nor through its runs."""
    queue.sends_to = ("emails",)

    assert as_run(queue, "run-1").sends_to == ("emails",)
