"""Purge: what nobody works on goes, and only that."""

from __future__ import annotations

import json

from support.interruption import interrupted


def fail_once(queue):
    path = queue.enqueue(b"x")
    queue.fail(queue.claim(path), "once")
    return path


def test_purge_deletes_what_nobody_works_on(bench):
    queue = bench.queue()
    running = queue.enqueue(b"x")
    claim = queue.claim(running)
    waiting = queue.enqueue(b"x")
    queue.fail(queue.claim(waiting), "once")
    for _ in range(3):
        queue.enqueue(b"x")
        queue.enqueue(b"x", delay=60)
    other = bench.queue("orders-eu")
    other.enqueue(b"not mine")

    assert queue.purge() == 7

    queue.complete(claim)
    assert queue.status(running).state == "completed"
    assert not bench.keys("orders/messages/")
    assert not bench.keys("orders/delayed/")
    assert not bench.keys("orders/leases/")
    assert len(bench.keys("orders-eu/messages/")) == 1


def test_a_purge_that_is_interrupted_gives_a_message_that_waits_no_new_attempts(bench):
    queue = bench.queue(max_attempts=2)
    path = fail_once(queue)
    before = queue.read_lease(path).lease
    with interrupted(bench, path):
        queue.purge()
    bench.clock.advance(3600)
    bench.sweeper(queue).sweep()
    after = queue.read_lease(path).lease
    assert (after.state, after.attempt, after.attempts) == ("waiting", before.attempt, before.attempts)
    assert queue.claim(path, read_first=True).attempt == 2


def test_a_purge_that_is_interrupted_does_not_run_what_has_an_outcome(bench):
    """Released by hand, and completed by its worker, who lived, and died before the message was deleted."""
    queue = bench.queue()
    path = queue.enqueue(b"x")
    claim = queue.claim(path)
    bench.queue().release_held(path)
    with interrupted(bench, path):
        queue.complete(claim)
    with interrupted(bench, path):
        bench.queue().purge()
    bench.clock.advance(3600)
    bench.sweeper(queue).sweep()
    assert queue.claim(path, read_first=True) is None
    assert queue.status(path).state == "completed"
    assert not bench.keys("orders/messages/")


def test_a_purge_that_crashed_leaves_no_record_of_a_death(bench):
    queue = bench.queue()
    path = fail_once(queue)
    with interrupted(bench, path, is_deleted=True):
        queue.purge()
    bench.clock.advance(3600)
    bench.sweeper(queue).sweep()
    assert not bench.keys("orders/leases/")
    assert queue.outcome_of(path) is None


def test_a_purge_leaves_what_waits_and_was_put_anew_since_it_was_listed(bench):
    queue = bench.queue()
    path = fail_once(queue)
    [entry] = queue.store.list(queue.keys.message(path)).objects
    bench.put(f"orders/{path}", b"other")
    assert not queue.purge_message(entry)
    assert queue.read_lease(path).lease.state == "waiting"
    assert bench.keys("orders/messages/") == [f"orders/{path}"]


def test_a_purge_that_slept_while_its_lease_ran_out_deletes_nothing(bench):
    queue = bench.queue()
    path = fail_once(queue)

    def slow(operation, key, perform):
        done = perform()
        if operation == "put":
            bench.clock.advance(3600)
        return done

    bench.around = slow
    assert queue.purge() == 0
    bench.around = None
    assert bench.keys("orders/messages/") == [f"orders/{path}"]
    assert queue.claim(path, read_first=True).attempt == 2


def test_a_message_that_waits_is_purged_with_one_put_and_two_deletes(bench):
    queue = bench.queue()
    fail_once(queue)
    bench.store.take()
    queue.purge()
    assert bench.store.take() == {"list": 2, "get": 1, "put": 1, "delete": 2}


def put_again_after_a_purge_that_crashed(bench, queue, handler, body, **options):
    """A file whose second line failed is purged, which is killed before the lease goes; the same file comes again."""
    path = "messages/daily.ndjson"
    bench.put(f"orders/{path}", body)
    bench.clock.advance(5)
    processor = bench.processor(queue, handler, **options)
    processor.run(path)
    assert queue.read_lease(path).lease.state == "waiting"
    with interrupted(bench, path, is_deleted=True):
        queue.purge()
    bench.clock.advance(5)
    bench.put(f"orders/{path}", body)
    return path, processor


def settle(bench, queue, processor):
    dispatched = []
    sweeper = bench.sweeper(queue, dispatched)
    for _ in range(6):
        bench.clock.advance(700)
        sweeper.sweep()
        while dispatched:
            processor.run(dispatched.pop(0), read_first=True)


def test_what_is_put_after_a_purge_that_crashed_begins_anew(bench):
    """[P1] [P5] Not with the lines that were done in the file that was purged, nor with its attempts."""
    queue, ran = bench.queue(max_attempts=2), []

    def handler(body):
        ran.append(body["n"])
        if body["n"] == 2 and len(ran) < 4:
            raise ValueError("no")

    path, processor = put_again_after_a_purge_that_crashed(bench, queue, handler, b'{"n":1}\n{"n":2}\n{"n":3}\n')
    ran.clear()
    settle(bench, queue, processor)

    assert ran == [1, 2, 3, 2]
    assert queue.outcome_of(path).outcome == "completed"


def test_what_a_purged_file_has_sent_does_not_come_with_the_next_one(bench):
    """[P7]"""
    queue = bench.queue(max_attempts=2)
    bench.queue("mail")
    fails = [True]

    def handler(body, context):
        if body["n"] == 2 and fails:
            raise ValueError("no")
        context.send("mail", {"of": body["n"], "was_purged": bool(fails)})

    _, processor = put_again_after_a_purge_that_crashed(bench, queue, handler, b'{"n":1}\n{"n":2}\n', sends_to=["mail"])
    fails.clear()
    settle(bench, queue, processor)

    sent = b"".join(bench.read(key) for key in bench.keys("mail/messages/"))
    assert [json.loads(line) for line in sent.splitlines()] == [
        {"of": 1, "was_purged": False},
        {"of": 2, "was_purged": False},
    ]
