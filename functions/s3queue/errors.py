"""Everything s3queue raises, one class per reaction.

QueueError
├── Conflict            someone else got there first; nothing was written
│   └── LeaseLost       stop working on the message: it is no longer yours
├── Unavailable         the store did not say; the write may or may not have happened
│   └── Contended       409: several writers at once, perhaps none of them won; try again
├── AccessDenied        grant the permission that it names
├── InvalidRequest      change the call
│   ├── MessageTooLarge
│   ├── InvalidPriority
│   ├── InvalidName
│   └── QueueFull       wait, or raise max_depth
├── NotFound            no such bucket
│   └── MessageNotFound
└── CorruptState        stored bytes make no sense; stop and look
    └── NewerFormat     a newer version wrote them; upgrade this side

Reject, Retry           raised by handlers, to say what becomes of the message
"""

from __future__ import annotations

from datetime import timedelta


class QueueError(Exception):
    """The root: `except QueueError` catches whatever s3queue itself raises."""


class Conflict(QueueError):
    """Someone else got there first; this request wrote nothing.

    `retried` says that an earlier try of the same request may have been the someone: read before you believe it.
    """

    def __init__(self, message: str, *, retried: bool = False) -> None:
        super().__init__(message)
        self.retried = retried


class LeaseLost(Conflict):
    """The message is someone else's by now: stop, and write nothing more about it."""


class Unavailable(QueueError):
    """No answer, or one that does not say: the write may or may not have happened."""


class Contended(Unavailable):
    """S3's 409: several conditional writes met, and perhaps none of them won. Not a loss: try again."""


class AccessDenied(QueueError):
    """The credentials lack a permission; the text names the action, the key and the statement to add."""


class InvalidRequest(QueueError, ValueError):
    """The call itself is wrong; repeating it will not help."""


class MessageTooLarge(InvalidRequest):
    """Larger than the queue's `max_message_size`."""


class InvalidPriority(InvalidRequest):
    """Priorities are whole numbers from 0 to 255; 255 runs first."""


class InvalidName(InvalidRequest):
    """A queue's or a message's name that cannot become an object key."""


class QueueFull(InvalidRequest):
    """The sweeper's last count is at or above the queue's `max_depth`."""


class NotFound(QueueError):
    """The bucket does not exist, or not in this account and region."""


class MessageNotFound(NotFound):
    """Neither a message nor a record nor a dead letter has this path."""


class CorruptState(QueueError):
    """Stored bytes make no sense: someone overwrote them; stop and look."""


class NewerFormat(CorruptState):
    """A newer version of s3queue wrote it: upgrade this side. Never overwritten, never buried."""


class Reject(Exception):
    """Raised by a handler: the message is dead at once, with this reason."""


class Retry(Exception):
    """Raised by a handler: try again, `after` this long if given, else as the retry policy says.

    It counts as an attempt like any other failure.
    """

    def __init__(self, message: str = "asked for by the handler", *, after: float | timedelta | None = None) -> None:
        super().__init__(message)
        self.after = timedelta(seconds=after) if isinstance(after, (int, float)) else after
