"""A replay whose PUT is repeated, or lands late, after it was finished, does not run again.  [P4]"""

from __future__ import annotations

from typing import Any

import pytest

from s3queue import DeadLetters
from s3queue.errors import Conflict, Unavailable


def put_late(bench, queue, path: str, replay: Any) -> None:
    """Replay, run what was replayed, and let the first PUT of the replay, which had no answer, land only now."""
    kept: list[Any] = []

    def around(asked: str, key: str, perform: Any) -> Any:
        if asked == "put" and key == f"orders/{path}" and not kept:
            kept.append(perform)
            raise Unavailable("no answer")
        return perform()

    bench.around = around
    try:
        replay()
    except Unavailable:
        replay()
    bench.around = None
    claim = queue.claim(path)
    assert claim
    queue.complete(claim, "first")
    bench.clock.advance(10)
    kept[0]()
    assert bench.keys("orders/messages/") == [f"orders/{path}"]


@pytest.mark.parametrize("history", [True, False])
def test_the_replay_of_a_letter(bench, history):
    queue = bench.queue(history=history)
    path = queue.enqueue({"n": 1})
    queue.fail(queue.claim(path), "down", dead=True)
    bench.clock.advance(5)
    put_late(bench, queue, path, lambda: DeadLetters(queue).replay(path))

    assert queue.claim(path) is None
    assert bench.keys("orders/messages/") == bench.keys("orders/leases/") == []
    assert queue.status(path).record.result == "first"


def test_the_replay_of_a_completion(bench):
    queue = bench.queue(keep_payload=True)
    path = queue.enqueue({"n": 1})
    queue.complete(queue.claim(path))
    bench.clock.advance(5)
    put_late(bench, queue, path, lambda: queue.replay(path))

    assert queue.claim(path) is None
    assert bench.keys("orders/messages/") == []


@pytest.mark.parametrize("history", [True, False])
def test_the_replay_of_some_lines(bench, history):
    queue = bench.queue(max_attempts=1, history=history)
    (path,) = queue.enqueue_many([{"n": 1}, {"n": 2}])

    def dies(body: dict) -> None:
        raise ValueError("x") if body["n"] == 1 else KeyError("y")

    bench.processor(queue, dies).run(path)
    letters = DeadLetters(queue)
    (letter,) = letters.list()
    replayed = letters.replay(letter.path, error_type="ValueError")
    stored = bench.memory.open(f"orders/{replayed}")
    content = stored.read()
    bench.processor(queue, lambda body: None).run(replayed)
    bench.clock.advance(10)
    bench.put(f"orders/{replayed}", content, metadata=stored.metadata, content_type=stored.content_type)

    assert queue.claim(replayed) is None
    assert bench.keys("orders/messages/") == []


def test_a_replay_that_is_killed_before_it_deletes_its_letter_runs_once_without_history(bench):
    queue = bench.queue(history=False)
    path = queue.enqueue({"n": 1})
    queue.fail(queue.claim(path), "down", dead=True)
    bench.clock.advance(5)

    def around(asked: str, key: str, perform: Any) -> Any:
        if asked == "delete" and key.startswith("orders/dead/"):
            raise KeyboardInterrupt
        return perform()

    bench.around = around
    with pytest.raises(KeyboardInterrupt):
        DeadLetters(queue).replay(path)
    bench.around = None
    queue.complete(queue.claim(path))
    bench.clock.advance(5)

    DeadLetters(queue).replay(path)

    assert bench.keys("orders/messages/") == bench.keys("orders/dead/") == []


def test_a_replay_that_dies_again_has_a_letter_that_is_replayed(bench):
    """Each death has a replay of its own; and what is moved by hand runs."""
    queue = bench.queue()
    path = queue.enqueue({"n": 1})
    for _ in range(3):
        queue.fail(queue.claim(path), "down", dead=True)
        bench.clock.advance(5)
        DeadLetters(queue).replay(path)
    queue.fail(queue.claim(path), "down", dead=True)
    bench.clock.advance(5)
    letter = bench.memory.open(f"orders/dead/{path}")
    bench.put(f"orders/{path}", letter.read(), metadata=letter.metadata)
    bench.memory.delete(f"orders/dead/{path}")

    assert queue.complete(queue.claim(path)).outcome == "completed"


def test_the_completion_of_a_delayed_message_is_replayed_once(bench):
    """Its replay has another name, whose record may be that of yet another replay."""
    queue = bench.queue(keep_payload=True)
    path = queue.enqueue({"n": 1}, delay=10)
    bench.clock.advance(15)
    queue.complete(queue.claim(path))
    bench.clock.advance(5)
    replayed = queue.replay(path)
    queue.complete(queue.claim(replayed))
    bench.clock.advance(5)
    assert queue.replay(path) == replayed
    assert bench.keys("orders/messages/") == []
    assert queue.replay(replayed) == replayed
    queue.complete(queue.claim(replayed))
    bench.clock.advance(5)

    with pytest.raises(Conflict, match="was replayed before"):
        queue.replay(path)

    assert bench.keys("orders/messages/") == []
