"""Lease, record, and the lines of a batch: round trips of whatever can happen, and no garbage that gets through."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as some

from s3queue.documents.batch import LISTED_LINES, RESULTS_BYTES, LineNumbers, Lines, join_lines, read_lines, spooled
from s3queue.documents.lease import ATTEMPTS_KEPT, GRAIN, Lease, StoredLease
from s3queue.documents.message import INLINE_BYTES, Generation
from s3queue.documents.record import ERROR_CHARACTERS, Attempt, Failure, Record
from s3queue.errors import CorruptState, NewerFormat

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
AT = datetime(2026, 11, 16, 10, 15, tzinfo=UTC)
texts = some.text(some.characters(exclude_categories=[]), max_size=20)
words = some.text(min_size=1, max_size=20)
instants = some.integers(0, 10**16).map(lambda microseconds: EPOCH + timedelta(microseconds=microseconds))
durations = some.timedeltas(min_value=timedelta(), max_value=timedelta(days=400))
scalars = some.none() | some.booleans() | some.integers() | texts
results = scalars | some.dictionaries(texts, some.integers(), max_size=3)
failures = some.builds(Failure, texts, texts, texts)
short_failures = some.builds(Failure, texts, texts)
generations = some.builds(Generation, etag=words, put_at=instants)
attempts = some.builds(
    Attempt,
    number=some.integers(0),
    worker=texts,
    started_at=instants,
    ended_at=instants,
    failure=some.none() | failures,
)


@some.composite
def lines(draw):
    """Outcomes of some lines, reached as a worker reaches them."""
    found = Lines(total=draw(some.none() | some.integers(0, 50)))
    for line in draw(some.lists(some.integers(1, 50), unique=True, max_size=20)):
        outcome = draw(some.sampled_from(["done", "failed", "dead"]))
        if outcome == "done":
            found.complete(line, draw(results))
        else:
            found.fail(line, draw(some.integers(1, 5)), draw(short_failures), dead=outcome == "dead")
    return found


leases = some.builds(
    Lease,
    state=some.sampled_from(["processing", "waiting", "burying"]),
    attempt=some.integers(0, 10**6),
    owner=words,
    nonce=words,
    timeout=durations,
    claimed_at=some.none() | instants,
    generation=some.none() | generations,
    retry_at=some.none() | instants,
    failure=some.none() | failures,
    attempts=some.lists(attempts, max_size=3).map(tuple),
    lines=some.none() | lines(),
    progress=some.none() | some.tuples(some.floats(0, 1), texts),
)
records = some.builds(
    Record,
    path=words,
    outcome=some.sampled_from(["completed", "dead"]),
    generation=generations,
    finished_at=instants,
    attempt=some.integers(0, 10**6),
    worker=texts,
    attempts=some.lists(attempts, max_size=3).map(tuple),
    result=results,
    result_error=texts,
    failure=some.none() | failures,
    lines=some.none() | lines().map(Lines.summary),
    size=some.integers(0),
    nonce=texts,
)


def described(found: Lines) -> tuple:
    return (found.done, found.failed, found.dead, found.results, found.total)


@given(leases)
def test_a_lease_is_read_back_as_it_was_written(lease):
    found = Lease.from_bytes(lease.to_bytes(), "key")

    assert (found.lines is None) == (lease.lines is None)
    if lease.lines is not None:
        assert described(found.lines) == described(lease.lines)
    for name in Lease.__slots__:
        if name != "lines":
            assert getattr(found, name) == getattr(lease, name)


@given(records)
def test_a_record_is_read_back_as_it_was_written(record):
    assert Record.from_bytes(record.to_bytes(), "key") == record


#: What someone may have put in a field's place.
junk = scalars | some.floats() | some.sampled_from([[], {}, [[]], [[1]], [[1, 2]], [[1, 2, 3]], {"dead": "many"}])
junk = junk | some.lists(junk, max_size=3) | some.dictionaries(texts, junk, max_size=3)


def reads_or_says_corrupt(read: Callable[[bytes, str], object], document: dict) -> None:
    """Anything but CorruptState would take the sweeper down with it."""
    with contextlib.suppress(CorruptState):
        read(json.dumps(document).encode(), "key")


@given(some.data())
def test_a_lease_with_a_field_of_nonsense_is_a_lease_or_corrupt_and_nothing_else(data):
    document = json.loads(FULL_LEASE.to_bytes())
    target = data.draw(some.sampled_from([document, document["lines"], document["failure"]]))
    target[data.draw(some.sampled_from(sorted(target)))] = data.draw(junk)

    reads_or_says_corrupt(Lease.from_bytes, document)


@given(some.data())
def test_a_record_with_a_field_of_nonsense_is_a_record_or_corrupt_and_nothing_else(data):
    document = json.loads(FULL_RECORD.to_bytes())
    document[data.draw(some.sampled_from(sorted(document)))] = data.draw(junk)

    reads_or_says_corrupt(lambda body, key: Record.from_bytes(body, key).dead_lines, document)


FULL_LEASE = Lease(
    state="waiting",
    attempt=2,
    owner="w",
    nonce="n",
    timeout=timedelta(seconds=30),
    claimed_at=AT,
    generation=Generation(etag="e", put_at=AT),
    retry_at=AT,
    failure=Failure("ValueError", "no", "frames"),
    attempts=(Attempt(number=1, worker="w", started_at=AT, ended_at=AT, failure=Failure("E", "m")),),
    lines=Lines(LineNumbers({1, 2, 5}), {3: (1, Failure("E", "m"))}, {4: Failure("E", "m")}, {1: "r"}, 3, 9),
    progress=(0.5, "half"),
)
FULL_RECORD = Record(
    path="messages/a",
    outcome="dead",
    generation=Generation(etag="e", put_at=AT),
    finished_at=AT,
    attempt=3,
    worker="w",
    attempts=FULL_LEASE.attempts,
    result={"a": 1},
    result_error="x",
    failure=Failure("E", "m"),
    lines=FULL_LEASE.lines.summary(),
    size=5,
    nonce="n",
)


@pytest.mark.parametrize("progress", [[], [0.5], ["x", "y"], 7])
def test_progress_that_makes_no_sense_is_corrupt_and_no_crash(progress):
    body = json.dumps(json.loads(FULL_LEASE.to_bytes()) | {"progress": progress or [[]]}).encode()

    with pytest.raises(CorruptState):
        Lease.from_bytes(body, "key")


def test_a_line_whose_error_is_missing_is_corrupt_and_no_crash():
    document = json.loads(FULL_LEASE.to_bytes())
    document["lines"]["errors"] = []

    with pytest.raises(CorruptState):
        Lease.from_bytes(json.dumps(document).encode(), "key")


def test_a_lease_of_a_newer_format_is_left_alone_and_a_record_of_one_still_tells_the_outcome():
    lease = json.loads(FULL_LEASE.to_bytes()) | {"v": 2}
    with pytest.raises(NewerFormat, match="upgrade"):
        Lease.from_bytes(json.dumps(lease).encode(), "key")

    record = {"v": 2, "outcome": "dead", "message_etag": "e", "enqueued_at": "2026-11-16T10:15:00Z", "new": [1]}
    found = Record.from_bytes(json.dumps(record).encode(), "key")
    assert (found.outcome, found.generation) == ("dead", FULL_RECORD.generation)

    with pytest.raises(NewerFormat):
        Record.from_bytes(b'{"v":2,"outcome":"undecided"}', "key")


def test_a_lease_is_over_only_when_s3s_whole_seconds_cannot_deceive():
    def is_over(lease: Lease, age: timedelta) -> bool:
        written_at = datetime(2026, 11, 16, tzinfo=UTC)
        return StoredLease(lease=lease, key="k", etag="e", written_at=written_at, read_at=written_at + age).is_over()

    for state in ("processing", "burying"):
        held = Lease(state=state, attempt=1, owner="w", nonce="n", timeout=timedelta(seconds=30))
        assert not is_over(held, held.timeout + GRAIN)
        assert is_over(held, held.timeout + GRAIN + timedelta(seconds=1))
    assert not is_over(FULL_LEASE, timedelta(days=1000))


def test_a_lease_with_thousands_of_attempts_stays_small():
    many = tuple(Attempt(number=n, worker="w", started_at=AT, ended_at=AT) for n in range(5000))
    lease = Lease(state="waiting", attempt=5000, owner="w", nonce="n", timeout=timedelta(1), attempts=many)

    found = Lease.from_bytes(lease.to_bytes(), "key")

    assert found.attempts == many[-ATTEMPTS_KEPT:]
    assert found.attempt == 5000


def test_a_lease_with_a_million_lines_done_stays_small():
    found = Lines(done=LineNumbers(set(range(1, 1_000_001)) - {500_000}))

    assert found.to_json()["done"] == [[1, 499_999], [500_001, 1_000_000]]


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


def test_a_failure_keeps_the_type_the_words_and_where_it_happened():
    try:
        _ = {}["missing"]
    except KeyError as error:
        failure = Failure.of(error)

    assert (failure.type, failure.message) == ("KeyError", "'missing'")
    assert "test_documents" in failure.details
    assert Failure.of(failure) is failure
    assert Failure.of("in words") == Failure("Error", "in words")


def test_a_failure_of_endless_words_is_cut():
    assert len(Failure.of(ValueError("x" * 10**6)).message) == ERROR_CHARACTERS


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


def test_lines_are_numbered_as_an_editor_shows_them():
    body = b'\xef\xbb\xbf{"a":1}\r\n\r\n  \n{"b":2}\n\n{"c":3}'

    assert list(read_lines(io.BytesIO(body))) == [(1, b'{"a":1}'), (4, b'{"b":2}'), (6, b'{"c":3}')]
    assert list(read_lines(io.BytesIO(b""))) == []


def test_a_large_batch_is_spooled_to_a_file_and_its_connection_closed():
    source = io.BytesIO(b"x" * 1023 + b"\n" + b"y" * INLINE_BYTES)

    with spooled(source) as spool:
        assert source.closed
        assert [len(line) for _, line in read_lines(spool)] == [1023, INLINE_BYTES]
