"""Cancel: one outcome, whoever is first; what waits never runs; who works on it is told, and clears it away."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace

import pytest

from s3queue import Cancelled, Conflict, Context, InvalidRequest, LeaseLost, MessageNotFound, Reject, Unavailable
from s3queue.documents.lease import Lease
from s3queue.documents.record import Record
from s3queue.errors import NewerFormat, Unreadable
from support.killed_store import Killed


def outcome(queue, path) -> str:
    return queue.status(path).state


def is_clear(bench, path) -> bool:
    return not bench.keys("orders/messages/") and not bench.keys("orders/delayed/") and not bench.keys("orders/leases/")


def waiting(bench, queue, body=b"x") -> str:
    path = queue.enqueue(body)
    worker = bench.queue(worker_id="worker")
    worker.fail(worker.claim(path), "first try")
    return path


def test_a_pending_message_is_cancelled_and_gone(bench, queue):
    """[P3]"""
    path = queue.enqueue(b"x", name="a")

    record = queue.cancel(path)

    assert (record.outcome, record.attempt, record.size) == ("cancelled", 0, 1)
    assert is_clear(bench, path)
    assert outcome(queue, path) == "cancelled"


def test_a_delayed_message_is_cancelled_and_never_runs(bench, queue):
    path = queue.enqueue({}, delay=60)

    assert queue.cancel(path).outcome == "cancelled"

    bench.clock.advance(100)
    assert bench.processor(queue, lambda body: None).run(path, read_first=True) is None
    assert is_clear(bench, path)


def test_a_waiting_message_is_cancelled_and_its_record_keeps_its_attempts(bench, queue):
    path = waiting(bench, queue)

    record = queue.cancel(path)

    assert record.outcome == "cancelled"
    assert [(one.number, one.failure.message) for one in record.attempts] == [(1, "first try")]
    assert is_clear(bench, path)


def test_a_message_at_work_is_recorded_and_left_to_its_worker(bench, queue):
    """[P2] The canceller touches neither the message nor the lease that another one holds."""
    path = queue.enqueue(b"x")
    worker = bench.queue(worker_id="worker")
    claim = worker.claim(path)
    lease = bench.read(f"orders/leases/{path}")

    assert queue.cancel(path).outcome == "cancelled"

    assert bench.read(f"orders/leases/{path}") == lease
    assert bench.keys("orders/messages/") == [f"orders/{path}"]
    assert outcome(queue, path) == "cancelled"
    record = worker.complete(claim, "done")
    assert (record.outcome, record.result) == ("cancelled", None)
    assert is_clear(bench, path)


@pytest.mark.parametrize("dead", [False, True])
def test_a_failure_after_the_cancellation_changes_nothing(bench, queue, dead):
    path = queue.enqueue({})
    worker = bench.queue(worker_id="worker")
    claim = worker.claim(path)
    queue.cancel(path)

    worker.fail(claim, "too late", dead=dead)
    bench.clock.advance(100)
    assert bench.processor(worker, lambda body: None).run(path, read_first=True) is None

    assert outcome(queue, path) == "cancelled"
    assert bench.keys("orders/dead/") == []
    assert is_clear(bench, path)


@pytest.mark.parametrize("ask", ["check", "extend", "progress"])
def test_a_running_handler_learns_it_and_it_is_no_failure(bench, queue, ask):
    path = queue.enqueue({})
    steps: list[str] = []

    def handle(body: dict, context: Context) -> None:
        getattr(context, ask)(*([0.5] if ask == "progress" else []))
        bench.queue().cancel(path)
        bench.clock.advance(6)
        steps.append("cancelled")
        getattr(context, ask)(*([0.6] if ask == "progress" else []))
        steps.append("never")

    told: list[str] = []
    queue.events.on("*", lambda fields: told.append(fields["event"]))
    assert bench.processor(queue, handle).run(path) == "cancelled"

    assert steps == ["cancelled"]
    assert is_clear(bench, path)
    assert told[-1] == "message.cancelled"
    assert "message.retry" not in told


def test_what_a_handler_makes_of_the_cancellation_is_no_failure_either(bench, queue):
    path = queue.enqueue({})

    def handle(body: dict, context: Context) -> None:
        bench.queue().cancel(path)
        try:
            context.check()
        except Cancelled as error:
            raise ValueError("stopped half-way") from error

    assert bench.processor(queue, handle).run(path) == "cancelled"
    assert is_clear(bench, path)


def test_a_handler_that_never_asks_ends_as_cancelled(bench, queue):
    path = queue.enqueue({})

    assert bench.processor(queue, lambda body: bench.queue().cancel(path).path).run(path) == "cancelled"

    assert Record.from_bytes(bench.read(f"orders/records/{path}"), "r").result is None


def test_check_asks_once_a_second_at_most_and_goes_on_without_an_answer(bench, queue):
    path = queue.enqueue({})
    counts: list[dict[str, int]] = []

    def handle(body: dict, context: Context) -> None:
        bench.store.take()
        for _ in range(10):
            context.check()
        counts.append(bench.store.take())
        bench.clock.advance(1)

        def silent(operation, key, perform):
            raise Unavailable("time-out")

        bench.around = silent
        context.check()
        bench.around = None

    assert bench.processor(queue, handle).run(path) == "completed"
    assert counts == [{"get": 1}]


def test_check_tells_a_worker_whose_time_is_over(bench, queue):
    path = queue.enqueue({})

    def handle(body: dict, context: Context) -> None:
        bench.clock.advance(queue.settings.visibility_timeout.total_seconds() + 1)
        with pytest.raises(LeaseLost):
            context.check()

    bench.processor(queue, handle).run(path)


def test_a_batch_is_cancelled_as_a_whole_between_two_lines(bench, queue):
    (path,) = queue.enqueue_many([{"n": number} for number in range(10)])
    ran: list[int] = []

    def handle(body: dict, context: Context) -> None:
        bench.clock.advance(1)
        context.check()
        ran.append(body["n"])
        if body["n"] == 2:
            bench.queue().cancel(path)

    assert bench.processor(queue, handle).run(path) == "cancelled"

    assert ran == [0, 1, 2]
    assert is_clear(bench, path)
    assert bench.keys("orders/dead/") == []


def test_a_waiting_batch_with_dead_lines_leaves_no_letter(bench, queue):
    (path,) = queue.enqueue_many([{"n": 1}, {"n": 2}, {"n": 3}])

    def handle(body: dict) -> None:
        if body["n"] == 1:
            raise Reject("no")
        if body["n"] == 2:
            raise ValueError("later")

    assert bench.processor(queue, handle).run(path) == "retried"

    record = queue.cancel(path)

    assert (record.outcome, record.lines["completed"], record.dead_lines) == ("cancelled", 1, 0)
    assert bench.keys("orders/dead/") == []
    assert is_clear(bench, path)


@pytest.mark.parametrize("how", ["completed", "dead", "cancelled"])
def test_what_is_finished_keeps_its_outcome(bench, queue, how):
    path = queue.enqueue({})
    if how == "cancelled":
        queue.cancel(path)
    else:
        claim = queue.claim(path)
        _ = queue.complete(claim) if how == "completed" else queue.fail(claim, "no", dead=True)
    before = bench.read(f"orders/records/{path}")

    assert queue.cancel(path).outcome == how

    assert bench.read(f"orders/records/{path}") == before


def test_what_never_was_is_not_found(queue):
    with pytest.raises(MessageNotFound, match="messages/never"):
        queue.cancel("messages/never")


@pytest.mark.parametrize("act", ["cancel", "claim", "retry", "retry_info", "release_held", "holder"])
def test_what_is_no_message_is_nobodys_to_take(bench, queue, act):
    """[P1] [P2] A dead letter, a lease, settings: pasted from `aws s3 ls`, it is neither claimed nor cancelled."""
    queue.configure(paused=True)
    queue.fail(queue.claim(queue.enqueue({}, name="dead")), "no", dead=True)
    queue.claim(queue.enqueue({}, name="held"))
    before = {key: bench.read(key) for key in bench.keys("")}

    for key in [*before, None, "nonsense"]:
        if key is None or not key.startswith(("orders/messages/", "orders/delayed/")):
            with pytest.raises(InvalidRequest, match="not the path of a message"):
                getattr(queue, act)(key and key.removeprefix("orders/"))

    assert {key: bench.read(key) for key in bench.keys("")} == before


def test_a_name_that_is_put_anew_after_a_cancellation_runs(bench, queue):
    path = queue.enqueue({}, name="a")
    queue.cancel(path)
    bench.clock.advance(2)
    queue.enqueue({"n": 2}, name="a")

    assert bench.processor(queue, lambda body: None).run(path) == "completed"
    bench.clock.advance(2)
    queue.enqueue({"n": 3}, name="a")
    assert queue.cancel(path).outcome == "cancelled"


@pytest.mark.parametrize("state", ["pending", "waiting", "processing"])
def test_a_crash_at_any_request_leaves_nothing_that_is_not_repaired(bench, state):
    """[P1] [P5] [P6] Cancelled, or run and completed; never both, never neither."""
    for requests in range(12):
        queue = bench.queue(f"q{requests}", retry_base=1)
        path = queue.enqueue({})
        ran: list[object] = []
        worker = bench.queue(f"q{requests}", worker_id="worker", retry_base=1)
        if state != "pending":
            claim = worker.claim(path)
            if state == "waiting":
                worker.fail(claim, "first try")
        left = [requests]

        def die(operation, key, perform, left=left):
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return perform()

        bench.around = die
        with suppress(Killed):
            queue.cancel(path)
        bench.around = None
        is_recorded = bool(bench.keys(f"q{requests}/records/"))
        bench.settle(worker, ran.append)

        assert outcome(worker, path) == ("cancelled" if is_recorded else "completed")
        assert bool(ran) is not is_recorded
        if not is_recorded:
            # The canceller used none up; in the place of the worker that was silent, the sweeper did.
            assert worker.status(path).record.attempt == (1 if state == "pending" else 2)
        assert bench.keys(f"q{requests}/dead/") == []


def test_a_worker_that_gives_a_cancelled_message_back_keeps_others_from_running_it(bench, queue):
    """[P4] Who claims a message without a lease does not look for a record."""
    path = queue.enqueue({})
    worker = bench.queue(worker_id="worker")
    claim = worker.claim(path)
    queue.cancel(path)

    worker.release(claim)

    ran: list[object] = []
    bench.settle(queue, ran.append)
    assert ran == []
    assert outcome(queue, path) == "cancelled"


@pytest.mark.parametrize("is_claimed", [False, True])
def test_a_message_that_is_given_back_before_its_cancellation_comes_stays_cancelled(bench, queue, is_claimed):
    """[P3] The canceller saw it at work, and so took no lease: it looks once more. Only who is faster may run it."""
    path = queue.enqueue({})
    worker, other = bench.queue(worker_id="worker"), bench.queue(worker_id="other")
    claim, claims = worker.claim(path), []

    def give_back_first(operation, key, perform):
        if operation != "put" or "/records/" not in key:
            return perform()
        bench.around = None
        worker.release(claim)
        written = perform()
        if is_claimed:
            claims.append(other.claim(path))
        return written

    bench.around = give_back_first
    assert queue.cancel(path).outcome == "cancelled"

    assert is_clear(bench, path) is not is_claimed
    assert [other.complete(one).outcome for one in claims] == ["cancelled"] * is_claimed
    assert is_clear(bench, path)
    assert outcome(queue, path) == "cancelled"


def test_a_message_that_is_claimed_while_the_canceller_looks_is_left_to_its_worker(bench, queue):
    """[P2]"""
    path = queue.enqueue(b"x")
    worker = bench.queue(worker_id="worker")
    claims = []

    def claim_first(operation, key, perform):
        if operation == "put" and "/leases/" in key:
            bench.around = None
            claims.append(worker.claim(path))
        return perform()

    bench.around = claim_first
    assert queue.cancel(path).outcome == "cancelled"

    assert worker.complete(claims[0]).outcome == "cancelled"
    assert is_clear(bench, path)


def test_a_message_that_is_completed_while_the_canceller_looks_is_completed(bench, queue):
    """[P3]"""
    path = queue.enqueue(b"x")
    worker = bench.queue(worker_id="worker")

    def complete_first(operation, key, perform):
        if operation == "put" and "/leases/" in key:
            bench.around = None
            worker.complete(worker.claim(path))
        return perform()

    bench.around = complete_first
    assert queue.cancel(path).outcome == "completed"
    assert is_clear(bench, path)


def test_a_lost_answer_at_every_write_is_found_out(bench, queue):
    for number in range(8):
        path = queue.enqueue(b"x")
        left = [number]

        def lose(operation, key, perform, left=left):
            answer = perform()
            if operation in ("put", "delete") and left[0] >= 0:
                left[0] -= 1
                if left[0] < 0:
                    raise Unavailable("time-out")
            return answer

        bench.around = lose
        assert queue.cancel(path).outcome == "cancelled"
        bench.around = None
        assert is_clear(bench, path)


def test_a_message_whose_lease_is_garbage_is_cancelled_and_cleared_by_the_sweeper(bench, queue):
    path = queue.enqueue({})
    bench.put(f"orders/leases/{path}", b"garbage")

    assert queue.cancel(path).outcome == "cancelled"
    ran: list[object] = []
    bench.settle(queue, ran.append)

    assert (ran, outcome(queue, path), bench.keys("orders/dead/")) == ([], "cancelled", [])


def test_an_older_version_leaves_a_cancelled_record_alone(bench, queue):
    """Format 1 knows no such outcome: it must not take the record for garbage, and replace it."""
    path = queue.enqueue(b"x")
    queue.cancel(path)

    document = json.loads(bench.read(f"orders/records/{path}"))
    assert (document["v"], document["outcome"]) == (2, "cancelled")
    completed = queue.enqueue(b"x")
    queue.complete(queue.claim(completed))
    assert json.loads(bench.read(f"orders/records/{completed}"))["v"] == 1


def test_a_record_of_a_newer_version_with_an_unknown_outcome_is_left_alone(bench, queue):
    path = queue.enqueue(b"x", name="a")
    newer = {"v": 3, "outcome": "postponed", "message_etag": "e", "enqueued_at": "2026-01-01T00:00:00Z"}
    bench.put(f"orders/records/{path}", json.dumps(newer).encode())

    with pytest.raises(NewerFormat):
        queue.cancel(path)


def test_a_dead_message_that_nobody_can_read_is_refused(bench, queue):
    path = queue.enqueue(b"x")

    def refuse(operation, key, perform):
        if operation == "copy" or (operation == "get" and key == f"orders/{path}"):
            raise Unreadable("archived")
        return perform()

    bench.around = refuse
    worker = bench.queue(worker_id="worker", max_attempts=1)
    assert worker.claim(path) is None
    assert worker.cancel(path).outcome == "dead"
    bench.memory.delete(f"orders/records/{path}")
    with pytest.raises(InvalidRequest, match="dead letter"):
        worker.cancel(path)


def test_without_history_a_cancellation_is_recorded(bench):
    queue = bench.queue(history=False)
    path = queue.enqueue(b"x")

    assert queue.cancel(path).outcome == "cancelled"
    assert outcome(queue, path) == "cancelled"


def test_without_history_what_ends_at_work_stays_cancelled_and_sends_nothing(bench):
    """A completion leaves no record then, so its worker does not look for one: only the cancellation is to be seen."""
    queue = bench.queue(history=False)
    path = queue.enqueue({})

    def handle(body: dict, context: Context) -> str:
        bench.queue(history=False).cancel(path)
        if body.get("sends"):
            context.send("emails", {})
        return "done"

    processor = bench.processor(queue, handle, sends_to=["emails"])
    processor.run(path)
    assert (outcome(queue, path), is_clear(bench, path)) == ("cancelled", True)

    path = queue.enqueue({"sends": True})
    assert processor.run(path) == "cancelled"
    assert (outcome(queue, path), is_clear(bench, path)) == ("cancelled", True)
    assert bench.keys("emails/") == []


def test_what_a_cancellation_costs(bench, queue):
    path = queue.enqueue(b"x")
    bench.store.take()

    queue.cancel(path)
    assert bench.store.take() == {"head": 2, "get": 2, "put": 2, "delete": 2}

    path = queue.enqueue(b"x")
    bench.queue(worker_id="worker").claim(path)
    bench.store.take()
    queue.cancel(path)
    assert bench.store.take() == {"head": 2, "get": 3, "put": 1}


def test_equal_bytes_that_were_put_anew_at_work_are_cancelled_as_one_message(bench, queue):
    """[P3] The worker knows the PUT before: it must not replace the outcome."""
    path = queue.enqueue({}, name="a")
    worker = bench.queue(worker_id="worker")
    claim = worker.claim(path, etag=bench.memory.head(f"orders/{path}").etag)
    bench.clock.advance(3)
    bench.put(f"orders/{path}", bench.read(f"orders/{path}"))

    assert queue.cancel(path).outcome == "cancelled"

    assert worker.complete(claim, "done").outcome == "cancelled"
    ran: list[object] = []
    bench.settle(queue, ran.append)
    assert (ran, outcome(queue, path)) == ([], "cancelled")


def test_another_message_behind_the_one_at_work_is_not_cancelled(bench, queue):
    """[P3] Its record would be replaced by that of the one at work."""
    path = queue.enqueue({"n": 1}, name="a")
    worker = bench.queue(worker_id="worker")
    claim = worker.claim(path)
    bench.clock.advance(3)
    queue.enqueue({"n": 2}, name="a")

    with pytest.raises(Conflict, match="PUT anew"):
        queue.cancel(path)

    worker.complete(claim)
    assert queue.cancel(path).outcome == "cancelled"


def test_another_message_behind_one_that_was_claimed_in_the_same_second_is_not_cancelled(bench, queue):
    """[P3] S3's dates do not tell which of the two came first, and the lease names neither."""
    path = queue.enqueue({"n": 1}, name="a")
    worker = bench.queue(worker_id="worker")
    claim = worker.claim(path)
    queue.enqueue({"n": 2}, name="a")

    with pytest.raises(Conflict, match="same second"):
        queue.cancel(path)

    assert worker.complete(claim, "done").outcome == "completed"
    assert queue.cancel(path).outcome == "cancelled"
    ran: list[object] = []
    bench.settle(queue, ran.append)
    assert (ran, outcome(queue, path)) == ([], "cancelled")


