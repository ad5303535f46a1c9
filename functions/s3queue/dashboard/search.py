"""Search: messages by the text of their error or a field of their payload, within a bounded number of reads."""

from __future__ import annotations

from s3queue.documents.dead_letter import DeadLetter
from s3queue.documents.payload_fields import has_field
from s3queue.encoding import format_instant
from s3queue.errors import QueueError
from s3queue.paths import priority_of
from s3queue.queue import Queue

from . import models
from .browse import browse
from .letters import Filter, scan
from .message_models import MessageRow, Messages
from .parallel import in_parallel
from .search_models import Found

#: GETs and HEADs that one search sends at most, beside its LISTs.
MOST_READS = 400
#: Messages that are looked at together, and that are enough to answer with.
PORTION, ENOUGH = 50, 50
#: Portions of messages that are known from a LIST alone: all of them may be processed now, and none be a row.
MOST_PORTIONS = 40
#: States whose rows are known from a LIST alone; all others cost a read each.
_LISTED = ("pending", "delayed")


def search(
    queue: Queue, state: models.Listed, *, error: str = "", field: str = "", value: str = "", cursor: str = ""
) -> Found:
    """Messages whose error contains the text, and whose payload has the field with the value; case does not matter.

    A field is a path such as `customer.id`; without a value, it is enough that it is there. Of a batch, one line that
    has it is enough. Text matches if it contains the value, anything else if it is the value.

    Without a text and a field, all match. What has not been tried yet has no error, and is not looked at for one.
    """
    if error and state in _LISTED:
        return Found(messages=[], looked_at=0, unread=0, reads=0, complete=True, next_cursor=None)
    found: list[MessageRow] = []
    reads = looked = unread = portions = 0
    after: str | None = cursor
    while after is not None and len(found) < ENOUGH and reads < MOST_READS and portions < MOST_PORTIONS:
        page = _dead(queue, after) if state == "dead" else browse(queue, state, "", after, PORTION, few=True)
        after = page.next_cursor
        looked += len(page.messages)
        portions += 1
        if state not in _LISTED:
            # Also those that were read and are in another state: if there are more, a whole portion was read.
            reads += max(len(page.messages), PORTION if after is not None else 0)
        rows = [row for row in page.messages if error.lower() in (row.error or "").lower()] if error else page.messages
        if field and rows:
            # One journal of a partition may tell of more messages than a whole search may read.
            unread += len(rows[MOST_READS:])
            rows = rows[:MOST_READS]
            reads += len(rows)
            has = in_parallel(lambda row: _has(queue, row, field, value), rows)
            unread += has.count(None)
            rows = [row for row, is_it in zip(rows, has, strict=True) if is_it]
        found += rows
    return Found(
        messages=found, looked_at=looked, unread=unread, reads=reads, complete=after is None, next_cursor=after
    )


def _dead(queue: Queue, after: str) -> Messages:
    """Dead letters with their errors, one HEAD each: a list of them has no errors."""
    letters, next_cursor = scan(queue, Filter(), after, PORTION)
    rows = [
        MessageRow(
            path=letter.path,
            state="dead",
            priority=priority_of(letter.path),
            size=letter.size,
            since=format_instant(letter.died_at),
            attempt=letter.attempts,
            worker=letter.worker or None,
            error=f"{letter.error_type}: {letter.error}",
            lines=letter.lines or None,
        )
        for letter in letters
    ]
    return Messages(messages=rows, next_cursor=next_cursor)


def _has(queue: Queue, row: MessageRow, field: str, value: str) -> bool | None:
    """Whether the payload has it; None if it cannot be told: gone, too large, or not JSON."""
    key = {"dead": queue.keys.dead, "completed": queue.keys.done}.get(row.state, queue.keys.message)(row.path)
    try:
        stored = queue.store.open(key)
        if stored is None:
            return None
        # A second letter of one name has a mark behind it, which hides that it is a batch.
        path = DeadLetter.of(row.path, stored).origin if row.state == "dead" else row.path
        return has_field(path, stored, field, value)
    except QueueError:
        return None
