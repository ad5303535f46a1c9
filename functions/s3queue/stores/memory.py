"""MemoryStore: a bucket in a dict, for tests, for the simulation and to try things out. It promises no more than S3.

Equal bytes have equal ETags, times are whole seconds, and `around` may answer 409, lose an answer, or never return.
"""

from __future__ import annotations

import hashlib
import io
import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import IO, TypeVar

from s3queue.clock import Clock, SystemClock
from s3queue.errors import Conflict, InvalidName, InvalidRequest
from s3queue.keys import MAX_KEY_BYTES
from s3queue.store import Object, ObjectInfo, Page, Written, cursor_after

from .many import check_many
from .wire import check_key

T = TypeVar("T")
#: Called for every request, with the operation, the key, and the function that carries it out.
Around = Callable[[str, str, Callable[[], T]], T]


@dataclass(frozen=True, slots=True)
class _Stored:
    body: bytes
    etag: str
    modified_at: datetime
    metadata: Mapping[str, str]
    content_type: str


class MemoryStore:
    """An ObjectStore in the memory of this process; safe for threads."""

    def __init__(
        self, name: str = "memory", *, clock: Clock | None = None, around: Around[object] | None = None
    ) -> None:
        self.url = f"memory://{name}"
        self._clock = clock or SystemClock()
        self._around = around
        self._objects: dict[str, _Stored] = {}
        self._sorted: list[str] = []
        self._mutex = threading.RLock()

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
        whole = body if isinstance(body, bytes) else body.read()
        if not 0 < len(check_key(key).encode()) <= MAX_KEY_BYTES:
            raise InvalidName(f"the key has {len(key.encode())} bytes; S3 accepts 1 to {MAX_KEY_BYTES}")
        kept = _described(metadata or {})

        def perform() -> Written:
            with self._mutex:
                found = self._objects.get(key)
                if if_absent and found:
                    raise Conflict(f"PUT {key}: the object exists already")
                if if_match is not None:
                    self._check(key, if_match, "PUT")
                return self._write(key, whole, kept, content_type)

        return self._request("put", key, perform)

    def open(self, key: str, *, if_match: str | None = None) -> Object | None:
        def perform() -> Object | None:
            with self._mutex:
                found = self._objects.get(key)
                if found is None:
                    return None
                if if_match is not None and found.etag != if_match:
                    raise Conflict(f"GET {key}: the object was written again")
                return Object(
                    key=key,
                    etag=found.etag,
                    size=len(found.body),
                    modified_at=found.modified_at,
                    at=self._date(),
                    metadata=found.metadata,
                    content_type=found.content_type,
                    stream=io.BytesIO(found.body),
                )

        return self._request("get", key, perform)

    def head(self, key: str) -> ObjectInfo | None:
        def perform() -> ObjectInfo | None:
            with self._mutex:
                return self._info(key, listed=False) if key in self._objects else None

        return self._request("head", key, perform)

    def delete(self, key: str, *, if_match: str | None = None) -> datetime:
        def perform() -> datetime:
            with self._mutex:
                if if_match is not None:
                    self._check(key, if_match, "DELETE")
                self._remove(key)
                return self._date()

        return self._request("delete", key, perform)

    def delete_many(self, seen: Mapping[str, str]) -> frozenset[str]:
        check_many(seen)
        if not seen:
            return frozenset()

        def perform() -> frozenset[str]:
            left: set[str] = set()
            for key, etag in seen.items():
                # S3 is atomic for each object, and not for all of them.
                with self._mutex:
                    if key in self._objects and self._objects[key].etag == etag:
                        self._remove(key)
                    elif key in self._objects:
                        left.add(key)
            return frozenset(left)

        return self._request("delete_many", next(iter(seen)), perform)

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
        check_key(source)

        def perform() -> Written | None:
            with self._mutex:
                found = self._objects.get(source)
                if found is None:
                    return None
                if if_match is not None and found.etag != if_match:
                    raise Conflict(f"COPY {source}: the object was written again")
                if if_absent and target in self._objects:
                    raise Conflict(f"COPY {source}: {target} exists already")
                if metadata is None:
                    return self._write(target, found.body, found.metadata, found.content_type)
                return self._write(target, found.body, _described(metadata), content_type or "binary/octet-stream")

        return self._request("copy", target, perform)

    def list(self, prefix: str, *, after: str = "", delimiter: str = "", limit: int = 1000) -> Page:
        def perform() -> Page:
            with self._mutex:
                return self._list(prefix, after, delimiter, limit)

        return self._request("list", prefix, perform)

    def presign_put(self, key: str, *, seconds: int, if_absent: bool = False) -> str:
        return f"{self.url}/{key}?expires={seconds}{'&if-none-match=*' if if_absent else ''}"

    def presign_get(self, key: str, *, seconds: int) -> str:
        return f"{self.url}/{key}?expires={seconds}"

    def _list(self, prefix: str, after: str, delimiter: str, limit: int) -> Page:
        objects: list[ObjectInfo] = []
        prefixes: list[str] = []
        index = max(bisect_left(self._sorted, prefix), bisect_right(self._sorted, after))
        while index < len(self._sorted) and self._sorted[index].startswith(prefix):
            key = self._sorted[index]
            if len(objects) + len(prefixes) == limit:
                return Page(tuple(objects), tuple(prefixes), cursor_after(objects, prefixes), self._date())
            cut = key.find(delimiter, len(prefix)) if delimiter else -1
            if cut < 0:
                objects.append(self._info(key, listed=True))
                index += 1
                continue
            group = key[: cut + len(delimiter)]
            prefixes.append(group)
            index = bisect_left(self._sorted, group[:-1] + chr(ord(group[-1]) + 1))
        return Page(tuple(objects), tuple(prefixes), None, self._date())

    def _write(self, key: str, body: bytes, metadata: Mapping[str, str], content_type: str) -> Written:
        etag = hashlib.md5(body, usedforsecurity=False).hexdigest()
        if key not in self._objects:
            insort(self._sorted, key)
        self._objects[key] = _Stored(body, etag, self._date(), dict(metadata), content_type)
        return Written(etag, self._date())

    def _remove(self, key: str) -> None:
        if self._objects.pop(key, None) is not None:
            del self._sorted[bisect_left(self._sorted, key)]

    def _info(self, key: str, *, listed: bool) -> ObjectInfo:
        found = self._objects[key]
        return ObjectInfo(
            key=key,
            etag=found.etag,
            size=len(found.body),
            modified_at=found.modified_at,
            at=self._date(),
            metadata={} if listed else found.metadata,
            content_type="" if listed else found.content_type,
        )

    def _check(self, key: str, etag: str, verb: str) -> None:
        found = self._objects.get(key)
        if found is None or found.etag != etag:
            raise Conflict(f"{verb} {key}: the object {'is gone' if found is None else 'was written again'}")

    def _date(self) -> datetime:
        return self._clock.now().replace(microsecond=0)

    def _request(self, operation: str, key: str, perform: Callable[[], T]) -> T:
        check_key(key)
        if self._around is None:
            return perform()
        return self._around(operation, key, perform)  # type: ignore[return-value]


def _described(metadata: Mapping[str, str]) -> dict[str, str]:
    """Metadata as S3 keeps it: names in lower case, and only what an HTTP header can carry."""
    for name, value in metadata.items():
        if not (name + value).isascii():
            raise InvalidRequest(f"metadata {name!r} must be ASCII, not {value!r}")
    return {name.lower(): value for name, value in metadata.items()}
