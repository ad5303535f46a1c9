"""Own retries: what this process failed, it tries again itself, in time and not before."""

from __future__ import annotations

import pytest

from s3queue.worker.own_retries import GRACE_SECONDS, OwnRetries


@pytest.fixture
def retries(queue):
    return OwnRetries(queue)


def failed(queue, seconds: float) -> str:
    """A message of this worker that is to be tried again in so many seconds; its path."""
    path = queue.enqueue(b"x")
    queue.fail(queue.claim(path), "again", retry_after=seconds)
    return path


def test_a_failed_message_is_handed_out_once_when_it_is_due_and_not_before(bench, queue, retries):
    path = failed(queue, 10)
    due_at = queue.status(path).lease.retry_at

    bench.clock.advance(10)
    assert retries.take_due() is None
    bench.clock.advance(GRACE_SECONDS)
    retry = retries.take_due()
    assert (retry.path, retry.retry_at) == (path, due_at)
    assert retries.take_due() is None


def test_what_is_handed_out_can_be_claimed(bench, queue, retries):
    path = failed(queue, 10)
    bench.clock.advance(retries.wait())

    assert queue.claim(retries.take_due().path, read_first=True).path == path


def test_the_earliest_comes_first_whatever_the_order_of_the_failures(bench, queue, retries):
    paths = {seconds: failed(queue, seconds) for seconds in (30, 10, 20)}
    bench.clock.advance(60)

    assert [retries.take_due().path for _ in range(3)] == [paths[10], paths[20], paths[30]]


def test_it_says_how_long_to_wait_for_the_next(bench, queue, retries):
    assert retries.wait() is None
    failed(queue, 30)
    failed(queue, 10)
    assert retries.wait() == 10 + GRACE_SECONDS

    bench.clock.advance(4)
    assert retries.wait() == 6 + GRACE_SECONDS
    bench.clock.advance(60)
    assert retries.wait() == 0
    retries.take_due()
    retries.take_due()
    assert retries.wait() is None


def test_what_another_worker_failed_is_not_ours(bench, queue, retries):
    other = bench.queue(worker_id="other")
    queue.events.pass_on(other.events)
    failed(other, 10)
    assert len(retries) == 0

    failed(queue, 10)
    assert len(retries) == 1


def test_what_is_due_too_late_is_left_to_the_sweeper(bench, queue):
    retries = OwnRetries(queue, within=10 + GRACE_SECONDS)
    soon = failed(queue, 10)
    failed(queue, 11)
    bench.clock.advance(60)

    assert retries.take_due().path == soon
    assert retries.take_due() is None
    # Their reminders lie in the bucket either way.
    assert len(bench.keys("orders/retries/")) == 2


def test_a_death_is_nothing_to_try_again(bench, retries, queue):
    path = queue.enqueue(b"x")
    queue.fail(queue.claim(path), "no", dead=True)

    assert len(retries) == 0


def test_what_is_forgotten_is_left_to_the_sweeper(bench, queue, retries):
    path = failed(queue, 10)
    retries.forget()
    bench.clock.advance(60)

    assert (len(retries), retries.wait(), retries.take_due()) == (0, None, None)
    dispatched: list[str] = []
    bench.sweeper(queue, dispatched).sweep()
    assert dispatched == [path]
