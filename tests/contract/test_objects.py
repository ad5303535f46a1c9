"""What every store promises of single objects: reading, writing, deleting, copying, and the conditions on them."""

from __future__ import annotations

import io
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from s3queue.errors import Conflict, InvalidRequest
from s3queue.store import ObjectStore


def body_of(store: ObjectStore, key: str) -> bytes | None:
    found = store.open(key)
    return found.read() if found else None


def is_server_time(at: datetime) -> bool:
    return at.tzinfo is UTC and not at.microsecond and abs(datetime.now(UTC) - at) < timedelta(minutes=1)


def test_what_is_put_comes_back_with_its_description(store):
    written = store.put("emails/messages/a", b"hello", metadata={"origin": "test", "n": "1"}, content_type="text/plain")

    found = store.open("emails/messages/a")
    assert found.read() == b"hello"
    assert (found.key, found.etag, found.size) == ("emails/messages/a", written.etag, 5)
    assert (dict(found.metadata), found.content_type) == ({"origin": "test", "n": "1"}, "text/plain")

    info = store.head("emails/messages/a")
    assert (info.key, info.etag, info.size, info.modified_at) == (found.key, found.etag, 5, found.modified_at)
    assert (dict(info.metadata), info.content_type) == (dict(found.metadata), "text/plain")


def test_metadata_names_come_back_in_lower_case(store):
    store.put("a", b"", metadata={"TraceId": "Kept As It Is"})

    assert dict(store.head("a").metadata) == {"traceid": "Kept As It Is"}


def test_metadata_that_no_header_can_carry_is_refused_as_the_callers_mistake(store):
    with pytest.raises(InvalidRequest):
        store.put("a", b"", metadata={"name": "Zoë"})

    assert store.head("a") is None


def test_an_empty_object_is_an_object(store):
    store.put("reminder", b"")

    assert body_of(store, "reminder") == b""
    assert store.head("reminder").size == 0


def test_what_is_not_there_is_none_and_no_error(store):
    assert store.open("nothing") is None
    assert store.open("nothing", if_match="0" * 32) is None
    assert store.head("nothing") is None
    assert store.copy("nothing", "elsewhere") is None
    assert store.head("elsewhere") is None
    assert is_server_time(store.delete("nothing"))


def test_an_etag_has_no_quotes_and_is_equal_for_equal_bytes(store):
    first = store.put("a", b"same").etag
    second = store.put("b", b"same", metadata={"differs": "yes"}).etag

    assert first == second == store.head("a").etag == store.open("b").etag == store.list("a").objects[0].etag
    assert '"' not in first
    assert store.put("a", b"other").etag != first


def test_every_answer_carries_the_servers_time_in_whole_seconds(store):
    written = store.put("a", b"1")
    found, info, page = store.open("a"), store.head("a"), store.list("")
    copied = store.copy("a", "b")
    deleted_at = store.delete("a")

    for at in (written.at, found.at, info.at, page.at, page.objects[0].at, copied.at, deleted_at):
        assert is_server_time(at)
    # The same instant however it is asked for, or one object would be two generations.
    assert found.modified_at == info.modified_at == page.objects[0].modified_at
    assert is_server_time(found.modified_at)
    assert found.modified_at <= found.at


def test_a_large_body_is_sent_from_a_file_and_read_back_as_a_stream(store, tmp_path):
    path = tmp_path / "large"
    line = b"x" * 1023 + b"\n"
    path.write_bytes(line * 3000)

    with path.open("rb") as body:
        store.put("large", body)

    found = store.open("large")
    assert found.size == 3000 * 1024
    with found.stream as stream:
        assert stream.read(10) == line[:10]
        assert sum(len(chunk) for chunk in iter(lambda: stream.read(100_000), b"")) == 3000 * 1024 - 10


def test_a_file_is_sent_from_where_it_stands(store):
    body = io.BytesIO(b"headerpayload")
    body.seek(6)

    store.put("a", body)

    assert body_of(store, "a") == b"payload"


def test_a_stream_is_read_line_by_line(store):
    store.put("batch.ndjson", b'{"a":1}\n\n{"b":2}\r\n{"c":3}')

    with store.open("batch.ndjson").stream as stream:
        assert list(stream) == [b'{"a":1}\n', b"\n", b'{"b":2}\r\n', b'{"c":3}']


def test_a_stream_can_be_closed_half_way_and_the_store_goes_on(store):
    store.put("a", b"x" * 300_000)

    for _ in range(5):
        with store.open("a").stream as stream:
            assert stream.read(1) == b"x"

    assert len(body_of(store, "a")) == 300_000


def test_only_the_first_creation_wins(store):
    store.put("lease", b"first", if_absent=True)

    with pytest.raises(Conflict) as lost:
        store.put("lease", b"second", if_absent=True)

    assert not lost.value.retried
    assert body_of(store, "lease") == b"first"


