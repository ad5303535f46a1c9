"""What a replay or a deletion of a dead letter writes besides the letter: its message, and the lease in its way."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from s3queue.documents.batch import spooled
from s3queue.documents.dead_facts import own_metadata
from s3queue.documents.dead_letter import DeadLetter
from s3queue.documents.message import MOVED, Generation
from s3queue.documents.once import is_once, moved_id
from s3queue.encoding import put_id_of, with_put_id
from s3queue.errors import InvalidRequest, MessageNotFound
from s3queue.paths import partition_of
from s3queue.store import Object, ObjectInfo, delete_seen, delete_unique

from .access import QueueAccess
from .removal import delete_letter

#: The most that S3 takes in one PUT.
PUT_BYTES = 5 * 1024**3


def is_of(message: ObjectInfo, letter: DeadLetter) -> bool:
    """Whether a letter stands for this message, and not for another one of its name."""
    return Generation(etag=message.etag, put_at=message.modified_at) == letter.generation


def no_such_letter(queue: QueueAccess, path: str) -> MessageNotFound:
    return MessageNotFound(f"no such dead letter: {queue.name}/{path}; `s3queue dead list` shows all of them")


def put_back(queue: QueueAccess, path: str, found: Object, metadata: Mapping[str, str], **condition: Any) -> None:
    """PUT what was read as a message. No COPY: it overwrites what a producer has PUT there meanwhile.  [P1]"""
    key = queue.keys.message(path)
    if found.size > PUT_BYTES:
        found.stream.close()
        raise InvalidRequest(
            f"{found.key} has {found.size} bytes, S3 takes {PUT_BYTES} in one conditional PUT; see that nobody "
            f"writes {key}, then move it: `aws s3 mv`"
        )
    with spooled(found.stream) as body:
        queue.store.put(key, body, metadata=metadata, content_type=found.content_type, once=True, **condition)


def replay_in_place(queue: QueueAccess, letter: DeadLetter, info: ObjectInfo) -> str:
    """A message that could not be read lies where it was PUT: PUT it once more, which makes it a new one."""
    if letter.generation and info.at - letter.generation.put_at < timedelta(seconds=1):
        # Equal bytes within one second are one generation, and that one is dead.  [P3]
        queue.clock.sleep(1.0)
    message = queue.store.open(queue.keys.message(letter.origin))
    if message and is_of(message, letter):
        put_back(queue, letter.origin, message, _as_replay(letter, message), if_match=message.etag)
    elif message:
        message.stream.close()  # PUT anew since, by a producer or by an earlier replay: it runs as it is
    _free(queue, letter)
    delete_letter(queue, info)
    if message is None:
        raise no_such_letter(queue, letter.path)
    return letter.origin


def _as_replay(letter: DeadLetter, message: Object) -> Mapping[str, str]:
    """The metadata of what is replayed where it lies. Of a message that counts once, the death would pass for the
    outcome, and it would be deleted without having run: so it gets the id of its letter's replay.  [P1] [P7]

    Not one that only an earlier replay made count once: its name may be a producer's. Over equal bytes that were PUT
    there since, a replay that comes late, with the id of one that has run, would have them deleted.
    """
    if not is_once(letter.origin, message.metadata):
        return message.metadata
    own = own_metadata(message)
    if put_id_of(message.metadata).startswith(MOVED) and not is_once(letter.origin, own):
        return own
    # In a partition, the id tells which journals to search for it.
    put_id = moved_id(letter.replay_id, letter.died_at) if partition_of(letter.origin) else letter.replay_id
    marked = with_put_id(own, put_id)
    if put_id_of(marked) != put_id:
        message.stream.close()
        raise InvalidRequest(
            f"the metadata of {message.key} leaves no room for the id that its replay needs: PUT it again with less"
        )
    return marked


def delete_in_place(queue: QueueAccess, letter: DeadLetter) -> None:
    """An unreadable message lies where it was PUT, and goes with its letter: the message first, then its lease.

    What was PUT under its name since is not what the letter stands for.  [P1]
    """
    key = queue.keys.message(letter.origin)
    message = next((entry for entry in queue.store.list(key, limit=1).objects if entry.key == key), None)
    if message and is_of(message, letter):
        delete_seen(queue.store, key, etag=message.etag, modified_at=message.modified_at)
    _free(queue, letter)


def _free(queue: QueueAccess, letter: DeadLetter) -> None:
    """Delete the lease that kept workers off an unreadable message; not that of another one of its name."""
    held = queue.read_lease(letter.origin)
    if held and held.lease.state == "waiting" and held.lease.generation == letter.generation:
        delete_unique(queue.store, held.key, if_match=held.etag)
