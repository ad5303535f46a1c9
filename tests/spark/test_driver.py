"""A run from its manifest to its end, and what is left when it dies on the way. No JVM: the driver is plain Python."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta
from functools import partial
from types import SimpleNamespace

import pytest

from s3queue import Queue, QueueSettings
from s3queue.errors import AccessDenied, InvalidRequest, Unavailable
from s3queue.protocol.backlog import Backlog
from s3queue.spark_runs.claims import Waiting, claim_heavy
from s3queue.spark_runs.launcher import Launcher
from s3queue.spark_runs.service import NotStarted
from s3queue.spark_runs.slots import COOL, RunStore, as_run
from s3queue.spark_runs.watch import LAUNCH_GRACE
from s3queue.stores.memory import MemoryStore
from spark.heavy.driver import Driver
from spark.heavy.messages import MessageWork, SparkGone
from spark.heavy.run_manifest import NotOurs, RunLost
from spark.heavy.streams import StreamDefinition
from support.fake_jobs import FakeJobs, silent
from support.heavy_queue import is_taken
from support.killed_store import Killed, KilledStore
from support.run_world import WORK, World, check_everything


@pytest.fixture
def world():
    return World()


def test_a_run_drains_the_queue_batch_after_batch_and_every_message_has_its_own_outcome(world):
    done = [world.queue.enqueue({"do": n}) for n in range(7)]
    rejected = world.queue.enqueue({"do": "reject"})
    world.launch()

    counts = world.driver().drain()

    assert counts == {"completed": 7, "dead": 1}
    records = world.records()
    assert [records[path].outcome for path in done] == ["completed"] * 7
    assert records[done[3]].result == {"did": 3}
    assert (records[rejected].outcome, records[rejected].failure.type) == ("dead", "Reject")
    assert world.left() == []
    assert world.bench.keys("exports/workers/") == []


def test_a_run_waits_for_its_own_retries_rather_than_ending(world):
    path = world.queue.enqueue({"do": "fail once"})
    world.launch()

    assert world.driver().drain() == {"retried": 1, "completed": 1}

    assert world.records()[path].attempt == 2
    assert world.left() == []


def test_what_a_run_has_claimed_when_a_list_fails_is_run():
    world = World(max_attempts=1, messages_per_run=1)
    world.queue.enqueue({"do": "ok"}, priority=200)
    world.launch()
    for _ in range(2):
        world.queue.enqueue({"do": "ok"})
    world.options["messages_per_run"] = 3
    looks = []

    def around(operation, key, perform):
        if (operation, key) == ("list", "exports/"):
            looks.append(key)
            if len(looks) == 2:
                raise Unavailable("503 SlowDown")
        return perform()

    world.bench.around = around

    assert world.driver().drain() == {"completed": 3}
    assert world.left() == []


def test_what_a_run_has_ended_is_not_held_any_more(world):
    """[P4] Also if it was PUT anew, so that nothing ran, and its lease is left to the sweeper."""
    world.queue.enqueue({"do": "ok"})
    world.launch()
    held = []

    class Vanishing:
        def keeps_body(self, path):
            return False

        def run(self, feed, driver):
            while group := feed.take(len):
                driver.begin(group)
                for claim in group:
                    before = claim.is_alive()
                    driver.vanished(claim)
                    held.append((before, claim.is_alive()))
                feed.done(len(group))

        def run_partitions(self, partitions, driver):
            return 0

    assert world.driver(work=Vanishing()).drain() == {"lost": 1}
    assert held == [(True, False)]


def test_of_a_stream_the_driver_keeps_only_the_lines_of_batches():
    world = World()
    bodies: list[bytes | None] = []

    class Noting(StreamDefinition):
        def _run(self, line, context):
            bodies.append(context.claim.message.inline)

    definition = Noting(world.queue, lambda stream, context: None, SimpleNamespace(sparkContext=None), None)
    for body, name in ((b"large", "one"), (b"1\n", "lines.ndjson")):
        world.queue.enqueue(body, name=name)
    world.launch()

    assert world.driver(work=MessageWork(world.queue, definition, None)).drain() == {"completed": 2}
    assert sorted(bodies, key=str) == [None, b"1\n"]


def test_a_retry_that_is_due_later_is_left_to_a_later_run():
    world = World(retry_base=300)
    path = world.queue.enqueue({"do": "fail once"})
    world.launch()

    assert world.driver().drain() == {"retried": 1}

    world.jobs.becomes("ended", "SUCCESS")
    world.settle()
    assert world.records()[path].outcome == "completed"
    assert len(world.jobs.started) == 2


def test_the_manifest_says_how_far_the_run_is(world):
    for n in range(5):
        world.queue.enqueue({"do": n})
    world.launch()
    seen = []

    def per_message(spark, message: dict, context):
        seen.append(world.manifest())

    world.driver(work=MessageWork(world.queue, per_message, None)).drain()

    assert [(len(one["paths"]), one["started"]) for one in seen] == [(3, 1), (2, 1), (1, 1), (2, 1), (1, 1)]
    assert all(one["state"] == "running" for one in seen)
    closed = world.manifest()
    assert (closed["state"], closed["batches"], closed["counts"]) == ("closed", 2, {"completed": 5})


def test_a_message_that_comes_while_the_run_closes_is_not_stranded(world):
    world.queue.enqueue({"do": 1})
    world.launch()
    late = []

    class Closing:
        """Enqueues just before the slot goes, as a producer may, and rings, as S3 does."""

        def __init__(self, inner):
            self.inner, self.url = inner, inner.url

        def __getattr__(self, name):
            def sent(key, *arguments, **options):
                if name == "delete" and "runs/slot" in key and not late:
                    late.append(world.queue.enqueue({"do": "late"}))
                    assert world.launch(late) == "busy"
                return getattr(self.inner, name)(key, *arguments, **options)

            return sent

    assert world.driver(store=Closing(world.bench.store)).drain() == {"completed": 2}
    assert world.left() == []
    assert len(world.jobs.started) == 1


def test_what_someone_else_launches_meanwhile_is_theirs(world):
    world.queue.enqueue({"do": 1})
    world.launch()
    (first,) = world.jobs.started
    late = []

    class Closing:
        def __init__(self, inner):
            self.inner, self.url = inner, inner.url

        def __getattr__(self, name):
            def sent(key, *arguments, **options):
                answer = getattr(self.inner, name)(key, *arguments, **options)
                if name == "delete" and "runs/slot" in key and not late:
                    late.append(world.queue.enqueue({"do": "late"}))
                    assert world.launch(late) == "started"
                return answer

            return sent

    assert world.driver(first, store=Closing(world.bench.store)).drain() == {"completed": 1}
    assert world.driver().drain() == {"completed": 1}
    assert world.left() == []


def test_when_the_time_is_up_what_was_not_started_is_given_back_untried(world):
    paths = [world.queue.enqueue({"do": n}) for n in range(6)]
    world.launch()

    def per_message(spark, message: dict, context):
        world.bench.clock.advance(40)

    counts = world.driver(work=MessageWork(world.queue, per_message, None), seconds=30).drain()

    assert counts == {"completed": 1, "released": 2}
    assert RunStore(world.queue).slot(0) is None
    assert world.queue.claim(next(path for path in paths if path not in world.records())).attempt == 1


def test_a_second_driver_of_the_same_run_touches_nothing(world):
    world.queue.enqueue({"do": 1})
    world.launch()

    def per_message(spark, message: dict, context):
        before = world.bench.keys()
        with pytest.raises(NotOurs):
            world.driver().drain()
        assert world.bench.keys() == before

    assert world.driver(work=MessageWork(world.queue, per_message, None)).drain() == {"completed": 1}
    with pytest.raises(NotOurs):
        world.driver().drain()


def test_a_driver_that_was_given_up_while_it_slept_starts_nothing_more(world):
    paths = [world.queue.enqueue({"do": n}) for n in range(3)]
    world.launch()

    def per_message(spark, message: dict, context):
        world.starts[context.path] += 1
        if sum(world.starts.values()) == 1:
            world.jobs.becomes("ended", "FAILED")
            world.watch.check(world.queue)

    with pytest.raises(RunLost):
        world.driver(work=MessageWork(world.queue, per_message, None)).drain()

    assert sum(world.starts.values()) == 1
    # A zombie's completion counts.
    assert [record.outcome for record in world.records().values()] == ["completed"]
    world.settle()
    assert {path: record.outcome for path, record in world.records().items()} == dict.fromkeys(paths, "completed")


def test_a_dead_session_fails_no_message_that_was_not_started(world):
    paths = [world.queue.enqueue({"do": n}) for n in range(3)]
    world.launch()
    answers = iter([True, False])

    driver = world.driver(work=MessageWork(world.queue, world.per_message, None, is_alive=lambda: next(answers)))
    with pytest.raises(SparkGone):
        driver.drain()

    assert len(world.records()) == 1
    assert RunStore(world.queue).slot(0) is None
    assert world.manifest()["state"] == "failed"
    assert all(world.queue.claim(path).attempt == 1 for path in paths if path not in world.records())


def test_after_a_session_that_was_dead_from_the_start_no_run_is_launched_at_once(world):
    path = world.queue.enqueue({"do": 1})
    world.launch()

    driver = world.driver(work=MessageWork(world.queue, world.per_message, None, is_alive=lambda: False))
    with pytest.raises(SparkGone):
        driver.drain()

    held = RunStore(world.queue).slot(0)
    assert (held.slot.state, held.slot.failures) == ("cooling", 1)
    assert "the Spark session is gone" in held.slot.reason
    assert world.launch([path]) == "busy"
    world.bench.clock.advance(COOL.total_seconds() + 1)
    assert world.launch([path]) == "started"
    assert world.driver().drain() == {"completed": 1}
    assert world.left() == []


def mixed_world():
    """A mixed queue with a heavy message, and a light one that fails and fails, as functions run it."""
    world = World(
        engine="lambda", heavy_above=1000, messages_per_run=10, retry_base=20, retry_cap=20, max_attempts=1000
    )
    light = world.queue.enqueue({"do": "fail"})
    heavy = world.queue.enqueue({"do": "ok", "pad": "x" * 2000})
    world.launch([heavy])
    world.jobs.becomes("running", "RUNNING")

    def fail_light():
        claim = world.queue.claim(light, read_first=True)
        if claim:
            world.queue.fail(claim, RuntimeError("did not work"))

    return world, heavy, fail_light


def test_a_run_of_a_mixed_queue_does_not_wait_for_the_retries_of_light_messages(monkeypatch):
    world, heavy, fail_light = mixed_world()
    fail_light()
    begun_at = world.bench.clock.monotonic()
    sleep = world.bench.clock.sleep

    def fail_meanwhile(seconds):
        sleep(seconds)
        fail_light()

    monkeypatch.setattr(world.bench.clock, "sleep", fail_meanwhile)

    assert world.driver().drain() == {"completed": 1}
    assert world.bench.clock.monotonic() - begun_at < 60
    assert set(world.records()) == {heavy}


def test_a_run_asks_once_whether_a_message_is_light_however_often_that_fails():
    world, _, fail_light = mixed_world()
    waiting = Waiting(world.queue)
    for _ in range(3):
        fail_light()
        world.bench.store.take()
        assert (waiting.due(), waiting.next_at) == ([], None)
        world.bench.clock.advance(30)

    # The heavy one is its run's, and read once.
    assert world.bench.store.take() == {"list": 1}


def test_a_light_message_that_cannot_be_described_ends_no_run_of_a_mixed_queue():
    world, heavy, fail_light = mixed_world()
    fail_light()

    def refuse(operation, key, perform):
        if operation == "head" and "/messages/" in key:
            raise AccessDenied(f"HEAD s3://bench/{key}: 403")
        return perform()

    world.bench.around = refuse
    assert world.driver().drain() == {"completed": 1}
    assert set(world.records()) == {heavy}


def test_the_retry_of_a_heavy_message_of_a_mixed_queue_is_waited_for():
    world = World(engine="lambda", heavy_above=1000)
    path = world.queue.enqueue({"do": "fail once", "pad": "x" * 2000})
    world.launch([path])

    assert world.driver().drain() == {"retried": 1, "completed": 1}


def test_named_messages_that_are_not_the_runs_do_not_end_its_backlog():
    world = World(engine="lambda", heavy_above=1000, messages_per_run=10)
    light = [world.queue.enqueue({"do": n}) for n in range(5)]
    heavy = [world.queue.enqueue({"do": n, "pad": "x" * 2000}) for n in range(5)]

    misses = []

    class Told(Backlog):
        def report(self, *, won, is_hint=False):
            misses.extend([1] if not won and not is_hint else [])
            super().report(won=won, is_hint=is_hint)

    backlog = Told(world.queue, wants=world.queue.settings.is_heavy)
    claims = claim_heavy(world.queue, light, 10, seconds=30, threads=1, backlog=backlog)

    assert {claim.path for claim in claims} == set(heavy)
    # Another thread may have filled the window meanwhile: two misses would empty it.
    assert misses == []


def redelivered_beside(world, path, driver):
    """Half an hour of a slow message, with heartbeats and sweeps: when the sweeper sent somebody for the other one."""
    begun_at = world.bench.clock.monotonic()
    for _ in range(90):
        driver.beat()
        driver.tidy()
        world.bench.clock.advance(20)
        world.sweeper.sweep()
        if path in world.dispatched:
            return world.bench.clock.monotonic() - begun_at
    return None


def test_what_could_not_be_recorded_is_not_kept_by_the_run_that_lost_it(world):
    """The run goes on with another message for long, and its heartbeat keeps whatever its manifest names."""
    lost, slow = (world.queue.enqueue({"do": "ok"}, name=name) for name in "ab")
    world.launch()
    world.jobs.becomes("running", "RUNNING")
    after = []

    def fails(operation, key, perform):
        if operation == "put" and key == f"exports/records/{lost}" and not after:
            raise Unavailable("503")
        return perform()

    def per_message(spark, message: dict, context):
        if context.path == slow:
            after.append(redelivered_beside(world, lost, driver))

    world.bench.around = fails
    driver = world.driver()
    driver = world.driver(work=MessageWork(driver.queue, per_message, None))
    assert driver.drain()["lost"] == 1

    assert after[0] is not None
    assert after[0] <= 2 * world.queue.settings.visibility_timeout.total_seconds()
    world.settle()
    assert {record.outcome for record in world.records().values()} == {"completed"}


def test_what_was_lost_beside_a_slow_message_is_not_kept_by_the_run(world):
    """As in another thread: no message is started any more that would have the manifest written."""
    slow, lost = (world.queue.enqueue({"do": "ok"}, name=name) for name in "ab")
    world.launch()
    world.jobs.becomes("running", "RUNNING")
    after = []

    def per_message(spark, message: dict, context):
        if context.path == slow:
            (claim,) = (held for held in driver.heartbeat.held() if held.path == lost)
            driver.begin([claim])
            driver.vanished(claim)
            after.append(redelivered_beside(world, lost, driver))

    driver = world.driver()
    driver = world.driver(work=MessageWork(driver.queue, per_message, None))
    driver.drain()

    assert after[0] is not None


def test_what_was_named_without_an_answer_and_given_up_is_not_kept_by_the_run(world):
    """S3 is silent for a moment: the manifest that names the claims is stored, and they could not be given back."""
    slow = world.queue.enqueue({"do": "ok"}, name="a")
    world.launch()
    world.jobs.becomes("running", "RUNNING")
    late = world.queue.enqueue({"do": "ok"}, name="b")
    silent, after = [], []

    def around(operation, key, perform):
        if operation == "put" and "/runs/run-" in key:
            silent.append(key)
            perform()
        if silent:
            raise Unavailable("no answer")
        return perform()

    def per_message(spark, message: dict, context):
        if context.path == slow:
            world.bench.around = around
            with pytest.raises(Unavailable):
                driver.claim_more(3)
            world.bench.around = None
            assert late in world.manifest()["paths"]
            after.append(redelivered_beside(world, late, driver))

    driver = world.driver()
    driver = world.driver(work=MessageWork(driver.queue, per_message, None))
    driver.drain()

    assert after[0] is not None
    assert after[0] <= 2 * world.queue.settings.visibility_timeout.total_seconds()


def test_a_manifest_that_cannot_be_written_does_not_keep_the_heartbeat_from_it(world):
    """[P2] One slow PUT of it, and the heartbeat would come too late for all that the run holds."""
    world.queue.enqueue({"do": "ok"})
    world.launch()
    world.jobs.becomes("running", "RUNNING")
    asked = []

    def per_message(spark, message: dict, context):
        driver.ended(driver.heartbeat.held()[0], "lost")

        def around(operation, key, perform):
            asked.append((operation, key))
            return perform()

        world.bench.around = around
        driver.beat()
        world.bench.around = None

    driver = world.driver()
    driver = world.driver(work=MessageWork(driver.queue, per_message, None))
    driver.drain()

    assert asked == [("put", world.queue.keys.worker(driver.queue.worker_id))]


@pytest.mark.parametrize("is_known", [True, False])
def test_what_a_run_had_not_started_is_not_charged_by_the_sweeper_either(is_known):
    """[P5] The watch may not know that its driver is dead; the sweeper comes as soon as a lease is over."""
    world = World(max_attempts=1)
    paths = [world.queue.enqueue({"do": "ok"}) for _ in range(3)]
    world.jobs.after = (lambda request: None) if is_known else silent
    world.launch()
    world.jobs.after = lambda request: None
    world.jobs.becomes("running", "RUNNING")
    dead = []

    def dies(operation, key, perform):
        """When it says that it starts the first one, and from then on."""
        if dead or (operation == "put" and "/runs/run-" in key and world.manifest()["state"] == "running"):
            dead.append(key)
            raise Killed
        return perform()

    world.bench.around = dies
    with pytest.raises(Killed):
        world.driver().drain()
    world.bench.around = None
    assert world.manifest()["started"] == 0

    for second in range(300):
        if second == 200:
            world.jobs.becomes("ended", "FAILED")
        world.sweeper.tick()
        world.bench.clock.advance(1)

    assert world.records() == {}
    world.settle()
    assert {path: record.outcome for path, record in world.records().items()} == dict.fromkeys(paths, "completed")


def test_what_a_run_was_too_slow_to_start_is_not_charged():
    """[P5] Its driver stood still, and wakes up: it names no longer what is not its own any more."""
    world = World(max_attempts=1)
    paths = [world.queue.enqueue({"do": "ok"}) for _ in range(3)]
    world.launch()
    world.jobs.becomes("running", "RUNNING")
    ran = []

    def per_message(spark, message: dict, context):
        ran.append(context.path)
        if len(ran) == 1:
            world.bench.clock.advance(900)

    class Tidied(MessageWork):
        def _one(self, processor, claim, driver):
            super()._one(processor, claim, driver)
            driver.tidy()

    driver = world.driver()
    driver = world.driver(work=Tidied(driver.queue, per_message, None))
    claim_more = driver.claim_more

    def claim_after_a_sweep(limit):
        world.sweeper.sweep()
        world.bench.clock.advance(1)
        return claim_more(limit)

    driver.claim_more = claim_after_a_sweep
    driver.drain()

    assert {path: record.outcome for path, record in world.records().items()} == dict.fromkeys(paths, "completed")
    assert sorted(ran) == sorted(paths)


def test_what_a_driver_had_claimed_and_not_named_when_it_died_is_not_charged():
    """[P5]"""
    world = World(max_attempts=1)
    paths = [world.queue.enqueue({"do": "ok"}, name="a")]
    world.launch()
    world.jobs.becomes("running", "RUNNING")
    paths += [world.queue.enqueue({"do": "ok"}, name=name) for name in "bcd"]
    dead = []

    def dies(operation, key, perform):
        names = operation == "put" and "/runs/run-" in key
        if dead or (names and f"exports/leases/{paths[1]}" in world.bench.keys("exports/leases/")):
            dead.append(key)
            raise Killed
        return perform()

    world.bench.around = dies
    with pytest.raises(Killed):
        world.driver().drain()
    world.bench.around = None
    assert not set(paths[1:]) & set(world.manifest()["paths"])
    for _ in range(200):
        world.sweeper.tick()
        world.bench.clock.advance(1)

    assert set(world.records()) == {paths[0]}
    world.jobs.becomes("ended", "FAILED")
    world.settle()
    assert {path: record.outcome for path, record in world.records().items()} == dict.fromkeys(paths, "completed")


def test_what_could_not_be_adopted_is_not_charged():
    """[P5] The run names it no longer; its lease is the run's until it runs out."""
    world = World(max_attempts=1)
    lost, slow = (world.queue.enqueue({"do": "ok"}, name=name) for name in "ab")
    world.launch()
    world.jobs.becomes("running", "RUNNING")

    def fails(operation, key, perform):
        if operation == "get" and key == f"exports/leases/{lost}":
            raise Unavailable("503")
        return perform()

    def per_message(spark, message: dict, context):
        if context.path == slow:
            world.bench.around = None
            assert redelivered_beside(world, lost, driver) is not None

    world.bench.around = fails
    driver = world.driver()
    driver = world.driver(work=MessageWork(driver.queue, per_message, None))
    driver.drain()

    world.settle()
    assert {record.outcome for record in world.records().values()} == {"completed"}


