"""A dead letter of a group is replayed once, edited or not, and each operator is told what became of his payload."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from s3queue.documents.dedup_marker import DedupMarker
from s3queue.errors import Conflict, InvalidRequest, NewerFormat, Unavailable
from s3queue.protocol.dead_letters import DeadLetters
from s3queue.queue import Queue
from support.workbench import Workbench

#: With a group, and without: the same is promised.
GROUPS = ["a", None]


class _Killed(BaseException):
    pass


def _fails(body: Any) -> None:
    raise ValueError("no")


def _dead(bench: Workbench, queue: Queue, group: str | None = "a", body: bytes = b'"broken"') -> str:
    path = queue.enqueue(body, group=group)
    bench.processor(queue, _fails).run(path)
    bench.clock.advance(5)
    assert bench.keys("orders/dead/") == [f"orders/dead/{path}"]
    return path


def _at(bench: Workbench, operation: str, prefix: str, then: Callable[[], object], *, after: bool = False) -> None:
    """Do something once, just before such a request, or after it."""

    def around(asked: str, key: str, perform: Callable[[], Any]) -> Any:
        if asked != operation or not key.startswith(prefix):
            return perform()
        bench.around = None
        answer = perform() if after else None
        then()
        return answer if after else perform()

    bench.around = around


def _dies() -> None:
    raise _Killed


def _loses_the_answer() -> None:
    raise Unavailable("no answer")


def _ran(bench: Workbench, queue: Queue) -> list[Any]:
    seen: list[Any] = []
    bench.settle(queue, seen.append)
    assert bench.keys("orders/messages/") == []
    return seen


@pytest.mark.parametrize("group", GROUPS)
def test_an_edit_is_refused_when_the_letter_was_replayed_and_has_run(bench: Workbench, group: str | None) -> None:
    """[P4] The replay's DELETE of the letter was lost: the letter is deleted, and nothing else happens."""
    queue = bench.queue(max_attempts=1)
    path = _dead(bench, queue, group)
    _at(bench, "delete", "orders/dead/", _dies)
    with pytest.raises(_Killed):
        queue.replay(path)
    assert _ran(bench, queue) == ["broken"]

    with pytest.raises(Conflict, match="was replayed before"):
        queue.replay_edited(path, b'"repaired"')

    assert bench.keys("orders/dead/") == []
    assert _ran(bench, queue) == []


@pytest.mark.parametrize(
    ("group", "at", "after", "winner"),
    [
        ("a", "orders/messages/", True, "first"),
        ("a", "orders/messages/", False, "second"),
        ("a", "orders/dedup/", True, "second"),
        ("a", "orders/dedup/", False, "second"),
        (None, "orders/messages/", True, "first"),
        (None, "orders/messages/", False, "second"),
    ],
)
def test_of_two_operators_who_edit_a_letter_one_is_refused(
    bench: Workbench, group: str | None, at: str, after: bool, winner: str
) -> None:
    """[P1] Whoever is told that his payload is stored is right, wherever the other one comes in between."""
    queue, other = bench.queue(max_attempts=1), bench.queue(max_attempts=1, worker_id="other")
    path = _dead(bench, queue, group)
    said: dict[str, str] = {}

    def edit(who: str, by: Queue) -> None:
        with suppress(Conflict):
            said[who] = by.replay_edited(path, json.dumps(who).encode())

    _at(bench, "put", at, lambda: edit("second", other), after=after)
    edit("first", queue)

    assert list(said) == [winner]
    assert _ran(bench, queue) == [winner]
    assert bench.keys("orders/dead/") == []


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("other", ["plain", "edit"])
def test_an_edit_whose_put_comes_after_another_replay_has_run_is_refused(
    bench: Workbench, other: str, group: str | None
) -> None:
    """[P1] It finds its place free again; what it stores there is cleared away, and its operator is told so."""
    queue, beside = bench.queue(max_attempts=1), bench.queue(max_attempts=1, worker_id="other")
    path = _dead(bench, queue, group)
    seen: list[Any] = []

    def replay() -> None:
        beside.replay(path) if other == "plain" else beside.replay_edited(path, b'"theirs"')
        bench.clock.advance(5)
        seen.extend(_ran(bench, beside))

    _at(bench, "put", "orders/messages/", replay)
    with pytest.raises(Conflict, match="was replayed before"):
        queue.replay_edited(path, b'"ours"')

    bench.clock.advance(5)
    assert seen + _ran(bench, queue) == ["broken" if other == "plain" else "theirs"]


@pytest.mark.parametrize("group", GROUPS)
def test_an_edit_that_has_run_before_its_operator_is_answered_is_not_refused(
    bench: Workbench, group: str | None
) -> None:
    queue, seen = bench.queue(max_attempts=1), []
    path = _dead(bench, queue, group)
    _at(bench, "put", "orders/messages/", lambda: seen.extend(_ran(bench, queue)), after=True)

    queue.replay_edited(path, b'"repaired"')

    assert seen == ["repaired"]
    assert bench.keys("orders/dead/") == []


def test_a_letter_of_a_group_is_not_edited_in_the_middle_of_its_burial(bench: Workbench) -> None:
    """[P3] Whoever goes on with the burial would write the letter again: one death, two letters."""
    queue = bench.queue(max_attempts=1)
    path = queue.enqueue(b'"broken"', group="a")
    _at(bench, "put", "orders/records/", _dies)
    with pytest.raises(_Killed):
        bench.processor(queue, _fails).run(path)
    bench.clock.advance(5)

    with pytest.raises(Conflict, match="still being buried"):
        queue.replay_edited(path, b'"repaired"')

    bench.clock.advance(120)
    assert _ran(bench, queue) == []
    assert bench.keys("orders/dead/") == [f"orders/dead/{path}"]
    queue.replay_edited(path, b'"repaired"')
    assert _ran(bench, queue) == ["repaired"]
    assert bench.keys("orders/dead/") == []


