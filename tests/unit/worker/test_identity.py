"""Each worker has an id of its own, so that nobody else writes its heartbeat.  [P2]"""

from __future__ import annotations

import os

from s3queue import Worker, define
from s3queue.protocol.liveness import HeartbeatWriter
from s3queue.worker.identity import own_queue


def _ids_in_a_child(*queues) -> list[str]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, " ".join(queue.worker_id for queue in queues).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        ids = answer.read().split()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return ids


def test_two_workers_of_one_queue_keep_what_each_of_them_holds(bench):  # [P2]
    shared = bench.queue(max_attempts=3)
    other, dispatched = bench.queue(worker_id="other"), []
    sweeper = bench.sweeper(other, dispatched)
    queues = [own_queue(shared), own_queue(shared)]
    claims = [queue.claim(queue.enqueue({})) for queue in queues]
    heartbeats = [HeartbeatWriter(queue) for queue in queues]
    for heartbeat, claim in zip(heartbeats, claims, strict=True):
        heartbeat.hold(claim)

    for _ in range(60):
        bench.clock.advance(1)
        for heartbeat in heartbeats:
            if heartbeat.seconds_to_beat() <= 0:
                assert heartbeat.beat({})
        sweeper.sweep()

    assert dispatched == []
    assert all(claim.is_alive() for claim in claims)


def test_the_first_worker_of_a_queue_has_the_queues_id_and_the_others_have_their_own(bench):
    queue = bench.queue(worker_id="worker-7")
    first, second, third = (Worker(queue, lambda body: None, sweep=False) for _ in range(3))

    assert first.queue is queue
    assert len({worker.queue.worker_id for worker in (first, second, third)}) == 3
    assert all(worker.queue.worker_id.startswith("worker-7") for worker in (second, third))


def test_a_second_worker_has_all_else_in_common_with_the_first(bench):
    settings = {"max_attempts": 7, "concurrency": 2}
    queue, seen = bench.queue(), []
    queue.events.on("message.completed", lambda fields: seen.append(fields["path"]))
    Worker(queue, define("orders", **settings), sweep=False)
    orders = define("orders", **settings)
    orders.handler(lambda body: None)
    path = queue.enqueue({})

    worker = Worker(queue, orders, sweep=False)
    worker.run_until_empty()

    assert seen == [path]
    assert worker.queue.settings == queue.settings
    assert bench.keys("orders/workers/") == []


def test_a_second_worker_follows_what_an_operator_has_changed(bench):
    queue, ran = bench.queue(), []
    Worker(queue, ran.append, sweep=False).run_until_empty()
    queue.enqueue({})
    queue.pause()

    Worker(queue, ran.append, sweep=False).run_until_empty()

    assert ran == []


def test_a_child_process_has_ids_of_its_own(bench):  # [P2]
    named, unnamed = bench.queue(worker_id="worker-7"), bench.queue()
    before = [named.worker_id, unnamed.worker_id]

    children = [_ids_in_a_child(named, unnamed) for _ in range(2)]

    assert [named.worker_id, unnamed.worker_id] == before
    assert len({*before, *children[0], *children[1]}) == 6
    assert all(child[0].startswith("worker-7-") for child in children)


def test_a_worker_that_was_made_before_a_fork_is_another_one_after_it(bench):  # [P2]
    worker = Worker(bench.queue(), lambda body: None, sweep=False)

    assert _ids_in_a_child(worker.queue) != [worker.queue.worker_id]
