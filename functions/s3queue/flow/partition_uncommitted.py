"""What became of the messages of a held partition since its last commit.  [P9]"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field

from s3queue.documents.record import Record
from s3queue.protocol.access import QueueAccess
from s3queue.protocol.claim import Claim
from s3queue.store import ObjectInfo

#: A commit comes at the latest this long after the last one: what was not committed runs again after a crash.
COMMIT_SECONDS = 10.0
#: A commit comes early if its outcomes have more bytes than this.
COMMIT_BYTES = 1024 * 1024


@dataclass(slots=True)
class Uncommitted:
    """Counts from the next commit on. The hold's mutex guards it."""

    #: When the last commit began, by the queue's monotonic clock.
    since: float
    #: Path → its outcome.
    ended: dict[str, Record] = field(default_factory=dict)
    #: Path → a message that is deleted without one: it was finished before, and was PUT again since.
    repeated: dict[str, ObjectInfo] = field(default_factory=dict)
    #: Of the outcomes. About: the numbers and names beside these are small.
    size: int = 0
    #: Whether attempts failed.
    has_failed: bool = False
    #: Events, by the path of their message.
    news: list[tuple[str, Callable[[], None]]] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.ended or self.repeated or self.has_failed)

    def is_due(self, queue: QueueAccess, claim: Claim) -> bool:
        """Whether nothing more may start before it is committed."""
        if self.is_empty:
            return False
        passed = queue.clock.monotonic() - self.since
        # A worker without a heartbeat must not start what may outlast its lease.
        needed = min(queue.settings.handler_timeout, queue.settings.visibility_timeout * 0.8)
        return passed > COMMIT_SECONDS or self.size > COMMIT_BYTES or claim.remaining() < needed

    def end(self, path: str, record: Record) -> None:
        self.ended[path] = record
        self.size += record.about_bytes

    def tell_all_but(self, uncommitted: Container[str]) -> None:
        """Emit the events of what is committed. Before the outcomes are cleared: should that fail, whoever goes on with
        it tells nothing.
        """
        ready = [news for path, news in self.news if path not in uncommitted]
        self.news = [one for one in self.news if one[0] in uncommitted]
        for news in ready:
            news()
