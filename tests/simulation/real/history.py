"""The history: what each process did, one append-only file per process, in the order in which it did it.

A call is `invoked` before its first request is sent, and then `ok`, `failed` (certainly nothing was done) or `unknown`;
a process that is killed in between leaves it at `invoked`, which is unknown, too. `CLOCK_MONOTONIC` is the same for all
processes of a machine, so the files can be merged.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from s3queue import Conflict, InvalidRequest, MessageNotFound, QueueError

Json = dict[str, Any]
T = TypeVar("T")
#: Errors after which certainly nothing was done.
NOTHING_DONE = (Conflict, InvalidRequest, MessageNotFound)

_stream: int | None = None
_calls = itertools.count(1)


def begin(folder: str | Path, role: str) -> None:
    """This process's own file, from now on."""
    global _stream
    if _stream is not None:
        os.close(_stream)
    name = Path(folder) / f"{role}-{os.getpid()}.history"
    _stream = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def tell(event: str, **fields: Any) -> None:
    """Append an event. One write, and no buffer: what was told before a kill -9 is there."""
    if _stream is not None:
        line = json.dumps({"event": event, "at": time.monotonic(), "pid": os.getpid()} | fields)
        os.write(_stream, line.encode() + b"\n")


def call(operation: str, function: Callable[[], T], **fields: Any) -> T | None:
    """Call, and tell how it ended; None if it did not succeed."""
    number = f"{os.getpid()}-{next(_calls)}"
    tell("invoked", call=number, operation=operation, **fields)
    try:
        result = function()
    except NOTHING_DONE as error:
        tell("failed", call=number, error=f"{type(error).__name__}: {error}")
        return None
    except QueueError as error:
        tell("unknown", call=number, error=f"{type(error).__name__}: {error}")
        return None
    tell("ok", call=number, result=result if isinstance(result, str | list | dict | int) else None)
    return result


def read(folder: Path) -> list[Json]:
    """What all processes told, in the order of time, without a line that is just being written."""
    events = [
        json.loads(line)
        for file in folder.glob("*.history")
        for line in file.read_text().splitlines(keepends=True)
        if line.endswith("}\n")
    ]
    return sorted(events, key=lambda event: float(event["at"]))