def test_after_a_deletion_it_can_be_created_again(store):
    store.put("lease", b"first", if_absent=True)
    store.delete("lease")

    store.put("lease", b"second", if_absent=True)

    assert body_of(store, "lease") == b"second"


def test_a_replacement_needs_the_current_etag(store):
    old = store.put("lease", b"1").etag
    new = store.put("lease", b"2", if_match=old).etag

    with pytest.raises(Conflict):
        store.put("lease", b"3", if_match=old)

    assert body_of(store, "lease") == b"2"
    assert store.head("lease").etag == new


def test_a_replacement_of_what_is_gone_is_a_conflict_and_writes_nothing(store):
    with pytest.raises(Conflict):
        store.put("lease", b"1", if_match="0" * 32)

    assert store.head("lease") is None


def test_a_conditional_delete_spares_what_has_changed(store):
    old = store.put("lease", b"1").etag
    new = store.put("lease", b"2").etag

    with pytest.raises(Conflict):
        store.delete("lease", if_match=old)
    assert body_of(store, "lease") == b"2"

    assert is_server_time(store.delete("lease", if_match=new))
    assert store.head("lease") is None


def test_a_conditional_delete_of_what_is_gone_is_a_conflict(store):
    with pytest.raises(Conflict):
        store.delete("lease", if_match="0" * 32)


def test_a_conditional_read_does_not_return_another_generation(store):
    old = store.put("message", b"1").etag
    new = store.put("message", b"2").etag

    with pytest.raises(Conflict):
        store.open("message", if_match=old)

    assert store.open("message", if_match=new).read() == b"2"


def test_equal_bytes_pass_a_condition_because_an_etag_cannot_tell_them_apart(store):
    etag = store.put("lease", b"same").etag
    store.put("lease", b"same")

    assert store.put("lease", b"new", if_match=etag)


def test_a_copy_keeps_body_metadata_and_content_type(store):
    etag = store.put("a", b"hello", metadata={"k": "v"}, content_type="text/plain").etag

    copied = store.copy("a", "b")

    found = store.open("b")
    assert (found.read(), dict(found.metadata), found.content_type) == (b"hello", {"k": "v"}, "text/plain")
    assert copied.etag == found.etag == etag
    assert body_of(store, "a") == b"hello"


def test_a_copy_with_new_metadata_replaces_the_description_and_not_the_body(store):
    store.put("a", b"hello", metadata={"k": "v"}, content_type="text/plain")

    store.copy("a", "b", metadata={"error": "it broke"}, content_type="application/json")
    store.copy("a", "c", metadata={})

    found = store.open("b")
    assert (found.read(), dict(found.metadata)) == (b"hello", {"error": "it broke"})
    assert found.content_type == "application/json"
    assert (dict(store.head("c").metadata), store.head("c").content_type) == ({}, "binary/octet-stream")


def test_a_copy_replaces_what_was_there(store):
    store.put("dead", b"old")
    store.put("message", b"new")

    store.copy("message", "dead")

    assert body_of(store, "dead") == b"new"


def test_a_copy_whose_condition_holds_is_made(store):
    etag = store.put("a", b"1").etag

    assert store.copy("a", "b", if_match=etag)
    assert body_of(store, "b") == b"1"


@pytest.mark.promise("copy_conditions")
def test_a_copy_of_another_generation_is_not_made(store):
    old = store.put("a", b"1").etag
    store.put("a", b"2")

    with pytest.raises(Conflict):
        store.copy("a", "b", if_match=old)

    assert store.head("b") is None


@pytest.mark.promise("copy_target_conditions")
def test_a_copy_onto_something_is_refused_if_nothing_may_be_there(store):
    store.put("a", b"1")
    store.put("b", b"2")

    with pytest.raises(Conflict):
        store.copy("a", "b", if_absent=True)

    assert body_of(store, "b") == b"2"
    assert store.copy("a", "c", if_absent=True)


def test_a_conditional_copy_of_what_is_gone_is_none(store):
    assert store.copy("a", "b", if_match="0" * 32) is None


@pytest.mark.parametrize("operation", ["create", "replace", "delete"])
def test_of_sixteen_racing_writers_exactly_one_wins(store, operation):
    racers, rounds = 16, 3
    together = threading.Barrier(racers)
    etags = [store.put(f"lease-{race}", b"0").etag if operation != "create" else "" for race in range(rounds)]

    def write(race: int, racer: int) -> bool:
        together.wait()
        key, etag = f"lease-{race}", etags[race]
        try:
            if operation == "create":
                store.put(key, str(racer).encode(), if_absent=True)
            elif operation == "replace":
                store.put(key, f"by {racer}".encode(), if_match=etag)
            else:
                store.delete(key, if_match=etag)
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(racers) as pool:
        for race in range(rounds):
            assert sum(pool.map(write, [race] * racers, range(racers))) == 1