@pytest.mark.parametrize("goes_on", [True, False])
def test_what_a_run_had_started_and_lost_is_charged(goes_on):
    """[P5] Also when the run does not name it any more, or has closed: it would be started once more than allowed."""
    world = World(max_attempts=1)
    lost = world.queue.enqueue({"do": "ok"}, name="a")
    if goes_on:
        world.queue.enqueue({"do": "ok"}, name="b")
    world.launch()
    world.jobs.becomes("running", "RUNNING")

    def fails(operation, key, perform):
        if operation == "put" and key == f"exports/records/{lost}":
            raise Unavailable("503")
        return perform()

    def per_message(spark, message: dict, context):
        world.starts[context.path] += 1
        if context.path != lost:
            world.bench.around = None
            for _ in range(30):
                driver.beat()
                driver.tidy()
                world.bench.clock.advance(20)
                world.sweeper.sweep()
            assert lost in world.records()

    world.bench.around = fails
    driver = world.driver()
    driver = world.driver(work=MessageWork(driver.queue, per_message, None))
    assert driver.drain()["lost"] == 1
    world.bench.around = None
    world.jobs.becomes("ended", "SUCCESS")

    world.settle()
    assert world.starts[lost] == 1
    assert (world.records()[lost].outcome, world.records()[lost].failure.type) == ("dead", "LeaseExpired")


