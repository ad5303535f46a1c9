"""Replays a dead letter with a payload that an operator repaired. Each death is replayed once, edited or not.  [P1]"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

from s3queue.documents.dead_facts import own_metadata
from s3queue.documents.dead_letter import DeadLetter
from s3queue.documents.message import Generation
from s3queue.documents.once import moved_id
from s3queue.documents.record import Record
from s3queue.encoding import put_id_of, with_put_id
from s3queue.errors import Conflict, InvalidRequest, MessageNotFound, MessageTooLarge
from s3queue.paths import is_batch, is_lines, name_of
from s3queue.protocol.access import QueueAccess
from s3queue.protocol.dead_letters import DeadLetters
from s3queue.protocol.partition_replay import etag_if_same, goes_to_end, put_at_end
from s3queue.protocol.removal import delete_letter
from s3queue.store import Object


def replay_edited(queue: QueueAccess, letters: DeadLetters, path: str, body: bytes) -> str:
    """See `Queue.replay_edited`. GET letter and record, PUT message, GET record, HEAD and DELETE letter."""
    letter, found = _open(queue, path)
    found.stream.close()
    if len(body) > queue.settings.max_message_size:
        limit = queue.settings.max_message_size
        raise MessageTooLarge(f"the edited message is too large: {len(body)} bytes; max_message_size is {limit}")
    edited = replace(found, stream=io.BytesIO(body), size=len(body))
    # In a group it goes to the end, under a name that is not known yet.
    place = "" if goes_to_end(letter.origin) else f"messages/{name_of(letter.origin)}"
    _check_buried(queue, letter, place)
    if ended := letters.replay_outcome(letter):
        # It ran, edited or not; the letter is what a crash or a lost answer left.
        delete_letter(queue, found)
        raise _replayed_before(queue, path, ended)
    own = own_metadata(found)
    if place:
        target, etag = place, _put_back(queue, letter, edited, own, place)
    else:
        put_id = moved_id(letter.replay_id, letter.died_at)
        target, etag = put_at_end(queue, letter.origin, edited, own, put_id)
    if (ended := letters.replay_outcome(letter)) and ended.generation.etag != etag:
        # Another replay came to its end after the look above, and gave way to this PUT: whoever claims that finds the
        # outcome, and clears it away.  [P4]
        delete_letter(queue, found)
        raise _replayed_before(queue, path, ended)
    delete_letter(queue, found)
    queue.events.emit("message.enqueued", queue=queue.name, path=target, size=len(body), replayed=True)
    return target


def _put_back(queue: QueueAccess, letter: DeadLetter, edited: Object, own: Mapping[str, str], target: str) -> str:
    """PUT it under the name of what died; returns its ETag.

    Raises:
        Conflict: another message has that name, or another edit of this letter.
    """
    if letter.generation and edited.at - letter.generation.put_at < timedelta(seconds=1):
        # Equal bytes within one second are one generation, and that one is dead.  [P3]
        queue.clock.sleep(1.0)
    marked = with_put_id(own, letter.replay_id)
    if put_id_of(marked) != letter.replay_id:
        # Without it, a PUT that comes late would run as well.
        raise InvalidRequest(f"the metadata of {edited.key} leaves no room for the id that its replay needs")
    try:
        written = queue.store.put(
            queue.keys.message(target),
            edited.stream,
            if_absent=True,
            metadata=marked,
            content_type=edited.content_type,
            once=True,
        )
        return written.etag
    except Conflict:
        if etag := etag_if_same(queue, target, letter.replay_id, edited.stream):
            return etag
    raise Conflict(f"{queue.name}/{target} exists already: let it finish, or delete one of the two")


def _replayed_before(queue: QueueAccess, path: str, ended: Record) -> Conflict:
    return Conflict(f"{queue.name}/{path} was replayed before, and has its outcome: read the status of {ended.path}")


def _open(queue: QueueAccess, path: str) -> tuple[DeadLetter, Object]:
    key = queue.keys.dead(path)
    found = queue.store.open(key)
    under = queue.keys.path_under("dead", key)
    if found is None or under is None:
        raise MessageNotFound(f"no such dead letter: {queue.name}/{path}; `s3queue dead list` shows all of them")
    letter = DeadLetter.of(under, found)
    problem = ""
    if letter.is_unreadable:
        problem = "its message could not be read, and lies where it was PUT: PUT it again there"
    elif is_lines(letter.origin) or is_batch(letter.origin):
        problem = "a batch is replayed as it is; send a line that you have edited as a message of its own"
    if problem:
        found.stream.close()
        raise InvalidRequest(f"{queue.name}/{path} cannot be edited: {problem}")
    return letter, found


def _check_buried(queue: QueueAccess, letter: DeadLetter, target: str) -> None:
    """Raises Conflict while its message lies there under another name: its burial would write the letter again."""
    key = queue.keys.message(letter.origin)
    message = None if letter.origin == target else queue.store.head(key)
    if message and letter.generation == Generation(etag=message.etag, put_at=message.modified_at):
        raise Conflict(f"{key} is still being buried; replay its letter when the sweeper has deleted it")
