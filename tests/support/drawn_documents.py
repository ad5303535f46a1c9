"""Leases, records and lines as hypothesis draws them, whole ones of each, and what may lie in a field's place."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as some

from s3queue.documents.batch import LineNumbers, Lines
from s3queue.documents.lease import Lease
from s3queue.documents.message import Generation
from s3queue.documents.record import Attempt, Failure, Record
from s3queue.encoding import LARGEST
from s3queue.errors import CorruptState

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
    number=some.integers(0, LARGEST),
    worker=texts,
    started_at=instants,
    ended_at=instants,
    failure=some.none() | failures,
)


@some.composite
def lines(draw: some.DrawFn) -> Lines:
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
    size=some.integers(0, LARGEST),
    nonce=texts,
)


def described(found: Lines) -> tuple[object, ...]:
    return (found.done, found.failed, found.dead, found.results, found.total)


#: What someone may have put in a field's place.
values: some.SearchStrategy[Any] = (
    scalars | some.floats() | some.sampled_from([[], {}, [[]], [[1]], [[1, 2]], [[1, 2, 3]], {"dead": "many"}])
)
junk = values | some.lists(values, max_size=3) | some.dictionaries(texts, values, max_size=3)


def reads_or_says_corrupt(read: Callable[[bytes, str], object], document: dict[str, Any]) -> None:
    """Anything but CorruptState would take the sweeper down with it."""
    with contextlib.suppress(CorruptState):
        read(json.dumps(document).encode(), "key")


FULL_LINES = Lines(LineNumbers({1, 2, 5}), {3: (1, Failure("E", "m"))}, {4: Failure("E", "m")}, {1: "r"}, 3, 9)
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
    lines=FULL_LINES,
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
    lines=FULL_LINES.summary(),
    size=5,
    nonce="n",
)
