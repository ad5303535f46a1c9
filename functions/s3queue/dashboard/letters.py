"""Letters: dead letters a page at a time, grouped by what they died of, replayed one by one or by the group."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta

from s3queue.encoding import format_instant
from s3queue.errors import QueueError
from s3queue.protocol.dead_letters import DeadLetter, DeadLetters
from s3queue.queue import Queue

from . import models, requests
from .bucket_view import in_parallel

#: Dead letters that are looked at to group them; each is a HEAD.
MOST_READ = 1000
EXAMPLES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which dead letters are meant; what is None does not matter."""

    error_type: str | None = None
    older_than_seconds: float | None = None
    newer_than_seconds: float | None = None


def scan(queue: Queue, wanted: Filter, cursor: str, limit: int) -> tuple[list[DeadLetter], str | None]:
    """Up to `limit` dead letters behind the cursor, and where to go on; None: there are no more.

    Looks at a bounded number, so that a rare error among a hundred thousand letters takes several calls, not minutes.
    """
    letters = DeadLetters(queue).list(
        older_than=_span(wanted.older_than_seconds), newer_than=_span(wanted.newer_than_seconds), after=cursor
    )
    found: list[DeadLetter] = []
    for read, letter in enumerate(letters):
        if len(found) == limit or read == MOST_READ:
            return found, cursor
        cursor = letter.path
        if wanted.error_type is None or letter.error_type == wanted.error_type:
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
        groups.setdefault(letter.error_type, []).append(letter)
    return models.Errors(
        groups=[
            _group(error_type, groups[error_type])
            for error_type, _ in Counter(letter.error_type for letter in read).most_common()
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
        count=len(letters),
        example=example,
        example_path=next(letter.path for letter in letters if letter.error == example),
        oldest_at=format_instant(min(ages)),
        newest_at=format_instant(max(ages)),
    )


def replay(queue: Queue, asked: requests.Replay) -> models.Replayed:
    """Put back what the request selects; what could not be put back is named, with the reason.

    Raises:
        MessageNotFound, Conflict: the one letter that was asked for.
    """
    letters = DeadLetters(queue)
    if asked.path is not None:
        # One letter's trouble is the answer itself, not a line in it.
        if asked.dry_run:
            # Not its payload, which may be of any size.
            letters.describe(asked.path)
        else:
            letters.replay(asked.path)
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

    def one(path: str) -> models.Failed | None:
        try:
            letters.replay(path)
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
