"""DeleteObjects with ETags: many objects in one request; one by one where a server does not compare the ETags."""

from __future__ import annotations

from collections.abc import Mapping

from s3queue.errors import Conflict, InvalidRequest, Unavailable
from s3queue.store import MANY, ObjectStore


def check_many(seen: Mapping[str, str]) -> None:
    """Raises InvalidRequest for more keys than S3 deletes at once."""
    if len(seen) > MANY:
        raise InvalidRequest(f"{len(seen)} objects at once; S3 deletes at most {MANY}")


def delete_one_by_one(store: ObjectStore, seen: Mapping[str, str]) -> frozenset[str]:
    """As ObjectStore.delete_many, with a conditional DELETE for each key.

    After an unknown answer nothing more is sent: of a server that is down, every answer would take a whole time-out.
    What was not asked for counts as unknown.
    """
    unknown: set[str] = set()
    keys = list(seen)
    for number, key in enumerate(keys):
        try:
            store.delete(key, if_match=seen[key])
        except Conflict as conflict:
            if conflict.retried:
                unknown.add(key)
        except Unavailable:
            return frozenset(unknown.union(keys[number:]))
    return frozenset(unknown)
