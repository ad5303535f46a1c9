"""Some dead lines of a batch are replayed, once each, while others are replayed or deleted at the same time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from s3queue import DeadLetters, MessageNotFound, Queue
from s3queue.errors import Contended
from support.workbench import Workbench

BATCH = "messages/b.ndjson"
LETTER = f"{BATCH}.lines"


class Died(BaseException):
    pass


def fail(body: dict[str, int]) -> None:
    if body["n"] == 1:
        raise KeyError("x")
    if body["n"] == 2:
        raise ValueError("y")


def die(bench: Workbench, queue: Queue, lines: bytes = b'{"n": 1}\n{"n": 2}\n{"n": 3}\n') -> None:
    """A line dies of each error, and one is completed."""
    bench.put(f"orders/{BATCH}", lines)
    bench.processor(queue, fail).run(BATCH)
    bench.clock.advance(5)


@pytest.fixture
def queue(bench: Workbench) -> Queue:
    queue = bench.queue(max_attempts=1)
    die(bench, queue)
    return queue


def before_the_letter_is_written(bench: Workbench, act: Callable[[], Any]) -> None:
    """Once, when the letter is to be written without the lines that were replayed, or deleted."""

    def meanwhile(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if operation in ("put", "delete") and key == f"orders/dead/{LETTER}":
            bench.around = None
            act()
        return perform()

    bench.around = meanwhile


def crash() -> None:
    raise Died


def ran(bench: Workbench, queue: Queue) -> list[int]:
    """What the handler saw until nothing was left to run."""
    found: list[int] = []
    bench.clock.advance(5)
    bench.settle(queue, lambda body: found.append(body["n"]))
    return sorted(found)


def test_two_choices_at_once_take_each_their_own_lines(bench: Workbench, queue: Queue) -> None:
    """Neither is told of a conflict: both batches are in the queue."""
    letters = DeadLetters(queue)
    before_the_letter_is_written(bench, lambda: letters.replay(LETTER, error_type="ValueError"))

    letters.replay(LETTER, error_type="KeyError")

    assert ran(bench, queue) == [1, 2]
    assert list(letters.list()) == []


@pytest.mark.parametrize("is_written", [False, True])
def test_a_letter_whose_writing_has_no_answer_is_read_again(bench: Workbench, queue: Queue, is_written: bool) -> None:
    """The lines are in the queue: in the letter, they would be replayed twice. A 409 may be nothing but contention."""
    letters = DeadLetters(queue)

    def contended(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if operation != "put" or key != f"orders/dead/{LETTER}":
            return perform()
        bench.around = None
        if is_written:
            perform()
        raise Contended("409: met other writers; try again")

    bench.around = contended
    letters.replay(LETTER, error_type="KeyError")

    assert bench.around is None
    assert [line.failure.type for line in letters.lines(LETTER)] == ["ValueError"]
    letters.replay(LETTER)
    assert ran(bench, queue) == [1, 2]


def test_a_choice_beside_a_purge_of_the_others_is_no_conflict(bench: Workbench, queue: Queue) -> None:
    letters = DeadLetters(queue)
    before_the_letter_is_written(bench, lambda: letters.purge(error_type="ValueError"))

    letters.replay(LETTER, error_type="KeyError")

    assert ran(bench, queue) == [1]
    assert list(letters.list()) == []


def test_a_choice_whose_letter_is_deleted_meanwhile_is_no_conflict(bench: Workbench, queue: Queue) -> None:
    letters = DeadLetters(queue)
    before_the_letter_is_written(bench, lambda: letters.delete(LETTER))

    letters.replay(LETTER, error_type="KeyError")

    assert ran(bench, queue) == [1]


@pytest.mark.parametrize("has_run", [False, True])
@pytest.mark.parametrize("how", ["replay", "purge"])
def test_a_choice_that_is_repeated_after_a_crash_is_known_also_without_the_other_lines(
    bench: Workbench, queue: Queue, how: str, has_run: bool
) -> None:
    """The letter is another one since then: it has only the lines that were replayed."""
    letters = DeadLetters(queue)
    before_the_letter_is_written(bench, crash)
    with pytest.raises(Died):
        letters.replay(LETTER, error_type="KeyError")
    first = ran(bench, queue) if has_run else []
    if how == "replay":
        letters.replay(LETTER, error_type="ValueError")
    else:
        letters.purge(error_type="ValueError")

    letters.replay(LETTER, error_type="KeyError")

    assert first + ran(bench, queue) == ([1, 2] if how == "replay" else [1])
    assert list(letters.list()) == []


def test_the_letter_of_a_later_death_is_left_alone(bench: Workbench, queue: Queue) -> None:
    """[P1] Another batch is PUT under the name, and dies, while the lines of its first death are replayed."""
    letters = DeadLetters(queue)

    def die_again() -> None:
        letters.delete(LETTER)
        die(bench, queue, b'{"n": 3}\n{"n": 1}\n{"n": 2}\n')

    before_the_letter_is_written(bench, die_again)
    letters.replay(LETTER, error_type="KeyError")

    assert [line.failure.type for line in letters.lines(LETTER)] == ["KeyError", "ValueError"]
    assert ran(bench, queue) == [1]
    letters.replay(LETTER, error_type="KeyError")
    assert ran(bench, queue) == [1], "each death has a replay of its own"


def test_a_choice_that_is_repeated_when_its_letter_has_lost_it_finds_nothing(bench: Workbench, queue: Queue) -> None:
    letters = DeadLetters(queue)
    letters.replay(LETTER, error_type="KeyError")

    with pytest.raises(MessageNotFound):
        letters.replay(LETTER, error_type="KeyError")
    assert ran(bench, queue) == [1]
