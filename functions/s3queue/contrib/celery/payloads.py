"""Payloads: what kombu wrote into a message, read again. Anyone who may write into the queue may have written it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kombu.utils.json import loads

from s3queue.documents.message import Message
from s3queue.errors import InvalidRequest


def payload_of(message: Message, largest: int, decode_body: Callable[[Any, Any], Any]) -> dict[str, Any]:
    """Raises InvalidRequest if this is not what kombu wrote, or larger than `largest`: nothing of it is read then."""
    if message.is_batch:
        raise InvalidRequest("a batch is not a Celery task; send tasks with apply_async")
    if message.size > largest:
        raise InvalidRequest(f"it is too large: {message.size} bytes, max_message_size is {largest}")
    body = message.body
    try:
        payload = dict(loads(body))
        properties = payload["properties"]
        # kombu decodes it, too, where an error would end the worker.
        decode_body(payload.get("body") or "", properties.get("body_encoding"))
        if isinstance(properties["delivery_info"], dict) and isinstance(payload.get("headers"), dict):
            return payload
    except Exception as error:
        raise InvalidRequest(f"{_WANTED}: {type(error).__name__}") from None
    raise InvalidRequest(_WANTED)


_WANTED = "this is not a Celery task; send tasks with apply_async, or give this queue to other workers"
