"""Documents: what is written is read back, and what someone else wrote is said to be that."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as some

from s3queue.documents.message import encode_body
from s3queue.encoding import (
    EARLIEST,
    LATEST,
    RESULT_BYTES,
    Unstorable,
    decode_metadata,
    dump,
    encode_metadata,
    format_instant,
    load,
    parse_instant,
    storable,
)
from s3queue.errors import CorruptState, InvalidRequest

#: Text as Python can hold it: lone surrogates too, as in a file name that is not UTF-8.
texts = some.text(some.characters(exclude_categories=[]))
values = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: some.lists(inner, max_size=4) | some.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)


@given(values)
def test_a_result_is_read_back_as_it_was_written(result):
    assert load(dump({"result": result}), "key").get("result") == result


@given(texts)
def test_any_text_fits_into_a_document_and_the_document_is_utf8(text):
    body = dump({"text": text})

    assert load(body, "key").get("text", "") == text
    body.decode("utf-8", "strict")


def test_fields_that_say_nothing_are_left_out_and_falsy_values_are_kept():
    document = {"attempt": 0, "flag": False, "owner": "", "lines": {}, "attempts": [], "claimed_at": None}

    assert load(dump(document), "key") == {"v": 1, "attempt": 0, "flag": False}


@pytest.mark.parametrize("result", [0, False, "", [], {}])
def test_an_empty_result_is_still_a_result(result):
    assert load(dump({"result": result}), "key")["result"] == result


@pytest.mark.parametrize(
    "garbage",
    [
        *(b"", b"null", b"[]", b"17", b"{}", b"\xff\xfe", b"{", b"<xml/>", b"[" * 100_000, b"9" * 10_000),
        *(b'{"v":"1"}', b'{"v":0}', b'{"v":-1}', b'{"v":10000}', b'{"v":' + b"9" * 4000 + b"}", b'{"v":true}'),
    ],
    ids=lambda garbage: repr(garbage[:12]),
)
def test_garbage_is_corrupt_state_and_the_error_names_the_key(garbage):
    with pytest.raises(CorruptState, match="emails/leases/messages/a"):
        load(garbage, "emails/leases/messages/a")


def test_a_version_that_is_to_come_is_a_version():
    assert load(b'{"v":2,"new":1}', "key") == {"v": 2, "new": 1}


@given(some.datetimes(EARLIEST.replace(tzinfo=None), LATEST.replace(tzinfo=None), timezones=some.just(UTC)))
def test_an_instant_is_read_back(at):
    text = format_instant(at)

    assert parse_instant(text) == at
    assert text.endswith("Z")


def test_an_instant_is_stored_in_utc():
    at = datetime(2026, 11, 16, 12, tzinfo=timezone(timedelta(hours=2)))

    assert format_instant(at) == "2026-11-16T10:00:00Z"


@pytest.mark.parametrize("text", ["", "yesterday", "2026-11-16T10:00:00", "2026-11-16"])
def test_an_instant_without_a_zone_is_no_instant(text):
    with pytest.raises(ValueError, match=r".*"):
        parse_instant(text)


@given(some.dictionaries(some.from_regex(r"[a-z][a-z0-9-]{0,20}", fullmatch=True), some.text(max_size=50), max_size=5))
def test_metadata_of_any_text_is_read_back(metadata):
    encoded = encode_metadata(metadata)

    assert decode_metadata(encoded) == metadata
    for value in encoded.values():
        assert value.isascii()
        assert value.isprintable()
        assert value == value.strip()


def test_plain_metadata_stays_readable_and_what_others_wrote_stays_as_it_is():
    assert encode_metadata({"Trace-Id": "abc 123"}) == {"trace-id": "abc 123"}
    assert decode_metadata({"Other": "50% off"}) == {"other": "50% off"}


def test_metadata_with_half_a_surrogate_pair_loses_only_that():
    assert decode_metadata(encode_metadata({"error": "no file caf\udce9"})) == {"error": "no file caf?"}


@pytest.mark.parametrize("result", [float("nan"), float("inf"), object(), {(1, 2): 3}])
def test_a_result_that_json_cannot_hold_is_left_out_with_the_reason(result):
    kept, reason = storable(result)

    assert kept is None
    assert type(result).__name__ in reason


def test_a_result_that_refers_to_itself_or_is_too_large_is_left_out_with_the_reason():
    loop: list = []
    loop.append(loop)

    assert storable(loop)[0] is None
    assert str(RESULT_BYTES) in storable("x" * RESULT_BYTES)[1]
    assert storable({"receipt": 1}) == ({"receipt": 1}, "")
    assert storable(Unstorable("too large, said the executor")) == (None, "too large, said the executor")


@pytest.mark.parametrize("result", [{"n": [1]}, [[1]], ([1],)], ids=repr)
def test_what_a_handler_changes_afterwards_is_stored_as_it_was(result):
    kept, reason = storable(result)
    before = json.dumps(result)
    next(iter(result.values() if isinstance(result, dict) else result)).append(2)

    assert (json.dumps(kept), reason) == (before, "")


@given(values)
def test_a_body_is_json_unless_it_is_bytes_or_text(body):
    if "\\ud" in json.dumps(body):
        return  # half a surrogate pair, perhaps: see below
    encoded, content_type = encode_body(body)
    if isinstance(body, str):
        assert (encoded.decode(), content_type) == (body, "text/plain; charset=utf-8")
    else:
        assert (json.loads(encoded), content_type) == (body, "application/json")


@pytest.mark.parametrize("body", [object(), {"a": object()}, "\ud800", {"a": "\ud800"}])
def test_a_body_that_nothing_can_hold_is_refused(body):
    with pytest.raises(InvalidRequest):
        encode_body(body)
