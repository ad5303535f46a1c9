"""BacklogShares: which candidates of a backlog are this worker's, if other pull workers take from it too.

Each message belongs to one of the live workers by the hash of its path, so that they do not claim the same ones. That
is a choice only: the lease decides. What its worker has left lying is anybody's, the newest first, because the other
one, if it is slow and not dead, comes from the oldest.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from zlib import crc32

from s3queue.documents.lease import GRAIN
from s3queue.errors import QueueError
from s3queue.paths import is_partition

from .access import QueueAccess

if TYPE_CHECKING:
    from .backlog import Candidate

#: After a look that found no other worker, whoever else takes the messages has no heartbeat: the next one comes later.
ALONE_SECONDS = 30.0


@dataclass(slots=True)
class BacklogShares:
    """Of one worker. It looks for others only once a claim was lost, and then before every refill: one LIST."""

    queue: QueueAccess
    _is_contended: bool = False
    _alone_until: float = float("-inf")
    #: How many workers there are, and which of them this one is.
    _count: int = 1
    _number: int = 0
    #: Paths that were others' in the last window.
    _left: set[str] = field(default_factory=set)

    @property
    def are_known(self) -> bool:
        return self._count > 1

    def lost(self) -> bool:
        """A claim was lost; whether the window should be refilled at once, because the others are not known yet."""
        if self.are_known or self.queue.clock.monotonic() < self._alone_until:
            return False
        self._is_contended = True
        return True

    def look(self) -> None:
        """Before a refill: who else is at work?"""
        if not (self._is_contended or self.are_known):
            return
        self._is_contended = False
        self._count, self._number = 1, 0
        with suppress(QueueError):
            page = self.queue.store.list(self.queue.keys.prefix("workers"))
            limit = self.queue.settings.visibility_timeout + GRAIN
            live = sorted(info.key for info in page.objects if page.at - info.modified_at <= limit)
            own = self.queue.keys.worker(self.queue.worker_id)
            if own in live:
                self._count, self._number = len(live), live.index(own)
        if not self.are_known:
            self._alone_until = self.queue.clock.monotonic() + ALONE_SECONDS
            self._left = set()

    def of(self, found: Sequence[Candidate]) -> list[Candidate]:
        """This worker's, in their order; behind the urgent ones, what others have left. All, if none is its own."""
        if not self.are_known:
            return list(found)
        own, others = [], []
        for one in found:
            (own if self._is_own(one) else others).append(one)
        left = [one for one in reversed(others) if one.path in self._left]
        self._left = {one.path for one in others}
        if not own:
            return left or list(reversed(others))
        return sorted([*own, *left], key=lambda one: -one.priority) if left else own

    def _is_own(self, one: Candidate) -> bool:
        if one.is_hint or one.is_handed_over or is_partition(one.path):
            return True
        return crc32(one.path.encode()) % self._count == self._number
