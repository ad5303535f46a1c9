"""A queue: its name, and that it sees nothing of another one."""

from __future__ import annotations

import pytest

from s3queue import (
    InvalidName,
)


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
