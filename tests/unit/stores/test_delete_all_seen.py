"""More objects than S3 deletes at once: in several requests, and none after the lease is over."""

from __future__ import annotations

import pytest

from s3queue.errors import Unavailable
from s3queue.store import MANY, ObjectInfo, delete_all_seen
from s3queue.stores.memory import MemoryStore
from support.counting_store import CountingStore


@pytest.fixture
def store() -> CountingStore:
    return CountingStore(MemoryStore())


def put_many(store: CountingStore, count: int) -> list[ObjectInfo]:
    for number in range(count):
        store.inner.put(f"orders/messages/{number:04d}", b"x")
    first = store.inner.list("")
    return [*first.objects, *store.inner.list("", after=first.next_after or "~").objects]


def test_more_than_a_thousand_take_several_requests(store: CountingStore) -> None:
    delete_all_seen(store, put_many(store, MANY + 2))

    assert store.take() == {"delete_many": 2}
    assert store.inner.list("").objects == ()


def test_no_further_request_is_sent_once_the_lease_is_over(store: CountingStore) -> None:
    with pytest.raises(Unavailable, match="2 objects were not deleted, orders/messages/1000 first"):
        delete_all_seen(store, put_many(store, MANY + 2), is_alive=lambda: False)

    assert store.take() == {"delete_many": 1}
    assert len(store.inner.list("").objects) == 2


def test_what_was_put_anew_stays_and_is_named(store: CountingStore) -> None:
    seen = put_many(store, 3)
    store.inner.put(seen[1].key, b"other bytes")
    store.inner.delete(seen[2].key)

    assert delete_all_seen(store, seen) == {seen[1].key}

    # A HEAD for the one that has another ETag.
    assert store.take() == {"delete_many": 1, "head": 1}
    assert [info.key for info in store.inner.list("").objects] == [seen[1].key]
