"""The same name, PUT again: each generation has its own attempts and its own outcome."""

from __future__ import annotations


def test_a_name_that_is_put_again_after_completion_runs_again(bench, queue):
    bench.put("orders/messages/report", b"monday")
    queue.complete(queue.claim("messages/report"), "monday's")
    bench.clock.advance(60)
    bench.put("orders/messages/report", b"monday")

    queue.complete(queue.claim("messages/report"), "tuesday's")

    record = queue.status("messages/report").record
    assert (record.result, record.generation.put_at) == ("tuesday's", bench.clock.now())
    assert bench.keys() == ["orders/records/messages/report"]


def test_a_name_that_is_put_again_while_it_is_at_work_runs_afterwards(bench, queue):
    bench.put("orders/messages/report", b"old")
    seen = []

    def handler(body: bytes) -> str:
        seen.append(body)
        if body == b"old":
            bench.put("orders/messages/report", b"new")
        return body.decode()

    bench.processor(queue, handler).run("messages/report")

    assert seen == [b"old", b"new"]
    assert queue.status("messages/report").record.result == "new"
    assert bench.keys() == ["orders/records/messages/report"]


def test_equal_bytes_that_are_put_again_while_it_is_at_work_are_the_same_message(bench, queue):
    bench.put("orders/messages/report", b"same")
    claim = queue.claim("messages/report")
    bench.clock.advance(5)
    bench.put("orders/messages/report", b"same")

    queue.complete(claim)

    assert bench.keys() == ["orders/records/messages/report"]


def test_attempts_belong_to_a_generation(bench):  # [P5]
    queue = bench.queue(max_attempts=2)
    bench.put("orders/messages/report", b"old")
    queue.fail(queue.claim("messages/report"), "first of old")
    bench.clock.advance(5)
    bench.put("orders/messages/report", b"new")

    claim = queue.claim("messages/report", read_first=True)

    assert (claim.attempt, claim.message.body, claim.lease.attempts) == (1, b"new", ())


def test_a_record_of_a_newer_generation_is_never_replaced_by_an_older_ones(bench, queue):  # [P3]
    bench.put("orders/messages/report", b"old")
    zombie = queue.claim("messages/report")
    bench.clock.advance(60)
    bench.put("orders/messages/report", b"new")
    bench.sweeper(queue).sweep()
    bench.clock.advance(5)
    newer = queue.complete(queue.claim("messages/report", read_first=True), "new result")

    assert queue.complete(zombie, "old result") == newer
    assert queue.status("messages/report").record.result == "new result"
