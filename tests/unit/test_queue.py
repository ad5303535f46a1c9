"""A queue: its name, and that it sees nothing of another one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

import pytest

from s3queue import (
    InvalidName,
    InvalidRequest,
    Queue,
)
from support.workbench import Workbench


@pytest.mark.parametrize(
    "name", ["", "A", "-a", "_a", "a b", "a/b", "a.b", "ä", "a" * 64, "archive", "analytics", "..", None, 7]
)
def test_a_queue_name_out_of_form_is_refused(bench, name):
    with pytest.raises(InvalidName, match="queue name"):
        bench.queue(name)


@pytest.mark.parametrize("name", ["a", "7", "a" * 63, "orders-eu_2", "archives"])
def test_a_queue_name_in_form_is_taken(bench, name):
    assert bench.queue(name).claim_next() == []


def test_two_queues_of_which_one_name_begins_the_other_do_not_see_each_other(bench):
    a, ab = bench.queue("a"), bench.queue("a-b")
    of_a, of_ab = a.enqueue(b"for a", delay=1), ab.enqueue(b"for a-b", delay=1)
    a.enqueue(b"for a")
    ab.enqueue(b"for a-b")
    ab.pause()
    bench.clock.advance(100)

    claims = a.claim_next(10)
    assert [claim.message.body for claim in claims] == [b"for a"] * 2
    assert ab.claim_next(10) == []
    assert ab.stats().pending == 2
    assert (a.stats().pending, a.stats().processing) == (0, 2)
    bench.clock.advance(100)
    dispatched: list[str] = []
    bench.sweeper(a, dispatched).sweep()
    assert not bench.keys("a-b/leases/")
    ab.resume()
    assert {of_a, of_ab} <= {claim.path for claim in claims} | {claim.path for claim in ab.claim_next(10)}
    assert a.purge() == 2
    assert len(bench.keys("a-b/messages/")) == 1


WRONG_CALLS = {
    "delay of a trillion seconds": lambda queue: queue.enqueue("x", delay=1e12),
    "endless delay": lambda queue: queue.enqueue("x", delay=float("inf")),
    "delay that is no number": lambda queue: queue.enqueue("x", delay=float("nan")),
    "delay of text": lambda queue: queue.enqueue("x", delay="5"),
    "longest timedelta": lambda queue: queue.enqueue("x", delay=timedelta.max),
    "last datetime": lambda queue: queue.enqueue("x", due_at=datetime.max.replace(tzinfo=UTC)),
    "beyond the last datetime": lambda queue: queue.enqueue(
        "x", due_at=datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))
    ),
    "dedup_id of half a surrogate pair": lambda queue: queue.enqueue("x", dedup_id="\ud800"),
    "dedup_id of a number": lambda queue: queue.enqueue("x", dedup_id=17),
    "name of a number": lambda queue: queue.enqueue("x", name=17),
    "metadata of a number": lambda queue: queue.enqueue("x", metadata={"a": 1}),
    "expires before it begins": lambda queue: queue.presign(expires=-1),
    "a URL for less than a second": lambda queue: queue.presign(expires=0.5),
    "a URL for longer than S3 signs": lambda queue: queue.presign(expires=timedelta(days=7, seconds=1)),
    "negative timeout": lambda queue: queue.claim(queue.enqueue("x"), timeout=-5),
    "no timeout at all": lambda queue: queue.claim(queue.enqueue("x"), timeout=0),
    "extension by nothing": lambda queue: queue.extend(queue.claim(queue.enqueue("x")), 0),
    "endless retry": lambda queue: queue.fail(queue.claim(queue.enqueue("x")), "e", retry_after=float("inf")),
    "longest retry": lambda queue: queue.fail(queue.claim(queue.enqueue("x")), "e", retry_after=timedelta.max),
}


@pytest.mark.parametrize("call", WRONG_CALLS.values(), ids=list(WRONG_CALLS))
def test_a_call_that_cannot_be_meant_is_refused_and_says_why(bench: Workbench, call: Callable[[Queue], object]) -> None:
    with pytest.raises(InvalidRequest, match=r"must|text|between"):
        call(bench.queue())


def test_asking_for_no_message_claims_none_and_costs_nothing(bench: Workbench) -> None:
    queue = bench.queue()
    queue.enqueue("x")
    bench.store.take()

    assert queue.claim_next(0) == []
    assert bench.store.take() == {}