def test_the_lines_of_a_batch_are_not_run_on_a_session_that_is_gone():
    """[P5] They would fail for that reason alone."""
    world = World(max_attempts=1)
    (path,) = world.queue.enqueue_many([{"do": n} for n in range(6)])
    world.launch()
    alive, called = [True], []

    def per_message(spark, message: dict, context):
        called.append(message["do"])
        if message["do"] == 1:
            alive[0] = False
            raise ConnectionError("the JVM is gone")

    driver = world.driver()
    driver = world.driver(work=MessageWork(driver.queue, per_message, None, is_alive=lambda: alive[0]))
    with pytest.raises(SparkGone):
        driver.drain()

    assert called == [0, 1]
    assert world.records() == {}
    alive[0] = True
    world.settle()
    assert world.records()[path].dead_lines == 1


def test_what_could_not_be_adopted_is_not_kept_by_the_run(world):
    lost, slow = (world.queue.enqueue({"do": "ok"}, name=name) for name in "ab")
    world.launch()
    world.jobs.becomes("running", "RUNNING")
    after = []

    def fails(operation, key, perform):
        if operation == "get" and key == f"exports/leases/{lost}" and not after:
            raise Unavailable("503")
        return perform()

    def per_message(spark, message: dict, context):
        if context.path == slow:
            world.bench.around = None
            after.append(redelivered_beside(world, lost, driver))

    world.bench.around = fails
    driver = world.driver()
    driver = world.driver(work=MessageWork(driver.queue, per_message, None))
    driver.drain()

    assert after[0] is not None
    world.settle()
    assert {record.outcome for record in world.records().values()} == {"completed"}


