"""Batches: lines, their numbers, and what became of each."""

from __future__ import annotations

import io
import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as some

from s3queue.documents.batch import LISTED_LINES, RESULTS_BYTES, LineNumbers, Lines, join_lines, read_lines, spooled
from s3queue.documents.message import INLINE_BYTES
from s3queue.documents.record import Failure
from support.drawn_documents import described, results


@given(some.lists(some.integers(1, 30)))
def test_line_numbers_are_a_set_whatever_the_order_they_come_in(numbers):
    found = LineNumbers(numbers)

    assert found == set(numbers)
    assert len(found) == len(set(numbers))
    assert [line for line in range(32) if line in found] == sorted(set(numbers)) == list(found)
    assert LineNumbers.from_json(found.to_json()).to_json() == found.to_json()
    assert all(last < first - 1 for (_, last), (first, _) in pairwise(found.to_json()))


def test_ranges_of_lines_that_overlap_are_refused():
    with pytest.raises(ValueError, match="do not follow the range before"):
        LineNumbers.from_json([[1, 5], [4, 6]])


def test_a_line_that_failed_in_this_attempt_is_not_repeated_in_it():
    found = Lines()
    found.complete(1)
    found.fail(2, 1, Failure("E", "m"), dead=False)
    found.fail(3, 1, Failure("E", "m"), dead=True)

    assert [line for line in range(1, 5) if found.is_pending(line, attempt=1)] == [4]
    assert [line for line in range(1, 5) if found.is_pending(line, attempt=2)] == [2, 4]


def test_a_line_that_failed_and_then_succeeded_is_done():
    found = Lines()
    found.fail(1, 1, Failure("E", "m"), dead=False)
    found.complete(1, "r")

    assert described(found) == ({1}, {}, {}, {1: "r"}, None)


def test_results_of_lines_are_kept_up_to_a_limit_and_never_break_the_lease():
    found = Lines()
    loop: list = []
    loop.append(loop)
    for line, result in enumerate([{"n": 1}, object(), float("nan"), loop, None], start=1):
        found.complete(line, result)
    assert found.results == {1: {"n": 1}}

    for line in range(10, 10_000):
        found.complete(line, "x" * 100)
    assert len(json.dumps(found.to_json()["results"])) < 2 * RESULTS_BYTES
    assert len(found.done) == 5 + 9990


def test_a_summary_counts_everything_and_lists_the_first_dead():
    found = Lines(total=1000)
    for line in range(1, 501):
        found.fail(line, 1, Failure("E", "m"), dead=True)
    found.complete(501)

    summary = found.summary()

    assert (summary["total"], summary["completed"], summary["dead"]) == (1000, 1, 500)
    assert [line for line, *_ in summary["dead_lines"]] == list(range(1, LISTED_LINES + 1))


@given(some.lists(results | some.lists(results, max_size=3), max_size=10))
def test_bodies_in_a_batch_are_its_lines(bodies):
    usable = [body for body in bodies if not isinstance(body, str) and "\\ud" not in json.dumps(body)]

    joined = join_lines(usable)

    assert [json.loads(line) for _, line in read_lines(io.BytesIO(joined))] == usable
    assert joined.count(b"\n") == len(usable)


def test_text_and_bytes_in_a_batch_are_lines_already():
    assert join_lines(['{"a":1}', b"[2]", {"c": "ü\n"}]) == b'{"a":1}\n[2]\n' + '{"c":"ü\\n"}\n'.encode()
    assert join_lines([]) == b""


@pytest.mark.parametrize("body", ["two\nlines", b"two\r\nlines", "", "  ", b"\t"])
def test_what_is_not_one_line_is_refused(body):
    with pytest.raises(ValueError, match="single line"):
        join_lines([body])


@pytest.mark.parametrize("body", ["\ufeff", "\ufeff{}", b"\xef\xbb\xbf1"])
def test_no_line_begins_with_what_the_first_line_of_a_batch_loses(body):
    with pytest.raises(ValueError, match="byte order mark"):
        join_lines(["1", body])


def test_any_bytes_in_a_batch_are_a_line_already():
    assert join_lines([bytearray(b"[1]"), memoryview(b"[2]")]) == b"[1]\n[2]\n"


def test_lines_are_numbered_as_an_editor_shows_them():
    body = b'\xef\xbb\xbf{"a":1}\r\n\r\n  \n{"b":2}\n\n{"c":3}'

    assert list(read_lines(io.BytesIO(body))) == [(1, b'{"a":1}'), (4, b'{"b":2}'), (6, b'{"c":3}')]
    assert list(read_lines(io.BytesIO(b""))) == []


def test_a_large_batch_is_spooled_to_a_file_and_its_connection_closed():
    source = io.BytesIO(b"x" * 1023 + b"\n" + b"y" * INLINE_BYTES)

    with spooled(source) as spool:
        assert source.closed
        assert [len(line) for _, line in read_lines(spool)] == [1023, INLINE_BYTES]
