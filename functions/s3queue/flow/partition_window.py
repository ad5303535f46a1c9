"""Which messages of a partition are taken next.  [P9]"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from s3queue.documents.lease import NEVER
from s3queue.documents.message import Generation, is_placeholder
from s3queue.documents.partition import MOST_WAITING, Waiting
from s3queue.encoding import EARLIEST
from s3queue.paths import is_ordered, partition_path, rate_key_of
from s3queue.protocol.access import QueueAccess
from s3queue.store import LAST, ObjectInfo

#: Messages that are taken, and then committed, together.
WINDOW = 100
#: Messages that one LIST shows.
PAGE = 1000
#: Pages that one look reads while nothing on them can be taken; or messages that it asks for by their names.
PAGES = 10


@dataclass(slots=True)
class PartitionWindow:
    """The messages of one partition, as the last LIST showed them, without those that were chosen since."""

    queue: QueueAccess
    partition: str
    #: Path → a message that failed, or that its worker may have died of.
    waiting: dict[str, Waiting]
    _listed: deque[ObjectInfo] = field(default_factory=deque)
    #: Where the next page begins; None: all is listed.
    _next_after: str | None = ""
    #: A name was passed over that was PUT anew: only another LIST shows it.
    _is_stale: bool = False
    #: S3's time at the last LIST.
    listed_at: datetime = EARLIEST
    #: Path → why no lease can name it: such a message is never taken.
    misnamed: dict[str, str] = field(default_factory=dict)
    #: Path → one that waited, and is not there any more: its outcome is to be recorded.
    gone: dict[str, Waiting] = field(default_factory=dict)

    @property
    def has_left(self) -> bool:
        """Whether messages were seen that nobody has taken, or may be there."""
        return bool(self._listed) or self._next_after is not None or self._is_stale

    def look(self, beside: Container[str] = ()) -> None:
        """Look at the partition anew, while `beside` is at work. One LIST."""
        self.forget()
        self._turn(beside)

    def _turn(self, beside: Container[str]) -> None:
        """Read the next page. What waits between its first and its last name, and is not on it, is gone."""
        keys, after = self.queue.keys, self._next_after or ""
        page = self.queue.store.list(keys.message(partition_path(self.partition)), after=after, limit=PAGE)
        present = {info.key for info in page.objects}
        for path in [path for path in self.waiting if path not in beside]:
            if after < (key := keys.message(path)) <= (page.next_after or key) and key not in present:
                self.gone[path] = self.waiting.pop(path)
        for info in page.objects:
            path = self.path(info)
            if is_placeholder(info) or path in self.queue.set_aside:
                continue
            if problem := keys.problem(path):
                self.misnamed[path] = problem
            else:
                self._listed.append(info)
        self._next_after, self.listed_at = page.next_after, page.at

    def is_low(self, left: int) -> bool:
        """Whether a commit, which takes a few requests, should begin now if so many are left to be started."""
        return left <= WINDOW // 2

    @property
    def may_share(self) -> bool:
        """Whether messages may be taken while others run. With a single attempt it has to be known which one a worker
        died of.
        """
        return not is_ordered(self.partition) and self.queue.settings.max_attempts > 1

    def find(self, finished: Mapping[str, str], beside: Mapping[str, str] | None = None) -> list[ObjectInfo]:
        """As `choose`, after a look. What may not be taken now must not hide what may: so further pages are read."""
        for _ in range(PAGES):
            window = self.choose(self.listed_at, finished, beside)
            if window or self._next_after is None or self._must_wait():
                return window
            if self._is_full:
                self._seek(self._next_after, beside or ())
                break
            self._next_after = self._behind(self._next_after)
            self._turn(beside or ())
        return self.choose(self.listed_at, finished, beside)

    @property
    def _is_full(self) -> bool:
        """Whether so many failed messages wait that no other one is taken. In a group, one waits."""
        # Not those that are parked for ever: they are dead, and nobody waits for them.
        waiting = sum(one.retry_at != NEVER for one in self.waiting.values())
        return not is_ordered(self.partition) and waiting >= MOST_WAITING

    def _seek(self, after: str, beside: Container[str]) -> None:
        """Ask for messages that wait and are due, each by its name: any number of others may lie before them."""
        due = [one for path, one in self.waiting.items() if one.retry_at <= self.listed_at and path not in beside]
        behind = [one for one in due if self.queue.keys.message(one.path) > after]
        for one in sorted(behind, key=lambda one: one.retry_at)[:PAGES]:
            if info := self.queue.list_message(one.path):
                self._listed.append(info)
            else:
                self.gone[one.path] = self.waiting.pop(one.path)

    def _behind(self, after: str) -> str:
        """Where the next page begins: behind the folder of the last name if that has no tokens, however many messages
        are left in it.
        """
        gate = self.queue.gate if self.is_by_folder else None
        path = after.removeprefix(self.queue.keys.root)
        if gate is None or gate.wait(path) <= 0:
            return after
        folder = f"{partition_path(self.partition)}{rate_key_of(path)}/"
        # In a folder that is named like a priority there are those of others.
        is_whole = path.startswith(folder) and rate_key_of(f"{folder}x") == rate_key_of(path)
        return f"{self.queue.keys.message(folder)}{LAST}" if is_whole else after

    def _must_wait(self) -> bool:
        """Whether nothing can be taken before the time of one that failed, whatever else is there."""
        due = {path: one.retry_at for path, one in self.waiting.items() if one.retry_at != NEVER}
        if is_ordered(self.partition):
            return any(self.path(info) in due for info in self._listed)
        return self._is_full and min(due.values()) > self.listed_at

    def must_gather(self, window: Sequence[ObjectInfo]) -> bool:
        """Whether more messages may come in time for the first call of a handler that collects them."""
        settings = self.queue.settings
        if is_ordered(self.partition) or not settings.within or len(window) >= settings.collect:
            return False
        return self.listed_at - min(info.modified_at for info in window) < settings.within

    @property
    def is_by_folder(self) -> bool:
        """Whether each folder of names has a rate of its own, so that some messages may run while others may not."""
        return bool(self.queue.gate and self.queue.settings.rate_key) and not is_ordered(self.partition)

    def forget(self) -> None:
        """The next choice needs a new LIST: it shows in its place what was taken, and waits now."""
        self._listed.clear()
        self._next_after, self._is_stale = "", False

    def put_back(self, chosen: deque[ObjectInfo]) -> None:
        """Some that were chosen were not started."""
        self._listed.extendleft(reversed(chosen))
        chosen.clear()

    def choose(
        self, now: datetime, finished: Mapping[str, str], beside: Mapping[str, str] | None = None
    ) -> list[ObjectInfo]:
        """The next ones, in the order of their names, without `finished`: path → ETag.

        One that its worker may have died of comes alone, so that the next death is known to be its own.  [P5]

        If others go on meanwhile, `beside`, neither their names are chosen nor those of `finished`, whatever their
        ETags: these are not deleted yet, and what was PUT in their place would be.  [P1]
        """
        goes_in_order = is_ordered(self.partition)
        settings = self.queue.settings
        most = max(WINDOW, settings.collect) if settings.max_attempts > 1 else 1
        is_full = self._is_full
        gate = self.queue.gate if self.is_by_folder else None
        window: list[ObjectInfo] = []
        skipped: list[ObjectInfo] = []
        held_back: list[str] = []
        is_put_anew = False
        while self._listed and len(window) < most:
            info = self._listed.popleft()
            path = self.path(info)
            waiting = self.waiting.get(path)
            if beside is not None and (path in beside or path in finished):
                is_put_anew = is_put_anew or info.etag not in (beside.get(path), finished.get(path))
                continue
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
            if gate and gate.wait(path) > 0:
                skipped.append(info)
                held_back.append(path)
                continue
            if waiting and waiting.is_suspect and (window or beside is not None):
                skipped.append(info)
                break
            window.append(info)
            if waiting and waiting.is_suspect:
                break
        self._listed.extendleft(reversed(skipped))
        self._is_stale = self._is_stale or is_put_anew
        if gate and held_back and not window:
            self.queue.hold_back(min(held_back, key=gate.free_at))
        return window

    def path(self, info: ObjectInfo) -> str:
        return info.key.removeprefix(self.queue.keys.root)
