"""Letters: dead letters a page at a time, grouped by error, replayed one by one or as a group."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta

from s3queue.documents.dead_letter import DeadLetter
from s3queue.encoding import format_instant
from s3queue.errors import InvalidRequest, QueueError
from s3queue.protocol.dead_letters import DeadLetters
from s3queue.queue import Queue

from . import models, requests
from .bucket_view import in_parallel

#: Dead letters that one call reads at most; each costs a HEAD.
MOST_READ = 1000
EXAMPLES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Selects dead letters; fields that are None select all."""

    error_type: str | None = None
    older_than_seconds: float | None = None
    newer_than_seconds: float | None = None


def scan(queue: Queue, wanted: Filter, cursor: str, limit: int) -> tuple[list[DeadLetter], str | None]:
    """Up to `limit` dead letters after the cursor, and the next cursor; None if there are no more.

    It reads a limited number: to find a rare error among a hundred thousand letters takes several calls, not minutes.
    """
    letters = DeadLetters(queue).list(
        older_than=_span(wanted.older_than_seconds), newer_than=_span(wanted.newer_than_seconds), after=cursor
    )
    found: list[DeadLetter] = []
    for read, letter in enumerate(letters):
        if len(found) == limit or read == MOST_READ:
            return found, cursor
        cursor = letter.path
        if wanted.error_type is None or wanted.error_type in letter.counts:
            found.append(letter)
    return found, None


def page(queue: Queue, wanted: Filter, cursor: str, limit: int) -> models.DeadPage:
    found, next_cursor = scan(queue, wanted, cursor, limit)
    return models.DeadPage(letters=[models.DeadView(**letter.to_json()) for letter in found], next_cursor=next_cursor)


def errors(queue: Queue) -> models.Errors:
    """Groups by error type, largest first, over the first thousand dead letters."""
    read, next_cursor = scan(queue, Filter(), "", MOST_READ)
    groups: dict[str, list[DeadLetter]] = {}
    for letter in read:
        for error_type in letter.counts:
            groups.setdefault(error_type, []).append(letter)
    return models.Errors(
        groups=[
            _group(error_type, groups[error_type])
            for error_type in sorted(groups, key=lambda kind: -_count(kind, groups[kind]))
        ],
        read=len(read),
        exact=next_cursor is None,
    )


def _group(error_type: str, letters: list[DeadLetter]) -> models.ErrorGroup:
    texts = Counter(letter.error for letter in letters)
    example = texts.most_common(1)[0][0]
    ages = [letter.died_at for letter in letters]
    return models.ErrorGroup(
        error_type=error_type,
        count=_count(error_type, letters),
        example=example,
        example_path=next(letter.path for letter in letters if letter.error == example),
        oldest_at=format_instant(min(ages)),
        newest_at=format_instant(max(ages)),
    )


def _count(error_type: str, letters: list[DeadLetter]) -> int:
    """Dead messages with this error; a batch counts as its lines."""
    return sum(letter.counts[error_type] for letter in letters)


def replay(queue: Queue, asked: requests.Replay, to: Queue | None = None) -> models.Replayed:
    """Replay the letters that the request selects; those that could not be replayed are returned with the reason.

    Raises:
        MessageNotFound, Conflict: the request named one letter, and it could not be replayed.
    """
    letters = DeadLetters(queue)

    def put_back(path: str) -> None:
        if to:
            queue.replay(path, to=to)
        else:
            letters.replay(path, error_type=asked.error_type)

    if asked.path is not None:
        # For a single letter, an error is the answer itself, not an entry in it.
        if asked.dry_run:
            # Not its payload, which may be of any size.
            letters.describe(asked.path)
        else:
            put_back(asked.path)
        return models.Replayed(
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
    )
    found, next_cursor = scan(queue, wanted, asked.cursor, asked.limit)
    selected = [letter.path for letter in found]
    mixed = {letter.path for letter in found if asked.error_type and not letter.has_only(asked.error_type)}

    def one(path: str) -> models.Failed | None:
        try:
            if to and path in mixed:
                # Its other lines would go along, which nobody has asked for.
                raise InvalidRequest("of a batch that died of several errors, all lines go to another queue: name it")
            put_back(path)
        except QueueError as error:
            return models.Failed(path=path, error=type(error).__name__, message=str(error))
        return None

    failed = [] if asked.dry_run else [said for said in in_parallel(one, selected) if said]
    return models.Replayed(
        dry_run=asked.dry_run,
        selected=len(selected),
        replayed=0 if asked.dry_run else len(selected) - len(failed),
        failed=failed,
        next_cursor=next_cursor,
        examples=selected[:EXAMPLES],
    )


def _span(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