def test_a_forged_name_that_is_at_work_may_be_used_twice(bench, queue):
    """Its digits are those of the year 10889: the library has not made it, and cannot say when it was made."""
    path = "messages/ffffffff-ffff-7000-8000-000000000000"
    bench.put(f"orders/{path}", b"x")
    worker = bench.queue(worker_id="worker")
    claim = worker.claim(path)

    with pytest.raises(Conflict, match="same second"):
        queue.cancel(path)

    assert worker.complete(claim, "done").outcome == "completed"


def test_a_lease_that_names_no_message_is_not_given_back_as_free_if_its_message_was_cancelled(bench, queue):
    """[P4] Whoever claims a message without a lease looks for no record."""
    path = queue.enqueue(b"x")
    claim = queue.claim(path)
    queue.cancel(path)
    unnamed = replace(claim.lease, generation=None, expected_etag="")
    lease, written = queue.leases.put_lease(path, unnamed, if_match=claim.lease_etag)

    queue.leases.give_back(path, lease, written.etag, written.at)

    assert bench.queue().claim(path, read_first=True) is None
    assert bench.keys("orders/messages/") == []
    assert queue.status(path).record.outcome == "cancelled"


def test_a_canceller_that_crashes_does_not_forget_how_often_a_message_was_postponed(bench):
    """[P5]"""
    queue = bench.queue(max_postpones=1, max_attempts=1)
    path = queue.enqueue(b"x")
    queue.postpone(queue.claim(path), 1)

    def around(asked, key, perform):
        if asked == "put" and key.startswith("orders/records/"):
            raise KeyboardInterrupt
        return perform()

    bench.around = around
    with pytest.raises(KeyboardInterrupt):
        queue.cancel(path)
    bench.around = None
    bench.clock.advance(120)
    bench.sweeper(queue).sweep()
    bench.clock.advance(5)

    assert queue.postpone(queue.claim(path, read_first=True), 1).outcome == "dead"


