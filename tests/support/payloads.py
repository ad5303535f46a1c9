"""What the tests of the worker put into a queue: a model, and a batch of lines."""

from __future__ import annotations

import json
from typing import Any

import pydantic

from support.workbench import Workbench


class Email(pydantic.BaseModel):
    to: str
    copies: int = 1


def put_batch(bench: Workbench, lines: bytes | list[Any], name: str = "messages/b.ndjson") -> str:
    """A batch as `aws s3 cp` would write it."""
    body = lines if isinstance(lines, bytes) else b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    bench.memory.put(f"orders/{name}", body)
    return name
