"""The bucket of the simulation: it can also be uploaded to in parts, has small pages if asked, and refuses objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from s3queue.errors import AccessDenied, InvalidName, Unavailable, Unreadable
from s3queue.keys import MAX_KEY_BYTES
from s3queue.store import Page, Written
from s3queue.stores.memory import MemoryStore

T = TypeVar("T")


class SimulatedStore(MemoryStore):
    """A bucket in memory."""

    page = 1000

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        #: Key → how reading it is refused: Unreadable for an archived object, which can still be looked at.
        self.refused: dict[str, type[AccessDenied]] = {}
        #: (key, ETag) → the same of one object, and not of what is PUT in its place.
        self.hidden: dict[tuple[str, str], type[AccessDenied]] = {}
        #: Whether whoever asks may not do this to this key.
        self.denies: Callable[[str, str], bool] = lambda operation, key: False
        #: Around what is one request, and several steps here: its date is that of the first.
        self.one_request: Callable[[], AbstractContextManager[None]] = nullcontext

    def list(self, prefix: str, *, after: str = "", delimiter: str = "", limit: int = 1000) -> Page:
        return super().list(prefix, after=after, delimiter=delimiter, limit=min(limit, self.page))

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
        if source in self.refused:
            refused: Written | None = self._request("copy", target, lambda: self._refuse("copy", source))
            return refused
        options: dict[str, Any] = {"metadata": metadata, "content_type": content_type}
        return super().copy(source, target, if_match=if_match, if_absent=if_absent, **options)

    def delete_many(self, seen: Mapping[str, str]) -> frozenset[str]:
        """S3 deletes them one after the other, and says of each what became of it: two halves may fare differently."""
        keys, unknown, silent = list(seen), frozenset[str](), frozenset[str]()
        problem: Unavailable | None = None
        with self.one_request():
            for part in filter(None, (keys[: len(keys) // 2], keys[len(keys) // 2 :])):
                try:
                    unknown |= super().delete_many({key: seen[key] for key in part})
                except Unavailable as error:
                    silent, problem = silent.union(part), error
        if problem and len(silent) == len(seen):
            raise problem
        return unknown | silent

    def upload(self, key: str, body: bytes, *, seconds: float) -> None:
        """Complete a multipart upload that was started so long ago; S3 dates the object by its start."""

        def perform() -> Written:
            written = self._write(key, body, {}, "application/octet-stream")
            stored = self._objects[key]
            started_at = stored.modified_at - timedelta(seconds=int(seconds))
            self._objects[key] = replace(stored, modified_at=started_at)
            return written

        self._request("put", key, perform)

    def _request(self, operation: str, key: str, perform: Callable[[], T]) -> T:
        if key in self.refused and (
            operation == "get" or (operation == "head" and self.refused[key] is not Unreadable)
        ):
            perform = partial(self._refuse, operation, key)
        elif self.hidden and operation in ("get", "head"):
            perform = partial(self._look, operation, key, perform)
        elif self.denies(operation, key):
            perform = partial(self._deny, operation, key)
        elif len(key) > MAX_KEY_BYTES:
            perform = partial(self._misname, key)
        return super()._request(operation, key, perform)

    def _look(self, operation: str, key: str, perform: Callable[[], T]) -> T:
        stored = self._objects.get(key)
        kind = self.hidden.get((key, stored.etag)) if stored else None
        if kind and operation == "get":
            raise Unreadable(f"403 {operation} {key}: InvalidObjectState")
        if kind and kind is not Unreadable:
            raise kind(f"400 {operation} {key}")
        return perform()

    def _refuse(self, operation: str, key: str) -> Any:
        if key in self._objects:
            raise self.refused.get(key, AccessDenied)(f"403 {operation} {key}")
        return None

    def _deny(self, operation: str, key: str) -> Any:
        raise AccessDenied(f"403 {operation} {key}")

    def _misname(self, key: str) -> Any:
        raise InvalidName(f"400 {key[:40]}…: the key is too long")
