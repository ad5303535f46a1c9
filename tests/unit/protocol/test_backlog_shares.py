"""Pull workers on one queue: each takes its own messages first, and none is left lying."""

from __future__ import annotations

import json

from s3queue.protocol.backlog import Backlog
from s3queue.protocol.liveness import HeartbeatWriter


def worker(bench, name):
    queue = bench.queue(worker_id=name)
    assert HeartbeatWriter(queue).beat({})
    return queue


def fill(bench, count):
    queue = bench.queue()
    for number in range(count):
        queue.enqueue(json.dumps(number))


def contended(queue):
    """A backlog that has just lost a claim."""
    backlog = Backlog(queue, shares=True)
    backlog.refill()
    assert backlog.take()
    backlog.report(won=False)
    assert backlog.is_stale()
    return backlog


def taken(backlog):
    found = []
    while one := backlog.take():
        found.append(one.path)
        backlog.report(won=True)
    return found


def test_a_worker_alone_looks_for_nobody(bench):
    fill(bench, 10)
    backlog = Backlog(worker(bench, "a"), shares=True)
    bench.store.log.clear()

    backlog.refill()
    taken(backlog)

    assert not [key for _, key in bench.store.log if key.startswith("orders/workers/")]


def test_after_a_lost_claim_each_worker_takes_its_own_messages(bench):
    fill(bench, 300)
    backlogs = [contended(worker(bench, name)) for name in ("a", "b", "c")]

    for backlog in backlogs:
        backlog.refill()
    shares = [taken(backlog) for backlog in backlogs]

    assert len({path for share in shares for path in share}) == sum(map(len, shares)) == 300
    assert min(map(len, shares)) > 50
    # The oldest first, as ever.
    assert all(share == sorted(share) for share in shares)


def test_what_another_worker_leaves_lying_is_taken_the_newest_first(bench):
    fill(bench, 100)
    backlog = contended(worker(bench, "a"))
    worker(bench, "hangs")
    backlog.refill()
    own = taken(backlog)
    assert 0 < len(own) < 100
    for path in own:
        bench.memory.delete(f"orders/{path}")

    backlog.refill()
    left = taken(backlog)

    assert left == sorted(left, reverse=True)
    assert len(own) + len(left) == 100


def test_more_messages_of_its_own_do_not_keep_a_worker_from_what_was_left(bench):
    fill(bench, 50)
    backlog = contended(worker(bench, "a"))
    worker(bench, "hangs")
    backlog.refill()
    left = {one.path for one in backlog._list_candidates()} - set(taken(backlog))
    fill(bench, 50)

    backlog.refill()

    assert left <= set(taken(backlog))


def test_a_worker_whose_heartbeat_is_old_has_no_share(bench):
    fill(bench, 100)
    worker(bench, "dead")
    bench.clock.advance(3600)
    backlog = contended(worker(bench, "a"))

    backlog.refill()

    assert len(taken(backlog)) == 100


def test_claims_that_functions_win_cost_one_look_in_half_a_minute(bench):
    """They have no heartbeat: who competes cannot be known, and the window is dropped after three in a row, as ever."""
    fill(bench, 100)
    backlog = contended(worker(bench, "a"))
    backlog.refill()
    bench.store.log.clear()

    for _ in range(2):
        assert backlog.take()
        backlog.report(won=False)
    assert not backlog.is_stale()
    backlog.refill()

    assert not [key for _, key in bench.store.log if key.startswith("orders/workers/")]
