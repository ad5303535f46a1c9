"""Keys: whatever a producer names a message, its lease, record, reminder and dead letter find their way back to it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as some

from s3queue.errors import InvalidName, InvalidPriority
from s3queue.keys import MAX_KEY_BYTES, Keys, check_queue, lock_name
from s3queue.paths import (
    check_name,
    due_of,
    format_due,
    is_batch,
    is_lines,
    lines_path,
    name_of,
    parse_due,
    priority_of,
    priority_prefix,
    without_mark,
)

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
KEYS = Keys("emails")
#: Anything that S3 takes as a key: all of Unicode but lone surrogates.
names = some.text(some.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
instants = some.integers(0, 10**16).map(lambda microseconds: EPOCH + timedelta(microseconds=microseconds))
paths = some.one_of(
    names.map(lambda name: f"messages/{name}"),
    some.tuples(instants, names).map(lambda drawn: f"delayed/{format_due(drawn[0])}/{drawn[1]}"),
)


@given(paths)
def test_a_messages_key_gives_its_path_back(path):
    assert KEYS.path(KEYS.message(path)) == path


@given(paths)
def test_what_is_known_of_a_message_leads_back_to_it(path):
    assert KEYS.path_under("leases", KEYS.lease(path)) == path
    assert KEYS.path_under("records", KEYS.record(path)) == path
    assert KEYS.path_under("dead", KEYS.dead(path)) == path


@given(instants, paths)
def test_a_reminder_leads_back_to_its_message_and_its_time(due_at, path):
    due, reminded = KEYS.reminded(KEYS.reminder(due_at, path))

    assert reminded == path
    assert timedelta() <= due - due_at < timedelta(seconds=1)


@given(paths, some.sampled_from(["leases", "records", "dead", "retries", "locks", "workers", "runs"]))
def test_what_is_known_of_a_message_is_no_message(path, kind):
    assert KEYS.path(KEYS.prefix(kind) + path) is None


@given(paths)
def test_one_queue_never_takes_another_queues_message(path):
    for other in (Keys("email"), Keys("emails-b"), Keys("emails2")):
        assert KEYS.path(other.message(path)) is None
        assert KEYS.path_under("leases", other.lease(path)) is None
        assert KEYS.reminded(other.reminder(datetime(2026, 1, 1, tzinfo=UTC), path)) is None


@pytest.mark.parametrize(
    "key", ["", "emails", "emails/", "emails/messages", "emails/queue.json", "messages/a", "x/y/z"]
)
def test_what_is_no_message_has_no_path(key):
    assert KEYS.path(key) is None


@given(names)
def test_the_name_is_what_the_producer_chose(name):
    assert name_of(f"messages/{name}") == name
    assert name_of(f"delayed/20261116T101500Z/{name}") == name


@given(instants)
def test_a_due_time_is_never_early_and_never_a_second_late(at):
    parsed = parse_due(format_due(at))

    assert timedelta() <= parsed - at < timedelta(seconds=1)


@given(instants, instants)
def test_due_times_sort_like_the_instants_that_they_name(one, other):
    assert one >= other or format_due(one) <= format_due(other)


def test_a_due_time_is_in_utc_whatever_zone_it_was_given_in():
    at = datetime(2026, 11, 16, 12, 15, tzinfo=timezone(timedelta(hours=2)))

    assert format_due(at) == "20261116T101500Z"


@pytest.mark.parametrize(
    "text",
    ["", "now", "20261116", "20261116T101500", "20261399T000000Z", "20261116T101500Z ", "\u0662\u0660261116T101500Z"],
)
def test_what_is_no_due_time_is_none(text):
    assert parse_due(text) is None
    assert due_of(f"delayed/{text}/name") is None


@given(some.integers(0, 255), names)
def test_a_priority_is_read_back_from_the_name(priority, name):
    path = f"messages/{priority_prefix(priority)}0199/{name}"

    assert priority_of(path) == priority
    assert priority_of(f"delayed/20261116T101500Z/{priority_prefix(priority)}0199") == priority


@pytest.mark.parametrize(
    "name", ["p256/a", "p999/a", "p1/a", "p0100/a", "P100/a", "p100", "x/p100/a", "p1\u0662\u0663/a", "a"]
)
def test_a_name_without_a_priority_has_priority_zero(name):
    assert priority_of(f"messages/{name}") == 0


@pytest.mark.parametrize("priority", [-1, 256, 1.5, "1", None, True])
def test_a_priority_out_of_range_is_refused(priority):
    with pytest.raises(InvalidPriority):
        priority_prefix(priority)


@given(paths)
def test_the_dead_lines_of_a_batch_are_a_batch(path):
    lines = lines_path(f"{path}.ndjson")
    assert is_lines(lines)
    assert is_batch(lines)
    assert lines_path(lines) == lines
    assert without_mark(f"{lines}~0123456789ab") == lines


@pytest.mark.parametrize("name", ["a.ndjson", "a.lines", "a.ndjson.lines~0123456789ab", "a.ndjson.lines/b", "a"])
def test_what_is_not_called_like_dead_lines_is_not_taken_for_them(name):
    assert not is_lines(f"messages/{name}")


@given(some.text(some.characters(exclude_categories=["Cs"]), max_size=1100), some.sampled_from(["", ".ndjson"]))
def test_a_path_without_a_problem_leaves_room_for_every_key_that_it_needs(name, suffix):
    keys = Keys("q" * 63)
    path = f"messages/{name}{suffix}"
    if keys.problem(path) is not None:
        path = keys.buried_path(path)
        assert keys.problem(path) is None

    needed = [keys.message(path), keys.lease(path), keys.record(path), keys.dead(path)]
    needed += [keys.reminder(datetime(2026, 1, 1, tzinfo=UTC), path), keys.dead(lines_path(path) + "~0123456789ab")]
    assert max(len(key.encode()) for key in needed[: 6 if suffix else 5]) <= MAX_KEY_BYTES


def test_a_name_that_leaves_no_room_for_its_lease_is_a_problem_with_a_reason():
    assert KEYS.problem(f"messages/{'x' * 900}") is None
    assert "too long" in KEYS.problem(f"messages/{'é' * 500}")


def test_a_delayed_message_without_a_due_time_is_a_problem_with_a_reason():
    assert "no due time" in KEYS.problem("delayed/tomorrow/a")


def test_two_messages_are_never_buried_in_one_grave():
    long = "x" * 1000
    buried = {
        KEYS.buried_path(path)
        for path in ("delayed/soon/a", f"messages/{long}1", f"messages/{long}2", f"delayed/{long}1", "delayed/soon/a/")
    }

    assert len(buried) == 5
    # Nor where a message lies that has nothing wrong with it.
    assert "messages/soon/a" not in buried


def test_a_buried_batch_is_still_a_batch_and_keeps_its_priority():
    buried = KEYS.buried_path(f"messages/p200/{'x' * 1000}.ndjson")

    assert is_batch(buried)
    assert priority_of(buried) == 200


@pytest.mark.parametrize("name", ["a", "orders", "a-b", "a_b", "0", "q" * 63])
def test_a_queue_name_in_form_is_taken(name):
    assert check_queue(name) == name


@pytest.mark.parametrize(
    "name", ["", "A", "a/b", "a b", "-a", "_a", "a.b", "é", "q" * 64, "archive", "analytics", "a\n", None, 7]
)
def test_a_queue_name_out_of_form_is_refused(name):
    with pytest.raises(InvalidName):
        Keys(name)


@pytest.mark.parametrize("name", ["a", "a b", "a+b", "50%", "é", "p200/a", "..a", "a..", "a/b", "...", "\U0010ffff"])
def test_a_name_that_every_client_leaves_alone_is_taken(name):
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "/", "a/", "/a", "a//b", ".", "..", "a/../b", "./a", "a\n", "\x00", "\x7f", "\ud800"]
)
def test_a_name_that_a_client_would_rewrite_is_refused(name):
    with pytest.raises(InvalidName):
        check_name(name)


@given(names)
def test_a_lock_and_an_idempotency_record_lie_under_their_queue(name):
    assert lock_name(KEYS.lock(name)) == name
    assert KEYS.idempotency(name).startswith("emails/idempotency/")
    assert len(KEYS.idempotency(name)) < 100
