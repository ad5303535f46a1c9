"""Claiming: one worker gets a message, and the most urgent message comes first."""

from __future__ import annotations

from datetime import timedelta

import pytest

from s3queue import Queue, Unavailable
from s3queue.protocol.backlog import Backlog
from s3queue.protocol.liveness import HeartbeatWriter
from support.workbench import Workbench


def test_a_claim_says_all_there_is_to_know(bench, queue):
    path = queue.enqueue(b"payload", priority=9, metadata={"k": "v"})
    bench.clock.advance(3)

    claim = queue.claim(path)

    assert claim.message.body == b"payload"
    assert (claim.attempt, claim.message.priority, claim.message.metadata) == (1, 9, {"k": "v"})
    assert claim.claimed_at - claim.message.enqueued_at == timedelta(seconds=3)
    assert claim.remaining() == timedelta(seconds=30)
    assert claim.lease.owner == queue.worker_id


def test_of_two_workers_one_gets_the_message(bench, queue):  # [P2]
    path = queue.enqueue(b"x")

    assert queue.claim(path)
    assert bench.queue(worker_id="rival").claim(path) is None
    assert bench.queue(worker_id="rival").claim(path, read_first=True) is None
    assert bench.queue(worker_id="rival").claim_next() == []


def test_a_claim_of_nothing_leaves_nothing_behind(bench, queue):
    assert queue.claim("messages/none") is None
    assert queue.claim("messages/none", read_first=True) is None
    assert bench.keys() == []


def test_a_claim_may_have_a_timeout_of_its_own(bench, queue):
    path = queue.enqueue(b"x")

    claim = queue.claim(path, timeout=300)

    assert claim.remaining() == timedelta(seconds=300)
    bench.clock.advance(100)
    bench.sweeper(bench.queue(worker_id="sweeper")).sweep()
    queue.complete(claim)
    assert queue.status(path).state == "completed"


def test_claim_next_takes_the_highest_priority_first_then_the_oldest(bench, queue):
    paths = {}
    for priority in (0, 255, 7, 100):
        for age in ("old", "new"):
            # Old and new lie further apart than workers reach at random, or the order would be theirs.
            paths[priority, age] = [queue.enqueue(b"x", priority=priority) for _ in range(40 if age == "old" else 1)]
            bench.clock.advance(2)

    claimed = [claim.path for claim in queue.claim_next(200)]

    assert [_priority(path) for path in claimed] == sorted((_priority(path) for path in claimed), reverse=True)
    for priority in (0, 255, 7, 100):
        of_priority = [path for path in claimed if _priority(path) == priority]
        assert len(of_priority) == 41
        # The newest of them is never among the first eight: it comes into reach only then.
        assert of_priority.index(paths[priority, "new"][0]) >= 8


def _priority(path: str) -> int:
    part = path.split("/")[1]
    return int(part[1:]) if len(part) == 4 and part.startswith("p") else 0


def test_the_oldest_of_several_shards_comes_first(bench):
    queue = bench.queue(shards=16)
    old = {queue.enqueue(b"x") for _ in range(40)}
    bench.clock.advance(10)
    young = {queue.enqueue(b"x") for _ in range(40)}

    claimed = [claim.path for claim in queue.claim_next(80)]

    assert set(claimed) == old | young
    assert set(claimed[:8]) <= old


def test_claim_next_looks_past_names_that_anyone_may_choose(bench, queue):
    for number in range(1100):
        bench.put(f"orders/messages/order-{number:05d}", b"x")
    bench.put("orders/messages/p200/urgent", b"x")
    bench.put("orders/messages/zebra", b"x")

    (claim,) = queue.claim_next()

    assert claim.path == "messages/p200/urgent"


def test_urgent_messages_are_found_behind_a_thousand_names_that_begin_with_p(bench, queue):
    for number in range(1100):
        bench.put(f"orders/messages/p-{number:05d}", b"x")
    bench.put("orders/messages/p200/urgent", b"x")

    (claim,) = queue.claim_next()

    assert claim.path == "messages/p200/urgent"


@pytest.mark.parametrize("prefix", ["", "p009/", "7f/"])
def test_a_thousand_messages_at_work_do_not_hide_the_ones_behind_them(bench, queue, prefix):
    for number in range(1500):
        bench.put(f"orders/messages/{prefix}{number:05d}", b"x")
        assert queue.claim(f"messages/{prefix}{number:05d}")
    bench.put(f"orders/messages/{prefix}99999", b"still here")

    (claim,) = queue.claim_next()

    assert claim.message.body == b"still here"


def _one_a_second(bench: Workbench, queue: Queue, count: int) -> list[str]:
    paths = []
    for _ in range(count):
        paths.append(queue.enqueue(b"x"))
        bench.clock.advance(1)
    return paths


def test_claim_next_takes_the_oldest_first_within_a_priority(bench):
    queue = bench.queue()
    paths = _one_a_second(bench, queue, 40)
    urgent = queue.enqueue(b"x", priority=9)

    assert [queue.claim_next()[0].path for _ in range(5)] == [urgent, *paths[:4]]


