"""Letters: dead letters a page at a time, grouped by error; replayed, deleted or acknowledged, alone or as a group."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta

from s3queue.documents.acknowledgements import Acknowledgements
from s3queue.documents.dead_letter import DeadLetter
from s3queue.documents.failure_group import Selection, group_key
from s3queue.errors import InvalidRequest, MessageNotFound, QueueError
from s3queue.paths import partition_of
from s3queue.protocol.dead_groups import acknowledge as acknowledge_letters
from s3queue.protocol.dead_groups import acknowledge_everything, is_acknowledged, parts_of
from s3queue.protocol.dead_letters import DeadLetters
from s3queue.protocol.partition_replay import goes_to_end, in_turn
from s3queue.queue import Queue

from . import requests
from .bucket_view import PAGES
from .letter_models import Acknowledged, DeadPage, DeadView, DeletedLetters, ErrorGroup, Errors, Failed, Replayed
from .parallel import in_parallel

#: Dead letters that one call reads at most; each costs a HEAD.
MOST_READ = 1000
EXAMPLES = 5
#: Dead letters of one group that one call replays at most: a function has a minute, and each takes ten requests.
MOST_IN_TURN = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Selects dead letters; fields that are None select all."""

    error_type: str | None = None
    older_than_seconds: float | None = None
    newer_than_seconds: float | None = None
    message: str | None = None
    acknowledged: bool | None = None


def scan(queue: Queue, wanted: Filter, cursor: str, limit: int) -> tuple[list[DeadLetter], str | None]:
    """Up to `limit` dead letters after the cursor, and the next cursor; None if there are no more.

    It reads a limited number: to find a rare error among a hundred thousand letters takes several calls, not minutes.
    """
    letters = DeadLetters(queue).list(
        older_than=_span(wanted.older_than_seconds), newer_than=_span(wanted.newer_than_seconds), after=cursor
    )
    found: list[DeadLetter] = []
    selection = Selection.of(wanted.error_type, wanted.message)
    known = Acknowledgements() if wanted.acknowledged is None else DeadLetters(queue).acknowledgements()
    for read, letter in enumerate(letters):
        if len(found) == limit or read == MOST_READ:
            return found, cursor
        cursor = letter.path
        if wanted.acknowledged is not None and is_acknowledged(letter, known) is not wanted.acknowledged:
            continue
        if _is_selected(queue, letter, selection):
            found.append(letter)
    return found, None


def _is_selected(queue: Queue, letter: DeadLetter, selection: Selection) -> bool:
    if selection.message is not None:
        return any(map(selection.has, parts_of(queue, letter)))
    return selection.error_type is None or selection.error_type in letter.counts


def page(queue: Queue, wanted: Filter, cursor: str, limit: int) -> DeadPage:
    found, next_cursor = scan(queue, wanted, cursor, limit)
    known = DeadLetters(queue).acknowledgements() if found else Acknowledgements()
    return DeadPage(letters=[_view(letter, known) for letter in found], next_cursor=next_cursor)


def _view(letter: DeadLetter, known: Acknowledgements) -> DeadView:
    group = group_key(letter.error_type, letter.error)
    return DeadView(**letter.to_json(), message=group.message, acknowledged=is_acknowledged(letter, known))


def errors(queue: Queue) -> Errors:
    """Groups by error type and message, largest first, over the first thousand dead letters."""
    read, next_cursor = scan(queue, Filter(), "", MOST_READ)
    groups = [ErrorGroup(**group.to_json()) for group in DeadLetters(queue).groups(read)]
    return Errors(groups=groups, read=len(read), exact=next_cursor is None)


def delete(queue: Queue, asked: requests.DeleteLetters) -> DeletedLetters:
    """Delete the letters, or the lines of batches, that the request selects.

    Raises:
        InvalidRequest: it selects nothing by a filter, and does not say `everything`.
    """
    is_filtered = asked.older_than_seconds is not None or asked.newer_than_seconds is not None
    _check_selected(asked, is_filtered)
    wanted = Filter(
        error_type=asked.error_type,
        message=asked.message,
        older_than_seconds=asked.older_than_seconds,
        newer_than_seconds=asked.newer_than_seconds,
    )
    found, next_cursor = scan(queue, wanted, asked.cursor, asked.limit)
    letters = DeadLetters(queue)

    def gone(letter: DeadLetter) -> bool:
        try:
            return letters.discard(letter, error_type=asked.error_type, message=asked.message)
        except MessageNotFound:
            return False  # it died of something else meanwhile

    deleted = 0 if asked.dry_run else sum(in_parallel(gone, found))
    return DeletedLetters(
        dry_run=asked.dry_run,
        selected=len(found),
        deleted=deleted,
        next_cursor=next_cursor,
        examples=[letter.path for letter in found[:EXAMPLES]],
    )


