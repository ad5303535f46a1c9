"""A claim that another process takes up by its path and fence."""

from __future__ import annotations

import pytest

from s3queue import LeaseLost


@pytest.fixture
def elsewhere(bench):
    """A queue of another process: it knows nothing but what lies in the bucket."""
    return bench.queue(worker_id="elsewhere")


def claim(queue, body=b"x", **options):
    return queue.claim(queue.enqueue(body, **options))


def test_another_process_completes_a_claim(bench, queue, elsewhere):
    mine = claim(queue, metadata={"customer": "42"})

    theirs = elsewhere.claimed(mine.path, mine.fence)

    assert (theirs.message.body, theirs.message.metadata, theirs.attempt) == (b"x", {"customer": "42"}, 1)
    record = elsewhere.complete(theirs, "done")
    assert (record.outcome, record.result, record.worker) == ("completed", "done", queue.worker_id)
    assert bench.keys("orders/messages/") == bench.keys("orders/leases/") == []


def test_the_fence_stays_valid_however_often_the_claim_is_extended(bench, queue, elsewhere):
    fence = claim(queue).fence
    path = bench.keys("orders/messages/")[0].removeprefix("orders/")
    timeout = queue.settings.visibility_timeout.total_seconds()
    for _ in range(3):
        bench.clock.advance(timeout - 5)
        elsewhere.extend(elsewhere.claimed(path, fence))

    assert elsewhere.complete(elsewhere.claimed(path, fence)).outcome == "completed"


def test_another_process_fails_and_releases_a_claim(bench, queue, elsewhere):
    mine = claim(queue, {})
    elsewhere.fail(elsewhere.claimed(mine.path, mine.fence), "away", retry_after=1)
    bench.clock.advance(2)
    again = queue.claim(mine.path, read_first=True)
    assert (again.attempt, again.fence != mine.fence) == (2, True)
    elsewhere.release(elsewhere.claimed(again.path, again.fence))
    assert queue.retry_info(mine.path).attempt == 1


def test_a_fence_is_greater_for_later_attempts(bench, queue):
    fences = []
    path = queue.enqueue({})
    for _ in range(2):
        mine = queue.claim(path, read_first=True)
        fences.append(mine.fence)
        queue.fail(mine, "again", retry_after=0)
        bench.clock.advance(2)
    assert [fence.partition("-")[0] for fence in fences] == ["1", "2"]


@pytest.mark.parametrize("how", ["wrong fence", "no fence", "finished", "failed", "released", "claimed again"])
def test_a_claim_that_is_over_cannot_be_taken_up(bench, queue, elsewhere, how):
    """[P2]"""
    mine = claim(queue, {})
    fence = {"wrong fence": "1-0000", "no fence": ""}.get(how, mine.fence)
    if how == "finished":
        queue.complete(mine)
    elif how == "failed":
        queue.fail(mine, "away")
    elif how == "released":
        queue.release(mine)
    elif how == "claimed again":
        queue.release(mine)
        assert queue.claim(mine.path)
    with pytest.raises(LeaseLost, match=mine.path):
        elsewhere.claimed(mine.path, fence)


def test_a_claim_whose_time_is_over_cannot_be_taken_up(bench, queue, elsewhere):
    mine = claim(queue)
    bench.clock.advance(queue.settings.visibility_timeout.total_seconds() + 3)
    with pytest.raises(LeaseLost, match="ran out"):
        elsewhere.claimed(mine.path, mine.fence)


def test_the_deadline_is_that_of_the_lease_and_never_later(bench, queue, elsewhere):
    """[P4]"""
    mine = claim(queue)
    bench.clock.advance(10)
    theirs = elsewhere.claimed(mine.path, mine.fence)
    assert theirs.remaining() <= mine.remaining()


def test_whoever_extends_first_ends_the_claim_of_the_other_process(bench, queue, elsewhere):
    """[P2]"""
    mine = claim(queue)
    elsewhere.extend(elsewhere.claimed(mine.path, mine.fence))
    with pytest.raises(LeaseLost):
        queue.extend(mine)


def test_a_batch_keeps_the_progress_of_its_lines(bench, queue, elsewhere):
    (path,) = queue.enqueue_many([{"n": 1}, {"n": 2}])
    mine = queue.claim(path)
    mine.lines.complete(1, None)
    queue.extend(mine)

    theirs = elsewhere.claimed(path, mine.fence)

    assert 1 in theirs.lines.done
    theirs.lines.complete(2, None)
    assert elsewhere.complete_lines(theirs, 2).outcome == "completed"


def test_a_name_that_was_put_anew_before_it_was_read_has_a_fence_too(bench, queue, elsewhere):
    queue.enqueue(b"first", name="a")
    mine = queue.claim("messages/a", etag="another")
    assert elsewhere.complete(elsewhere.claimed("messages/a", mine.fence)).outcome == "completed"


def test_what_it_costs(bench, queue, elsewhere):
    mine = claim(queue)
    bench.store.take()
    elsewhere.claimed(mine.path, mine.fence)
    assert bench.store.take() == {"get": 1, "head": 1}


def test_what_was_put_since_a_claim_that_named_no_message_is_not_taken_for_it(bench, queue, elsewhere):
    """[P1] It would be recorded and deleted without having run."""
    path = queue.enqueue(b"one", name="m")
    claim = queue.claim(path)
    bench.clock.advance(2)
    bench.put(f"orders/{path}", b"two")

    with pytest.raises(LeaseLost):
        elsewhere.claimed(path, claim.fence)