def test_the_manifest_is_not_written_for_the_heartbeat_of_a_run_that_lost_nothing(world):
    for n in range(3):
        world.queue.enqueue({"do": n})
    world.launch()

    def per_message(spark, message: dict, context):
        world.bench.store.take()
        driver.beat()
        assert world.bench.store.take() == {"put": 1}

    driver = world.driver()
    driver = world.driver(work=MessageWork(driver.queue, per_message, None))
    assert driver.drain() == {"completed": 3}


def test_a_batch_object_runs_line_by_line_with_an_outcome_for_each(world):
    lines = [{"do": "a"}, {"do": "reject"}, {"do": "fail once"}]
    (path,) = world.queue.enqueue_many(lines)
    world.launch()

    world.driver().drain()

    record = world.records()[path]
    assert record.lines["completed"] == 2
    assert record.lines["dead"] == 1


def test_a_heartbeat_keeps_what_a_long_message_holds(world):
    for n in range(3):
        world.queue.enqueue({"do": n})
    world.launch()
    world.jobs.becomes("running", "RUNNING")
    driver = world.driver()

    def per_message(spark, message: dict, context):
        for _ in range(5):
            world.bench.clock.advance(timedelta(seconds=25))
            driver.beat()
            assert world.sweeper.sweep().endings == {}

    driver._work = MessageWork(world.queue, per_message, None)
    assert driver.drain() == {"completed": 3}