@pytest.mark.parametrize(("operation", "prefix"), [("put", "orders/messages/"), ("put", "orders/dedup/")])
def test_an_edit_whose_answer_is_lost_is_repeated_without_a_second_message(
    bench: Workbench, operation: str, prefix: str
) -> None:
    queue = bench.queue(max_attempts=1)
    path = _dead(bench, queue)
    _at(bench, operation, prefix, _loses_the_answer, after=True)
    if prefix == "orders/messages/":
        with pytest.raises(Unavailable):
            queue.replay_edited(path, b'"repaired"')
    queue.replay_edited(path, b'"repaired"')

    assert len(bench.keys("orders/messages/")) == 1
    assert bench.keys("orders/dead/") == []
    assert _ran(bench, queue) == ["repaired"]


@pytest.mark.parametrize("edited", ["first", "second"])
def test_a_letter_of_a_group_that_is_replayed_with_one_payload_is_not_with_another(
    bench: Workbench, edited: str
) -> None:
    """Whoever replayed it first died before he could delete the letter."""
    queue = bench.queue(max_attempts=1)
    path = _dead(bench, queue)
    replays = [lambda: queue.replay_edited(path, b'"repaired"'), lambda: queue.replay(path)]
    first, second = replays if edited == "first" else replays[::-1]
    _at(bench, "delete", "orders/dead/", _dies)
    with pytest.raises(_Killed):
        first()

    with pytest.raises(Conflict, match="exists already"):
        second()

    assert bench.keys("orders/dead/") == [f"orders/dead/{path}"], "nothing was lost by the refusal"
    assert _ran(bench, queue) == ["repaired" if edited == "first" else "broken"]


def test_a_replay_of_a_group_that_is_repeated_keeps_the_place_that_it_first_had(bench: Workbench) -> None:
    """Its caller died before the PUT, which may still come: a second name would be a second message."""
    queue = bench.queue(max_attempts=1)
    path = _dead(bench, queue)
    queue.enqueue(b'"before"', group="a")
    bench.clock.advance(1)
    _at(bench, "put", "orders/messages/", _dies)
    with pytest.raises(_Killed):
        queue.replay(path)
    bench.clock.advance(1)
    queue.enqueue(b'"after"', group="a")

    target = queue.replay_edited(path, b'"repaired"')

    assert _ran(bench, queue) == ["before", "repaired", "after"]
    assert queue.status(target).state == "completed"


@pytest.mark.parametrize(
    "marker",
    [
        b"garbage",
        DedupMarker(path="messages/@b/1", put_id="moved-0-0", nonce="n").to_bytes(),
        b'{"v": 1, "path": "messages/@a/1", "put_id": "moved-0-0", "nonce": "n"}',
        b'{"v": 1, "path": "messages/@a/1", "put_id": "other", "nonce": "n"}',
    ],
)
def test_a_marker_that_is_none_is_replaced(bench: Workbench, marker: bytes) -> None:
    queue = bench.queue(max_attempts=1)
    path = _dead(bench, queue)
    key = _marker_of(bench, queue, path)
    bench.put(key, marker)

    target = queue.replay_edited(path, b'"repaired"')

    stored = bench.memory.open(key)
    assert stored
    assert DedupMarker.read(stored).path == target
    assert target.startswith("messages/@a/0")
    assert _ran(bench, queue) == ["repaired"]


def test_a_marker_of_another_group_is_replaced(bench: Workbench) -> None:
    queue = bench.queue(max_attempts=1)
    path = _dead(bench, queue)
    key = _marker_of(bench, queue, path)
    put_id = key.removeprefix("orders/dedup/")
    bench.put(key, DedupMarker(path="messages/@b/1", put_id=put_id, nonce="n").to_bytes())

    assert queue.replay_edited(path, b'"repaired"').startswith("messages/@a/")


def test_a_marker_of_a_newer_version_is_left_alone(bench: Workbench) -> None:
    queue = bench.queue(max_attempts=1)
    path = _dead(bench, queue)
    bench.put(_marker_of(bench, queue, path), b'{"v": 99}')
    with pytest.raises(NewerFormat):
        queue.replay_edited(path, b'"repaired"')
    assert bench.keys("orders/messages/") == []
    assert bench.keys("orders/dead/") == [f"orders/dead/{path}"]


def test_a_letter_of_a_group_whose_metadata_leave_no_room_for_its_id_is_left_alone(bench: Workbench) -> None:
    queue = bench.queue(max_attempts=1)
    path = _dead(bench, queue)
    bench.memory.put(queue.keys.dead(path), b"broken", metadata={"forged": "x" * 1990})
    with pytest.raises(InvalidRequest, match="leaves no room"):
        queue.replay_edited(path, b"repaired")
    assert bench.keys("orders/messages/") == bench.keys("orders/dedup/") == []


def _marker_of(bench: Workbench, queue: Queue, path: str) -> str:
    """The key of the marker that a replay of this letter would write."""
    letter = DeadLetters(queue).describe(path)
    keys: list[str] = []

    def around(asked: str, key: str, perform: Callable[[], Any]) -> Any:
        if asked == "put":
            keys.append(key)
            raise _Killed
        return perform()

    bench.around = around
    with pytest.raises(_Killed):
        queue.replay(letter.path)
    bench.around = None
    [key] = keys
    return key
