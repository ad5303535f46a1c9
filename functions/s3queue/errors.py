"""Everything s3queue raises, one class per reaction.

QueueError
├── Conflict            someone else got there first; nothing was written
│   └── LeaseLost       stop working on the message: it is no longer yours
│       └── Cancelled   an operator cancelled it; what the handler returns does not count
├── Unavailable         no clear answer from the store; the write may or may not have happened
│   └── Contended       409: several writers at once, perhaps none of them won; try again
├── AccessDenied        grant the permission that the text names
│   └── Unreadable      no permission helps: the object is archived, or encrypted with a foreign key
├── InvalidRequest      change the call
│   ├── MessageTooLarge
│   ├── InvalidPriority
│   ├── InvalidName
│   └── QueueFull       wait, or raise max_depth
├── NoSpace             the temporary folder is full; the attempt failed, others may succeed
├── NotFound            no such bucket at this endpoint: check both
│   ├── MessageNotFound
│   └── QueueNotFound   nothing of that name; the text says what it may have been meant to be
└── CorruptState        stored bytes cannot be read; stop, and check who wrote them
    └── NewerFormat     a newer version wrote them; upgrade this side

AttemptFailed           given to `on_error` hooks, never raised: an attempt failed although no handler raised

Reject, Retry, Postpone  raised by handlers, to say what happens to the message next
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta


class QueueError(Exception):
    """The base class: `except QueueError` catches everything that s3queue itself raises."""


class Conflict(QueueError):
    """Someone else got there first; this request wrote nothing.

    If `retried` is true, the request was sent more than once, and an earlier try may itself be the winner: read the
    object before you believe that someone else was first.
    """

    def __init__(self, message: str, *, retried: bool = False) -> None:
        super().__init__(message)
        self.retried = retried


class LeaseLost(Conflict):
    """The message belongs to someone else by now: stop, and write nothing more about it."""


class Cancelled(LeaseLost):
    """An operator cancelled the message: stop. It is neither a failure nor an attempt that is tried again."""


class Unavailable(QueueError):
    """No answer, or an answer that leaves open what happened: the write may or may not have been done."""


class Contended(Unavailable):
    """S3's 409: several conditional writes met, and perhaps none of them won. This is not a lost race: try again."""


class AccessDenied(QueueError):
    """The credentials lack a permission; the text names the action, the key and the statement to add."""


class Unreadable(AccessDenied):
    """The object itself cannot be read: it is archived, or encrypted with a key that is not ours to use. Of a document
    that s3queue writes, this is CorruptState.
    """


class NotSent(QueueError):
    """What a completed message has sent cannot be stored; the message is kept, and every sweep tries again."""


class InvalidRequest(QueueError, ValueError):
    """The call itself is wrong; repeating it will not help."""


class MessageTooLarge(InvalidRequest):
    """The message is larger than `max_message_size`; or the batch has too many bytes or lines."""


class InvalidPriority(InvalidRequest):
    """Priorities are whole numbers from 0 to 255; 255 runs first."""


class InvalidName(InvalidRequest):
    """The name of a queue or of a message cannot be used in an object key."""


class QueueFull(InvalidRequest):
    """The sweeper's last count is at or above the queue's `max_depth`."""


class NoSpace(QueueError):
    """The temporary folder cannot hold a batch or a large dead letter: give it more room, or lower `max_batch_size`."""


class NotFound(QueueError):
    """The bucket does not exist in this account and region, or the endpoint is no S3: check name and address."""


class MessageNotFound(NotFound):
    """No message, record or dead letter has this path."""


class QueueNotFound(NotFound):
    """Nobody serves a queue of this name, and it has no objects: it may be a typo.

    `suggestions` are the names of queues that look like it.
    """

    def __init__(self, name: str, suggestions: Sequence[str] = ()) -> None:
        meant = f". Did you mean {' or '.join(suggestions)}?" if suggestions else ""
        super().__init__(f"there is no queue {name!r}{meant or f'; create it with `s3queue create {name}`'}")
        self.suggestions = tuple(suggestions)


class CorruptState(QueueError):
    """Stored bytes cannot be read: someone else overwrote them. Stop, and check who."""


class NewerFormat(CorruptState):
    """A newer version of s3queue wrote the object: upgrade this side. Such an object is never overwritten or buried."""


class AttemptFailed(QueueError):
    """What an `on_error` hook gets if no handler raised. `type` and text are those of the stored failure: LeaseExpired,
    HandlerTimeout, RunFailed, Reject of a payload that does not parse, or the first error of a batch's lines.
    """

    def __init__(self, type: str, message: str) -> None:
        super().__init__(message)
        self.type = type


class Reject(Exception):
    """Raised by a handler: the message is dead at once, with this reason."""


class Retry(Exception):
    """Raised by a handler: try again after `after`, or after the retry policy's delay if it is not given.

    It counts as an attempt, like any other failure.

    Raises:
        TypeError, ValueError, OverflowError: `after` is no number of seconds and no timedelta, so the attempt fails.
    """

    #: Also of a subclass that does not call this class's `__init__`.
    after: timedelta | None = None

    def __init__(self, message: str = "retry asked by the handler", *, after: float | timedelta | None = None) -> None:
        super().__init__(message)
        self.after = None if after is None else _delay("Retry", after)


class Postpone(Exception):
    """Raised by a handler: run this message again after `after`; this is no failure, and does not count as an attempt.

    After `max_postpones` of them, which is 1,000 unless the queue says otherwise, each is a failed attempt.

    Raises:
        TypeError, ValueError, OverflowError: as `Retry`.
    """

    #: As `Retry.after`.
    after: timedelta = timedelta(seconds=1)

    def __init__(self, message: str = "postponed by the handler", *, after: float | timedelta = after) -> None:
        super().__init__(message)
        self.after = _delay("Postpone", after)


def _delay(asked: str, after: float | timedelta) -> timedelta:
    """Checked while the handler runs: a mistake is its own failed attempt, and not an outcome that nobody can write."""
    if isinstance(after, timedelta):
        return after
    if isinstance(after, (int, float)):
        return timedelta(seconds=after)
    raise TypeError(f"{asked}(after=…) takes a number of seconds or a timedelta, not {after!r}")
