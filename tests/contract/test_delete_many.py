"""Many objects are deleted at once, each only as it was seen: delete_many and delete_all_seen, on every server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from s3queue.errors import InvalidRequest, Unavailable
from s3queue.store import MANY, ObjectInfo, ObjectStore, delete_all_seen
from support.s3_servers import s3_client

NOT_THERE = "0" * 32
NAMES = [
    "with space",
    "a+b",
    "100%",
    "%41",
    "q?x=1&y=2#z",
    "<Key>&amp;</Key>",
    "]]>",
    "quote'\"",
    "\u00fcn\u00efc\u00f6d\u00e9/\u6771\u4eac/\U0001f600",
    "combining e\u0301",
    "tab\there",
    "new\nline",
    "return\rhere",
    "\x01control",
    "\x7f\x85",
    "\u2028separator",
    "trailing ",
    "\ufffd replaced",
    "back\\slash",
    "../up",
]


class Faulty:
    """Passes requests on and notes them; what becomes of a `delete_many` is as its script says."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner, self.url = inner, inner.url
        self.asked: list[str] = []
        #: Whether it is carried out, what happens after it, and which keys it leaves unknown; None: no answer at all.
        self.is_carried_out = True
        self.after: Callable[[], object] | None = None
        self.unknown: frozenset[str] | None = frozenset()

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        return getattr(self.inner, name)

    def delete_many(self, seen: Mapping[str, str]) -> frozenset[str]:
        self.asked.append("delete_many")
        if self.is_carried_out:
            self.inner.delete_many(seen)
        if self.after:
            self.after()
        if self.unknown is None:
            raise Unavailable("time-out")
        return self.unknown


@pytest.fixture
def faulty(store: ObjectStore) -> Faulty:
    return Faulty(store)


def names(store: ObjectStore) -> list[str]:
    return [entry.key for entry in store.list("").objects]


def put_some(store: ObjectStore, *keys: str) -> list[ObjectInfo]:
    """Objects as a LIST saw them; all with the same bytes, as notifications often are."""
    for key in keys:
        store.put(key, b"same bytes")
    return [entry for entry in store.list("").objects if entry.key in keys]


def etags(seen: list[ObjectInfo]) -> dict[str, str]:
    return {entry.key: entry.etag for entry in seen}


def test_each_is_deleted_that_has_the_etag(store):
    seen = put_some(store, "q/messages/a", "q/messages/b", "q/messages/c")

    assert store.delete_many(etags(seen[:2])) == frozenset()
    assert names(store) == ["q/messages/c"]


def test_what_was_written_again_stays_and_holds_up_nothing_else(store):
    seen = put_some(store, "q/messages/a", "q/messages/b", "q/messages/c")
    store.put("q/messages/b", b"written again")

    assert store.delete_many(etags(seen)) == {"q/messages/b"}
    assert names(store) == ["q/messages/b"]


def test_what_is_missing_holds_up_nothing_else(store):
    """Whether it is called missing is the server's: one that is asked for each key says only that it refused."""
    seen = put_some(store, "q/messages/a")

    left = store.delete_many({"q/messages/0": NOT_THERE, **etags(seen), "q/messages/z": NOT_THERE})

    assert left <= {"q/messages/0", "q/messages/z"}
    assert names(store) == []


def test_nothing_asked_for_is_nothing_deleted(store):
    put_some(store, "q/messages/a")

    assert store.delete_many({}) == frozenset()
    assert names(store) == ["q/messages/a"]


def test_more_than_s3_deletes_at_once_is_refused_and_nothing_deleted(store):
    seen = put_some(store, "q/messages/a")

    with pytest.raises(InvalidRequest, match="1001 objects"):
        store.delete_many(etags(seen) | {f"q/messages/{number}": NOT_THERE for number in range(MANY)})

    assert names(store) == ["q/messages/a"]


# What was seen, whatever becomes of the answers


