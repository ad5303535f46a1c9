"""Groups of dead letters, and which of them an operator has acknowledged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta

from s3queue.documents.acknowledgements import (
    ACKNOWLEDGED_BYTES,
    MOST_LETTERS,
    Acknowledgements,
    latest_groups,
    letter_mark,
)
from s3queue.documents.dead_letter import DeadLetter
from s3queue.documents.dead_lines import line_failures
from s3queue.documents.failure_group import (
    FailureGroup,
    GroupedLetter,
    GroupKey,
    Selection,
    group_key,
    grouped,
)
from s3queue.errors import Conflict, CorruptState, InvalidRequest
from s3queue.store import ObjectInfo, listing, open_state, put_surely

from .access import QueueAccess

_log = logging.getLogger(__name__)
#: GETs of batches' letters that run at the same time.
READERS = 16
#: Operators that write at the same moment: each time one of them wins.
TRIES = 20
#: LISTs to find out which marks are of letters that are gone; with more letters than that, old marks are kept.
PAGES = 20
_UNDO = "undo everything, then acknowledge by group what may stay"
_INSTANT = timedelta(microseconds=1)


def parts_of(queue: QueueAccess, letter: DeadLetter) -> Mapping[GroupKey, tuple[int, str]]:
    """The groups of what a letter holds: how many failures, and the text of one. Of a batch, one GET."""
    if not letter.lines:
        return {group_key(letter.error_type, letter.error): (1, letter.error)}
    found = queue.store.open(queue.keys.dead(letter.path))
    parts: dict[GroupKey, tuple[int, str]] = {}
    for failure in line_failures(found.stream) if found else ():
        key = group_key(failure.type, failure.message)
        parts[key] = (parts[key][0] + 1, parts[key][1]) if key in parts else (1, failure.message)
    return parts


def groups_of(queue: QueueAccess, letters: Iterable[DeadLetter]) -> list[FailureGroup]:
    """See `DeadLetters.groups`."""
    known = known_acknowledgements(queue)

    def read(letter: DeadLetter) -> GroupedLetter:
        is_whole = is_acknowledged(letter, known)
        parts = {
            key: (count, count if is_whole or _covers_lines(known, letter, key) else 0, text)
            for key, (count, text) in parts_of(queue, letter).items()
        }
        return GroupedLetter(path=letter.path, died_at=letter.died_at, parts=parts)

    with ThreadPoolExecutor(READERS) as readers:
        return grouped(readers.map(read, letters))


def is_acknowledged(letter: DeadLetter, known: Acknowledgements) -> bool:
    """Whether all of a letter is."""
    return letter.written_at is not None and known.covers(letter.path, letter.written_at)


def _covers_lines(known: Acknowledgements, letter: DeadLetter, key: GroupKey) -> bool:
    return bool(letter.lines and letter.written_at and known.covers_group(key, letter.written_at))


def read_acknowledgements(queue: QueueAccess) -> tuple[Acknowledgements, str | None]:
    """What is acknowledged, and the ETag of the document; None if there is none. One GET."""
    found = open_state(queue.store, queue.keys.acknowledged)
    return (Acknowledgements.read(found), found.etag) if found else (Acknowledgements(), None)


def known_acknowledgements(queue: QueueAccess) -> Acknowledgements:
    """What is acknowledged. A document that cannot be read hides no letter: then none is."""
    try:
        return read_acknowledgements(queue)[0]
    except CorruptState as error:
        _log.warning("acknowledgements not read, all dead letters count: %s", error)
        return Acknowledgements()


def acknowledge(queue: QueueAccess, letters: Iterable[DeadLetter], selection: Selection, *, undo: bool = False) -> int:
    """Acknowledge those of these letters that are selected, wholly or in part; returns how many.

    Raises:
        InvalidRequest: more letters than the document has room for; nothing was changed.
    """
    at = queue.store.list(queue.keys.prefix("dead"), limit=1).at
    chosen = [(letter, parts_of(queue, letter)) for letter in letters]
    keys = {key for _, parts in chosen for key in parts if selection.has(key)}

    def change(known: Acknowledgements) -> Acknowledgements:
        if undo:
            others = {key for _, parts in chosen for key in parts} - keys
            if any(letter.written_at and known.is_before(letter.written_at) for letter, _ in chosen):
                known = _one_by_one(queue, known, others)
            marks = {letter_mark(letter.path, letter.written_at or at) for letter, _ in chosen}
            groups = {key: since for key, since in known.groups.items() if key not in keys}
            return _checked(queue, replace(known, letters=known.letters - marks, groups=groups), _UNDO)
        wanted = replace(known, groups=latest_groups([*known.groups.items(), *((key, at) for key in keys)]))
        whole = [letter for letter, parts in chosen if _is_whole(letter, parts, wanted, selection)]
        marks = {letter_mark(letter.path, letter.written_at or at) for letter in whole}
        # After `known` was read: whatever another operator has marked in it is listed, unless it is gone.
        present = _present(queue)
        kept = (known.letters if present is None else known.letters & present.keys()) | marks
        return _checked(queue, replace(wanted, letters=kept), "acknowledge everything, or delete or replay some")

    if chosen:
        _change(queue, change)
    return len(chosen)


def acknowledge_everything(queue: QueueAccess, *, undo: bool = False) -> int:
    """Everything that has died so far; returns how many letters there are. With `undo`, nothing is acknowledged."""
    count = 0

    def change(known: Acknowledgements) -> Acknowledgements:
        """Listed after the document was read, so that it has all that another operator has acknowledged in that."""
        nonlocal count
        before: datetime | None = None
        marks: set[str] = set()
        count = 0
        for page in listing(queue.store, queue.keys.prefix("dead")):
            before = before or page.at.replace(microsecond=0)
            count += len(page.objects)
            # S3 dates letters by whole seconds: of this second's, those that were listed, and none that dies after it.
            recent = [entry for entry in page.objects if entry.modified_at >= before]
            marks |= _marks(queue, recent).keys()
        if undo:
            return Acknowledgements()
        if before and known.before and known.before > before:
            # Another operator has asked a server of S3 whose clock is ahead.
            return replace(known, letters=known.letters | marks)
        return Acknowledgements(before=before, letters=frozenset(marks))

    _change(queue, change)
    return count


def _one_by_one(queue: QueueAccess, known: Acknowledgements, others: Set[GroupKey]) -> Acknowledgements:
    """The same, with a mark for each letter instead of an instant that covers them all, so that some can be taken out.

    `others`: groups of lines, in the letters that are taken out, that stay acknowledged.
    """
    present = _present(queue)
    if known.before is None or present is None:
        raise InvalidRequest(f"{queue.name} has too many dead letters to count some of them again; {_UNDO}")
    covered = {mark for mark, written_at in present.items() if known.is_before(written_at)}
    last = known.before - _INSTANT
    groups = [*known.groups.items(), *((key, max(last, known.groups.get(key, last))) for key in others)]
    letters = (known.letters & present.keys()) | covered
    return Acknowledgements(letters=letters, groups=latest_groups(groups))


def _checked(queue: QueueAccess, wanted: Acknowledgements, way_out: str) -> Acknowledgements:
    """Raises InvalidRequest if the document has no room for it."""
    if len(wanted.letters) > MOST_LETTERS:
        raise InvalidRequest(
            f"{queue.name}: {len(wanted.letters)} dead letters, and at most {MOST_LETTERS} can be acknowledged by "
            f"group; {way_out}"
        )
    return wanted


def _is_whole(
    letter: DeadLetter, parts: Mapping[GroupKey, tuple[int, str]], known: Acknowledgements, selection: Selection
) -> bool:
    if not letter.lines:
        return any(map(selection.has, parts))
    return all(selection.has(key) or _covers_lines(known, letter, key) for key in parts)


def _present(queue: QueueAccess) -> dict[str, datetime] | None:
    """The marks of all letters that there are, and when each was written; None if they are too many to list."""
    marks: dict[str, datetime] = {}
    last = None
    for page in listing(queue.store, queue.keys.prefix("dead"), pages=PAGES):
        last = page
        marks |= _marks(queue, page.objects)
    return None if last is not None and last.next_after is not None else marks


def _marks(queue: QueueAccess, entries: Iterable[ObjectInfo]) -> dict[str, datetime]:
    paths = ((queue.keys.path_under("dead", entry.key), entry.modified_at) for entry in entries)
    return {letter_mark(path, written_at): written_at for path, written_at in paths if path}


def _change(queue: QueueAccess, change: Callable[[Acknowledgements], Acknowledgements]) -> None:
    """GET, change, conditional PUT; again if another operator wrote in between.

    Raises:
        InvalidRequest: nobody could read what would be written; nothing was changed.
    """
    for _ in range(TRIES):
        known, etag = read_acknowledgements(queue)
        body = change(known).to_bytes(queue.chance.token())
        if len(body) > ACKNOWLEDGED_BYTES:
            raise InvalidRequest(
                f"{queue.name}: what is acknowledged by group needs {len(body)} bytes, not at most "
                f"{ACKNOWLEDGED_BYTES}; acknowledge everything, or delete or replay some"
            )
        try:
            put_surely(queue.store, queue.keys.acknowledged, body, if_match=etag, if_absent=etag is None)
            return
        except Conflict:
            continue
    raise Conflict(f"{queue.keys.acknowledged} is written all the time; try again")
