"""Some dead lines of a batch: replayed or deleted, while its letter keeps the others."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress

from s3queue.documents.dead_facts import kept_metadata
from s3queue.documents.dead_letter import DeadLetter
from s3queue.documents.dead_lines import DeadLine, dead_lines
from s3queue.documents.failure_group import Selection, group_key
from s3queue.documents.message import MOVED
from s3queue.encoding import with_put_id
from s3queue.errors import Conflict, MessageNotFound
from s3queue.paths import LINES, name_of
from s3queue.store import Object, ObjectInfo

from .access import QueueAccess
from .outcomes import NDJSON
from .removal import delete_letter


def replay_lines(queue: QueueAccess, letter: DeadLetter, found: Object, selection: Selection) -> str:
    """Those lines of a batch that are selected, as a batch of their own; the letter keeps the others."""
    lines = dead_lines(found.stream)
    chosen = [line for line in lines if _is_in(selection, line)]
    if not chosen:
        raise MessageNotFound(f"no line of {queue.name}/{letter.path} died of {selection.describe()}")
    stem = letter.origin.removesuffix(LINES).removesuffix(".ndjson")
    # The same letter and choice give the same name: whoever repeats it after a crash makes no second batch.
    named = f"{letter.replay_id.removeprefix(MOVED)} {selection.error_type or ''}"
    named += "" if selection.message is None else f"\0{selection.message}"
    mark = hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    target = f"messages/{name_of(stem)}-{mark}.ndjson"
    if queue.outcome_of(target) is None:
        key, body = queue.keys.message(target), b"".join(line.body + b"\n" for line in chosen)
        with suppress(Conflict):
            marked = with_put_id({}, MOVED + mark)
            queue.store.put(key, body, if_absent=True, metadata=marked, content_type=NDJSON, once=True)
    _keep(queue, found, [line for line in lines if not _is_in(selection, line)])
    return target


def discard_lines(queue: QueueAccess, letter: DeadLetter, selection: Selection) -> bool:
    """Delete the selected lines of a letter; False if the letter was changed since it was listed."""
    found = queue.store.open(queue.keys.dead(letter.path))
    if found is None or found.etag != letter.etag:
        return False
    with suppress(Conflict):
        _keep(queue, found, [line for line in dead_lines(found.stream) if not _is_in(selection, line)])
        return True
    return False


def _is_in(selection: Selection, line: DeadLine) -> bool:
    return selection.has(group_key(line.failure.type, line.failure.message))


def _keep(queue: QueueAccess, letter: ObjectInfo, lines: Sequence[DeadLine]) -> None:
    """Write the letter anew with fewer lines.

    Raises:
        Conflict: it was changed since it was read.
    """
    if not lines:
        delete_letter(queue, letter)
        return
    queue.store.put(
        letter.key,
        b"".join(line.to_bytes() for line in lines),
        if_match=letter.etag,
        metadata=kept_metadata(letter, lines),
        content_type=letter.content_type,
        once=True,
    )
