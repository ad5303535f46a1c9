"""connect(): from a URL to a Queue. The one place that chooses a store."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .errors import InvalidRequest
from .queue import Queue
from .settings import QueueSettings
from .store import ObjectStore

if TYPE_CHECKING:
    from .stores.memory import MemoryStore

_memories: dict[str, MemoryStore] = {}
_mutex = threading.Lock()


def connect(
    url: str,
    *,
    settings: QueueSettings | None = None,
    endpoint_url: str | None = None,
    region: str | None = None,
    worker_id: str = "",
    client: Any = None,
) -> Queue:
    """The queue at `s3://bucket/queue`, or at `memory://name/queue` (one per name and process; for trying out).

    Credentials, region and endpoint come from the environment as boto3 reads them (`AWS_ENDPOINT_URL` too).

    Raises:
        InvalidRequest, InvalidName: the URL does not name a queue.
    """
    store, name = open_store(url, endpoint_url=endpoint_url, region=region, client=client)
    if not name:
        raise InvalidRequest(f"{url!r} names no queue: s3://bucket/queue is the form")
    return Queue(store=store, name=name, settings=settings or QueueSettings(), worker_id=worker_id)


def open_store(
    url: str, *, endpoint_url: str | None = None, region: str | None = None, client: Any = None
) -> tuple[ObjectStore, str]:
    """The bucket that the URL names, and what follows it: a queue's name, or nothing."""
    parts = urlsplit(url)
    name = parts.path.strip("/")
    if parts.scheme == "memory" and (parts.netloc or name):
        return _memory(parts.netloc), name or parts.netloc
    if parts.scheme == "s3" and parts.netloc:
        from .stores.s3 import S3Store
        from .stores.s3 import client as new_client

        return S3Store(parts.netloc, client=client or new_client(endpoint_url, region)), name
    raise InvalidRequest(f"{url!r} is not s3://bucket/queue or memory://name")


def _memory(name: str) -> MemoryStore:
    from .stores.memory import MemoryStore

    with _mutex:
        if name not in _memories:
            _memories[name] = MemoryStore(name)
        return _memories[name]
