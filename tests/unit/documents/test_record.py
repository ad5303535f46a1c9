"""Records and failures: read back as written, and no garbage gets through."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as some

from s3queue.documents.record import ERROR_CHARACTERS, Failure, Record
from support.drawn_documents import FULL_RECORD, junk, reads_or_says_corrupt, records


@given(records)
def test_a_record_is_read_back_as_it_was_written(record):
    assert Record.from_bytes(record.to_bytes(), "key") == record


@given(some.data())
def test_a_record_with_a_field_of_nonsense_is_a_record_or_corrupt_and_nothing_else(data):
    document = json.loads(FULL_RECORD.to_bytes())
    document[data.draw(some.sampled_from(sorted(document)))] = data.draw(junk)

    reads_or_says_corrupt(lambda body, key: Record.from_bytes(body, key).dead_lines, document)


def test_a_failure_keeps_the_type_the_words_and_where_it_happened():
    try:
        _ = {}["missing"]
    except KeyError as error:
        failure = Failure.of(error)

    assert (failure.type, failure.message) == ("KeyError", "'missing'")
    assert "test_record" in failure.details
    assert Failure.of(failure) is failure
    assert Failure.of("in words") == Failure("Error", "in words")


def test_a_failure_of_endless_words_is_cut():
    assert len(Failure.of(ValueError("x" * 10**6)).message) == ERROR_CHARACTERS
