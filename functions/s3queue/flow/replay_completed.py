"""Replays a completed message from the payload that was kept: a new message of its name, once per completion.  [P1]"""

from __future__ import annotations

from datetime import timedelta

from s3queue.documents.batch import spooled
from s3queue.documents.dead_facts import own_metadata
from s3queue.documents.kept_payload import is_payload_of, replay_id
from s3queue.documents.once import moved_id
from s3queue.documents.record import Record
from s3queue.encoding import put_id_of, with_put_id
from s3queue.errors import Conflict, InvalidRequest, MessageNotFound, Unavailable
from s3queue.paths import name_of, partition_of
from s3queue.protocol.access import QueueAccess
from s3queue.protocol.journal import find_outcome
from s3queue.protocol.partition_replay import goes_to_end, replay_once
from s3queue.protocol.partition_status import read_partition
from s3queue.store import Object

#: Seconds between two tries of a replay whose answer does not say what became of it.
PAUSES = (0.2, 0.8, 2.0)
#: The most that S3 takes in one PUT.
PUT_BYTES = 5 * 1024**3


def replay_completed(queue: QueueAccess, record: Record) -> str:
    """See `Queue.replay`; `record` is the completion that is replayed."""
    for pause in PAUSES:
        try:
            return _replay(queue, record)
        except Unavailable:
            queue.clock.sleep(pause)
    return _replay(queue, record)


def _replay(queue: QueueAccess, record: Record) -> str:
    """HEAD message, GET record: was this completion replayed before? HEAD lease, GET payload, PUT message."""
    if goes_to_end(record.path):
        return _replay_to_end(queue, record)
    target = f"messages/{name_of(record.path)}"
    mark = replay_id(record)
    # In this order: a replay that ran in between is recorded before its message goes.
    if _is_there(queue, target, mark) or _has_run(queue, target, mark):
        return target
    _check_latest(queue, record)
    _check_cleared(queue, target)
    kept = _open(queue, record)
    if kept.size > PUT_BYTES:
        kept.stream.close()
        raise InvalidRequest(f"{kept.key} has {kept.size} bytes, S3 takes {PUT_BYTES} in one conditional PUT")
    if kept.at - record.generation.put_at < timedelta(seconds=1):
        # Equal bytes within one second are one generation, and that one is finished.
        queue.clock.sleep(1.0)
    with spooled(kept.stream) as body:
        try:
            queue.store.put(
                queue.keys.message(target),
                body,
                if_absent=True,
                metadata=with_put_id(own_metadata(kept), mark),
                content_type=kept.content_type,
                once=True,
            )
        except Conflict:
            if not _is_there(queue, target, mark) and not _has_run(queue, target, mark):
                raise _occupied(queue, target) from None
    queue.events.emit("message.enqueued", queue=queue.name, path=target, size=kept.size, replayed=True)
    return target


def _replay_to_end(queue: QueueAccess, record: Record) -> str:
    """A message of a group becomes the last one of it; a repetition has the same name and id, and does not run."""
    mark = moved_id(replay_id(record), record.finished_at)
    if ended := find_outcome(queue, record.path, mark):
        return ended.path
    _check_latest(queue, record)
    kept = _open(queue, record)
    with kept.stream:
        target = replay_once(queue, record.path, kept, own_metadata(kept), mark)
    queue.events.emit("message.enqueued", queue=queue.name, path=target, size=kept.size, replayed=True)
    return target


def _is_there(queue: QueueAccess, target: str, mark: str) -> bool:
    """Whether the replay lies there. Raises Conflict if another message does."""
    found = queue.store.head(queue.keys.message(target))
    if found is None:
        return False
    if put_id_of(found.metadata) != mark:
        raise _occupied(queue, target)
    return True


def _has_run(queue: QueueAccess, target: str, mark: str) -> bool:
    record = queue.outcome_of(target)
    return record is not None and record.put_id == mark


def _check_latest(queue: QueueAccess, record: Record) -> None:
    latest = queue.outcome_of(record.path)
    if latest is None or (latest.nonce, latest.generation) != (record.nonce, record.generation):
        raise Conflict(f"{queue.name}/{record.path} has another outcome by now; read its status, and replay that one")
    target = f"messages/{name_of(record.path)}"
    if target != record.path and queue.outcome_of(target):
        # A delayed message is replayed under another name: what was replayed from there, again, has its record now.
        raise Conflict(f"{queue.name}/{record.path} was replayed before: read the status of {target}, and replay that")


def _check_cleared(queue: QueueAccess, target: str) -> None:
    """Raises Conflict while the lease of the completed message lies there. If its worker died, the sweeper would take
    equal bytes for what that worker had, and charge the attempt to them.  [P5] In a partition, whoever clears what its
    lease has committed would delete them.  [P1]
    """
    if partition := partition_of(target):
        held = read_partition(queue, partition)
        is_held = held is not None and (target in held.lease.taken or target in {one.path for one in held.lease.ended})
    else:
        is_held = queue.store.head(queue.keys.lease(target)) is not None
    if is_held:
        raise Conflict(f"{queue.name}/{target} is not cleared away yet; replay it when its lease is gone")


def _open(queue: QueueAccess, record: Record) -> Object:
    kept = queue.store.open(queue.keys.done(record.path)) if record.keeps_payload else None
    if kept and is_payload_of(kept, record):
        return kept
    if kept:
        kept.stream.close()
    raise MessageNotFound(
        f"the payload of {queue.name}/{record.path} was not kept; define the queue with keep_payload=True, and the "
        "payloads of messages that are completed from then on are"
    )


def _occupied(queue: QueueAccess, target: str) -> Conflict:
    return Conflict(f"{queue.name}/{target} exists already: let it finish, or delete it")