def test_all_that_was_seen_is_deleted_in_one_request(faulty):
    seen = put_some(faulty.inner, "q/messages/a", "q/messages/b")

    delete_all_seen(faulty, seen)

    assert faulty.asked == ["delete_many"]
    assert names(faulty.inner) == []


def test_one_object_is_deleted_as_any_other(faulty):
    delete_all_seen(faulty, put_some(faulty.inner, "q/messages/a"))
    delete_all_seen(faulty, [])

    assert faulty.asked == ["delete"]
    assert names(faulty.inner) == []


@pytest.mark.parametrize("is_carried_out", [True, False])
def test_without_an_answer_each_is_looked_at_before_it_is_asked_for_again(faulty, is_carried_out):
    seen = put_some(faulty.inner, "q/messages/a", "q/messages/b")
    faulty.is_carried_out, faulty.unknown = is_carried_out, None

    delete_all_seen(faulty, seen)

    assert faulty.asked == ["delete_many", *(["head"] if is_carried_out else ["head", "delete"]) * 2]
    assert names(faulty.inner) == []


def test_only_what_is_unknown_is_looked_at(faulty):
    seen = put_some(faulty.inner, "q/messages/a", "q/messages/b", "q/messages/c")
    faulty.unknown = frozenset({"q/messages/b"})

    delete_all_seen(faulty, seen)

    assert faulty.asked == ["delete_many", "head"]


def test_equal_bytes_that_were_put_anew_meanwhile_are_not_deleted(faulty):
    """[P1] The request lands, its answer is lost, the same bytes are enqueued again: that is another message."""
    seen = put_some(faulty.inner, "q/messages/a", "q/messages/b")
    # S3's dates are whole seconds: what was seen is made older instead of waiting for the next one.
    seen = [replace(entry, modified_at=entry.modified_at - timedelta(seconds=5)) for entry in seen]
    faulty.after, faulty.unknown = lambda: put_some(faulty.inner, "q/messages/b"), None

    delete_all_seen(faulty, seen)

    assert names(faulty.inner) == ["q/messages/b"]
    assert "delete" not in faulty.asked


def test_nobody_asks_again_whose_lease_is_over(faulty):
    seen = put_some(faulty.inner, "q/messages/a", "q/messages/b")
    faulty.is_carried_out, faulty.unknown = False, None

    with pytest.raises(Unavailable):
        delete_all_seen(faulty, seen, is_alive=lambda: False)

    assert faulty.asked == ["delete_many", "head"]
    assert names(faulty.inner) == ["q/messages/a", "q/messages/b"]


# Names, and how many


def test_any_name_can_be_deleted_among_others(server, store):
    keys = [f"messages/{name}" for name in NAMES if f"name:messages/{name}" not in server.weaknesses]
    seen = {key: store.put(key, b"same bytes").etag for key in keys}
    for key in keys[::2]:
        store.put(key, b"written again")

    assert store.delete_many(seen) == frozenset(keys[::2])
    assert [key for key in keys if store.head(key)] == keys[::2]
    assert store.delete_many({key: store.head(key).etag for key in keys[::2]}) == frozenset()
    assert [key for key in keys if store.head(key)] == []


def test_a_thousand_keys_are_one_call(store):
    seen = put_some(store, *(f"q/messages/{number:04d}" for number in range(0, MANY, 100)))
    asked = {f"q/messages/{number:04d}": NOT_THERE for number in range(MANY)} | etags(seen[1:])

    left = store.delete_many(asked)

    assert "q/messages/0000" in left
    assert left.isdisjoint(etags(seen[1:]))
    assert names(store) == ["q/messages/0000"]


def test_of_a_versioned_object_the_current_version_counts(server, store, request):
    if "http" in server.weaknesses:
        return  # a dict has no versions
    client = s3_client(request.getfixturevalue(f"{server.name}_endpoint"))
    bucket = store.url.removeprefix("s3://")
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    seen = put_some(store, "q/messages/a", "q/messages/b")
    store.put("q/messages/b", b"written again")

    assert store.delete_many(etags(seen)) == {"q/messages/b"}
    assert names(store) == ["q/messages/b"]
