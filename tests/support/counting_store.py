"""A store that counts what a bill would count."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import IO, Any

from s3queue.store import Object, ObjectInfo, ObjectStore, Page, Written


class CountingStore:
    """Passes everything on to `inner` and counts the requests by verb: put, get, head, delete, delete_many, copy, list.

    A refused request counts like any other: S3 bills it.
    """

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self.url = inner.url
        self.requests: Counter[str] = Counter()
        #: The same requests in order, as (verb, key).
        self.log: list[tuple[str, str]] = []
        self._mutex = threading.Lock()

    @property
    def billed(self) -> int:
        """All but the deletes, which are free."""
        return sum(self.requests.values()) - self.requests["delete"] - self.requests["delete_many"]

    def take(self) -> dict[str, int]:
        """What was asked since the last `take`; the count starts again."""
        with self._mutex:
            taken = dict(self.requests)
            self.requests.clear()
            self.log.clear()
        return taken

    def put(
        self,
        key: str,
        body: bytes | IO[bytes],
        *,
        if_match: str | None = None,
        if_absent: bool = False,
        metadata: Mapping[str, str] | None = None,
        content_type: str = "application/octet-stream",
        once: bool = False,
    ) -> Written:
        self._count("put", key)
        return self.inner.put(
            key, body, if_match=if_match, if_absent=if_absent, metadata=metadata, content_type=content_type, once=once
        )

    def open(self, key: str, *, if_match: str | None = None) -> Object | None:
        self._count("get", key)
        return self.inner.open(key, if_match=if_match)

    def head(self, key: str) -> ObjectInfo | None:
        self._count("head", key)
        return self.inner.head(key)

    def delete(self, key: str, *, if_match: str | None = None) -> datetime:
        self._count("delete", key)
        return self.inner.delete(key, if_match=if_match)

    def delete_many(self, seen: Mapping[str, str]) -> frozenset[str]:
        if seen:
            self._count("delete_many", next(iter(seen)))
        return self.inner.delete_many(seen)

    def copy(
        self,
        source: str,
        target: str,
        *,
        if_match: str | None = None,
        if_absent: bool = False,
        metadata: Mapping[str, str] | None = None,
        content_type: str = "",
    ) -> Written | None:
        self._count("copy", target)
        options: dict[str, Any] = {"metadata": metadata, "content_type": content_type}
        return self.inner.copy(source, target, if_match=if_match, if_absent=if_absent, **options)

    def list(self, prefix: str, *, after: str = "", delimiter: str = "", limit: int = 1000) -> Page:
        self._count("list", prefix)
        return self.inner.list(prefix, after=after, delimiter=delimiter, limit=limit)

    def presign_put(self, key: str, *, seconds: int, if_absent: bool = False) -> str:
        return self.inner.presign_put(key, seconds=seconds, if_absent=if_absent)

    def presign_get(self, key: str, *, seconds: int) -> str:
        return self.inner.presign_get(key, seconds=seconds)

    def _count(self, verb: str, key: str) -> None:
        with self._mutex:
            self.requests[verb] += 1
            self.log.append((verb, key))
