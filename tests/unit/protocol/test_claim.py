"""A claim: its fence, and the body that it was made for."""

from __future__ import annotations

import hashlib

import pytest

from s3queue import (
    MessageNotFound,
)


def test_the_fence_differs_for_every_claim_and_grows_with_the_attempt(bench, queue):
    path = queue.enqueue(b"x")
    first = queue.claim(path)
    queue.fail(first, "once")
    bench.clock.advance(5)
    second = queue.claim(path, read_first=True)

    assert first.fence != second.fence
    assert [int(claim.fence.split("-")[0]) for claim in (first, second)] == [1, 2]


def test_a_large_message_is_not_kept_in_memory_but_can_be_read(bench, queue):
    body = hashlib.sha256(b"seed").digest() * 300_000
    path = queue.enqueue(body)

    claim = queue.claim(path)

    assert claim.message.inline is None
    assert claim.message.body == body
    with claim.message.open() as stream:
        assert stream.read(32) == body[:32]


def test_a_message_that_was_replaced_since_it_was_claimed_is_not_read_as_if_it_were_the_old_one(bench, queue):
    body = b"a" * (9 * 1024 * 1024)
    path = queue.enqueue(body)
    claim = queue.claim(path)
    bench.put(f"orders/{path}", b"b" * len(body))

    with pytest.raises(MessageNotFound):
        claim.message.open()
