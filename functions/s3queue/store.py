"""ObjectStore, the interface to S3: the requests that s3queue sends, and what it may rely on.

Every answer carries `at`, the server's own `Date`, because the age of a lease is judged by the server's clock only.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import IO, Protocol

from .errors import AccessDenied, Conflict, CorruptState, Unavailable, Unreadable

#: How often one conditional write is tried while its answers leave open what happened, before the caller is told.
UNKNOWN_TRIES = 4
#: S3 deletes so many objects at once, at most.
MANY = 1000
#: Behind every key of a folder: servers treat the folder itself as a cursor differently.
LAST = "\U0010ffff"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """An object without its body. From a LIST, metadata and content type are unknown."""

    key: str
    etag: str
    size: int
    modified_at: datetime
    at: datetime
    metadata: Mapping[str, str] = field(default_factory=dict)
    content_type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Object(ObjectInfo):
    """An object with its body as a stream, which the caller closes; `read()` reads it whole and closes it."""

    stream: IO[bytes]

    def read(self, limit: int | None = None) -> bytes:
        """The whole body; closes the stream. Documents are read with a `limit`: anyone may write gigabytes.

        Raises:
            CorruptState: the object is larger than the limit; nothing of it was read.
            Unavailable: the connection broke half-way.
        """
        with self.stream as stream:
            if limit is not None and self.size > limit:
                raise CorruptState(f"{self.key} has {self.size} bytes, not at most {limit}; s3queue did not write it")
            return stream.read()


class Seen(Protocol):
    """An object as it was seen: an ObjectInfo, or whatever remembers as much of one."""

    @property
    def key(self) -> str: ...
    @property
    def etag(self) -> str: ...
    @property
    def modified_at(self) -> datetime: ...


@dataclass(frozen=True, slots=True)
class Written:
    """The answer to a PUT or COPY."""

    etag: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Page:
    """One LIST answer, in key order. `next_after` is where the next page starts; None on the last page."""

    objects: tuple[ObjectInfo, ...]
    prefixes: tuple[str, ...]
    next_after: str | None
    at: datetime


class ObjectStore(Protocol):
    """A bucket. It is strongly consistent, and conditional writes are atomic; nothing else is promised.

    Raises, from every method:
        Conflict: the condition did not hold (412, or 404 where If-Match named an object); nothing was written.
        Unavailable: time-out or 5xx; a write may or may not have happened.
        AccessDenied, NotFound: the server said so.
    """

    #: The bucket's name for people: `s3://jobs`, `memory://x`.
    url: str

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
        """Write an object. A store may repeat it after an unknown answer, unless it is to be sent `once`.

        A message is: by the time of a repetition, the first one may have been run and deleted.
        """
        ...

    def open(self, key: str, *, if_match: str | None = None) -> Object | None:
        """GET; None if there is no such object."""
        ...

    def head(self, key: str) -> ObjectInfo | None: ...

    def delete(self, key: str, *, if_match: str | None = None) -> datetime:
        """Without `if_match` a missing object is a success, as in S3.

        Sent once: equal bytes have equal ETags, and by the time of a repetition they may have been PUT anew.
        """
        ...

    def delete_many(self, seen: Mapping[str, str]) -> frozenset[str]:
        """Delete each of these keys if it has this ETag; at most 1,000, in one request. Sent once, as `delete` is.

        An object that has another ETag is left alone. Returns the keys under which something may still lie: that has
        another ETag, or it is unknown whether it was deleted. Where a server does not compare the ETags, each is a
        request of its own.

        Raises:
            Unavailable: unknown for all of them.
            AccessDenied: one of them, which it names, may not be deleted; the others may have been.
            InvalidRequest: more than 1,000 keys; nothing was deleted.
        """
        ...

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
        """Copy inside the bucket, `if_match` on the source; None if the source is gone. Sent once.

        With `if_absent`, nothing may be there yet; what has to be copied in parts only looks first.

        Metadata and content type are copied too; if `metadata` is given, both are replaced.
        """
        ...

    def list(self, prefix: str, *, after: str = "", delimiter: str = "", limit: int = 1000) -> Page: ...

    def presign_put(self, key: str, *, seconds: int, if_absent: bool = False) -> str:
        """A URL with which someone without credentials may PUT this one key."""
        ...

    def presign_get(self, key: str, *, seconds: int) -> str:
        """A URL with which someone without credentials may GET this one key."""
        ...


def cursor_after(objects: Sequence[ObjectInfo], prefixes: Sequence[str]) -> str | None:
    """Where the LIST after such a page begins. Servers treat a group as a cursor differently, so start after its last
    possible key.
    """
    ends = [entry.key for entry in objects[-1:]] + [f"{prefix}\U0010ffff" for prefix in prefixes[-1:]]
    return max(ends, default=None)


def listing(store: ObjectStore, prefix: str, *, after: str = "", pages: int | None = None) -> Iterator[Page]:
    """The pages of a LIST, one request each; at most `pages` of them."""
    cursor: str | None = after
    while cursor is not None and (pages is None or pages > 0):
        page = store.list(prefix, after=cursor)
        yield page
        cursor = page.next_after
        pages = None if pages is None else pages - 1


def look_at(store: ObjectStore, key: str) -> ObjectInfo | None:
    """HEAD; where that is refused (SSE-C), a LIST shows as much as is needed. None if there is no such object."""
    try:
        return store.head(key)
    except AccessDenied:
        return next((entry for entry in store.list(key, limit=1).objects if entry.key == key), None)


def open_state(store: ObjectStore, key: str) -> Object | None:
    """GET of a document that s3queue writes; None if there is none.

    One that nobody can read (archived, a foreign key) is garbage like any other: reading it is CorruptState, and it can
    be replaced by its ETag. Messages and dead letters are opened with `store.open`: they are somebody's payload.

    Raises:
        AccessDenied: this process lacks a permission, which says nothing about the document.
    """
    try:
        return store.open(key)
    except Unreadable:
        pass  # whose ETag is not in the answer
    for _ in range(UNKNOWN_TRIES):
        seen = look_at(store, key)
        if seen is None:
            return None
        try:
            # What cannot be read must be what was looked at: a good document may have taken its place in between.
            return store.open(key, if_match=seen.etag)
        except Conflict:
            continue
        except Unreadable as refused:
            return Object(
                key=key,
                etag=seen.etag,
                size=seen.size,
                modified_at=seen.modified_at,
                at=seen.at,
                stream=_Refused(f"{key} cannot be read: {refused}"),
            )
    raise Unavailable(f"{key} is written again and again; try again")


class _Refused(io.BytesIO):
    """The body of an object that nobody can read."""

    def __init__(self, problem: str) -> None:
        super().__init__()
        self._problem = problem

    def read(self, size: int | None = -1, /) -> bytes:
        raise CorruptState(self._problem)


def put_surely(
    store: ObjectStore,
    key: str,
    body: bytes,
    *,
    if_match: str | None = None,
    if_absent: bool = False,
    content_type: str = "application/json",
) -> Written:
    """A conditional write whose result is known when this returns.  [P2]

    The body must be unique (a nonce), so that finding it stored proves that this very write won. After a lost answer
    the object is read. Our body: the write won. The precondition still holds: write again, which is safe, because the
    first try, if it is still on its way, then fails its own condition. Anything else: the write lost.

    Raises:
        Conflict: someone else's write is there; ours never will be. If `retried` is true, ours may have been there
            in between, and they have read it.
        Unavailable: still unknown after several tries.
    """
    unknown: Unavailable | None = None
    for _ in range(UNKNOWN_TRIES):
        try:
            return store.put(key, body, if_match=if_match, if_absent=if_absent, content_type=content_type)
        except Conflict as conflict:
            if unknown is None and not conflict.retried:
                raise
        except Unavailable as error:
            unknown = error
        try:
            found = open_state(store, key)
            is_ours = found is not None and holds(found, body)
        except Unavailable as error:
            unknown = error
            continue
        if found and is_ours:
            # Not `found.at`: the GET came later, perhaps by a whole time-out, and ages count from the write.
            return Written(found.etag, found.modified_at)
        if (found.etag if found else None) != if_match:
            raise Conflict(f"{key} was written by someone else", retried=True)
    raise unknown or Unavailable(f"unknown whether {key} was written; try again")


def holds(found: Object, body: bytes) -> bool:
    """Whether this is the stored object. What someone else wrote there is not read: it may be of any size."""
    if found.size != len(body):
        found.stream.close()
        return False
    try:
        return found.read() == body
    except CorruptState:
        return False


def delete_unique(store: ObjectStore, key: str, *, if_match: str) -> bool:
    """Delete a document that carries a nonce; False if another one, or none, was there.

    Its ETag is given once, so asking again after an unknown answer cannot hit anything else.

    Raises:
        Unavailable: still unknown after several tries.
    """
    unknown: Unavailable | None = None
    for _ in range(UNKNOWN_TRIES):
        try:
            store.delete(key, if_match=if_match)
            return True
        except Conflict as conflict:
            # After a lost answer, the object may be missing because we deleted it; another object in its place is not
            # our doing.
            return (unknown is not None or conflict.retried) and look_at(store, key) is None
        except Unavailable as error:
            unknown = error
    raise unknown or Unavailable(f"unknown whether {key} was deleted; try again")


def delete_seen(
    store: ObjectStore,
    key: str,
    *,
    etag: str,
    modified_at: datetime,
    is_alive: Callable[[], bool] = lambda: True,
    asked: Unavailable | None = None,
) -> bool:
    """Delete the object that was seen; False if another one was there, or it was gone already.  [P1]

    Equal bytes have equal ETags: after an unknown answer they may have been PUT anew, so look before asking again; and
    never ask again once `is_alive` says no. `asked`: it was asked for before, and this was the answer.

    Raises:
        Unavailable: still unknown.
    """
    unknown = asked
    for tries in range(UNKNOWN_TRIES):
        try:
            if tries or not asked:
                store.delete(key, if_match=etag)
                return True
        except Conflict as conflict:
            return (unknown is not None or conflict.retried) and look_at(store, key) is None
        except Unavailable as error:
            unknown = error
        found = look_at(store, key)
        if found is None:
            return True
        if (found.etag, found.modified_at) != (etag, modified_at):
            return False
        if not is_alive():
            break
    raise unknown or Unavailable(f"unknown whether {key} was deleted; try again")


def delete_all_seen(
    store: ObjectStore, seen: Sequence[Seen], *, is_alive: Callable[[], bool] = lambda: True
) -> frozenset[str]:
    """Delete the objects that were seen, 1,000 at once; what was PUT anew since stays. Every key is given once.  [P1]

    Whatever is unknown afterwards, or has another ETag, is looked at one by one, as `delete_seen` does. Nothing more is
    asked for once `is_alive` says no. Returns the keys of those that others had deleted or overwritten before.

    Raises:
        Unavailable: still unknown for one of them, or `is_alive` said no before all were asked for.
    """
    if len(seen) == 1:
        only = seen[0]
        is_deleted = delete_seen(store, only.key, etag=only.etag, modified_at=only.modified_at, is_alive=is_alive)
        return frozenset() if is_deleted else frozenset({only.key})
    left: set[str] = set()
    for start in range(0, len(seen), MANY):
        chunk = seen[start : start + MANY]
        if start and not is_alive():
            raise Unavailable(f"{len(seen) - start} objects were not deleted, {chunk[0].key} first: it was too late")
        try:
            unknown = store.delete_many({entry.key: entry.etag for entry in chunk})
            problem = Unavailable("a DELETE of many objects did not say what became of one")
        except Unavailable as error:
            unknown, problem = frozenset(entry.key for entry in chunk), error
        for entry in chunk:
            if entry.key in unknown and not delete_seen(
                store,
                entry.key,
                etag=entry.etag,
                modified_at=entry.modified_at,
                is_alive=is_alive,
                asked=problem,
            ):
                left.add(entry.key)
    return frozenset(left)
