"""Dead lines: whatever died comes back as it was, however often, and each line is filtered by its own error."""

from __future__ import annotations

import io

import pytest

from s3queue import DeadLetters, MessageNotFound, Reject
from s3queue.documents.dead_lines import DeadLine, count_lines, messages_of
from s3queue.documents.record import Failure
from s3queue.encoding import METADATA_BYTES, metadata_size
from support.payloads import put_batch

#: More different errors than a letter's metadata can name.
MANY = [f"ProviderAnswered{400 + number}Error" for number in range(14)]


@pytest.fixture
def queue(bench):
    return bench.queue(max_attempts=1)


@pytest.fixture
def letters(queue):
    return DeadLetters(queue)


def die_of(bench, queue, names: list[str]) -> str:
    """A batch of which line n dies of the n-th error; the path of its letter."""

    def handler(body: int) -> None:
        raise type(names[body], (Exception,), {})("no")

    path = put_batch(bench, list(range(len(names))))
    bench.processor(queue, handler).run(path)
    bench.clock.advance(60)
    return f"{path}.lines"


def test_errors_that_are_too_many_for_the_metadata_are_read_from_the_letter(bench, queue, letters):
    path = die_of(bench, queue, MANY)

    (letter,) = letters.list()
    assert (letter.path, letter.counts) == (path, dict.fromkeys(MANY, 1))
    assert [letter.path for letter in letters.list(error_type=MANY[7])] == [path]
    assert list(letters.list(error_type="KeyError")) == []
    assert letters.by_error_type() == dict.fromkeys(MANY, 1)
    assert letters.metrics()["count"] == 14


def test_errors_that_the_metadata_names_cost_no_read(bench, queue, letters):
    die_of(bench, queue, MANY[:3])
    bench.store.take()

    assert letters.by_error_type() == dict.fromkeys(MANY[:3], 1)

    assert "get" not in bench.store.take()


@pytest.mark.parametrize("number", [0, 7])
def test_of_many_errors_only_the_lines_of_the_chosen_one_are_purged(bench, queue, letters, number):
    path = die_of(bench, queue, MANY)

    assert letters.purge(error_type=MANY[number]) == 1

    assert {line.failure.type for line in letters.lines(path)} == set(MANY) - {MANY[number]}


@pytest.mark.parametrize("number", [0, 7])
def test_of_many_errors_only_the_lines_of_the_chosen_one_are_replayed(bench, queue, letters, number):
    path = die_of(bench, queue, MANY)

    (again,) = letters.replay_all(error_type=MANY[number]).values()

    assert bench.read(f"orders/{again}") == f"{number}\n".encode()
    assert {line.failure.type for line in letters.lines(path)} == set(MANY) - {MANY[number]}


def test_an_error_that_no_line_has_replays_nothing(bench, queue, letters):
    path = die_of(bench, queue, MANY)

    with pytest.raises(MessageNotFound, match="died of KeyError"):
        letters.replay(path, error_type="KeyError")

    assert bench.keys("orders/messages/") == []
    assert len(letters.lines(path)) == 14


def test_a_letter_of_which_lines_were_taken_names_the_errors_that_are_left(bench, queue, letters):
    """Also if they did not fit before, or would not fit now; and S3 takes 2 KB of metadata."""
    path = die_of(bench, queue, MANY)
    for name in MANY[:10]:
        letters.purge(error_type=name)
        assert metadata_size(bench.memory.head(f"orders/dead/{path}").metadata) <= METADATA_BYTES

    letter = letters.describe(path)
    assert (letter.lines, letter.error_type) == (4, MANY[10])
    assert letter.counts == dict.fromkeys(MANY[10:], 1)


def test_a_letter_with_hundreds_of_errors_can_lose_some_of_them(bench, queue, letters):
    names = [f"Error{number:03d}" for number in range(300)]
    path = die_of(bench, queue, names)

    assert letters.purge(error_type=names[5]) == 1

    assert len(letters.lines(path)) == 299
    assert metadata_size(bench.memory.head(f"orders/dead/{path}").metadata) <= METADATA_BYTES


