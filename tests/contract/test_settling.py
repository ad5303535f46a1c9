"""An unknown outcome is settled by reading: put_surely and delete_unique, whatever becomes of the answers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from s3queue.errors import Conflict, Contended, Unavailable
from s3queue.store import UNKNOWN_TRIES, ObjectStore, Written, delete_seen, delete_unique, put_surely


class Faulty:
    """Passes requests on; the next PUTs, DELETEs and GETs go wrong as their script says."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self.puts: list[str | Callable[[], None]] = []
        self.deletes: list[str] = []
        self.gets: list[str] = []
        self.asked: list[str] = []

    def _carry_out(self, verb: str, script: list, request: Callable[[], object]):
        self.asked.append(verb)
        fault = script.pop(0) if script else ""
        if fault == "never arrives":
            raise Unavailable("time-out")
        if fault == "409":
            raise Contended("409")
        answer = request()
        if fault == "answer lost":
            raise Unavailable("time-out")
        if fault == "answer lost, SDK tries again":
            raise Conflict("412", retried=True)
        if callable(fault):
            fault()
            raise Unavailable("time-out")
        return answer

    def put(self, key, body, **options) -> Written:
        return self._carry_out("put", self.puts, lambda: self.inner.put(key, body, **options))

    def delete(self, key, **options):
        return self._carry_out("delete", self.deletes, lambda: self.inner.delete(key, **options))

    def open(self, key, **options):
        return self._carry_out("get", self.gets, lambda: self.inner.open(key, **options))

    def head(self, key):
        return self.inner.head(key)


@pytest.fixture
def faulty(store: ObjectStore) -> Faulty:
    return Faulty(store)


def stored(faulty: Faulty, key: str = "lease") -> bytes | None:
    found = faulty.inner.open(key)
    return found.read() if found else None


def test_without_trouble_it_is_one_request(faulty):
    written = put_surely(faulty, "lease", b"mine", if_absent=True)

    assert faulty.asked == ["put"]
    assert written.etag == faulty.inner.head("lease").etag


def test_a_lost_race_is_a_conflict_without_a_read(faulty):
    faulty.inner.put("lease", b"theirs")

    with pytest.raises(Conflict):
        put_surely(faulty, "lease", b"mine", if_absent=True)

    assert faulty.asked == ["put"]


@pytest.mark.parametrize("fault", ["answer lost", "answer lost, SDK tries again"])
def test_a_creation_whose_answer_was_lost_has_won(faulty, fault):
    faulty.puts = [fault]

    written = put_surely(faulty, "lease", b"mine", if_absent=True)

    assert faulty.asked == ["put", "get"]
    info = faulty.inner.head("lease")
    assert written == Written(info.etag, info.modified_at)


def test_a_replacement_whose_answer_was_lost_has_won(faulty):
    etag = faulty.inner.put("lease", b"before").etag
    faulty.puts = ["answer lost"]

    written = put_surely(faulty, "lease", b"mine", if_match=etag)

    assert written.etag == faulty.inner.head("lease").etag
    assert stored(faulty) == b"mine"


@pytest.mark.parametrize("fault", ["never arrives", "409"])
def test_a_write_that_never_arrived_is_sent_again(faulty, fault):
    faulty.puts = [fault, fault]

    put_surely(faulty, "lease", b"mine", if_absent=True)

    assert faulty.asked == ["put", "get", "put", "get", "put"]
    assert stored(faulty) == b"mine"


def test_a_replacement_that_never_arrived_is_sent_again(faulty):
    etag = faulty.inner.put("lease", b"before").etag
    faulty.puts = ["never arrives"]

    put_surely(faulty, "lease", b"mine", if_match=etag)

    assert stored(faulty) == b"mine"


def test_a_write_that_never_arrived_and_was_overtaken_is_lost(faulty):
    faulty.puts = ["never arrives"]
    faulty.inner.put("lease", b"theirs")

    with pytest.raises(Conflict):
        put_surely(faulty, "lease", b"mine", if_absent=True)

    assert stored(faulty) == b"theirs"


def test_a_write_that_won_and_was_replaced_before_it_was_known_is_lost(faulty):
    faulty.puts = [lambda: faulty.inner.put("lease", b"theirs")]

    with pytest.raises(Conflict):
        put_surely(faulty, "lease", b"mine", if_absent=True)

    assert stored(faulty) == b"theirs"


