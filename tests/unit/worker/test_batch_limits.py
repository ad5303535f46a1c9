"""Batches within limits: per line, per object, per number of lines; and a temporary folder that is full."""

from __future__ import annotations

import errno
import io
import tempfile
import tracemalloc
from datetime import timedelta
from typing import Any, BinaryIO

import pytest

from s3queue import DeadLetters, InvalidRequest, QueueSettings, Retry
from s3queue.documents.batch import LongLine, read_lines, spooled
from s3queue.documents.message import INLINE_BYTES
from s3queue.documents.sends import MERGED_FROM
from s3queue.encoding import LONGEST, MOST_LINES
from s3queue.errors import MessageTooLarge, NoSpace
from support.payloads import put_batch

MIB = 1024 * 1024


def test_a_line_longer_than_a_message_may_be_dies_alone_with_the_reason(bench):
    queue = bench.queue(max_message_size=20)
    path = put_batch(bench, [{"n": 1}, {"n": "x" * 100}, {"n": 3}])
    seen: list[Any] = []

    bench.processor(queue, seen.append).run(path)

    assert [body["n"] for body in seen] == [1, 3]
    record = queue.status(path).record
    assert (record.outcome, record.lines["completed"], record.lines["dead"]) == ("completed", 2, 1)
    ((line, kind, said),) = record.lines["dead_lines"]
    assert (line, kind) == (2, "MessageTooLarge")
    assert "max_message_size is 20" in said
    (letter,) = DeadLetters(queue).list()
    assert letter.error_type == "MessageTooLarge"
    assert not bench.keys("orders/messages/")


@pytest.mark.parametrize(
    ("name", "runs"), [("sent-0-0.ndjson", True), ("p200/sent-0-0.ndjson", True), ("0.ndjson", False)]
)
@pytest.mark.parametrize("limits", [{"max_batch_lines": 50}, {"max_batch_size": 50}])
def test_many_sends_in_one_object_are_no_batch_that_is_too_large(bench, name, runs, limits):
    """[P7] Each of them is a message that the queue takes; its own batches may have fewer lines, or bytes."""
    queue = bench.queue(**limits)
    bench.put(f"orders/messages/{name}", b"1\n" * MERGED_FROM)
    seen: list[Any] = []

    bench.processor(queue, seen.append).run(f"messages/{name}")

    assert len(seen) == (MERGED_FROM if runs else 0)
    assert queue.status(f"messages/{name}").state == ("completed" if runs else "dead")


@pytest.mark.parametrize("kind", [bytes, BinaryIO, list[dict]])
def test_no_handler_gets_a_line_that_is_too_long(bench, kind):
    queue = bench.queue(max_message_size=20)
    path = put_batch(bench, [{"n": "x" * 100}])

    def handler(body: Any) -> None:
        raise AssertionError("it ran")

    handler.__annotations__["body"] = kind
    bench.processor(queue, handler).run(path)

    assert queue.status(path).record.lines["dead"] == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"max_batch_size": 30}, "max_batch_size is 30"), ({"max_batch_lines": 2}, "max_batch_lines")],
)
def test_a_batch_with_too_many_bytes_or_lines_dies_before_a_line_has_run(bench, options, reason):
    queue = bench.queue(**options)
    path = put_batch(bench, [{"n": number} for number in range(5)])
    body = bench.read(f"orders/{path}")

    assert bench.processor(queue, lambda body: pytest.fail("it ran")).run(path) == "dead"

    record = queue.status(path).record
    assert record.failure.type == "MessageTooLarge"
    assert reason in record.failure.message
    assert bench.read(f"orders/dead/{path}") == body


def test_as_many_bytes_and_lines_as_allowed_run(bench):
    path = put_batch(bench, [{"n": 1}, {"n": 2}])
    size = len(bench.read(f"orders/{path}"))
    queue = bench.queue(max_batch_lines=2, max_batch_size=size, max_message_size=8)

    assert bench.processor(queue, lambda body: None).run(path) == "completed"
    assert queue.status(path).record.lines["completed"] == 2


