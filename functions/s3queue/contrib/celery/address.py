"""Address: what `s3queue://bucket/folder?region=…` names: a bucket, and a folder for results."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from s3queue.connect import open_store, split_url, without_secret
from s3queue.errors import InvalidRequest
from s3queue.keys import check_queue
from s3queue.store import ObjectStore

SCHEME = "s3queue"
#: Celery's own default queue: results lie beside its messages.
RESULTS_OF = "celery"
_OPTIONS = ("region", "endpoint_url", "store")
_WANTED = "write s3queue://bucket, or s3queue://key:secret@host:port/bucket"
_stores: dict[tuple[int, Address], ObjectStore] = {}
_mutex = threading.Lock()


def _renew_mutex() -> None:
    """A pool may fork while another thread has it: the child would wait for that thread, which it does not have."""
    global _mutex
    _mutex = threading.Lock()


os.register_at_fork(after_in_child=_renew_mutex)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A bucket, how to reach it, and the queue under whose name results lie."""

    #: It may have a secret.
    url: str = field(repr=False)
    region: str | None = None
    endpoint_url: str | None = None
    store: str | None = None
    results_of: str = RESULTS_OF

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read a broker's or a result backend's URL.

        Raises:
            InvalidRequest, InvalidName: it names no bucket, or has an option that is not known.
        """
        parts = split_url(url)
        shown = without_secret(url)
        if parts.scheme != SCHEME or not parts.netloc:
            raise InvalidRequest(f"{shown!r} names no bucket: {_WANTED}")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        if unknown := sorted(options.keys() - set(_OPTIONS)):
            raise InvalidRequest(f"{shown!r} has the unknown option {unknown[0]!r}; known are {', '.join(_OPTIONS)}")
        folders = [folder for folder in parts.path.split("/") if folder]
        bucket = parts.netloc
        if "@" in parts.netloc:
            if not folders:
                raise InvalidRequest(f"{shown!r} names no bucket: {_WANTED}")
            bucket = f"{parts.netloc}/{folders.pop(0)}"
        if len(folders) > 1:
            raise InvalidRequest(f"{shown!r} has too many parts: {_WANTED}, and at most one folder for results")
        is_memory = options.get("store") == "memory"
        return cls(
            url=f"{'memory' if is_memory else 's3'}://{bucket}",
            region=options.get("region"),
            endpoint_url=options.get("endpoint_url"),
            store=None if is_memory else options.get("store"),
            results_of=check_queue(folders[0]) if folders else RESULTS_OF,
        )

    def open(self) -> ObjectStore:
        """The bucket, one client per process: a pool's child must not use its parent's connections."""
        if self.url.startswith("memory:"):
            return open_store(self.url)[0]
        if found := _stores.get((os.getpid(), self)):
            return found
        with _mutex:
            found = _stores.get((os.getpid(), self))
            if found is None:
                kind: Any = self.store
                found, _ = open_store(self.url, endpoint_url=self.endpoint_url, region=self.region, store=kind)
                _stores[os.getpid(), self] = found
            return found