@pytest.mark.parametrize("state", ["pending", "delayed", "waiting"])
def test_a_message_that_nobody_worked_on_is_said_to_be_withdrawn(bench, queue, state):
    path = waiting(bench, queue) if state == "waiting" else queue.enqueue(b"x", delay=60 if state == "delayed" else 0)

    assert queue.cancel(path).is_withdrawn


@pytest.mark.parametrize("when", ["never", "before the look", "after the look"])
def test_a_message_at_work_is_not_said_to_be_withdrawn_also_if_its_worker_deletes_it_meanwhile(bench, queue, when):
    path = queue.enqueue(b"x")
    worker = bench.queue(worker_id="worker")
    claim, looks = worker.claim(path), []

    def complete_then(operation, key, perform):
        looks.append((operation, key.split("/")[1]))
        is_over = ("put", "records") in looks and (when == "before the look" or looks[-1] == ("get", "leases"))
        if when != "never" and is_over and operation != "put":
            bench.around = None
            worker.complete(claim)
        return perform()

    bench.around = complete_then
    record = queue.cancel(path)
    bench.around = None

    assert (record.outcome, record.is_withdrawn) == ("cancelled", False)
    assert is_clear(bench, path) is (when != "never")


def test_a_message_that_ran_is_not_said_to_be_withdrawn_because_of_another_cancellers_late_lease(bench, queue):
    path = queue.enqueue(b"x")
    worker = bench.queue(worker_id="worker")
    claim, looks = worker.claim(path), []
    timeout = queue.settings.visibility_timeout
    late = Lease(state="processing", attempt=1, owner="other", nonce="", timeout=timeout, is_cancelling=True)

    def pass_by(operation, key, perform):
        looks.append((operation, key.split("/")[1]))
        if ("put", "records") in looks and looks[-1] == ("get", "leases"):
            bench.around = None
            worker.complete(claim)
            # The other one had found the message before, and looks again after this.
            queue.leases.put_lease(path, late, if_match=None)
        return perform()

    bench.around = pass_by
    record = queue.cancel(path)

    assert (record.outcome, record.is_withdrawn) == ("cancelled", False)


def test_whoever_cancels_again_after_a_crash_is_told_that_the_message_is_withdrawn(bench, queue):
    path = queue.enqueue(b"x")

    def die(operation, key, perform):
        if operation == "delete":
            raise Killed
        return perform()

    bench.around = die
    with pytest.raises(Killed):
        queue.cancel(path)
    bench.around = None

    assert bench.queue(worker_id="again").cancel(path).is_withdrawn


def test_a_canceller_that_pauses_for_longer_than_its_lease_does_not_say_that_the_message_is_withdrawn(bench, queue):
    path = queue.enqueue(b"x")
    worker, claims = bench.queue(worker_id="worker"), []

    def pause(operation, key, perform):
        if operation == "put" and "/records/" in key:
            bench.around = None
            bench.clock.advance(queue.settings.visibility_timeout.total_seconds() + 10)
            bench.sweeper(worker).sweep()
            claims.append(worker.claim(path, read_first=True))
        return perform()

    bench.around = pause
    record = queue.cancel(path)

    assert [claim.path for claim in claims] == [path]
    assert (record.outcome, record.is_withdrawn) == ("cancelled", False)