def test_workers_that_lose_a_claim_do_not_all_reach_for_the_same_message(bench):
    queue = bench.queue()
    paths = _one_a_second(bench, queue, 40)
    backlog = Backlog(queue, competes=False)
    backlog.refill()
    assert backlog.take().path == paths[0]

    backlog.report(won=False)
    others = [backlog.take().path for _ in range(5)]

    assert others != paths[1:6]


def test_claim_next_needs_no_sweeper_to_find_a_message_whose_worker_crashed(bench):  # [P6]
    queue = bench.queue(visibility_timeout=5)
    path = queue.enqueue(b"x")
    kept = queue.enqueue(b"x")
    assert bench.queue(worker_id="crashed").claim(path, timeout=5)
    alive = bench.queue(worker_id="alive", visibility_timeout=5)
    heartbeat = HeartbeatWriter(alive, alive.settings.visibility_timeout)
    heartbeat.hold(alive.claim(kept))
    for _ in range(4):
        bench.clock.advance(2)
        assert heartbeat.beat({})

    (claim,) = queue.claim_next(2)

    assert (claim.path, claim.attempt) == (path, 2)
    assert queue.status(kept).lease.owner == "alive"


def test_a_message_that_only_a_newer_version_understands_does_not_stop_the_others(bench, queue):
    paths = [queue.enqueue(b"x") for _ in range(3)]
    for path in paths[1:]:
        queue.fail(queue.claim(path), "once")
        bench.put(f"orders/records/{path}", b'{"v":99}')
    bench.clock.advance(10)

    assert [claim.path for claim in queue.claim_next(3)] == paths[:1]


def test_claim_next_hands_over_what_it_has_when_the_store_falls_silent(bench):
    requests = []

    def falls_silent(operation, key, perform):
        requests.append(operation)
        if operation == "put" and "/leases/" in key and requests.count("put") > 5:
            raise Unavailable("no answer")
        return perform()

    queue = bench.queue()
    for _ in range(3):
        queue.enqueue(b"x")
    bench.around = falls_silent
    requests += ["put"] * 3

    assert len(queue.claim_next(3)) == 2
    with pytest.raises(Unavailable):
        queue.claim_next(3)


def _fail(bench: Workbench, queue: Queue, count: int, *, retry_after: float, **options: float) -> list[str]:
    paths = [queue.enqueue(b"x", **options) for _ in range(count)]
    bench.clock.advance(options.get("delay", 0) + 1)
    for path in paths:
        queue.fail(queue.claim(path, read_first=True), "the backend is down", retry_after=retry_after)
    return paths


@pytest.mark.parametrize("options", [{"delay": 5}, {"priority": 200}, {}], ids=["delayed", "urgent", "ordinary"])
def test_messages_that_wait_for_their_retry_hide_no_others(bench: Workbench, options: dict[str, float]) -> None:
    queue = bench.queue()
    _fail(bench, queue, 40, retry_after=3600, **options)
    bench.clock.advance(60)
    free = {queue.enqueue(b"x") for _ in range(10)}

    assert {claim.path for claim in queue.claim_next(20)} == free


def test_reminders_of_finished_messages_hide_no_others_and_go(bench: Workbench) -> None:
    queue = bench.queue()
    for path in _fail(bench, queue, 40, retry_after=1):
        bench.clock.advance(1)
        queue.complete(queue.claim(path, read_first=True))
    assert len(bench.keys("orders/retries/")) == 40
    free = queue.enqueue(b"x")

    assert [claim.path for claim in queue.claim_next(2)] == [free]

    assert bench.keys("orders/retries/") == []


def test_a_retry_that_is_claimed_needs_no_reminder_any_more(bench: Workbench) -> None:
    queue = bench.queue()
    (path,) = _fail(bench, queue, 1, retry_after=1)
    bench.clock.advance(2)

    assert [claim.path for claim in queue.claim_next()] == [path]

    assert bench.keys("orders/retries/") == []


def test_a_reminder_stays_if_nobody_knows_what_became_of_the_claim(bench: Workbench) -> None:
    queue = bench.queue()
    _fail(bench, queue, 1, retry_after=1)
    bench.clock.advance(2)

    def no_answer(operation, key, perform):
        if operation == "get" and "/leases/" in key:
            raise Unavailable("503 SlowDown")
        return perform()

    bench.around = no_answer
    with pytest.raises(Unavailable):
        queue.claim_next()

    assert len(bench.keys("orders/retries/")) == 1


def test_claim_next_finds_a_delayed_message_whose_worker_crashed(bench: Workbench) -> None:  # [P6]
    queue = bench.queue(visibility_timeout=5)
    path = queue.enqueue(b"x", delay=5)
    bench.clock.advance(6)
    assert bench.queue(worker_id="crashed").claim(path, timeout=5)
    bench.clock.advance(60)

    (claim,) = queue.claim_next()

    assert (claim.path, claim.attempt) == (path, 2)
