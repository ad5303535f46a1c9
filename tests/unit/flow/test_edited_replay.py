"""A dead letter is replayed with a repaired payload: once, whatever answers are lost, and nothing else is touched."""

from __future__ import annotations

import pytest

from s3queue.errors import Conflict, InvalidRequest, MessageNotFound, MessageTooLarge, Unavailable
from s3queue.protocol.dead_letters import DeadLetters
from support.workbench import Workbench


def died(bench: Workbench, name: str = "m", **enqueue: object) -> str:
    queue = bench.queue(max_attempts=1)
    path = queue.enqueue(b"broken", name=name, metadata={"trace": "7"}, **enqueue)  # type: ignore[arg-type]
    queue.fail(queue.claim(path), ValueError("no"))
    bench.clock.advance(5)
    return path


def test_the_new_payload_runs_with_the_old_metadata_and_all_its_attempts() -> None:
    bench = Workbench()
    path = died(bench)
    queue = bench.queue()
    assert queue.replay_edited(path, b"repaired") == path
    assert list(DeadLetters(queue).list()) == []
    message = bench.memory.head(queue.keys.message(path))
    assert message
    assert message.metadata["trace"] == "7"
    seen: list[bytes] = []

    def handle(body: bytes) -> None:
        seen.append(body)

    bench.processor(queue, handle).run(path)
    assert seen == [b"repaired"]
    assert queue.status(path).state == "completed"


def test_a_lost_answer_is_repeated_without_a_second_message() -> None:
    bench = Workbench()
    path = died(bench)
    queue = bench.queue()

    def lose(operation: str, key: str, perform: object) -> object:
        result = perform()  # type: ignore[operator]
        if operation == "put" and key == queue.keys.message(path):
            bench.around = None
            raise Unavailable("no answer")
        return result

    bench.around = lose  # type: ignore[assignment]
    with pytest.raises(Unavailable):
        queue.replay_edited(path, b"repaired")
    assert len(list(DeadLetters(queue).list())) == 1
    assert queue.replay_edited(path, b"repaired") == path
    assert list(DeadLetters(queue).list()) == []


def test_two_operators_edit_and_the_first_wins() -> None:
    bench = Workbench()
    path = died(bench)
    queue = bench.queue()

    def crash(operation: str, key: str, perform: object) -> object:
        if operation == "delete":
            raise Unavailable("gone")
        return perform()  # type: ignore[operator]

    bench.around = crash  # type: ignore[assignment]
    with pytest.raises(Unavailable):
        queue.replay_edited(path, b"first")
    bench.around = None
    with pytest.raises(Conflict, match="exists already"):
        queue.replay_edited(path, b"second")
    queue.complete(queue.claim(path))
    with pytest.raises(Conflict, match="was replayed before"):
        queue.replay_edited(path, b"second")
    assert list(DeadLetters(queue).list()) == [], "the letter that the crash left is gone"
    assert bench.keys(queue.keys.message(path)) == []


def test_a_plain_replay_after_an_edited_one_runs_nothing_again() -> None:
    bench = Workbench()
    path = died(bench)
    queue = bench.queue()
    letter = bench.memory.open(queue.keys.dead(path))
    assert letter
    queue.replay_edited(path, b"repaired")
    queue.complete(queue.claim(path))
    bench.memory.put(letter.key, letter.read(), metadata=letter.metadata)  # as a store that lost the DELETE
    bench.clock.advance(5)
    DeadLetters(queue).replay(path)
    assert queue.status(path).state in ("completed", "pending")


def test_a_message_of_a_group_goes_to_its_end() -> None:
    bench = Workbench()
    queue = bench.queue(max_attempts=1)
    path = queue.enqueue(b"broken", group="ada")

    def fail(body: bytes) -> None:
        raise ValueError("no")

    bench.processor(queue, fail).run(path)
    bench.clock.advance(5)
    (letter,) = DeadLetters(queue).list()
    target = queue.replay_edited(letter.path, b"repaired")
    assert target.startswith("messages/@ada/")
    assert bench.read(queue.keys.message(target)) == b"repaired"


def test_what_cannot_be_edited_is_refused_and_stays() -> None:
    bench = Workbench()
    queue = bench.queue(max_attempts=1, max_message_size=100)
    batch = bench.put(queue.keys.message("messages/b.ndjson"), b"1\n2\n")
    assert batch

    def fail(body: bytes) -> None:
        raise ValueError("no")

    bench.processor(queue, fail).run("messages/b.ndjson")
    (letter,) = DeadLetters(queue).list()
    with pytest.raises(InvalidRequest, match="cannot be edited: a batch"):
        queue.replay_edited(letter.path, b"x")
    with pytest.raises(MessageNotFound):
        queue.replay_edited("messages/none", b"x")
    path = died(bench, "large")
    with pytest.raises(MessageTooLarge):
        queue.replay_edited(path, b"x" * 101)
    assert len(list(DeadLetters(queue).list())) == 2


def test_a_letter_whose_metadata_leave_no_room_for_its_id_is_left_alone() -> None:
    bench = Workbench()
    path = died(bench)
    queue = bench.queue()
    key = queue.keys.dead(path)
    bench.memory.put(key, b"broken", metadata={"forged": "x" * 1990})
    with pytest.raises(InvalidRequest, match="leaves no room"):
        queue.replay_edited(path, b"repaired")
    assert bench.keys(key) == [key]
    assert bench.keys(queue.keys.message(path)) == []
