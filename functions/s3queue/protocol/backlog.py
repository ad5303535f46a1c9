"""Backlog: which messages may run now, highest priority first, then oldest, as a window over LISTs.

One look serves up to a page of messages, so that draining costs a LIST per hundreds of them, not one each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from s3queue.documents.message import is_placeholder
from s3queue.keys import due_of, priority_of
from s3queue.store import ObjectInfo, Page, listing

from .access import QueueAccess

#: Workers choose at random among this many, so that they do not all reach for the same one.
CHOICES = 32
#: A window older than this is looked up anew: something more urgent may have come.
FRESH_SECONDS = 30.0
#: Lost claims in a row after which a window counts as stale: others have emptied it.
MISSES = 3
#: Messages that one look collects.
WINDOW = 1000
#: Pages that one look turns in search of messages without a lease; beyond them the sweeper finds what nobody does.
PAGES = 10


@dataclass(frozen=True, slots=True)
class Candidate:
    """A message worth a try. `read_first`: it may have a lease that waits, so read that before you write."""

    path: str
    priority: int
    since: datetime
    read_first: bool = False
    #: Bytes, if the LIST told.
    size: int | None = None


class Backlog:
    """A window of candidates; safe for the threads of one worker.

    `wants` leaves out what is of the wrong size, where a LIST tells it: a mixed queue's light or heavy messages.
    """

    def __init__(self, queue: QueueAccess, *, wants: Callable[[int], bool] = lambda size: True) -> None:
        self._queue = queue
        self._wants = wants
        self._window: list[Candidate] = []
        #: How many candidates the last look found.
        self._found = 0
        #: Handed out while a look is under way: what it lists may be old news by the time it is done.
        self._taken: set[str] = set()
        self._is_refilling = False
        self._refills = 0
        self._refill_mutex = threading.Lock()
        self._refilled_at = float("-inf")
        self._misses = 0
        self._wins = 0
        self._wins_at_refill = -1
        self._mutex = threading.Lock()

    def take(self) -> Candidate | None:
        """The next candidate of the window; None if it is used up or stale: look again."""
        with self._mutex:
            if self._queue.clock.monotonic() - self._refilled_at > FRESH_SECONDS or self._misses >= MISSES:
                self._window = []
            if not self._window:
                return None
            urgency = self._window[0].priority
            choices = [one for one in self._window[:CHOICES] if one.priority == urgency]
            candidate = self._window.pop(int(self._queue.chance.uniform(0, len(choices) - 1e-9)))
            if self._is_refilling:
                self._taken.add(candidate.path)
            return candidate

    def report(self, *, won: bool) -> None:
        """How the claim of a candidate went."""
        self._misses = 0 if won else self._misses + 1
        self._wins += won

    def is_fruitless(self) -> bool:
        """Whether nothing that the last look found could be claimed: looking again at once will not help."""
        return not self._window and self._wins == self._wins_at_refill

    def is_running_low(self, left: int) -> bool:
        """Whether it is time to look for more, so that nobody has to wait for it: a full window is nearly used up."""
        return not self._is_refilling and len(self._window) <= left and self._found >= WINDOW

    def drain(self) -> Iterator[Candidate]:
        """Candidates, look after look, until a look finds none or none of its finds could be claimed."""
        while self.refill():
            while candidate := self.take():
                yield candidate
            if self.is_fruitless():
                return

    def refill(self, in_hand: Iterable[str] = ()) -> int:
        """Fill the window anew; how many candidates there are. One LIST if the queue is idle.

        Others may go on taking meanwhile. `in_hand` is what they are at, which need not be found again.
        """
        refills = self._refills
        with self._refill_mutex:
            if self._refills != refills:
                return len(self._window)  # another thread has just looked
            with self._mutex:
                self._is_refilling = True
                self._taken = set(in_hand)
                wins, began = self._wins, self._queue.clock.monotonic()
            try:
                found = self._list_candidates()
                with self._mutex:
                    self._window = [one for one in found if one.path not in self._taken]
                    self._found = len(found)
                    self._refilled_at, self._misses = began, 0
                    # Only now: a look that failed has found nothing out, least of all that nothing is there.
                    self._wins_at_refill = wins
                    self._refills += 1
                    return len(self._window)
            finally:
                self._is_refilling = False

    def _list_candidates(self) -> list[Candidate]:
        queue = self._queue
        root = queue.store.list(queue.keys.root, delimiter="/")
        kinds = queue.keys.kinds(root.prefixes)
        found: list[Candidate] = []
        if "retries" in kinds:
            found += self._due("retries", root.at)
        if "delayed" in kinds:
            found += self._due("delayed", root.at)
        if "messages" in kinds:
            found += self._messages(has_leases="leases" in kinds)
        return sorted(found, key=lambda one: (-one.priority, one.since, one.path))

    def _due(self, kind: str, now: datetime) -> Iterator[Candidate]:
        """What waited and is due: reminders and delayed messages lie in the order of their time."""
        keys = self._queue.keys
        for entry in self._queue.store.list(keys.prefix(kind)).objects:
            reminded = keys.reminded(entry.key) if kind == "retries" else None
            path = reminded[1] if reminded else keys.path(entry.key)
            due_at = reminded[0] if reminded else due_of(path or "")
            if due_at and due_at > now:
                return
            size = None if reminded else entry.size
            if path and (reminded or (not is_placeholder(entry) and self._wants(entry.size))):
                yield Candidate(path, priority_of(path), due_at or entry.modified_at, read_first=True, size=size)

    def _messages(self, *, has_leases: bool) -> list[Candidate]:
        """The first messages of each priority, highest first, without those that have a lease."""
        queue = self._queue
        prefix = queue.keys.prefix("messages")
        top = queue.store.list(prefix, delimiter="/")
        groups = set(top.prefixes)
        if top.next_after and top.next_after < f"{prefix}p255/":
            beyond = max(top.next_after, f"{prefix}p000")
            groups.update(queue.store.list(prefix, after=beyond, delimiter="/").prefixes)
        ranked = {group: priority_of(group.removeprefix(queue.keys.root)) for group in groups}
        urgent = sorted((group for group in ranked if ranked[group]), key=lambda group: (-ranked[group], group))
        found: list[Candidate] = []
        for group in urgent:
            found += self._first_unleased(queue.store.list(group), group, has_leases=has_leases)
            if len(found) >= WINDOW:
                return found
        found += self._first_unleased(top, prefix, has_leases=has_leases, delimiter="/", groups=groups)
        for group in queue.chance.shuffled(sorted(groups - set(urgent))):
            if len(found) >= WINDOW:
                break
            found += self._first_unleased(queue.store.list(group), group, has_leases=has_leases)
        return found

    def _first_unleased(
        self, page: Page, prefix: str, *, has_leases: bool, delimiter: str = "", groups: set[str] | None = None
    ) -> list[Candidate]:
        """Those of a page; of the next ones too if nearly all of it is at work or waits, or it would hide the rest."""
        found: list[Candidate] = []
        for turned in range(1, PAGES + 1):
            found += self._unleased(page.objects, has_leases=has_leases)
            if len(found) >= CHOICES or page.next_after is None or turned == PAGES:
                break
            page = self._queue.store.list(prefix, after=page.next_after, delimiter=delimiter)
            if groups is not None:
                groups.update(page.prefixes)
        return found

    def _unleased(self, messages: tuple[ObjectInfo, ...], *, has_leases: bool) -> Iterator[Candidate]:
        keys = self._queue.keys
        paths = {
            path: message for message in messages if not is_placeholder(message) and (path := keys.path(message.key))
        }
        leased: set[str] = set()
        if paths and has_leases:
            first, last = min(paths), max(paths)
            # One character short of the first path, so that its own lease is seen too.
            for page in listing(self._queue.store, keys.prefix("leases"), after=keys.lease(first)[:-1]):
                leased.update(path for lease in page.objects if (path := keys.path_under("leases", lease.key)))
                if page.next_after is None or page.next_after > keys.lease(last):
                    break
        for path, message in paths.items():
            if path not in leased and self._wants(message.size):
                yield Candidate(path, priority_of(path), message.modified_at, size=message.size)
