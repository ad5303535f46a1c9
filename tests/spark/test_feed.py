"""A run claims its next messages while the last ones still run: a slow message holds up nobody. No JVM."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from s3queue import Queue, QueueSettings
from s3queue.errors import Unavailable
from s3queue.protocol.liveness import has_not_started
from s3queue.spark_runs.launcher import Launcher
from s3queue.spark_runs.slots import RunStore, as_run
from s3queue.stores.memory import MemoryStore
from spark.heavy import feed as feeding
from spark.heavy import run_manifest
from spark.heavy.driver import Driver
from spark.heavy.messages import MessageWork
from spark.heavy.run_manifest import RunLost, RunManifest
from support.fake_jobs import FakeJobs
from support.killed_store import Killed, KilledStore
from support.manual_clock import ManualClock
from support.run_world import WORK, World, check_everything

MOST_SECONDS = 20


class Running:
    """A queue with a run whose driver is a thread, in real time."""

    def __init__(self, per_message, *, messages: int, **settings) -> None:
        self.store = MemoryStore("feed")
        self.settings = QueueSettings.of(
            **{"engine": "spark", "messages_per_run": 3, "visibility_timeout": 60, "retry_base": 0.1} | settings
        )
        self.queue = Queue(store=self.store, name="exports", settings=self.settings)
        for n in range(messages):
            self.queue.enqueue({"do": n})
        self.jobs = FakeJobs()
        assert Launcher(self.jobs, "bench").launch(self.queue, []) == "started"
        (self.run,) = self.jobs.started
        mine = as_run(Queue(store=self.store, name="exports", settings=self.settings), self.run)
        self.driver = Driver(mine, MessageWork(mine, per_message, None, parallel=3), seconds=600)


def test_a_slow_message_holds_up_nobody():
    """The first message to start ends after all others have: with a barrier after each three, it never would."""
    first = threading.Lock()
    others = threading.Semaphore(0)
    started, ended = [], []

    def per_message(spark, message: dict, context):
        if first.acquire(blocking=False):
            started.append(message["do"])
            for _ in range(10):
                assert others.acquire(timeout=MOST_SECONDS), f"only {sorted(ended)} ran beside a slow message"
            ended.append(message["do"])
        else:
            ended.append(message["do"])
            others.release()

    running = Running(per_message, messages=11, max_attempts=1)

    assert running.driver.drain() == {"completed": 11}
    assert ended[-1:] == started


def test_what_comes_and_what_fails_while_a_slow_message_runs_is_run_beside_it(monkeypatch):
    monkeypatch.setattr(feeding, "LOOK_SECONDS", 0.05)
    both = threading.Barrier(2, timeout=MOST_SECONDS)
    attempts = []

    def per_message(spark, message: dict, context):
        if message["do"] == 0:
            late = running.queue.enqueue({"do": "late"})
            assert Launcher(running.jobs, "bench").launch(running.queue, [late]) == "busy"
            both.wait()
        elif message["do"] == "late":
            attempts.append(context.attempt)
            if context.attempt == 1:
                raise RuntimeError("did not work")
            both.wait()

    running = Running(per_message, messages=1)

    assert running.driver.drain() == {"completed": 2, "retried": 1}
    assert attempts == [1, 2]
    assert running.queue.stats().pending == 0


def test_a_slow_message_is_kept_however_often_others_are_claimed():
    """Its lease is never written again: the heartbeat keeps what the manifest names."""
    world = World(messages_per_run=1)
    for n in range(4):
        world.queue.enqueue({"do": n})
    world.launch()
    world.jobs.becomes("running", "RUNNING")
    rest = threading.Semaphore(0)

    def per_message(spark, message: dict, context):
        if message["do"] == 0:
            for _ in range(3):
                assert rest.acquire(timeout=MOST_SECONDS)
                world.bench.clock.advance(25)
                driver.beat()
                assert world.sweeper.sweep().endings == {}
            assert context.path in world.manifest()["paths"]
        else:
            rest.release()

    driver = world.driver()
    driver._work = MessageWork(driver.queue, per_message, None, parallel=2)
    assert driver.drain() == {"completed": 4}


@pytest.mark.parametrize("parallel", [1, 3])
def test_when_the_time_is_up_what_no_thread_has_started_waits_for_none_of_them(parallel):
    """Each of them has a message that may run for hours: none comes to ask."""
    all_run = threading.Barrier(parallel)
    given_back = []

    def per_message(spark, message: dict, context):
        all_run.wait(MOST_SECONDS)
        for _ in range(200):
            if len(leases()) <= parallel:
                break
            threading.Event().wait(0.05)
        given_back.append(6 - len(leases()))
        all_run.wait(MOST_SECONDS)

    def leases():
        return running.store.list("exports/leases/").objects

    running = Running(per_message, messages=6, messages_per_run=6, visibility_timeout=600)
    running.driver._work = MessageWork(running.driver.queue, per_message, None, parallel=parallel)
    # The thread of the manifest wakes up when the time is up; it would come after 200 seconds else.
    running.driver._until = running.driver.queue.clock.monotonic() + 1.0

    assert running.driver.drain() == {"completed": parallel, "released": 6 - parallel}
    assert given_back == [6 - parallel] * parallel


def test_what_is_claimed_when_the_time_is_up_already_is_given_back():
    """The threads that would have given it back have left."""
    world = World(messages_per_run=1)
    world.queue.enqueue({"do": "ok"}, name="a")
    world.launch()
    world.jobs.becomes("running", "RUNNING")
    late = world.queue.enqueue({"do": "ok"}, name="b")

    def per_message(spark, message: dict, context):
        driver._feed.low = 1
        driver._feed._claim_soon()
        until_looked(driver._feed, SimpleNamespace(looks=1), 1)
        assert late in world.manifest()["paths"]
        world.bench.clock.advance(31)
        driver.tidy()
        assert late not in world.manifest()["paths"]
        assert world.queue.read_lease(late) is None

    driver = world.driver(seconds=30)
    driver._work = MessageWork(driver.queue, per_message, None)
    assert driver.drain() == {"completed": 1, "released": 1}


def test_a_run_that_is_given_up_while_it_claims_starts_nothing_more():
    world = World()
    for n in range(9):
        world.queue.enqueue({"do": n})
    world.launch()
    given_up = threading.Event()

    def per_message(spark, message: dict, context):
        world.starts[context.path] += 1
        if not given_up.is_set():
            given_up.set()
            world.jobs.becomes("ended", "FAILED")
            world.watch.check(world.queue)

    driver = world.driver()
    driver._work = MessageWork(driver.queue, per_message, None, parallel=2)
    with pytest.raises(RunLost):
        driver.drain()

    # The two threads may each have started one before.
    assert 1 <= sum(world.starts.values()) <= 2
    world.settle()
    assert {record.outcome for record in world.records().values()} == {"completed"}
    assert len(world.records()) == 9


@pytest.mark.parametrize("at", range(12, 90, 6))
def test_killing_a_driver_with_several_threads_loses_nothing(at):
    world = World()
    paths = {world.queue.enqueue({"do": what}): what for what in WORK * 2}
    world.launch()
    world.jobs.becomes("running", "RUNNING")
    driver = world.driver(store=KilledStore(world.bench.memory, at))
    driver._work = MessageWork(driver.queue, world.per_message, None, parallel=3)
    with pytest.raises(Killed):
        driver.drain()
    world.jobs.becomes("ended", "FAILED")

    world.settle(60)

    check_everything(world, paths)


# The manifest


@pytest.fixture
def manifest():
    """A manifest of three messages that its driver has taken over."""
    world = World()
    for n in range(5):
        world.queue.enqueue({"do": n})
    world.launch()
    mine = as_run(world.queue, list(world.jobs.started)[-1])
    found = RunManifest(mine)
    found.take_over()
    claims = [mine.adopt(path) for path in found.paths]
    found.adopted(claims)
    return world, mine, found, claims


def test_only_what_was_begun_counts_as_started_in_whatever_order(manifest):
    world, _, found, (first, second, third) = manifest

    found.begin([third])

    assert world.manifest()["paths"][0] == third.path
    assert world.manifest()["started"] == 1
    assert set(found.unstarted) == {first.path, second.path}


def test_what_has_ended_is_named_no_longer_once_others_are_claimed(manifest):
    world, mine, found, (first, second, third) = manifest
    found.begin([first])
    found.begin([second])
    found.ended(first, "completed")
    left = [entry.key.removeprefix("exports/") for entry in world.queue.store.list("exports/messages/").objects]
    fresh = mine.claim(next(path for path in left if path not in found.paths))

    found.name([fresh])

    assert world.manifest()["paths"] == [second.path, third.path, fresh.path]
    assert (world.manifest()["started"], world.manifest()["batches"]) == (1, 2)
    assert world.manifest()["counts"] == {"completed": 1}


@pytest.mark.parametrize("outcome", ["lost", "completed", "released"])
def test_what_has_ended_is_named_no_longer_when_it_is_tidied(manifest, outcome):
    """It may have a lease yet, whatever became of it: that would be kept for as long as the others run."""
    world, _, found, (first, second, third) = manifest
    found.begin([first, second])
    world.bench.store.take()
    found.drop_ended()
    assert world.bench.store.take() == {}

    found.ended(second, outcome)
    found.drop_ended()
    found.drop_ended()

    assert world.bench.store.take() == {"put": 1}
    assert (world.manifest()["paths"], world.manifest()["started"]) == ([first.path, third.path], 1)
    assert world.manifest()["counts"] == {outcome: 1}


def test_what_was_not_adopted_is_named_no_longer_when_it_is_tidied():
    world = World()
    paths = [world.queue.enqueue({"do": n}) for n in range(3)]
    world.launch()
    mine = as_run(world.queue, list(world.jobs.started)[-1])
    found = RunManifest(mine)
    found.take_over()
    found.drop_ended()
    assert len(world.manifest()["paths"]) == 3, "they are being adopted, and the heartbeat keeps them"
    found.adopted([mine.adopt(paths[1])])

    found.drop_ended()

    assert (world.manifest()["paths"], world.manifest()["started"]) == ([paths[1]], 0)


def test_a_claim_that_ran_out_does_not_start_the_next_one_of_its_message(manifest):
    """[P5] It waited in the feed; the run has claimed the message anew, and would be charged with it."""
    world, mine, found, (first, _, _) = manifest
    mine.fail(first, RuntimeError("ran out"))
    world.bench.clock.advance(10)
    again = mine.claim(first.path, read_first=True)
    found.name([again])

    found.begin([first])
    assert world.manifest()["started"] == 0

    found.begin([again])
    assert world.manifest()["started"] == 1


def test_a_write_that_had_no_answer_is_not_taken_for_anothers(manifest):
    """It was stored: the run goes on from it. One that says {failed} is of whoever gave the run up."""
    world, _, found, (first, second, _) = manifest

    def lost(operation, key, perform):
        if "/runs/run-" not in key:
            return perform()
        if operation == "put":
            perform()
        raise Unavailable("no answer")

    world.bench.around = lost
    with pytest.raises(Unavailable):
        found.begin([first])
    world.bench.around = None
    found.begin([second])
    assert not found.is_lost
    assert world.manifest()["started"] == 1

    world.bench.around = lost
    with pytest.raises(Unavailable):
        found.progressed()
    world.bench.around = None
    book = RunStore(world.queue)
    at_work, etag = book.manifest(world.manifest()["run"])
    book.write_manifest(replace(at_work, state="failed"), etag)
    with pytest.raises(RunLost):
        found.progressed()


def test_a_write_that_had_no_answer_may_come_late(manifest):
    """Between two requests of the next write: what is stored then is our own, too."""
    world, _, found, (first, second, _) = manifest
    on_their_way = []

    def silent(operation, key, perform):
        if "/runs/run-" not in key:
            return perform()
        if operation == "put":
            on_their_way.append(perform)
        raise Unavailable("no answer")

    world.bench.around = silent
    with pytest.raises(Unavailable):
        found.begin([first])

    def lands(operation, key, perform):
        if operation == "put" and "/runs/run-" in key:
            world.bench.around = None
            on_their_way[0]()
        return perform()

    world.bench.around = lands
    found.begin([second])

    assert not found.is_lost
    assert (world.manifest()["paths"][0], world.manifest()["started"]) == (second.path, 1)


def test_a_retry_that_is_claimed_before_its_thread_says_that_it_failed_is_named_once_and_unstarted(manifest):
    world, mine, found, (first, second, third) = manifest
    found.begin([first])
    mine.fail(first, RuntimeError("did not work"))
    world.bench.clock.advance(10)
    again = mine.claim(first.path, read_first=True)

    found.name([again])
    found.ended(first, "retried")

    assert world.manifest()["paths"] == [second.path, third.path, first.path]
    assert world.manifest()["started"] == 0
    found.begin([again])
    assert world.manifest()["started"] == 1
    found.name([])
    assert again.path in world.manifest()["paths"]


def test_what_was_started_and_lost_is_said_to_be_until_it_is_claimed_anew(manifest):
    """[P5] Its lease may be the run's yet: then that was an attempt."""
    world, mine, found, (first, second, third) = manifest
    found.begin([first, second])
    found.ended(first, "lost")
    found.ended(second, "retried")
    found.ended(third, "lost")
    found.drop_ended()
    assert (world.manifest()["lost"], "paths" in world.manifest()) == ([first.path], False)
    mine.fail(first, RuntimeError("ran out"))
    world.bench.clock.advance(10)
    again = mine.claim(first.path, read_first=True)

    found.name([again])
    assert "lost" not in world.manifest()

    found.begin([again])
    found.close()
    assert world.manifest()["lost"] == [first.path]


