"""Replay into another queue: a dead letter becomes a message there, once, and goes.  [P1]"""

from __future__ import annotations

from s3queue.documents.batch import spooled
from s3queue.documents.dead_facts import own_metadata
from s3queue.documents.dead_letter import DeadLetter
from s3queue.documents.message import Generation
from s3queue.documents.once import moved_id
from s3queue.encoding import put_id_of, with_put_id
from s3queue.errors import Conflict, InvalidName, InvalidRequest, MessageNotFound
from s3queue.paths import LINES, partition_of
from s3queue.protocol.access import QueueAccess
from s3queue.protocol.journal import find_outcome
from s3queue.protocol.letter_writes import PUT_BYTES
from s3queue.protocol.partition_replay import arrival
from s3queue.protocol.removal import delete_letter
from s3queue.store import Object


def replay_to(queue: QueueAccess, path: str, target: QueueAccess) -> str:
    """See `Queue.replay`. GET letter, HEAD message, GET record there, PUT message `If-None-Match: *`, DELETE letter.

    The message carries the letter's id, so whoever repeats the call after a crash, or after an answer that was lost,
    finds it there, or its record; and a PUT that comes late is not run, see `documents/once.py`.  [P4]
    """
    found = queue.store.open(queue.keys.dead(path))
    letter = DeadLetter.of(path, found) if found and queue.keys.path_under("dead", found.key) else None
    if found is None or letter is None:
        raise MessageNotFound(f"no such dead letter: {queue.name}/{path}; `s3queue dead list` shows all of them")
    with found.stream:
        arrives = arrival(target, letter.origin, found)
        _check(queue, letter, found, target, arrives)
        if partition_of(arrives):
            put_id = moved_id(letter.replay_id, letter.died_at)
            record = find_outcome(target, arrives, put_id)
        else:
            put_id = letter.replay_id
            record = target.outcome_of(arrives)
        if record is None or record.put_id != put_id:
            _put(letter, found, target, arrives, put_id)
    delete_letter(queue, found)
    target.events.emit("message.enqueued", queue=target.name, path=arrives, size=found.size, replayed=True)
    return arrives


def _check(queue: QueueAccess, letter: DeadLetter, found: Object, target: QueueAccess, arrives: str) -> None:
    if letter.is_unreadable:
        raise InvalidRequest(f"{queue.name}/{letter.path} cannot be read: it can only be replayed where it lies")
    if found.size > PUT_BYTES:
        raise InvalidRequest(f"{found.key} has {found.size} bytes, S3 takes {PUT_BYTES} in one conditional PUT")
    problem = target.keys.problem(arrives)
    if problem:
        raise InvalidName(f"{target.name}/{arrives}: {problem}")
    message = queue.store.head(queue.keys.message(letter.origin.removesuffix(LINES)))
    if message and Generation(etag=message.etag, put_at=message.modified_at) == letter.generation:
        raise Conflict(f"{message.key} is still being buried; replay its letter when the sweeper has deleted it")


def _put(letter: DeadLetter, found: Object, target: QueueAccess, arrives: str, put_id: str) -> None:
    own = own_metadata(found)
    marked = with_put_id(own, put_id)
    if put_id_of(marked) != put_id:
        raise InvalidRequest(f"the metadata of {letter.path} leaves no room for the id that a replay elsewhere needs")
    key = target.keys.message(arrives)
    try:
        with spooled(found.stream) as body:
            target.store.put(key, body, if_absent=True, metadata=marked, content_type=found.content_type, once=True)
    except Conflict as conflict:
        there = target.store.head(key)
        if there is None or put_id_of(there.metadata) != put_id:
            raise Conflict(f"{key} exists already: let it finish, or delete one of the two") from conflict
