"""Sent: a message as a test compares it: its queue, and its body as the producer gave it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from s3queue.documents.sends import Send
from s3queue.encoding import decode_metadata
from s3queue.paths import due_of, priority_of

_JSON = ("application/json", "application/x-ndjson")


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that a handler or a producer has sent: `Sent("emails", {"to": "ada@example.com"})`."""

    queue: str
    #: JSON as Python has it; text of `text/…`; else bytes.
    body: Any
    priority: int = 0
    #: When it may run, if it was delayed.
    due_at: datetime | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, send: Send) -> Sent:
        """What `Context.send` keeps until the completion."""
        return cls(
            send.queue,
            readable(send.body, send.content_type),
            priority=priority_of(f"{send.place}x"),
            due_at=due_of(f"{send.place}x"),
            metadata=dict(decode_metadata(send.metadata)),
        )


def readable(body: bytes, content_type: str) -> Any:
    """A stored body as its producer gave it; bytes if it is not what its content type says."""
    try:
        if content_type.startswith(_JSON):
            return json.loads(body)
        return body.decode() if content_type.startswith("text/") else body
    except (ValueError, RecursionError):
        return body