@pytest.mark.parametrize("is_stored", [True, False])
def test_what_was_lost_and_claimed_anew_has_not_started_though_nobody_knows_that_it_is_named(manifest, is_stored):
    world, mine, found, (first, _, _) = manifest
    found.begin([first])
    found.ended(first, "lost")
    found.drop_ended()
    mine.fail(first, RuntimeError("ran out"))
    world.bench.clock.advance(10)
    again = mine.claim(first.path, read_first=True)

    def lost(operation, key, perform):
        if is_stored and operation == "put":
            perform()
        raise Unavailable("no answer")

    world.bench.around = lost
    with pytest.raises(Unavailable):
        found.name([again])
    world.bench.around = None
    found.drop_ended()

    assert has_not_started(world.queue, mine.worker_id, first.path)


def test_a_run_that_has_lost_very_many_messages_says_only_what_it_has_not_started(manifest, monkeypatch):
    world, mine, found, (first, second, third) = manifest
    monkeypatch.setattr(run_manifest, "MOST_LOST", 1)
    found.begin([first, second])
    for claim in (first, second):
        found.ended(claim, "lost")
    found.drop_ended()

    started = {claim.path: not has_not_started(world.queue, mine.worker_id, claim.path) for claim in manifest[3]}

    assert started == {first.path: True, second.path: True, third.path: False}
    found.begin([third])
    assert not has_not_started(world.queue, mine.worker_id, third.path)