def acknowledge(queue: Queue, asked: requests.Acknowledge) -> Acknowledged:
    """Acknowledge the letters of a group, or everything that has died so far.

    Raises:
        InvalidRequest: it names no group, and does not say `everything`.
    """
    _check_selected(asked, False)
    next_cursor = None
    selection = Selection.of(asked.error_type, asked.message)
    if selection.is_all:
        selected = acknowledge_everything(queue, undo=asked.undo)
    else:
        wanted = Filter(error_type=asked.error_type, message=asked.message)
        found, next_cursor = scan(queue, wanted, asked.cursor, asked.limit)
        selected = acknowledge_letters(queue, found, selection, undo=asked.undo)
    return Acknowledged(selected=selected, acknowledged=queue.stats(pages=PAGES).acknowledged, next_cursor=next_cursor)


def _check_selected(asked: requests.Acknowledge | requests.DeleteLetters, is_filtered: bool) -> None:
    if not (is_filtered or asked.everything or asked.error_type is not None or asked.message is not None):
        raise InvalidRequest("name a group by error_type, message or both; or say everything=true")


def replay(queue: Queue, asked: requests.Replay, to: Queue | None = None) -> Replayed:
    """Replay the letters that the request selects; those that could not be replayed are returned with the reason.

    Raises:
        MessageNotFound, Conflict: the request named one letter, and it could not be replayed.
    """
    letters = DeadLetters(queue)

    def put_back(path: str) -> None:
        if to:
            queue.replay(path, to=to)
        else:
            letters.replay(path, error_type=asked.error_type, message=asked.message)

    if asked.path is not None:
        # For a single letter, an error is the answer itself, not an entry in it.
        if asked.dry_run:
            # Not its payload, which may be of any size.
            letters.describe(asked.path)
        else:
            put_back(asked.path)
        return Replayed(
            dry_run=asked.dry_run,
            selected=1,
            replayed=0 if asked.dry_run else 1,
            failed=[],
            next_cursor=None,
            examples=[asked.path],
        )
    wanted = Filter(
        error_type=asked.error_type,
        older_than_seconds=asked.older_than_seconds,
        newer_than_seconds=asked.newer_than_seconds,
        message=asked.message,
    )
    found, next_cursor = _in_time(*scan(queue, wanted, asked.cursor, asked.limit))
    selected = [letter.path for letter in found]
    selection = Selection.of(asked.error_type, asked.message)
    mixed = {letter.path for letter in found if to and letter.lines and not _is_whole(queue, letter, selection)}

    def one(path: str) -> Failed | None:
        try:
            if to and path in mixed:
                # Its other lines would go along, which nobody has asked for.
                raise InvalidRequest("of a batch that died of several errors, all lines go to another queue: name it")
            put_back(path)
        except QueueError as error:
            return Failed(path=path, error=type(error).__name__, message=str(error))
        return None

    rows = [] if asked.dry_run else in_turn(selected)
    failed = [said for row in in_parallel(lambda row: [one(path) for path in row], rows) for said in row if said]
    return Replayed(
        dry_run=asked.dry_run,
        selected=len(selected),
        replayed=0 if asked.dry_run else len(selected) - len(failed),
        failed=failed,
        next_cursor=next_cursor,
        examples=selected[:EXAMPLES],
    )


def _in_time(found: list[DeadLetter], next_cursor: str | None) -> tuple[list[DeadLetter], str | None]:
    """No more of a group than can be replayed, one after the other, while the caller waits."""
    many = Counter[str]()
    for index, letter in enumerate(found):
        partition = partition_of(letter.path)
        many[partition] += goes_to_end(letter.path)
        if many[partition] > MOST_IN_TURN:
            return found[:index], found[index - 1].path
    return found, next_cursor


def _is_whole(queue: Queue, letter: DeadLetter, selection: Selection) -> bool:
    """Whether all lines of a batch are selected."""
    if selection.message is None:
        return selection.error_type is None or letter.has_only(selection.error_type)
    return all(map(selection.has, parts_of(queue, letter)))


def _span(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
