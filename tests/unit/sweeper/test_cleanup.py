"""Cleanup: what is past its retention goes, and nothing else."""

from __future__ import annotations

from datetime import timedelta

from s3queue import Lock
from s3queue.errors import AccessDenied
from s3queue.protocol.liveness import HeartbeatWriter
from s3queue.protocol.removal import Removal
from s3queue.spark_runs.slots import as_run
from support.heavy_queue import SPARK, launcher


def test_cleanup_deletes_what_is_past_its_retention_only(bench):
    queue = bench.queue(record_retention=100, dead_retention=1000)
    old, dead = queue.enqueue(b"x"), queue.enqueue(b"x")
    queue.complete(queue.claim(old))
    queue.fail(queue.claim(dead), "no", dead=True)
    bench.clock.advance(101)
    young, pending = queue.enqueue(b"x"), queue.enqueue(b"x")
    queue.complete(queue.claim(young))

    assert queue.cleanup() == 2
    assert bench.keys() == [f"orders/dead/{dead}", f"orders/{pending}", f"orders/records/{young}"]

    bench.clock.advance(1000)
    assert queue.cleanup() == 2
    assert bench.keys() == [f"orders/{pending}"]


def test_a_letter_that_came_back_since_it_was_listed_is_kept(bench):
    """Equal bytes, so its ETag is the one that was listed; it has all its days before it."""
    queue = bench.queue(dead_retention=1000)
    path = queue.enqueue(b"x")
    queue.fail(queue.claim(path), "no", dead=True)
    bench.clock.advance(1001)
    removal = Removal(queue)
    (listed,) = removal.expired()
    queue.replay(path)
    bench.clock.advance(5)
    queue.fail(queue.claim(path), "no", dead=True)

    assert [entry.etag for entry in bench.memory.list("orders/dead/").objects] == [listed.etag]
    assert not removal.delete_expired(listed)
    assert bench.keys("orders/dead/")


def test_what_nobody_may_describe_is_deleted_and_keeps_nothing_else_from_it(bench):
    """A stranger's object under a key that only the stranger has (SSE-C): S3 answers its HEAD with 400."""
    queue = bench.queue(record_retention=100)
    queue.complete(queue.claim(queue.enqueue(b"x", name="x")))
    bench.put("orders/records/messages/0", b"sealed")
    bench.clock.advance(101)

    def refuse(operation, key, perform):
        if operation in ("get", "head") and key == "orders/records/messages/0":
            raise AccessDenied(f"HEAD {key}: 400")
        return perform()

    bench.around = refuse
    assert queue.cleanup() == 2
    assert bench.keys() == []


def test_a_run_is_kept_for_as_long_as_it_has_a_heartbeat(bench, jobs):
    """[P2] While one message runs, neither its slot nor its manifest is written: without them, others take it."""
    queue = bench.queue("exports", **SPARK, record_retention=3600)
    launcher(jobs).launch(queue, [queue.enqueue({"n": 1})])
    (run,) = jobs.started
    driver = HeartbeatWriter(as_run(queue, run), run=run)
    sweeper = bench.sweeper(queue)
    bench.put("exports/runs/run-gone.json", b"{}")
    bench.put("exports/runs/slot-7", b"{}")
    for _ in range(6 * 60):
        bench.clock.advance(20)
        driver.beat({})
    sweeper.sweep()

    assert bench.keys("exports/runs/") == [f"exports/runs/{run}.json", "exports/runs/slot-0"]

    driver.end()
    bench.clock.advance(3601)
    sweeper.sweep()
    assert bench.keys("exports/runs/") == []


def test_dead_letters_past_their_retention_go_even_from_an_idle_queue(bench, dispatched):
    queue = bench.queue(dead_retention=1000, max_attempts=1)
    path = queue.enqueue(b"x")
    queue.fail(queue.claim(path), "no")
    sweeper = bench.sweeper(queue)
    sweeper.sweep()
    bench.clock.advance(900)
    sweeper.sweep()
    assert bench.keys("orders/dead/")

    bench.clock.advance(3600)
    sweeper.sweep()
    assert not bench.keys("orders/dead/")


def test_stale_locks_go_and_fresh_ones_stay(bench, queue):
    bench.memory.put("orders/locks/old", b"{}")
    bench.clock.advance(timedelta(days=1, seconds=1))
    bench.memory.put("orders/locks/fresh", b"{}")

    assert bench.sweeper(queue).sweep().removed == 1
    assert bench.keys("orders/locks/") == ["orders/locks/fresh"]


def test_a_heartbeat_goes_by_its_own_time_however_low_the_timeout_is_by_now(bench):
    patient = HeartbeatWriter(bench.queue(worker_id="patient"), timedelta(minutes=10))
    patient.beat({})
    queue = bench.queue(visibility_timeout=1)
    sweeper = bench.sweeper(queue)
    bench.clock.advance(timedelta(minutes=199))
    assert sweeper.sweep().removed == 0
    bench.store.take()
    assert sweeper.sweep().removed == 0
    assert bench.store.take().get("get", 0) <= 1  # queue.json; the heartbeat was read before

    bench.clock.advance(timedelta(minutes=2))
    assert sweeper.sweep().removed == 1


def test_a_heartbeat_that_cannot_be_read_goes_after_a_while(bench, queue):
    bench.memory.put("orders/workers/garbage", b"{")
    bench.clock.advance(timedelta(minutes=29))
    assert bench.sweeper(queue).sweep().removed == 0
    bench.clock.advance(timedelta(minutes=2))
    assert bench.sweeper(queue).sweep().removed == 1


def test_a_lock_whose_ttl_is_longer_than_a_day_is_kept_while_it_is_held(bench, queue):
    lock = Lock(queue.store, queue.keys.lock("monthly"), ttl=timedelta(days=7), clock=bench.clock)
    assert lock.acquire()
    sweeper = bench.sweeper(queue)
    for _ in range(6):
        bench.clock.advance(timedelta(days=1))
        sweeper.sweep()
    assert not Lock(queue.store, queue.keys.lock("monthly"), clock=bench.clock).acquire()

    bench.clock.advance(timedelta(days=1, minutes=1))
    assert sweeper.sweep().removed == 1
    assert not bench.keys("orders/locks/")


def test_a_clean_up_that_the_budget_ended_goes_on_from_there(bench):
    queue = bench.queue(dead_retention=1000)
    for number in range(2500):
        bench.memory.put(f"orders/dead/messages/{number:04d}", b"x")
    bench.clock.advance(2000)
    sweeper = bench.sweeper(queue)
    queue.enqueue(b"x")
    for _ in range(40):
        bench.clock.advance(60)
        sweeper.sweep(requests=200)

    assert not bench.keys("orders/dead/")