def test_the_manifest_of_an_older_version_says_only_what_it_has_not_started(manifest):
    """What it does not name may have been started, and dropped."""
    world, mine, found, (first, second, third) = manifest
    found.begin([first, second])
    found.ended(first, "lost")
    found.drop_ended()
    document = {name: value for name, value in world.manifest().items() if name not in ("lost", "names_lost")}
    world.bench.put(world.queue.keys.manifest(mine.worker_id), json.dumps(document).encode())

    started = {claim.path: not has_not_started(world.queue, mine.worker_id, claim.path) for claim in manifest[3]}

    assert started == {first.path: True, second.path: True, third.path: False}


# The feed by itself


class Claiming:
    """A source that hands out what it is given, when it is told to."""

    def __init__(self, *found) -> None:
        self.found = list(found)
        self.may_end = threading.Event()
        self.may_end.set()
        self.began = threading.Event()
        self.looks = 0
        self.others = self.over = False

    def is_over(self) -> bool:
        return self.over

    def has_others_waiting(self) -> bool:
        return self.others

    def claim_more(self, limit: int) -> list:
        self.looks += 1
        self.began.set()
        assert self.may_end.wait(MOST_SECONDS)
        found = self.found.pop(0) if self.found else []
        if isinstance(found, BaseException):
            raise found
        return list(found)


