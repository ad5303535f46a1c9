"""How a definition reaches its queue as a producer: which bucket, and with which checks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from s3queue.connect import connect, split_bucket, without_secret
from s3queue.errors import InvalidRequest
from s3queue.queue import Queue

if TYPE_CHECKING:
    from .definition import Definition


def connected(definition: Definition, url: str | None, **options: Any) -> Queue:
    """See `Definition.connect`. What the environment names is connected to once, and kept."""
    if url is not None or options:
        return _connect(definition, url or _from_environment(definition), **options)
    found = _from_environment(definition)
    if found not in definition.connected:
        definition.connected[found] = _connect(definition, found)
    return definition.connected[found]


def _connect(definition: Definition, url: str, **options: Any) -> Queue:
    bucket, named = split_bucket(url)
    if named and named != definition.name:
        raise InvalidRequest(
            f"{without_secret(url)!r} names the queue {named!r}, but the definition is of {definition.name!r}"
        )
    queue = connect(f"{bucket}/{definition.name}", settings=definition.settings, **options)
    queue.check_body = definition.check
    return queue


def _from_environment(definition: Definition) -> str:
    """The bucket alone: the queue that `S3QUEUE_URL` may name is the command's default, not this definition's."""
    if url := os.environ.get("S3QUEUE_URL"):
        return split_bucket(url)[0]
    if bucket := os.environ.get("S3QUEUE_BUCKET"):
        return f"s3://{bucket}"
    raise InvalidRequest(
        f"no bucket is known for the queue {definition.name!r}: set S3QUEUE_URL=s3://bucket, or enqueue through "
        f"definition.connect('s3://bucket')"
    )
