"""Replays into partitions: what was a message of a group goes to the end of its group, under a new name.  [P9]

Its old name would put it before messages that were enqueued, and perhaps run, since. What is replayed has one new name:
a marker says which, and whoever replays the same goes by it. So the PUT of that name decides between two operators, as
it does where no group is: a message that lies in a group may start at any moment, and then it is too late to decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import IO

from s3queue.documents.batch import PIECE_BYTES, spooled
from s3queue.documents.dead_facts import own_metadata
from s3queue.documents.dead_letter import DeadLetter
from s3queue.documents.dedup_marker import DedupMarker
from s3queue.documents.once import moved_id
from s3queue.documents.record import Record
from s3queue.encoding import put_id_of, with_put_id
from s3queue.errors import Conflict, CorruptState, InvalidName, InvalidRequest, NewerFormat, Unavailable
from s3queue.paths import group_of, is_batch, is_ordered, name_of, partition_of, partition_path, shared_partition
from s3queue.store import UNKNOWN_TRIES, Object, listing, open_state, put_surely

from .access import QueueAccess
from .journal import find_outcome
from .removal import delete_letter


def goes_to_end(path: str) -> bool:
    """Whether a replay of this message gets a new name: it belongs to a group."""
    partition = partition_of(path)
    return bool(partition) and is_ordered(partition)


def in_turn(paths: Iterable[str]) -> list[list[str]]:
    """Paths that may be replayed side by side, each alone; those of one group together, one after the other.  [P9]

    A replay goes to the end of its group, so the order in which a group's letters are replayed is the order of the
    group.
    """
    rows: dict[str, list[str]] = {}
    for path in paths:
        rows.setdefault(partition_of(path) if goes_to_end(path) else path, []).append(path)
    return [*rows.values()]


def outcome_at_end(queue: QueueAccess, letter: DeadLetter) -> Record | None:
    """What became of an earlier replay of this very letter: if it died again, that has its own letter."""
    return find_outcome(queue, letter.origin, moved_id(letter.replay_id, letter.died_at))


def replay_to_end(queue: QueueAccess, letter: DeadLetter, found: Object) -> str:
    """PUT a letter at the end of its group, unless it has been replayed and has run; then DELETE it."""
    with found.stream:
        if is_batch(letter.origin):
            raise InvalidRequest(
                f"{queue.name}/{letter.path} is a batch, which no group can have: move it to messages/ without the "
                "group, or enqueue its lines one by one"
            )
        put_id = moved_id(letter.replay_id, letter.died_at)
        own = own_metadata(found)
        record = find_outcome(queue, letter.origin, put_id)
        target = record.path if record else replay_once(queue, letter.origin, found, own, put_id)
    delete_letter(queue, found)
    queue.events.emit("message.enqueued", queue=queue.name, path=target, size=found.size, replayed=True)
    return target


def replay_once(queue: QueueAccess, path: str, found: Object, own: Mapping[str, str], put_id: str) -> str:
    """As `put_at_end`; another call's replay of it may also have run by now. Returns its path."""
    try:
        return put_at_end(queue, path, found, own, put_id)[0]
    except Conflict:
        record = find_outcome(queue, path, put_id)
        if record is None:
            raise
        return record.path


def put_at_end(queue: QueueAccess, path: str, found: Object, own: Mapping[str, str], put_id: str) -> tuple[str, str]:
    """PUT what was read as the last message of the group that `path` belongs to; returns its path and its ETag.

    What lies there with the same bytes is this very replay: its answer was lost, or its caller died.

    Raises:
        Conflict: it is replayed with other bytes, or was until now; or a stranger has taken its name.
    """
    metadata = with_put_id(own, put_id)
    if put_id_of(metadata) != put_id:
        raise InvalidRequest(f"the metadata of {found.key} leaves no room for the id that its replay needs")
    target = _place(queue, path, found, put_id)
    with spooled(found.stream) as body:
        key = queue.keys.message(target)
        try:
            written = queue.store.put(
                key, body, if_absent=True, metadata=metadata, content_type=found.content_type, once=True
            )
            return target, written.etag
        except Conflict:
            if etag := etag_if_same(queue, target, put_id, body):
                return target, etag
    raise Conflict(f"{queue.name}/{target} exists already: let it finish, or delete one of the two")


def etag_if_same(queue: QueueAccess, target: str, put_id: str, body: IO[bytes]) -> str:
    """The ETag of what lies there, if it is this very replay, whose answer was lost; else empty."""
    found = queue.store.open(queue.keys.message(target))
    if found is None:
        return ""
    with found.stream as stream:
        if put_id_of(found.metadata) != put_id:
            return ""
        body.seek(0)
        while piece := stream.read(PIECE_BYTES):
            if body.read(len(piece)) != piece:
                return ""
        return "" if body.read(1) else found.etag


def _place(queue: QueueAccess, path: str, found: Object, put_id: str) -> str:
    """The one path of this replay: the end of the group, as it was when the first caller asked. GET and PUT a marker.

    It stays when its caller dies before the PUT: a PUT that comes late must not be the second message of the replay.
    """
    key = queue.keys.replay_place(put_id)
    for _ in range(UNKNOWN_TRIES):
        stored = open_state(queue.store, key)
        if stored and (place := _marked(queue, stored, path, put_id)):
            return place
        marker = DedupMarker(path=end_of_group(queue, path, found), put_id=put_id, nonce=queue.chance.token())
        try:
            etag = stored.etag if stored else None
            put_surely(queue.store, key, marker.to_bytes(), if_match=etag, if_absent=not stored)
        except Conflict:
            continue
        return marker.path
    raise Unavailable(f"marker not written: {key}: too many writers at once; try again")


def _marked(queue: QueueAccess, stored: Object, path: str, put_id: str) -> str:
    """What a marker says; empty if it is garbage, or names no message of this group: then it is replaced."""
    try:
        marker = DedupMarker.read(stored)
    except NewerFormat:
        raise
    except CorruptState:
        return ""
    is_message = queue.keys.path(queue.keys.message(marker.path)) and not queue.keys.problem(marker.path)
    is_here = marker.put_id == put_id and partition_of(marker.path) == partition_of(path)
    return marker.path if is_message and is_here else ""


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
