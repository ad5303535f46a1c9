"""A message that could not be read is replayed where it lies: it runs, once, also if its PUT could have been repeated.

[P1] [P7] Its own death, under the same name, must not pass for the outcome of the replay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from s3queue import Context, DeadLetters, Flow, InvalidRequest, Queue
from s3queue.encoding import METADATA_BYTES, PUT_ID, put_id_of
from s3queue.errors import AccessDenied, Unavailable
from support.workbench import Workbench


class Died(BaseException):
    pass


def boom(body: Any) -> None:
    raise ValueError("boom")


def plain(bench: Workbench, queue: Queue, group: str | None) -> str:
    return queue.enqueue({"n": 1}, group=group, name=None if group else "x")


def with_a_dedup_id(bench: Workbench, queue: Queue, group: str | None) -> str:
    return queue.enqueue({"n": 1}, dedup_id="order-17", dedup_for=300, group=group)


def replayed_before(bench: Workbench, queue: Queue, group: str | None) -> str:
    path = plain(bench, queue, group)
    bench.processor(queue, boom).run(path)
    bench.clock.advance(5)
    return DeadLetters(queue).replay(path)


def sent_by_a_handler(bench: Workbench, queue: Queue, group: str | None) -> str:
    source = bench.queue("source")

    def send(body: Any, context: Context) -> None:
        context.send("orders", {"n": 1}, group=group)

    bench.processor(source, send, sends_to=("orders",)).run(source.enqueue({}))
    return bench.keys("orders/messages/")[0].removeprefix("orders/")


def of_a_flow(bench: Workbench, queue: Queue, group: str | None) -> str:
    flow = Flow(queue)
    flow.add("orders", {"n": 1})
    flow.then("orders", {"n": 2})
    flow.start()
    return bench.keys("orders/messages/")[0].removeprefix("orders/")


def of_a_schedule(bench: Workbench, queue: Queue, group: str | None) -> str:
    path = f"delayed/{bench.clock.now():%Y%m%dT%H%M%SZ}/scheduled-nightly"
    bench.put(f"orders/{path}", b'{"n": 1}')
    return path


Source = Callable[[Workbench, Queue, str | None], str]
SOURCES: list[tuple[Source, str | None]] = [
    *(
        (source, group)
        for source in (plain, with_a_dedup_id, replayed_before, sent_by_a_handler)
        for group in (None, "g")
    ),
    (of_a_flow, None),
    (of_a_schedule, None),
]
each_source = pytest.mark.parametrize(
    ("source", "group"), SOURCES, ids=[f"{one.__name__}{' in a group' * bool(group)}" for one, group in SOURCES]
)


def die_unread(bench: Workbench, queue: Queue, path: str, *operations: str) -> str:
    """Its last attempt fails, and what these operations do is refused; the path of the letter that stands for it."""
    bench.clock.advance(5)

    def refuse(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if operation in operations and key in (f"orders/{path}", f"orders/dead/{path}"):
            raise AccessDenied(f"{operation} {key}: AccessDenied")
        return perform()

    bench.around = refuse
    bench.processor(queue, boom).run(path, read_first=True)
    bench.around = None
    bench.clock.advance(5)
    (letter,) = DeadLetters(queue).list()
    assert letter.is_unreadable
    return letter.path


def settled(bench: Workbench, queue: Queue) -> list[int]:
    """What the handler saw until nothing was left to run."""
    ran: list[int] = []
    bench.clock.advance(5)
    bench.settle(queue, lambda body: ran.append(body["n"]))
    return ran


@pytest.mark.parametrize("refused", [("get", "copy"), ("copy",)], ids=["no GET", "no COPY"])
@each_source
def test_it_runs_when_it_can_be_read_again(
    bench: Workbench, source: Source, group: str | None, refused: tuple[str, ...]
) -> None:
    queue = bench.queue(max_attempts=1)
    path = source(bench, queue, group)
    letter = die_unread(bench, queue, path, *refused)

    assert DeadLetters(queue).replay(letter) == path

    assert settled(bench, queue)[0] == 1
    record = queue.outcome_of(path)
    assert record is not None
    assert record.outcome == "completed"
    assert bench.keys("orders/dead/") == []


@pytest.mark.parametrize("when", ["the PUT has no answer", "crash after the PUT"])
@each_source
def test_it_runs_once_however_often_its_letter_is_replayed(
    bench: Workbench, source: Source, group: str | None, when: str
) -> None:
    queue = bench.queue(max_attempts=1)
    path = source(bench, queue, group)
    letter = die_unread(bench, queue, path, "get", "copy")

    def end(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        answer = perform()
        if operation == "put" and key == f"orders/{path}":
            raise Unavailable("no answer") if when == "the PUT has no answer" else Died
        return answer

    bench.around = end
    with pytest.raises((Unavailable, Died)):
        DeadLetters(queue).replay(letter)
    bench.around = None
    if when == "the PUT has no answer":
        assert DeadLetters(queue).replay(letter) == path
        assert settled(bench, queue).count(1) == 1
    else:
        assert settled(bench, queue).count(1) == 1
        assert not DeadLetters(queue).replay_all()[letter].startswith("messages/"), "it has run, and is gone"
        assert 1 not in settled(bench, queue)
    assert bench.keys("orders/dead/") == bench.keys("orders/messages/") == []


@pytest.mark.parametrize("source", [with_a_dedup_id, sent_by_a_handler, of_a_flow])
def test_a_late_repetition_of_the_first_put_does_not_run_after_the_replay(bench: Workbench, source: Source) -> None:
    queue = bench.queue(max_attempts=1)
    path = source(bench, queue, None)
    first = bench.memory.head(f"orders/{path}")
    assert first is not None
    letter = die_unread(bench, queue, path, "copy")
    DeadLetters(queue).replay(letter)
    assert 1 in settled(bench, queue)
    bench.put(f"orders/{path}", b'{"n": 1}', metadata=first.metadata)

    assert 1 not in settled(bench, queue)


def test_a_member_of_a_flow_keeps_the_outcome_that_the_flow_has_noted(bench: Workbench) -> None:
    """As any dead member that is replayed: it runs, and the flow has gone on without it."""
    queue = bench.queue(max_attempts=1)
    letter = die_unread(bench, queue, of_a_flow(bench, queue, None), "copy")
    DeadLetters(queue).replay(letter)

    assert settled(bench, queue) == [1], "the step of a flow that has failed does not run"


@each_source
def test_it_runs_after_several_deaths_in_its_place(bench: Workbench, source: Source, group: str | None) -> None:
    queue = bench.queue(max_attempts=1)
    path = source(bench, queue, group)
    for _ in range(3):
        letter = die_unread(bench, queue, path, "copy")
        DeadLetters(queue).replay(letter)

    assert settled(bench, queue).count(1) == 1


def test_equal_bytes_of_a_producer_run_though_a_slow_replay_is_put_over_them(bench: Workbench) -> None:
    """[P1] An operator stands still before the PUT; another one's replay dies meanwhile, and the name is PUT anew."""
    queue = bench.queue(max_attempts=1)
    path = replayed_before(bench, queue, None)
    letter = die_unread(bench, queue, path, "copy")

    def stand_still(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if operation == "put" and key == f"orders/{path}":
            bench.around = None
            DeadLetters(queue).replay(letter)
            bench.clock.advance(5)
            bench.processor(queue, boom).run(path, read_first=True)
            bench.clock.advance(5)
            bench.put(key, b'{"n":1}')
            bench.clock.advance(5)
        return perform()

    bench.around = stand_still
    DeadLetters(queue).replay(letter)

    assert settled(bench, queue) == [1]


def test_one_that_died_within_the_second_of_its_put_is_replayed_in_the_next(bench: Workbench) -> None:
    """[P3] Equal bytes of one second are one generation, and that one is dead."""
    queue = bench.queue(max_attempts=1)
    path = with_a_dedup_id(bench, queue, None)

    def refuse(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if operation == "copy":
            raise AccessDenied("no")
        return perform()

    bench.around = refuse
    bench.processor(queue, boom).run(path)
    bench.around = None
    DeadLetters(queue).replay(path)

    assert settled(bench, queue) == [1]
    assert queue.status(path).state == "completed"


def test_metadata_without_room_for_the_id_is_refused_and_nothing_is_lost(bench: Workbench) -> None:
    queue = bench.queue(max_attempts=1)
    path = "messages/x"
    own = {"customer": "4" * (METADATA_BYTES - len(PUT_ID) - len("once-1") - len("customer"))}
    bench.put(f"orders/{path}", b'{"n": 1}', metadata=own | {PUT_ID: "once-1"})
    letter = die_unread(bench, queue, path, "copy")

    with pytest.raises(InvalidRequest, match="no room"):
        DeadLetters(queue).replay(letter)

    assert bench.read(f"orders/{path}") == b'{"n": 1}'
    assert [one.path for one in DeadLetters(queue).list()] == [letter]


def test_a_plain_message_is_stored_as_its_producer_had(bench: Workbench) -> None:
    """[P1] With an id, a replay that comes late would have equal bytes deleted that a producer PUT meanwhile."""
    queue = bench.queue(max_attempts=1)
    path = queue.enqueue({"n": 1}, name="x", metadata={"customer": "42"})
    before = bench.memory.head(f"orders/{path}")
    letter = die_unread(bench, queue, path, "copy")
    DeadLetters(queue).replay(letter)

    after = bench.memory.head(f"orders/{path}")
    assert before is not None
    assert after is not None
    assert dict(after.metadata) == dict(before.metadata)
    assert put_id_of(after.metadata)
