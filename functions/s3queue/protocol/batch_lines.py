"""Bodies as lines of batches: each is checked before it becomes one, and batches keep to the queue's limits."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any

from s3queue.documents.batch import join_lines
from s3queue.errors import InvalidRequest, MessageTooLarge

from .access import QueueAccess
from .payload_check import check_line


def line_of(queue: QueueAccess, body: Any, which: str) -> bytes:
    """The body as a line, with its end. `which` names it in errors.

    Raises:
        InvalidRequest: it cannot be a line of a batch, or the handler cannot take it. MessageTooLarge: it is too large.
    """
    try:
        line = join_lines([body])
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{which} cannot be a line of a batch: {error}") from None
    limit = queue.settings.max_message_size
    if len(line) > limit:
        raise MessageTooLarge(f"{which} for {queue.name} is too large: {len(line)} bytes; max_message_size is {limit}")
    if queue.check_body:
        check_line(which, line.rstrip(b"\n"), queue.check_body)
    return line


def most_of(queue: QueueAccess, per_object: int) -> tuple[int, int]:
    """How many lines a batch of the queue may have, and how many bytes."""
    settings = queue.settings
    return min(per_object, settings.max_batch_lines), min(settings.max_message_size, settings.max_batch_size)


def batches_of(queue: QueueAccess, bodies: Iterable[Any], per_object: int) -> Iterator[tuple[bytes, int]]:
    """Batches, each with how many lines it has, and each as soon as it is full: no body after it can hold it up."""
    # One buffer, not a list: a list of a million short lines would be a million objects in memory.
    lines, count = io.BytesIO(), 0
    most, room = most_of(queue, per_object)
    for index, body in enumerate(bodies):
        line = line_of(queue, body, f"body {index}")
        if count and lines.tell() + len(line) > room:
            yield lines.getvalue(), count
            lines, count = io.BytesIO(), 0
        lines.write(line)
        count += 1
        if count == most:
            yield lines.getvalue(), count
            lines, count = io.BytesIO(), 0
    if count:
        yield lines.getvalue(), count
