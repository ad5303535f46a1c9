"""connect(): from a URL to a Queue. The one place that chooses a store."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, get_args
from urllib.parse import SplitResult, unquote, urlsplit

from .errors import InvalidRequest
from .queue import Queue
from .settings import QueueSettings
from .store import ObjectStore

if TYPE_CHECKING:
    from s3queue.stores.memory import MemoryStore

#: Which client talks to S3: boto3, or our own small one, which needs a fraction of its CPU and of its start time.
StoreKind = Literal["boto3", "direct"]
_memories: dict[str, MemoryStore] = {}
_mutex = threading.Lock()


def connect(
    url: str,
    *,
    settings: QueueSettings | None = None,
    endpoint_url: str | None = None,
    region: str | None = None,
    worker_id: str = "",
    store: StoreKind | None = None,
    client: Any = None,
) -> Queue:
    """The queue at `s3://bucket/queue`, or at `memory://name/queue` (one per name and process, to try things out).

    Credentials, region and endpoint come from the environment, as boto3 reads them (`AWS_ENDPOINT_URL` included); or
    from the URL: `s3://key:secret@host:port/bucket/queue`, percent-encoded where they have `/`, `:` or `@`. That speaks
    HTTPS, except to this machine; `s3+http://` speaks HTTP. No error and no log line repeats them.
    `worker_id` is the name in leases, records and heartbeats; choose one only if no other process has it at any time.
    `store` chooses the client: `boto3` or `direct`; the default is `S3QUEUE_STORE`. If you pass a boto3 `client`, it is
    used unchanged.

    Raises:
        InvalidRequest, InvalidName: the URL does not name a queue, or the worker id cannot be part of a key.
    """
    opened, name = open_store(url, endpoint_url=endpoint_url, region=region, store=store, client=client)
    if not name:
        raise InvalidRequest(f"{without_secret(url)!r} does not name a queue; write s3://bucket/queue")
    return Queue(store=opened, name=name, settings=settings or QueueSettings(), worker_id=worker_id)


def open_store(
    url: str,
    *,
    endpoint_url: str | None = None,
    region: str | None = None,
    store: StoreKind | None = None,
    client: Any = None,
) -> tuple[ObjectStore, str]:
    """The bucket that the URL names, and the name of the queue, empty if the URL names none."""
    if os.environ.get("S3QUEUE_LOG"):
        # Here and not at import: a program that only imports the library has its logging to itself.
        from .printable import heed_log_level

        heed_log_level(os.environ)
    parts = split_url(url)
    name = parts.path.strip("/")
    if parts.scheme == "memory" and (parts.netloc or name):
        return _memory(parts.netloc), name or parts.netloc
    if parts.scheme in ("s3", "s3+http") and "@" in parts.netloc:
        bucket, _, name = name.partition("/")
        keys, address = _keys_and_address(parts, bucket)
        if client is not None or endpoint_url is not None:
            raise InvalidRequest("the URL names host and credentials: give no client and no endpoint_url with it")
        return _s3(bucket, address, region, store, None, keys), name
    if parts.scheme == "s3" and parts.netloc:
        return _s3(parts.netloc, endpoint_url, region, store, client), name
    raise InvalidRequest(
        f"{without_secret(url)!r} is not a queue's URL; write s3://bucket/queue or memory://name/queue"
    )


def split_url(url: str) -> SplitResult:
    """Raises InvalidRequest, which repeats no credentials, if it is no URL, or has them where none are looked for."""
    if not isinstance(url, str):  # such as what `os.environ.get` does not find
        raise InvalidRequest(f"a queue's URL must be text, not {type(url).__name__}")
    try:
        parts = urlsplit(url)
    except ValueError:  # its text may repeat what it could not read
        raise InvalidRequest(f"{without_secret(url)!r} is not a URL: check its brackets and its host") from None
    if "@" in parts.path:
        raise InvalidRequest(f"{without_secret(url)!r} has an @ in its path: {_with_keys(parts.scheme)}")
    return parts


def split_bucket(url: str) -> tuple[str, str]:
    """The URL of the bucket alone, with the credentials that it has, and the name of the queue, empty if it names none.

    Raises:
        InvalidRequest: it cannot be read as a URL.
    """
    parts = split_url(url)
    bucket, name = parts.netloc, parts.path.strip("/")
    if "@" in bucket:
        first, _, name = name.partition("/")
        bucket = f"{bucket}/{first}"
    return f"{parts.scheme}://{bucket}", name


def without_secret(url: str) -> str:
    """The URL as it may be shown: what stands before its last `@` is left out.

    Wherever that is: a secret of AWS may have a slash, which its owner forgot to write as %2F.
    """
    scheme, mark, rest = url.partition("://")
    return f"{scheme}{mark}***@{rest.rpartition('@')[2]}" if "@" in rest else url


def _with_keys(scheme: str) -> str:
    return f"write {scheme}://key:secret@host:port/bucket/queue, with %2F, %3A and %40 for /, : and @"


def _keys_and_address(parts: SplitResult, bucket: str) -> tuple[tuple[str, str], str]:
    """Raises InvalidRequest, which does not repeat the credentials."""
    wanted = _with_keys(parts.scheme)
    try:
        key, secret, host, port = parts.username, parts.password, parts.hostname, parts.port
    except ValueError:
        raise InvalidRequest(f"the URL's port is not a number: {wanted}") from None
    if not (key and secret and host and bucket):
        raise InvalidRequest(f"the URL lacks a key, a secret, a host or a bucket: {wanted}")
    named = f"[{host}]" if ":" in host else host
    is_plain = parts.scheme == "s3+http" or host in ("localhost", "127.0.0.1", "::1")
    address = f"{'http' if is_plain else 'https'}://{named}" + (f":{port}" if port else "")
    return (unquote(key), unquote(secret)), address


def _s3(
    bucket: str,
    endpoint_url: str | None,
    region: str | None,
    kind: StoreKind | None,
    client: Any,
    keys: tuple[str, str] | None = None,
) -> ObjectStore:
    chosen = kind or ("boto3" if client else os.environ.get("S3QUEUE_STORE") or "boto3")
    if chosen not in get_args(StoreKind):
        raise InvalidRequest(f"store must be {' or '.join(get_args(StoreKind))}, not {chosen!r}; check S3QUEUE_STORE")
    if chosen == "direct":
        from s3queue.stores.direct import DirectStore

        return DirectStore(bucket, endpoint_url=endpoint_url, region=region, keys=keys)
    from s3queue.stores.s3 import S3Store
    from s3queue.stores.s3 import client as new_client

    named: dict[str, Any] = dict(zip(("aws_access_key_id", "aws_secret_access_key"), keys or (), strict=False))
    return S3Store(bucket, client=client or new_client(endpoint_url, region, **named))


def _memory(name: str) -> MemoryStore:
    from s3queue.stores.memory import MemoryStore

    with _mutex:
        if name not in _memories:
            _memories[name] = MemoryStore(name)
        return _memories[name]


@contextmanager
def lend_memory(store: MemoryStore) -> Iterator[None]:
    """Let `connect` find this store under its own URL meanwhile, for tests; what had that name before comes back."""
    name = urlsplit(store.url).netloc
    with _mutex:
        before = _memories.get(name)
        _memories[name] = store
    try:
        yield
    finally:
        with _mutex:
            _memories.pop(name, None)
            if before is not None:
                _memories[name] = before