def test_a_replacement_of_what_has_vanished_is_lost_and_never_creates(faulty):
    etag = faulty.inner.put("lease", b"before").etag
    faulty.puts = ["never arrives"]
    faulty.inner.delete("lease")

    with pytest.raises(Conflict):
        put_surely(faulty, "lease", b"mine", if_match=etag)

    assert stored(faulty) is None


def test_a_read_that_fails_too_is_repeated(faulty):
    faulty.puts = ["answer lost"]
    faulty.gets = ["never arrives"]

    put_surely(faulty, "lease", b"mine", if_absent=True)

    assert stored(faulty) == b"mine"


def test_what_stays_unknown_is_said_to_be_unknown(faulty):
    faulty.puts = ["never arrives"] * UNKNOWN_TRIES

    with pytest.raises(Unavailable):
        put_surely(faulty, "lease", b"mine", if_absent=True)


def test_a_deletion_of_what_is_ours_succeeds(faulty):
    etag = faulty.inner.put("lease", b"mine").etag

    assert delete_unique(faulty, "lease", if_match=etag) is True
    assert stored(faulty) is None


def test_a_deletion_of_what_is_not_ours_is_refused(faulty):
    etag = faulty.inner.put("lease", b"mine").etag
    faulty.inner.put("lease", b"theirs")

    assert delete_unique(faulty, "lease", if_match=etag) is False
    assert stored(faulty) == b"theirs"


def test_a_deletion_of_what_is_gone_is_not_ours(faulty):
    assert delete_unique(faulty, "lease", if_match="0" * 32) is False


@pytest.mark.parametrize("fault", ["answer lost", "answer lost, SDK tries again", "never arrives"])
def test_a_deletion_whose_answer_was_lost_was_ours(faulty, fault):
    etag = faulty.inner.put("lease", b"mine").etag
    faulty.deletes = [fault]

    assert delete_unique(faulty, "lease", if_match=etag) is True
    assert stored(faulty) is None


def test_a_deletion_that_never_arrived_before_someone_else_wrote_is_not_ours(faulty):
    etag = faulty.inner.put("message", b"old generation").etag
    faulty.inner.put("message", b"new generation")
    faulty.deletes = ["never arrives"]

    assert delete_unique(faulty, "message", if_match=etag) is False
    assert stored(faulty, "message") == b"new generation"


def test_a_deletion_that_stays_unknown_is_said_to_be_unknown(faulty):
    faulty.deletes = ["never arrives"] * UNKNOWN_TRIES

    with pytest.raises(Unavailable):
        delete_unique(faulty, "lease", if_match="0" * 32)


def seen(faulty: Faulty, key: str) -> dict[str, Any]:
    info = faulty.inner.head(key)
    return {"etag": info.etag, "modified_at": info.modified_at}


@pytest.mark.parametrize("fault", ["answer lost", "never arrives"])
def test_a_message_whose_delete_had_no_answer_is_looked_for_before_it_is_deleted_again(faulty, fault):
    faulty.inner.put("message", b"once")
    faulty.deletes = [fault]

    assert delete_seen(faulty, "message", **seen(faulty, "message")) is True
    assert stored(faulty, "message") is None


def test_equal_bytes_that_were_put_anew_meanwhile_are_not_deleted(faulty):
    """[P1] The DELETE lands, its answer is lost, the same bytes are enqueued again: that is another message."""
    faulty.inner.put("message", b"same bytes")
    before = {"etag": seen(faulty, "message")["etag"], "modified_at": datetime(2026, 1, 1, tzinfo=UTC)}
    faulty.deletes = ["never arrives"]

    assert delete_seen(faulty, "message", **before) is False
    assert stored(faulty, "message") == b"same bytes"


def test_nobody_deletes_again_whose_lease_is_over(faulty):
    faulty.inner.put("message", b"once")
    faulty.deletes = ["never arrives"]

    with pytest.raises(Unavailable):
        delete_seen(faulty, "message", **seen(faulty, "message"), is_alive=lambda: False)

    assert stored(faulty, "message") == b"once"
