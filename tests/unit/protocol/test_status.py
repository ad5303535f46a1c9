"""Status: where a message is, at every step of its life."""

from __future__ import annotations

import json

import pytest

from s3queue import (
    MessageNotFound,
)


def test_status_follows_a_message_through_its_life(bench):
    queue = bench.queue(max_attempts=2)
    path = queue.enqueue(b"x")
    assert queue.status(path).state == "pending"
    claim = queue.claim(path)
    assert queue.status(path).state == "processing"
    queue.fail(claim, "first")
    assert queue.status(path).state == "waiting"
    bench.clock.advance(5)
    claim = queue.claim(path, read_first=True)
    assert queue.status(path).to_json()["attempt"] == 2
    queue.fail(claim, "second")

    described = queue.status(path).to_json()
    assert described["state"] == "dead"
    assert described["failure"]["message"] == "second"
    assert [attempt["number"] for attempt in described["attempts"]] == [1, 2]
    json.dumps(described)


def test_the_status_of_an_unknown_path_says_how_paths_look(queue):
    with pytest.raises(MessageNotFound, match="a path starts with messages/"):
        queue.status("0199-abc")
