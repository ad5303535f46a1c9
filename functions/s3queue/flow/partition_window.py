"""Which messages of a partition are taken next.  [P9]"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from s3queue.documents.lease import NEVER
from s3queue.documents.message import Generation, is_placeholder
from s3queue.documents.partition import MOST_WAITING, Waiting
from s3queue.encoding import EARLIEST
from s3queue.keys import is_ordered, partition_path
from s3queue.protocol.access import QueueAccess
from s3queue.store import ObjectInfo

#: Messages that are taken, and then committed, together.
WINDOW = 100
#: Messages that one LIST shows.
PAGE = 1000


@dataclass(slots=True)
class PartitionWindow:
    """The messages of one partition, as the last LIST showed them, without those that were chosen since."""

    queue: QueueAccess
    partition: str
    #: Path → a message that failed, or that its worker may have died of.
    waiting: dict[str, Waiting]
    _listed: deque[ObjectInfo] = field(default_factory=deque)
    _is_whole: bool = False
    #: S3's time at the last LIST.
    listed_at: datetime = EARLIEST

    @property
    def has_left(self) -> bool:
        """Whether messages were seen that nobody has taken, or may be there."""
        return bool(self._listed) or not self._is_whole

    def look(self) -> list[str]:
        """Look at the partition anew; returns the paths that wait, and are gone. One LIST."""
        prefix = self.queue.keys.message(partition_path(self.partition))
        page = self.queue.store.list(prefix, limit=PAGE)
        self._listed = deque(info for info in page.objects if not is_placeholder(info))
        self._is_whole, self.listed_at = page.next_after is None, page.at
        if not self._is_whole:
            return []
        present = {self.path(info) for info in self._listed}
        return [path for path in self.waiting if path not in present]

    def forget(self) -> None:
        """The next choice needs a new LIST: it shows in its place what was taken, and waits now."""
        self._listed.clear()
        self._is_whole = False

    def put_back(self, chosen: deque[ObjectInfo]) -> None:
        """Some that were chosen were not started."""
        self._listed.extendleft(reversed(chosen))
        chosen.clear()

    def choose(self, now: datetime, finished: Mapping[str, str]) -> list[ObjectInfo]:
        """The next ones, in the order of their names, without `finished`: path → ETag.

        One that its worker may have died of comes alone, so that the next death is known to be its own.  [P5]
        """
        goes_in_order = is_ordered(self.partition)
        settings = self.queue.settings
        most = max(WINDOW, settings.collect) if settings.max_attempts > 1 else 1
        is_full = len(self.waiting) >= MOST_WAITING
        window: list[ObjectInfo] = []
        skipped: list[ObjectInfo] = []
        while self._listed and len(window) < most:
            info = self._listed.popleft()
            path = self.path(info)
            waiting = self.waiting.get(path)
            if waiting and not waiting.is_for(Generation(etag=info.etag, put_at=info.modified_at)):
                del self.waiting[path]  # its name was PUT anew, and attempts belong to a generation
                waiting = None
            if finished.get(path) == info.etag or (is_full and waiting is None):
                continue
            if waiting and waiting.retry_at > now:
                skipped.append(info)
                if goes_in_order and waiting.retry_at != NEVER:
                    break
                continue
            if waiting and waiting.is_suspect and window:
                skipped.append(info)
                break
            window.append(info)
            if waiting and waiting.is_suspect:
                break
        self._listed.extendleft(reversed(skipped))
        return window

    def path(self, info: ObjectInfo) -> str:
        return info.key.removeprefix(self.queue.keys.root)
