"""Groups and shares over Spark runs: in order, committed together, and nothing lost when a run dies.  [P9]

No JVM: the driver is plain Python, and so are the jobs here.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from datetime import timedelta

import pytest

from s3queue import Queue, QueueSettings
from s3queue.documents.heartbeat import Heartbeat
from s3queue.errors import AccessDenied
from s3queue.flow.partitions import hold_partition
from s3queue.spark_runs.launcher import Launcher
from s3queue.spark_runs.partitions import RunPartitions
from s3queue.spark_runs.slots import RunStore, as_run
from s3queue.stores.memory import MemoryStore
from spark.heavy.batches import grouped, size_of_group
from spark.heavy.driver import Driver
from spark.heavy.messages import MessageWork, SparkGone
from spark.heavy.partition_rounds import PartitionRounds
from spark.heavy.run_manifest import RunLost
from support.fake_jobs import FakeJobs
from support.killed_store import Killed, KilledStore
from support.run_world import World

KINDS = ["per_message", "per_batch"]


class InBatches:
    """As `BatchWork`, with a job in plain Python: `judge(claim)` returns an error or None."""

    def __init__(self, judge, is_alive=lambda: True):
        self.judge, self.is_alive = judge, is_alive
        #: The paths of each query.
        self.queries: list[list[str]] = []

    def run(self, feed, driver):
        while group := feed.take(size_of_group):
            self.run_claims(group, driver)
            feed.done(len(group))

    def run_claims(self, claims, driver):
        for group in grouped(claims):
            if driver.is_over():
                for claim in group:
                    driver.release(claim)
                continue
            if not self.is_alive():
                raise SparkGone("the Spark session is gone")
            driver.begin(group)
            self.queries.append([claim.path for claim in group])
            for claim in group:
                error = self.judge(claim)
                if error is None:
                    driver.ended(claim, driver.queue.complete(claim, "done").outcome)
                else:
                    ended = driver.queue.fail(claim, error)
                    driver.ended(claim, getattr(ended, "outcome", "retried"))

    def run_partitions(self, partitions, driver):
        return PartitionRounds(self, partitions, driver).run()

    def keeps_body(self, path):
        return False


class Partitioned(World):
    """Remembers the order in which the messages of each group were started."""

    def __init__(self, kind="per_message", **settings):
        super().__init__(**settings)
        self.kind = kind
        self.order: dict[str, list[tuple[str, int]]] = defaultdict(list)

    def work(self, queue: Queue):
        if self.kind == "per_message":
            return MessageWork(queue, self.noted, None)
        return InBatches(self.judge)

    def noted(self, spark, message: dict, context):
        self.order[context.path.split("/")[1]].append((context.path, context.attempt))
        return self.per_message(spark, message, context)

    def judge(self, claim):
        self.order[claim.path.split("/")[1]].append((claim.path, claim.attempt))
        self.starts[claim.path] += 1
        what = claim.message.json()["do"]
        if what == "reject":
            from s3queue import Reject

            return Reject("not like this")
        if what == "fail" or (what == "fail once" and claim.attempt == 1):
            return RuntimeError("did not work")
        return None

    def driver(self, run=None, *, store=None, work=None, **options):
        run = run or list(self.jobs.started)[-1]
        queue = as_run(self.seen_through(store or self.bench.store), run)
        return super().driver(run, store=store, work=work or self.work(queue), **options)

    def outcome(self, path):
        return self.queue.outcome_of(path)


@pytest.fixture(params=KINDS)
def world(request):
    return Partitioned(request.param)


def test_groups_run_in_order_and_a_failed_message_holds_only_its_own_group_up(world):
    first = [world.queue.enqueue({"do": what}, group="a") for what in ("ok", "fail once", "ok", "reject", "ok")]
    other = [world.queue.enqueue({"do": "ok"}, group="b") for _ in range(3)]
    assert world.launch(first[:1]) == "started"
    assert "paths" not in world.manifest()

    counts = world.driver().drain()

    assert counts == {"completed": 7, "dead": 1, "retried": 1}
    assert world.order["@a"] == [
        (first[0], 1), (first[1], 1), (first[1], 2), (first[2], 1), (first[3], 1), (first[4], 1)
    ]  # fmt: skip
    assert world.order["@b"] == [(path, 1) for path in other]
    assert [world.outcome(path).outcome for path in first] == ["completed"] * 3 + ["dead", "completed"]
    assert world.left() == []
    assert world.bench.keys("exports/workers/") == []


def test_single_messages_are_spread_over_shares_and_their_outcomes_are_committed_together(world):
    world = Partitioned(world.kind, partitions=2, messages_per_run=50)
    paths = [world.queue.enqueue({"do": "ok"}) for _ in range(40)]
    urgent = world.queue.enqueue({"do": "ok"}, priority=200)
    assert {path.split("/")[1] for path in paths} == {"@=0", "@=1"}
    world.launch(paths[:1])

    assert world.driver().drain() == {"completed": 41}

    assert {world.outcome(path).outcome for path in paths} == {"completed"}
    assert len(world.bench.keys("exports/records/@")) == 2
    assert world.outcome(urgent).outcome == "completed"
    assert world.left() == []


def test_a_run_is_launched_for_a_partition_by_its_event_and_by_the_sweeper_but_only_once(world):
    path = world.queue.enqueue({"do": "ok"}, group="a")
    assert world.launch([path]) == "started"
    assert world.launch([path]) == "busy"
    world.jobs.becomes("running", "RUNNING")
    world.driver().drain()
    world.jobs.becomes("ended", "SUCCESS")
    # Its event comes a second time: no run is started for nothing, and no slot is taken for a look.
    assert world.launch([path]) == "nothing"
    assert RunStore(world.queue).slot(0) is None

    lost = world.queue.enqueue({"do": "ok"}, group="b")
    world.bench.clock.advance(61)
    world.sweeper.sweep()
    assert world.dispatched == ["messages/@b/"]
    world.launch_what_was_dispatched()
    assert world.outcome(lost).outcome == "completed"
    assert len(world.jobs.started) == 2


def test_no_run_is_started_for_a_group_that_waits_for_a_retry_and_one_is_when_it_is_due():
    world = Partitioned(retry_base=300)
    first = world.queue.enqueue({"do": "fail once"}, group="a")
    world.launch([first])
    world.jobs.becomes("running", "RUNNING")
    assert world.driver().drain() == {"retried": 1}
    world.jobs.becomes("ended", "SUCCESS")

    second = world.queue.enqueue({"do": "ok"}, group="a")
    world.bench.store.take()
    assert world.launch([second]) == "nothing"
    assert world.bench.store.take() == {"get": 1}

    world.settle()
    assert world.order["@a"] == [(first, 1), (first, 2), (second, 1)]
    assert len(world.jobs.started) == 2


def test_a_launch_that_finds_nothing_looks_for_what_others_left_to_it(world):
    """While it has the slot, an event of another partition finds it taken."""
    gone = world.queue.enqueue({"do": "ok"}, group="a")
    late = []

    class Looking:
        def __init__(self, inner):
            self.inner, self.url = inner, inner.url

        def __getattr__(self, name):
            def sent(key, *arguments, **options):
                answer = getattr(self.inner, name)(key, *arguments, **options)
                if name == "put" and "runs/slot" in key and not late:
                    world.bench.memory.delete(world.queue.keys.message(gone))
                    late.append(world.queue.enqueue({"do": "ok"}, group="b"))
                    assert world.launch(late) == "busy"
                return answer

            return sent

    assert world.launch([gone], store=Looking(world.bench.store)) == "started"
    assert world.driver().drain() == {"completed": 1}
    assert world.outcome(late[0]).outcome == "completed"


def test_a_message_that_comes_to_a_partition_while_the_run_closes_is_not_stranded(world):
    path = world.queue.enqueue({"do": "ok"}, group="a")
    world.launch([path])
    late = []

    class Closing:
        def __init__(self, inner):
            self.inner, self.url = inner, inner.url

        def __getattr__(self, name):
            def sent(key, *arguments, **options):
                if name == "delete" and "runs/slot" in key and not late:
                    late.append(world.queue.enqueue({"do": "ok"}, group="a"))
                    assert world.launch(late) == "busy"
                return getattr(self.inner, name)(key, *arguments, **options)

            return sent

    assert world.driver(store=Closing(world.bench.store)).drain() == {"completed": 2}
    assert world.left() == []
    assert len(world.jobs.started) == 1


def test_the_runs_heartbeat_keeps_a_partition_through_a_long_message():
    world = Partitioned(visibility_timeout=60)
    paths = [world.queue.enqueue({"do": "ok"}, group="a") for _ in range(2)]
    world.launch(paths[:1])
    world.jobs.becomes("running", "RUNNING")
    driver = world.driver()
    named = []

    def per_message(spark, message: dict, context):
        for _ in range(5):
            world.bench.clock.advance(timedelta(seconds=25))
            driver.beat()
            world.sweeper.sweep()
        assert hold_partition(world.queue.leases, "@a") is None
        (key,) = world.bench.keys("exports/workers/")
        named.append(Heartbeat.from_bytes(world.bench.read(key), key).holds)

    driver._work = MessageWork(world.queue, per_message, None)
    assert driver.drain() == {"completed": 2}
    assert named == [("messages/@a/",)] * 2
    assert world.dispatched == []


def test_a_killed_run_is_followed_by_another_that_goes_on_in_order(world):
    paths = [world.queue.enqueue({"do": "ok"}, group="a") for _ in range(3)]
    world.launch(paths[:1])
    world.jobs.becomes("running", "RUNNING")
    died = []

    def dies(claim):
        if claim.path == paths[1] and not died:
            died.append(claim.path)
            raise Killed("here")
        return world.judge(claim)

    def dies_at_message(spark, message: dict, context):
        if context.path == paths[1] and not died:
            died.append(context.path)
            raise Killed("here")
        return world.noted(spark, message, context)

    work = InBatches(dies) if world.kind == "per_batch" else MessageWork(world.queue, dies_at_message, None)
    with pytest.raises(Killed):
        world.driver(work=work).drain()
    world.jobs.becomes("ended", "FAILED")

    world.settle()

    assert [path for path, _ in world.order["@a"]][-3:] == paths
    assert [world.outcome(path).outcome for path in paths] == ["completed"] * 3
    assert len(world.jobs.started) == 2


def test_a_run_looks_at_the_lease_of_another_that_died(world):
    world.queue.enqueue({"do": "ok"}, group="a")
    assert hold_partition(world.queue.leases, "@a")
    partitions = RunPartitions(world.queue)
    assert partitions.find() == []

    world.bench.clock.advance(world.queue.settings.visibility_timeout.total_seconds() + 2)

    assert partitions.find() == ["@a"]


def test_a_driver_that_was_given_up_holds_nothing_more_and_commits_what_it_holds(world):
    for group in "abc":
        world.queue.enqueue({"do": "ok"}, group=group)
    world = world if world.kind == "per_message" else _with_one_message_a_round(world)
    world.launch([world.bench.keys("exports/messages/")[0].removeprefix("exports/")])
    started = []

    def give_up(path):
        started.append(path)
        if len(started) == 1:
            world.jobs.becomes("ended", "FAILED")
            world.watch.check(world.queue)

    def per_message(spark, message: dict, context):
        give_up(context.path)

    work = InBatches(lambda claim: give_up(claim.path))
    with pytest.raises(RunLost):
        world.driver(work=work if world.kind == "per_batch" else MessageWork(world.queue, per_message, None)).drain()

    assert len(started) == 1
    # The partition's own lease decides, and that was still this driver's.
    assert world.outcome(started[0]).outcome == "completed"
    assert world.bench.keys("exports/leases/") == []
    world.settle()


def _with_one_message_a_round(world):
    other = Partitioned(world.kind, messages_per_run=1)
    for group in "abc":
        other.queue.enqueue({"do": "ok"}, group=group)
    return other


def test_a_dead_session_charges_only_what_was_started(world):
    paths = [world.queue.enqueue({"do": "ok"}, group="a") for _ in range(3)]
    world.launch(paths[:1])
    alive = [True]

    def judge(claim):
        if claim.path == paths[1]:
            alive[0] = False
            raise RuntimeError("the session died")
        return world.judge(claim)

    def per_message(spark, message: dict, context):
        if context.path == paths[1]:
            alive[0] = False
            raise RuntimeError("the session died")
        return world.noted(spark, message, context)

    is_alive = lambda: alive[0]  # noqa: E731
    work = (
        InBatches(judge, is_alive)
        if world.kind == "per_batch"
        else MessageWork(world.queue, per_message, None, is_alive=is_alive)
    )
    with pytest.raises((SparkGone, RuntimeError)):
        world.driver(work=work).drain()

    assert RunStore(world.queue).slot(0) is None
    assert world.outcome(paths[0]).outcome == "completed"
    world.settle()
    assert [world.outcome(path).attempt for path in paths] == [1, 2, 1]


def test_a_paused_queue_starts_nothing_more_in_a_partition(world):
    paths = [world.queue.enqueue({"do": "ok"}, group="a") for _ in range(3)]
    world.launch(paths[:1])

    def pause(path):
        world.queue.pause()
        world.bench.clock.advance(11)

    def per_message(spark, message: dict, context):
        pause(context.path)

    work = InBatches(lambda claim: pause(claim.path))
    driver = world.driver(work=work if world.kind == "per_batch" else MessageWork(world.queue, per_message, None))
    assert driver.drain() == {"completed": 1}
    assert world.outcome(paths[0]).outcome == "completed"
    assert len(world.bench.keys("exports/messages/@a/")) == 2
    assert world.bench.keys("exports/leases/") == []


def test_when_the_time_is_up_the_rest_of_a_partition_is_left_untried(world):
    paths = [world.queue.enqueue({"do": "ok"}, group="a") for _ in range(3)]
    world.launch(paths[:1])

    def late(path):
        world.bench.clock.advance(40)

    def per_message(spark, message: dict, context):
        late(context.path)

    work = InBatches(lambda claim: late(claim.path))
    options = {"work": work if world.kind == "per_batch" else MessageWork(world.queue, per_message, None)}
    assert world.driver(seconds=30, **options).drain() == {"completed": 1}
    assert world.bench.keys("exports/leases/") == []
    world.settle()
    assert [world.outcome(path).attempt for path in paths] == [1, 1, 1]


def test_a_message_that_someone_deletes_while_it_waits_is_recorded_and_its_lease_goes(world):
    world = Partitioned(world.kind, retry_base=300)
    path = world.queue.enqueue({"do": "fail once"}, group="a")
    world.launch([path])
    world.jobs.becomes("running", "RUNNING")
    assert world.driver().drain() == {"retried": 1}
    world.jobs.becomes("ended", "SUCCESS")
    world.bench.memory.delete(world.queue.keys.message(path))

    world.settle()

    assert world.outcome(path).failure.type == "MessageVanished"
    assert len(world.jobs.started) == 2


def test_what_a_dead_run_had_committed_is_finished_without_another_run(world):
    path = world.queue.enqueue({"do": "ok"}, group="a")
    world.launch([path])
    world.jobs.becomes("running", "RUNNING")

    class Dying:
        """The driver dies before it deletes the message, whose outcome is committed."""

        def __init__(self, inner):
            self.inner, self.url = inner, inner.url

        def __getattr__(self, name):
            def sent(key, *arguments, **options):
                if name.startswith("delete") and "messages/" in str(key):
                    raise Killed("here")
                return getattr(self.inner, name)(key, *arguments, **options)

            return sent

    with pytest.raises(Killed):
        world.driver(store=Dying(world.bench.store)).drain()
    world.jobs.becomes("ended", "FAILED")

    world.settle()

    assert world.outcome(path).outcome == "completed"
    assert world.starts[path] == 1
    assert len(world.jobs.started) == 1


def test_no_run_is_started_again_and_again_for_what_cannot_be_finished(world, caplog):
    """A permission is missing: the function says so; runs would cost a minute of cores each, and say the same."""
    path = world.queue.enqueue({"do": "reject"}, group="a")
    world.launch([path])
    world.jobs.becomes("running", "RUNNING")

    def refuse(operation, key, perform):
        if operation in ("put", "copy") and "/dead/" in key:
            raise AccessDenied(f"{operation} {key}")
        return perform()

    world.bench.around = refuse
    world.driver().drain()
    world.jobs.becomes("ended", "SUCCESS")
    with pytest.raises(AssertionError, match="never settled"):
        world.settle(rounds=5)
    assert len(world.jobs.started) == 1
    assert "no run started for it: exports/@a" in caplog.text

    world.bench.around = lambda operation, key, perform: perform()
    world.settle()
    assert len(world.bench.keys("exports/dead/")) == 1
    assert len(world.jobs.started) == 1


def test_other_messages_have_their_turn_while_many_partitions_wait(world):
    world = Partitioned(world.kind, messages_per_run=1)
    for number in range(8):
        world.queue.enqueue({"do": "ok"}, group=f"g{number}")
    world.launch([world.bench.keys("exports/messages/")[0].removeprefix("exports/")])
    order = []

    def take_long(path):
        if not order:
            world.queue.enqueue({"do": "ok"}, priority=200)
        order.append(path)
        for _ in range(8):
            world.bench.clock.advance(25)
            driver.beat()

    def per_message(spark, message: dict, context):
        take_long(context.path)

    work = InBatches(lambda claim: take_long(claim.path))
    driver = world.driver(work=work if world.kind == "per_batch" else MessageWork(world.queue, per_message, None))
    assert driver.drain() == {"completed": 9}
    (urgent,) = [number for number, path in enumerate(order) if "@" not in path]
    assert 1 <= urgent <= 3


def test_one_query_has_a_message_of_each_group_and_many_of_a_share():
    world = Partitioned("per_batch", partitions=1, messages_per_run=10)
    for group in "abc":
        for _ in range(2):
            world.queue.enqueue({"do": "ok"}, group=group)
    for _ in range(4):
        world.queue.enqueue({"do": "ok"})
    world.launch([world.bench.keys("exports/messages/")[0].removeprefix("exports/")])
    work = InBatches(world.judge)

    assert world.driver(work=work).drain() == {"completed": 10}

    folders = [sorted(path.split("/")[1] for path in query) for query in work.queries]
    assert folders == [["@=0"] * 4 + ["@a", "@b", "@c"], ["@a", "@b", "@c"]]


def test_a_mixed_queue_leaves_partitions_to_functions():
    world = Partitioned(engine="lambda", heavy_above=1000)
    world.bench.put("exports/messages/@a/x", b'{"do": "ok"}')
    assert world.launch(["messages/@a/x"]) == "nothing"
    world.queue.enqueue(b'{"do": "ok", "x": "' + b"x" * 2000 + b'"}')
    assert world.launch() == "started"
    assert world.driver().drain() == {"completed": 1}
    assert world.bench.keys("exports/messages/") == ["exports/messages/@a/x"]


def test_a_queue_without_partitions_pays_nothing_for_them():
    world = World()
    for n in range(3):
        world.queue.enqueue({"do": n})
    world.launch()
    world.bench.store.take()
    asked = []
    world.driver(store=Noting(world.bench.store, asked)).drain()
    assert not [key for key in asked if "@" in key]


class Noting:
    def __init__(self, inner, asked):
        self.inner, self.url, self.asked = inner, inner.url, asked

    def __getattr__(self, name):
        def sent(key, *arguments, **options):
            self.asked.append(key)
            return getattr(self.inner, name)(key, *arguments, **options)

        return sent


# Whatever dies, wherever

GROUPS = {"a": ["ok", "fail once", "reject", "ok"], "b": ["ok", "fail", "ok"]}
SHARED = ["ok", "ok", "fail once"]


def enqueue_all(world: Partitioned) -> dict[str, str]:
    paths = {world.queue.enqueue({"do": what}, group=name): what for name, some in GROUPS.items() for what in some}
    return paths | {world.queue.enqueue({"do": what}): what for what in SHARED}


def check_everything(world: Partitioned, paths: dict[str, str]) -> None:
    for path, what in paths.items():
        record = world.outcome(path)
        assert record is not None, path
        assert record.outcome == ("dead" if what in ("reject", "fail") else "completed"), (path, what)
        assert record.attempt <= {"ok": 2, "reject": 2}.get(what, 3)
    # Of several that were taken by a run that died none is charged: one start more than attempts, for one death.
    assert max(world.starts.values()) <= world.queue.settings.max_attempts + 1
    assert {key.rpartition("/")[2] for key in world.bench.keys("exports/dead/")} == {
        path.rpartition("/")[2] for path, what in paths.items() if what in ("reject", "fail")
    }
    assert world.left() == []
    # No run was started for nothing: one died, one did the rest, or found that a lease had not run out yet.
    assert len(world.jobs.started) <= 3
    for name in GROUPS:
        check_order(world.order[f"@{name}"], world)


def check_order(started: list[tuple[str, int]], world: Partitioned) -> None:
    """No message starts after a later one of its group has its outcome, but for what the dead run had not committed."""
    first = [path for number, (path, _) in enumerate(started) if path not in {one for one, _ in started[:number]}]
    assert first == sorted(first)
    ended = [world.outcome(path).finished_at for path in first]
    assert ended == sorted(ended)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_killing_the_driver_at_any_request_loses_nothing_and_keeps_the_order(kind, late):
    at = 0
    while True:
        at += 1
        world = Partitioned(kind, partitions=2)
        paths = enqueue_all(world)
        world.launch([next(iter(paths))])
        world.jobs.becomes("running", "RUNNING")
        try:
            world.driver(store=KilledStore(world.bench.memory, at, late=late)).drain()
            died = False
        except Killed:
            died = True
        world.jobs.becomes("ended", "FAILED" if died else "SUCCESS")
        world.settle()
        check_everything(world, paths)
        if not died:
            break
    assert at > 60


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_killing_the_launcher_at_any_request_loses_nothing(late):
    at = 0
    while True:
        at += 1
        world = Partitioned(partitions=2)
        paths = enqueue_all(world)
        try:
            world.launch(list(paths), store=KilledStore(world.bench.memory, at, late=late))
            died = False
        except Killed:
            died = True
        world.bench.clock.advance(70)
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
    assert at > 6


def test_two_runs_with_threads_share_the_partitions_and_every_group_stays_in_order():
    store = MemoryStore("burst")
    settings = QueueSettings.of(
        engine="spark", messages_per_run=20, visibility_timeout=60, max_runs=2, partitions=3, concurrency=4
    )
    queue = Queue(store=store, name="exports", settings=settings)
    groups = {f"g{n}": [queue.enqueue({"n": n}, group=f"g{n}") for _ in range(8)] for n in range(12)}
    shared = [queue.enqueue({"n": n}) for n in range(120)]
    jobs, started, mutex = FakeJobs(), defaultdict(list), threading.Lock()
    running: set[str] = set()

    def per_message(spark, message: dict, context):
        folder = context.path.split("/")[1]
        with mutex:
            started[folder].append(context.path)
            if not folder.startswith("@="):
                assert folder not in running
                running.add(folder)
        threading.Event().wait(0.001)
        with mutex:
            running.discard(folder)

    totals: defaultdict[str, int] = defaultdict(int)

    def drain(run: str) -> None:
        mine = as_run(Queue(store=store, name="exports", settings=settings), run)
        counts = Driver(mine, MessageWork(mine, per_message, None, parallel=4), seconds=600).drain()
        with mutex:
            for outcome, count in counts.items():
                totals[outcome] += count

    paths = [queue.keys.path(entry.key) for entry in store.list(queue.keys.prefix("messages")).objects]
    while Launcher(jobs, "bench").launch(queue, paths[:5]) == "started":
        pass
    assert len(jobs.started) == 2
    threads = [threading.Thread(target=drain, args=(run,)) for run in jobs.started]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert totals == {"completed": 12 * 8 + 120}
    assert {name: started[f"@{name}"] for name in groups} == groups
    assert sorted(path for folder, some in started.items() if folder.startswith("@=") for path in some) == sorted(
        shared
    )