def until_looked(feed, source, looks):
    """Until the thread that claims has ended."""
    for _ in range(2000):
        if source.looks >= looks and not feed._is_claiming:
            return
        threading.Event().wait(0.01)
    raise AssertionError("it was not looked")


def feed_of(source, *claims):
    return feeding.Feed(source, claims, limit=3, clock=ManualClock())


def test_what_is_being_claimed_at_the_end_is_handed_back():
    """Nobody else would give it back: it is claimed, and no thread has taken it."""
    source = Claiming("bc")
    feed = feed_of(source, "a")
    feed.low = 1
    source.may_end.clear()
    assert feed.take() == ["a"]
    assert source.began.wait(MOST_SECONDS)
    feed.stop()
    threading.Timer(0.2, source.may_end.set).start()

    assert feed.finish() == ["b", "c"]
    assert feed.take() == []


def test_what_claiming_raised_beside_the_messages_is_raised_at_the_end():
    feed = feed_of(Claiming(RunLost("given up")), "a")
    feed.low = 1
    assert feed.take() == ["a"]
    feed.join()
    with pytest.raises(RunLost):
        feed.finish()


def test_a_request_that_fails_while_others_are_claimed_is_made_again():
    """Else what is there, and what comes, would wait for the slowest message that runs."""
    source, clock = Claiming(Unavailable("503"), "bc"), ManualClock()
    feed = feeding.Feed(source, ["a"], limit=3, clock=clock)
    feed.low = 1
    assert feed.take() == ["a"]
    until_looked(feed, source, 1)
    clock.advance(feeding.LOOK_SECONDS)
    assert feed.take() == ["b"]
    feed.done(2)
    assert feed.finish() == ["c"]