def crashed_run(world: World, *, at: int, late: bool) -> bool:
    """One launched run whose driver dies at request `at`; False if it came to its end before."""
    world.launch()
    store = KilledStore(world.bench.memory, at, late=late)
    world.jobs.becomes("running", "RUNNING")
    try:
        world.driver(store=store).drain()
    except Killed:
        world.jobs.becomes("ended", "FAILED")
        return True
    world.jobs.becomes("ended", "SUCCESS")
    return False


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_killing_the_driver_at_any_request_loses_nothing(late):
    at = 0
    while True:
        at += 1
        world = World()
        paths = {world.queue.enqueue({"do": what}): what for what in WORK}
        died = crashed_run(world, at=at, late=late)
        world.settle()
        check_everything(world, paths)
        if not died:
            break
    assert at > 60


@pytest.mark.parametrize("told", [True, False], ids=["the service tells", "nobody tells"])
def test_whether_the_service_tells_of_a_dead_driver_or_not_nothing_is_lost(told):
    for at in range(1, 80, 4):
        world = World()
        paths = {world.queue.enqueue({"do": what}): what for what in WORK}
        world.launch()
        job = world.jobs.becomes("running", "RUNNING")
        with pytest.raises(Killed):
            world.driver(store=KilledStore(world.bench.memory, at)).drain()
        world.jobs.phases[job] = ("ended", "FAILED")
        if told:
            world.watch.job_changed({"exports": world.queue}, {"jobRunId": job, "state": "FAILED"})
            assert not is_taken(world.queue)
        world.settle()
        check_everything(world, paths)


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_killing_the_launcher_at_any_request_loses_nothing_and_starts_one_run(late):
    at = 0
    while True:
        at += 1
        world = World()
        paths = {world.queue.enqueue({"do": what}): what for what in WORK}
        store = KilledStore(world.bench.memory, at, late=late)
        try:
            world.launch(store=store)
        except Killed:
            died = True
        else:
            died = False
        world.bench.clock.advance(LAUNCH_GRACE.total_seconds() + 5)
        world.watch.check(world.queue)
        assert len(world.jobs.started) <= 1
        if world.jobs.started:
            world.jobs.becomes("running", "RUNNING")
            world.driver().drain()
            world.jobs.becomes("ended", "SUCCESS")
        world.settle()
        check_everything(world, paths)
        if not died:
            break
    assert at > 10