def test_a_full_temporary_folder_fails_that_attempt_and_nothing_else(bench, monkeypatch):
    queue = bench.queue()
    line = b'"' + b"x" * 1000 + b'"\n'
    path = put_batch(bench, line * (INLINE_BYTES // len(line) + 10))
    single = queue.enqueue({"n": 1})

    def full(*args: Any, **options: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(tempfile, "TemporaryFile", full)
        processor = bench.processor(queue, lambda body: None)
        assert processor.run(path) == "retried"
        assert processor.run(single) == "completed"
    status = queue.status(path)
    assert status.state == "waiting"
    assert status.lease.failure.type == "NoSpace"
    assert "No space left on device" in status.lease.failure.message

    bench.clock.advance(10)
    assert bench.processor(queue, lambda body: None).run(path, read_first=True) == "completed"


def test_the_copy_is_closed_and_the_connection_too_if_the_folder_is_full(monkeypatch):
    def full(*args: Any, **options: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    source = io.BytesIO(b"x" * (INLINE_BYTES + 1))
    with pytest.raises(NoSpace, match="temporary folder"):
        spooled(source)
    assert source.closed


def test_a_batch_with_too_many_lines_is_not_copied_to_its_end():
    class Endless(io.RawIOBase):
        pieces = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            Endless.pieces += 1
            buffer[:] = b"\n" * len(buffer)
            return len(buffer)

    with pytest.raises(MessageTooLarge, match="more than 1000 lines"):
        spooled(Endless(), max_lines=1000)  # type: ignore[arg-type]
    assert Endless.pieces == 1


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
def test_a_long_line_is_told_by_its_place_and_the_lines_around_it_are_read(end):
    batch = io.BytesIO(
        b"\xef\xbb\xbf" + b"a" * 10 + b"\n\n" + b"b" * 11 + b"\n" + b"c" * 3000 + b"\nd\n" + b"e" * 50 + end
    )

    found = dict(read_lines(batch, 10))

    assert {number: line for number, line in found.items() if isinstance(line, bytes)} == {1: b"a" * 10, 5: b"d"}
    long = {number: line for number, line in found.items() if isinstance(line, LongLine)}
    assert list(long) == [3, 4, 6]
    assert b"".join(long[3].pieces(batch)) == b"b" * 11
    assert b"".join(long[4].pieces(batch)) == b"c" * 3000
    assert long[6].copied(batch).read().rstrip(b"\r") == b"e" * 50


def test_a_line_of_the_longest_length_is_read_whatever_ends_it():
    for end in (b"\n", b"\r\n", b""):
        for mark in (b"", b"\xef\xbb\xbf"):
            assert list(read_lines(io.BytesIO(mark + b"x" * 10 + end), 10)) == [(1, b"x" * 10)]
            ((_, line),) = read_lines(io.BytesIO(mark + b"x" * 11 + end), 10)
            assert isinstance(line, LongLine)


def test_a_line_of_many_megabytes_is_never_held(bench, tmp_path):
    place = tmp_path / "batch"
    with place.open("wb") as file:
        file.write(b'{"n":1}\n')
        for _ in range(100):
            file.write(b"x" * MIB)
        file.write(b'\n{"n":2}\n')

    tracemalloc.start()
    try:
        with place.open("rb") as stream, spooled(stream) as batch:
            found = dict(read_lines(batch, MIB))
            assert found[1] == b'{"n":1}'
            assert found[2] == LongLine(8, 100 * MIB)
            assert found[3] == b'{"n":2}'
            with found[2].copied(batch) as copy:
                assert sum(len(piece) for piece in iter(lambda: copy.read(MIB), b"")) == 100 * MIB
        assert tracemalloc.get_traced_memory()[1] < 30 * MIB
    finally:
        tracemalloc.stop()


def test_a_list_of_long_lines_is_handed_over_in_parts(bench):
    queue = bench.queue()
    path = put_batch(bench, [{"n": "x" * (3 * MIB)} for _ in range(8)])
    calls: list[int] = []

    def handler(bodies: list[dict]) -> None:
        calls.append(len(bodies))

    bench.processor(queue, handler).run(path)
    assert calls == [3, 3, 2]


@pytest.mark.parametrize("after", [timedelta.max, timedelta.min, timedelta(days=200 * 366)])
def test_a_handler_may_ask_for_any_delay_and_dates_still_work(bench, queue, after):
    path = queue.enqueue({"n": 1})

    def handler(body: dict) -> None:
        raise Retry(after=after)

    assert bench.processor(queue, handler).run(path) == "retried"
    assert queue.status(path).lease.retry_at <= bench.clock.now() + LONGEST + timedelta(seconds=1)


def test_enqueue_many_makes_batches_within_the_limits(bench):
    queue = bench.queue(max_batch_lines=3, max_batch_size=40)
    paths = queue.enqueue_many([{"n": number} for number in range(10)], per_object=100)
    assert [bench.read(f"orders/{path}").count(b"\n") for path in paths] == [3, 3, 3, 1]


@pytest.mark.parametrize(
    "options", [{"max_batch_lines": 0}, {"max_batch_lines": MOST_LINES + 1}, {"max_batch_size": 0}]
)
def test_limits_that_make_no_sense_are_refused(options):
    with pytest.raises(InvalidRequest, match=next(iter(options))):
        QueueSettings.of(**options)


def test_a_duration_beyond_all_dates_is_refused():
    with pytest.raises(InvalidRequest, match="visibility_timeout"):
        QueueSettings.of(visibility_timeout=1e12)
    assert QueueSettings.of(max_batch_size="1 GiB").max_batch_size == 1024 * MIB