def test_an_error_with_a_long_name_is_found(bench, queue, letters):
    long = "Error" * 19
    path = die_of(bench, queue, [long, "KeyError"])

    assert [letter.path for letter in letters.list(error_type=long)] == [path]
    assert letters.purge(error_type=long) == 1
    assert letters.by_error_type() == {"KeyError": 1}


@pytest.mark.parametrize("body", [b'"' + b"x" * (9 << 20) + b'"', b"\xff" * (9 << 20)], ids=["text", "bytes"])
def test_a_long_line_that_dies_again_and_again_stays_what_it_was(bench, queue, letters, body):
    seen: list[bytes] = []

    def handler(line: bytes) -> None:
        seen.append(line)
        raise ValueError(f"death {len(seen)}")

    processor = bench.processor(queue, handler)
    path = "messages/b.ndjson"
    bench.memory.put(f"orders/{path}", body + b"\n")
    processor.run(path)
    for _ in range(2):
        bench.clock.advance(60)
        (letter,) = letters.list()
        processor.run(letters.replay(letter.path), read_first=True)

    assert [line == body for line in seen] == [True, True, True]
    (line,) = letters.lines("messages/b.ndjson.lines")
    assert (line.number, line.failure.message, line.body == body) == (1, "death 3", True)


@pytest.mark.parametrize(
    "text", ["ж" * 30_000, "\x01" * 60_000, "\N{GRINNING FACE}" * 15_000], ids=["ж", "0x01", "face"]
)
def test_a_dead_line_is_measured_by_its_body_not_by_how_its_letter_writes_it(bench, letters, text):
    queue = bench.queue(max_attempts=1, max_message_size=61_000)
    seen: list[str] = []

    def handler(line: bytes) -> None:
        seen.append(line.decode())
        raise ValueError("down")

    bench.memory.put("orders/messages/b.ndjson", text.encode() + b"\n")
    processor = bench.processor(queue, handler)
    processor.run("messages/b.ndjson")
    bench.clock.advance(60)

    processor.run(letters.replay("messages/b.ndjson.lines"), read_first=True)

    assert seen == [text, text]


def test_a_dead_line_that_is_too_long_by_now_dies_with_the_reason_and_keeps_its_body(bench, queue, letters):
    def handler(line: bytes) -> None:
        raise Reject("no")

    bench.memory.put("orders/messages/b.ndjson", b"x" * 50 + b"\n")
    bench.processor(queue, handler).run("messages/b.ndjson")
    bench.clock.advance(60)
    strict = bench.queue(max_attempts=1, max_message_size=49)

    bench.processor(strict, handler).run(letters.replay("messages/b.ndjson.lines"), read_first=True)

    (line,) = letters.lines("messages/b.ndjson.lines")
    assert (line.failure.type, line.body) == ("MessageTooLarge", b"x" * 50)


def test_lines_are_counted_without_being_held(bench):
    long = DeadLine(1, Failure('Quoted"\\Error', 'said "no"\n'), b"x" * (1 << 20)).to_bytes()
    odd = b'{"error": "", "error_type": "Odd", "line": 3, "body": ""}\n'
    short = DeadLine(2, Failure("KeyError", "k"), b"\xff").to_bytes()

    assert count_lines(io.BytesIO(long + short + odd + b"garbage\n" + long)) == {
        'Quoted"\\Error': 2,
        "KeyError": 1,
        "Odd": 1,
    }


def test_a_line_of_such_a_batch_that_is_no_dead_line_is_a_message_as_it_is(bench):
    batch = io.BytesIO(b'{"n": 1}\n' + DeadLine(7, Failure("E", "e"), b"body").to_bytes())

    assert list(messages_of("messages/b.ndjson.lines", batch, 100)) == [(1, b'{"n": 1}'), (2, b"body")]
