"""Dedup for a while: a marker names the one message of a dedup id, also after that message is finished.

The marker is written before the message. Whoever finds a marker whose message is neither there nor recorded stores it
in the first caller's place: the name and the put id are the marker's, so two of them store one message; and a PUT that
comes after the message was finished is cleared by the claim that finds its record, see `documents/once.py`.  [P4]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta

from s3queue.clock import as_positive_duration
from s3queue.documents.dedup_marker import DedupMarker
from s3queue.documents.lease import GRAIN
from s3queue.documents.message import ONCE
from s3queue.documents.once import is_ahead, reserved_id
from s3queue.encoding import encode_metadata, put_id_of, with_put_id
from s3queue.errors import AccessDenied, Conflict, CorruptState, InvalidRequest, NewerFormat, Unavailable
from s3queue.paths import partition_of
from s3queue.protocol.access import QueueAccess
from s3queue.protocol.producer import Reserved
from s3queue.store import UNKNOWN_TRIES, Object, open_state, put_surely


def reservation(
    queue: QueueAccess,
    dedup_id: str | None,
    dedup_for: float | timedelta,
    *,
    name: str | None,
    metadata: Mapping[str, str] | None,
) -> Callable[[str], Reserved]:
    """What decides, once a message's path is known, whether it is stored there, or which one it is a repetition of.

    Raises:
        InvalidRequest: the call is wrong; nothing was written.
    """
    if not isinstance(dedup_id, str) or not dedup_id:
        raise InvalidRequest(f"dedup_for needs a dedup_id, text that is not empty, not {dedup_id!r}")
    if name is not None:
        raise InvalidRequest("give a name or a dedup_id, not both: the message of a dedup_id has a name of its own")
    within = as_positive_duration(dedup_for, "dedup_for")
    longest = queue.settings.record_retention
    if within > longest:
        raise InvalidRequest(
            f"dedup_for is {within}, but records are kept for {longest}: a finished message could not be recognized; "
            "give a shorter dedup_for, or raise record_retention_seconds"
        )
    token, now = queue.chance.token(), queue.clock.now()
    put_id = reserved_id(token, now)
    if put_id_of(with_put_id(encode_metadata(metadata or {}), put_id)) != put_id:
        raise InvalidRequest("the metadata leaves no room for the id that dedup_for needs; give less metadata")
    try:
        key = queue.keys.dedup(dedup_id)
    except UnicodeEncodeError:
        raise InvalidRequest(f"a dedup_id must be valid Unicode, not {dedup_id!r}") from None

    def reserve(path: str) -> Reserved:
        # Only the outcome of a message of a partition has to be searched for.
        chosen = put_id if partition_of(path) else ONCE + token
        return _reserve(queue, key, within, DedupMarker(path=path, put_id=chosen, nonce=token))

    return reserve


def _reserve(queue: QueueAccess, key: str, within: timedelta, ours: DedupMarker) -> Reserved:
    """GET the marker; none, or it is too old: PUT ours, on condition that nobody else did.

    One that was dated by a clock that is ahead of S3's is dated anew before its message is stored, by whoever finds it.

    Raises:
        Unavailable: unknown whether it was written; calling again is safe.
        NewerFormat: a newer version wrote the marker.
    """
    denied: AccessDenied | None = None
    for _ in range(UNKNOWN_TRIES):
        found: Object | None = None
        try:
            found = open_state(queue.store, key)
        except AccessDenied as error:
            # To a producer that may not list, an object that is missing is forbidden, too: the PUT will tell.
            if denied:
                raise
            denied = error
        marker = ours
        if found and (theirs := _valid(queue, found, within)):
            if not is_ahead(theirs.put_id, found.modified_at):
                return Reserved(theirs.path, theirs.put_id, is_new=False)
            token = queue.chance.token()
            marker = replace(theirs, put_id=reserved_id(token, found.modified_at), nonce=token)
        try:
            written = put_surely(
                queue.store, key, marker.to_bytes(), if_match=found.etag if found else None, if_absent=not found
            )
        except Conflict:
            continue
        if not is_ahead(marker.put_id, written.at):
            return Reserved(marker.path, marker.put_id, is_new=marker.path == ours.path)
    raise Unavailable(f"dedup marker not written: {key}: too many writers at once; try again")


def _valid(queue: QueueAccess, found: Object, within: timedelta) -> DedupMarker | None:
    """The marker, if it is young enough to count; None also for bytes that are not a marker: they are replaced.

    Both dates are whole seconds: it counts a little longer rather than too short.
    """
    if found.at - found.modified_at > within + GRAIN:
        found.stream.close()
        return None
    try:
        marker = DedupMarker.read(found)
    except NewerFormat:
        raise
    except CorruptState:
        return None
    is_message = queue.keys.path(queue.keys.message(marker.path)) and not queue.keys.problem(marker.path)
    return marker if is_message and marker.put_id.startswith(ONCE) else None