def test_a_request_that_fails_to_the_end_is_raised():
    source = Claiming(Unavailable("503"))
    feed = feed_of(source, "a")
    feed.low = 1
    assert feed.take() == ["a"]
    until_looked(feed, source, 1)
    feed.done()
    assert feed.take() == []
    with pytest.raises(Unavailable):
        feed.finish()


def test_what_nobody_takes_any_more_is_left_before_the_last_has_ended():
    source = Claiming()
    feed = feed_of(source, "a", "b", "c")
    assert feed.take() == ["a"]
    assert feed.left() == []
    source.over = True
    assert feed.take() == []
    assert (feed.left(), feed.left()) == (["b", "c"], [])


class NoThread(threading.Thread):
    """What a process with too many threads gets."""

    def start(self) -> None:
        raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("found", ["bc", RunLost("given up")])
def test_a_feed_for_which_no_thread_can_be_started_claims_in_the_one_that_asks(monkeypatch, found):
    """Nobody would ever say that the claiming is over, and a run with a beating heartbeat would wait for it."""
    monkeypatch.setattr(feeding.threading, "Thread", NoThread)
    source = Claiming(found)
    feed = feed_of(source, "a")
    feed.low = 1

    assert (feed.take(), source.looks) == (["a"], 1)
    # Else `join` would wait for ever.
    assert not feed._is_claiming
    if found == "bc":
        assert feed.take() == ["b"]
        assert feed.finish() == ["c"]
    else:
        assert feed.take() == []
        with pytest.raises(RunLost):
            feed.finish()


def test_a_feed_is_not_drained_if_something_ended_since_it_looked():
    """It may have failed, and be due again."""
    feed = feed_of(Claiming([], []), "a")
    assert feed.take() == ["a"]
    feed.done()
    assert feed.take() == []
    assert feed.is_drained
    later = feed_of(Claiming([]), "a", "b")
    later.low = 2
    assert later.take() == ["a"]
    later.join()
    later.done()
    assert not later.is_drained


def test_nothing_is_claimed_or_handed_out_when_it_is_the_turn_of_others_or_the_run_is_over():
    source = Claiming("b")
    source.others = True
    feed = feed_of(source, "a")
    assert (feed.take(), feed.take(), source.looks) == (["a"], [], 0)
    source.others, source.over = False, True
    assert (feed_of(source, "c").take(), source.looks) == ([], 0)


def test_a_queue_that_is_empty_is_looked_at_every_few_seconds(monkeypatch):
    monkeypatch.setattr(feeding, "WAKE_SECONDS", 0.001)
    source, clock = Claiming(), ManualClock()
    feed = feeding.Feed(source, ["slow"], limit=3, clock=clock)
    feed.low = 1
    assert feed.take() == ["slow"]
    waiting = threading.Thread(target=feed.take)
    waiting.start()
    try:
        for looks in (1, 2, 3):
            deadline = threading.Event()
            for _ in range(2000):
                if source.looks >= looks:
                    break
                deadline.wait(0.01)
            deadline.wait(0.05)
            assert source.looks == looks
            clock.advance(feeding.LOOK_SECONDS)
    finally:
        feed.stop()
        waiting.join(MOST_SECONDS)