def test_a_thousand_messages_and_a_service_that_throttles_are_drained_by_few_runs():
    store = MemoryStore("burst")
    settings = QueueSettings.of(engine="spark", messages_per_run=100, visibility_timeout=60, max_runs=2)
    jobs = FakeJobs()
    queue = Queue(store=store, name="exports", settings=settings)
    for n in range(1000):
        queue.enqueue({"do": n})
    drivers: list[threading.Thread] = []
    totals: Counter[str] = Counter()

    def drain(run: str) -> None:
        mine = as_run(Queue(store=store, name="exports", settings=settings), run)
        work = MessageWork(mine, lambda spark, message, context: None, None, parallel=4)
        totals.update(Driver(mine, work, seconds=600).drain())

    def start(request) -> None:
        if len(jobs.asked) == 1:
            raise NotStarted("throttled")

    jobs.before = start
    with pytest.raises(NotStarted):
        Launcher(jobs, "bench").launch(queue, [])
    store.delete(queue.keys.slot(0))  # it has cooled
    while Launcher(jobs, "bench").launch(queue, []) == "started":
        drivers.append(threading.Thread(target=drain, args=(list(jobs.started)[-1],)))
    assert len(drivers) == 2
    for thread in drivers:
        thread.start()
    for thread in drivers:
        thread.join()

    assert totals == {"completed": 1000}
    assert queue.stats().pending == 0


class Callee:
    def __call__(self, spark, message: dict, context):
        return message


def _numbered(number, spark, message: dict, context):
    return message


@pytest.mark.parametrize("job", [Callee(), partial(_numbered, 1)], ids=["an object", "a partial"])
def test_whatever_can_be_called_is_a_job(world, job):
    path = world.queue.enqueue({"do": 1})
    world.launch()
    world.driver(work=MessageWork(world.queue, job, None)).drain()
    assert world.records()[path].result == {"do": 1}


def _without_context(spark, message: dict):
    raise AssertionError


def _of_no_class(spark, message: NotThere, context):  # noqa: F821
    raise AssertionError


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (_without_context, r"_without_context must take \(spark, message, context\)"),
        (_of_no_class, "'NotThere' is not"),
    ],
)
def test_a_job_that_no_message_could_call_is_refused_before_any_is_started(world, job, said):
    with pytest.raises(InvalidRequest, match=said):
        MessageWork(world.queue, job, None)
