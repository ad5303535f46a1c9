"""Replays into partitions: what was a message of a group goes to the end of its group, under a new name.  [P9]

Its old name would put it before messages that were enqueued, and perhaps run, since. Whoever repeats a replay after a
crash may add a second message; both carry the same put id, and whoever holds the group runs one of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from s3queue.documents.batch import spooled
from s3queue.documents.dead_facts import DEAD_METADATA
from s3queue.documents.dead_letter import DeadLetter
from s3queue.documents.once import moved_id
from s3queue.encoding import put_id_of, with_put_id
from s3queue.errors import InvalidName, InvalidRequest
from s3queue.paths import group_of, is_batch, is_ordered, name_of, partition_of, partition_path, shared_partition
from s3queue.store import Object, listing

from .access import QueueAccess
from .journal import find_outcome
from .removal import delete_letter


def goes_to_end(path: str) -> bool:
    """Whether a replay of this message gets a new name: it belongs to a group."""
    partition = partition_of(path)
    return bool(partition) and is_ordered(partition)


def is_replayed_to_end(queue: QueueAccess, letter: DeadLetter) -> bool:
    """Whether this very letter was replayed before, and has an outcome: if it died again, that has its own letter."""
    return find_outcome(queue, letter.origin, moved_id(letter.replay_id, letter.died_at)) is not None


def replay_to_end(queue: QueueAccess, letter: DeadLetter, found: Object) -> str:
    """PUT a letter at the end of its group, unless it has been replayed and has run; then DELETE it."""
    with found.stream:
        if is_batch(letter.origin):
            raise InvalidRequest(
                f"{queue.name}/{letter.path} is a batch, which no group can have: move it to messages/ without the "
                "group, or enqueue its lines one by one"
            )
        put_id = moved_id(letter.replay_id, letter.died_at)
        own = {name: text for name, text in found.metadata.items() if not name.lower().startswith(DEAD_METADATA)}
        record = find_outcome(queue, letter.origin, put_id)
        target = record.path if record else put_at_end(queue, letter.origin, found, own, put_id)
    delete_letter(queue, found)
    queue.events.emit("message.enqueued", queue=queue.name, path=target, size=found.size, replayed=True)
    return target


def put_at_end(queue: QueueAccess, path: str, found: Object, own: Mapping[str, str], put_id: str) -> str:
    """PUT what was read as the last message of the group that `path` belongs to; returns its path."""
    metadata = with_put_id(own, put_id)
    if put_id_of(metadata) != put_id:
        raise InvalidRequest(f"the metadata of {found.key} leaves no room for the id that its replay needs")
    target = end_of_group(queue, path, found)
    with spooled(found.stream) as body:
        key = queue.keys.message(target)
        queue.store.put(key, body, if_absent=True, metadata=metadata, content_type=found.content_type, once=True)
    return target


def end_of_group(queue: QueueAccess, path: str, found: Object) -> str:
    """A fresh path behind everything that the group has now. One LIST, of names that come later than the present.

    Raises:
        InvalidName: the last name of the group is too long for another one behind it.
    """
    folder = partition_path(partition_of(path))
    name = queue.chance.name(found.at)
    last = ""
    for page in listing(queue.store, queue.keys.message(folder), after=queue.keys.message(folder + name)):
        last = page.objects[-1].key.removeprefix(queue.keys.message(folder)) if page.objects else last
    # Producers may choose names that sort behind all times.
    target = f"{folder}{last}~{name}" if last else folder + name
    if problem := queue.keys.problem(target):
        raise InvalidName(f"{queue.name}/{target}: {problem}")
    return target


def arrival(target: QueueAccess, path: str, found: Object) -> str:
    """Where a message goes that is replayed into another queue: a group stays a group, shares are the queue's own.

    Raises:
        InvalidRequest: it belongs to a group, and the queue sends its large messages to Spark.
    """
    partition, settings = partition_of(path), target.settings
    if not partition:
        return f"messages/{name_of(path)}"
    if is_ordered(partition):
        if settings.is_mixed or is_batch(path):
            what = "a batch" if is_batch(path) else f"queue {target.name!r}, whose large messages go to Spark,"
            raise InvalidRequest(f"{path} belongs to the group {group_of(path)!r}, which {what} cannot have")
        return end_of_group(target, path, found)
    name = path.removeprefix(partition_path(partition))
    folder = f"{shared_partition(name, settings.partitions)}/" if settings.partitions and not is_batch(name) else ""
    return f"messages/{folder}{name}"
