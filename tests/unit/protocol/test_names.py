"""Names: refused before anything is written, or buried with the reason; a plain PUT may use any key."""

from __future__ import annotations

from typing import Any

import pytest

from s3queue import (
    DeadLetters,
    InvalidName,
)
from s3queue.keys import MAX_KEY_BYTES
from s3queue.paths import partition_of
from support.workbench import CALM


@pytest.mark.parametrize(
    "name", ["", "/", "a/", "a//b", "..", "../a", "a/../b", ".", "./a", "/a", "a\nb", "a\x00b", "a\x7fb", "\ud800"]
)
def test_a_name_that_cannot_be_a_key_everywhere_is_refused_before_anything_is_written(bench, queue, name):
    with pytest.raises(InvalidName):
        queue.enqueue(b"x", name=name)

    assert bench.keys() == []
    assert bench.store.take() == {}


@pytest.mark.parametrize("name", ["../a", "a/../b", "a//b", ".", "a\nb", " ", "%2e%2e/a"])
def test_a_plain_put_may_use_any_key_that_s3_takes(bench, queue, name):
    bench.memory.put(f"orders/messages/{name}", b"x")
    (claim,) = queue.claim_next()

    assert claim.path == f"messages/{name}"
    queue.fail(claim, "no", dead=True)
    assert bench.read(f"orders/dead/messages/{name}") == b"x"
    assert DeadLetters(queue).replay(f"messages/{name}") == f"messages/{name}"


@pytest.mark.parametrize("letter", ["x", "ü", "😀"])
def test_the_longest_name_that_leaves_room_for_its_lease_is_taken_and_one_more_is_refused(bench, queue, letter):
    width = len(letter.encode())
    longest = (MAX_KEY_BYTES - len("orders/retries/20261116T101500Z/messages/")) // width

    path = queue.enqueue(b"x", name=letter * longest)
    queue.fail(queue.claim(path), "once")
    bench.clock.advance(5)
    queue.fail(queue.claim(path, read_first=True), "dead", dead=True)
    assert bench.keys("orders/dead/") == [f"orders/dead/{path}"]

    with pytest.raises(InvalidName, match="too long"):
        queue.enqueue(b"x", name=letter * (longest + 1))


@pytest.mark.parametrize("suffix", ["", ".ndjson"])
@pytest.mark.parametrize("via", ["event", "pull", "sweep"])
def test_a_name_too_long_for_its_lease_becomes_a_dead_letter_that_says_so(bench, queue, via, suffix):  # [P1]
    name = "n" * (MAX_KEY_BYTES - len("orders/messages/") - len(suffix)) + suffix
    bench.memory.put(f"orders/messages/{name}", b"payload", metadata={"who": "me"})
    bench.clock.advance(100)
    bench.store.take()
    ran: list[Any] = []

    if via == "event":
        assert queue.claim(f"messages/{name}") is None
    elif via == "pull":
        assert queue.claim_next(5) == []
    else:
        bench.settle(queue, ran.append)

    assert sum(bench.store.take().values()) < CALM
    assert ran == []
    assert not bench.keys("orders/messages/")
    (letter,) = DeadLetters(queue).list()
    assert letter.error_type == "InvalidName"
    assert "too long" in letter.error
    assert bench.read(f"orders/dead/{letter.path}") == b"payload"
    assert queue.status(letter.path).state == "dead"

    # Under the shorter name that it has now, it can be worked on.
    again = DeadLetters(queue).replay(letter.path)
    claim = queue.claim(again)
    assert (claim.message.body, claim.message.metadata["who"]) == (b"payload", "me")


@pytest.mark.parametrize("path", ["messages/@p/@q/{}", "messages/@p/@=3/@r/{}", "delayed/@q/{}"])
def test_what_cannot_be_claimed_is_buried_in_no_group_and_found_by_all(bench, queue, path):  # [P1]
    bench.put(f"orders/{path.format('n' * 980)}", b"payload")
    bench.clock.advance(100)
    ran: list[Any] = []
    bench.settle(queue, ran.append)

    (letter,) = DeadLetters(queue).list()
    assert partition_of(letter.path) == ""
    assert letter.path.startswith("messages/n")
    assert queue.outcome_of(letter.path).failure.type == "InvalidName"
    assert DeadLetters(queue).replay(letter.path) == letter.path
    assert queue.claim(letter.path).message.body == b"payload"


@pytest.mark.parametrize("due", ["tomorrow", "20261399T000000Z", "20261116", "²0261116T101500Z"])
def test_a_due_time_that_cannot_be_read_becomes_a_dead_letter_that_says_so(bench, queue, due):
    bench.memory.put(f"orders/delayed/{due}/x", b"payload")
    bench.clock.advance(100)
    bench.settle(queue, lambda body: None)

    (letter,) = DeadLetters(queue).list()
    assert "due time" in letter.error
    assert bench.read(f"orders/dead/{letter.path}") == b"payload"


def test_a_folder_placeholder_is_no_message_however_it_is_met(bench, queue):
    for key in ("orders/messages/", "orders/messages/2026/", "orders/delayed/"):
        bench.memory.put(key, b"")
    bench.clock.advance(600)
    dispatched: list[str] = []

    assert queue.claim("messages/") is None
    assert queue.claim("messages/2026/") is None
    assert queue.claim_next(10) == []
    bench.sweeper(queue, dispatched).sweep()

    assert [path for path in dispatched if queue.claim(path, read_first=True)] == []
    assert queue.stats().pending == 0
    assert bench.read("orders/messages/2026/") == b""
    assert not bench.keys("orders/leases/")
    assert not bench.keys("orders/dead/")


def test_an_object_with_a_slash_at_its_end_and_a_body_is_a_message(bench, queue):
    bench.memory.put("orders/messages/folder/", b"not empty")

    (claim,) = queue.claim_next()
    assert claim.message.body == b"not empty"
    queue.complete(claim)
    assert queue.status("messages/folder/").state == "completed"
