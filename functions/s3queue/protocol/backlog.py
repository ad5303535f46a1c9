"""Backlog: which messages may run now, highest priority first, then oldest, as a window that LISTs fill.

One refill finds up to a page of messages, so that draining a queue costs one LIST per hundreds of messages.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from s3queue.documents.lease import GRAIN
from s3queue.documents.message import is_placeholder
from s3queue.paths import HIGHEST_PRIORITY, PARTITION, due_of, is_partition, partition_of, priority_of
from s3queue.store import ObjectInfo, Page

from .access import QueueAccess
from .kinds import find_kinds
from .lease_ages import LeaseAges
from .stretch import CHOICES, Stretch

#: An older window is refilled: something more urgent may have come.
FRESH_SECONDS = 30.0
#: After this many lost claims in a row the window is stale: other workers have emptied it.
MISSES = 2
#: Messages that one refill collects.
WINDOW = 1000
#: Pages that one refill reads to find messages without a lease; the sweeper finds messages beyond them.
PAGES = 10
#: Messages with an old lease that one refill tries. Most of these wait for a retry, and each costs a look at its lease.
OVERDUE = 8


@dataclass(frozen=True, slots=True)
class Candidate:
    """A message to try to claim. `read_first`: it may have a waiting lease, so read that before writing."""

    path: str
    priority: int
    since: datetime
    read_first: bool = False
    #: Bytes, ETag and when it was PUT, if the LIST told.
    size: int | None = None
    etag: str = ""
    put_at: datetime | None = None
    #: It has a lease that seems to have run out: see `Claiming.claim_next`.
    is_overdue: bool = False
    #: The key of the reminder that named it. Delete it after the claim, see `LeaseProtocol.forget`.
    reminder: str = ""
    #: A partition that this worker holds, in which another thread may help: that says nothing about the backlog.
    is_held: bool = False
    #: The sweep handed it over, and has deleted its reminder, if it had one.
    is_handed_over: bool = False

    @property
    def is_hint(self) -> bool:
        """Whether it may well not be due: a claim that fails says nothing about the rest of the window."""
        return self.is_overdue or bool(self.reminder)


class Backlog:
    """A window of candidates; safe for the threads of one worker.

    `wants` selects messages by size, where a LIST shows it: the light or the heavy messages of a mixed queue.
    `competes`: others take from the same messages all the time, so the choice is random from the start; otherwise it is
    the oldest of the highest priority, until a claim is lost: see `Stretch`. `overdue`: also find messages whose lease
    seems to have run out. `partitions`: also find partitions that have messages; their candidates stand for the whole
    partition.
    """

    def __init__(
        self,
        queue: QueueAccess,
        *,
        wants: Callable[[int], bool] = lambda size: True,
        competes: bool = True,
        overdue: bool = False,
        partitions: bool = False,
    ) -> None:
        self._queue = queue
        self._wants = wants
        self._overdue = overdue
        self._partitions = partitions
        #: Whether the last LIST of the kinds showed leases.
        self.saw_leases = False
        #: Whether the last refill saw folders of partitions, taken or not.
        self.saw_partitions = False
        #: How many seconds after the last refill the next delayed message is due, if it saw one.
        self.due_in: float | None = None
        self._window: list[Candidate] = []
        #: How many candidates the last refill found.
        self._found = 0
        #: Paths handed out during a refill: its LISTs may still show them, although they are taken.
        self._taken: set[str] = set()
        self._is_refilling = False
        self._refills = 0
        self._refill_mutex = threading.Lock()
        self._refilled_at = float("-inf")
        self._misses = 0
        self._stretch = Stretch(queue.chance, competes=competes)
        self._wins = 0
        self._wins_at_refill = -1
        self._in_vain = queue.in_vain
        self._held_back = queue.held_back
        #: Whether the queue's limits kept something from the last refill, or from being claimed since.
        self._is_limited = False
        self._mutex = threading.Lock()

    def __len__(self) -> int:
        return len(self._window)

    def take(self) -> Candidate | None:
        """The next candidate of the window; None if it is empty or stale: refill it."""
        with self._mutex:
            if self.is_stale():
                self._window = []
            if not self._window:
                return None
            candidate = self._window.pop(self._stretch.next(self._window))
            if self._is_refilling:
                self._taken.add(candidate.path)
            return candidate

    def is_stale(self) -> bool:
        """Whether the window is too old, or emptied by others."""
        return self._queue.clock.monotonic() - self._refilled_at > FRESH_SECONDS or self._misses >= MISSES

    def next_priority(self) -> int | None:
        """The priority of the next candidate; None if there is none, or the window is stale."""
        with self._mutex:
            return self._window[0].priority if self._window and not self.is_stale() else None

    def report(self, *, won: bool, is_hint: bool = False) -> None:
        """Tell whether the claim of a candidate succeeded, and if it was a hint only.

        One in vain counts as won: nobody else empties the window, and what is left of it may well run.
        """
        if self._queue.held_back != self._held_back:
            # The queue's limits did not permit it: that says nothing about the others, nor is anything gained by it.
            self._held_back = self._queue.held_back
            self._is_limited = True
            return
        in_vain = self._queue.in_vain
        won = won or in_vain != self._in_vain
        self._in_vain = in_vain
        self._wins += won
        if won:
            self._misses = 0
        elif not is_hint:
            self._misses += 1
            self._stretch.lost()

    def is_fruitless(self) -> bool:
        """Whether nothing that the last refill found could be claimed: another refill at once will not help."""
        return not self._window and self._wins == self._wins_at_refill

    def is_exhausted(self) -> bool:
        """Whether nothing can run, now or when the queue's limits permit it, unless something new comes."""
        return self.is_fruitless() and not self._is_limited

    def is_running_low(self, left: int) -> bool:
        """Whether a full window is nearly used up: refill it now, so that no thread has to wait for the LISTs."""
        return not self._is_refilling and len(self._window) <= left and self._found >= WINDOW

    def drain(self) -> Iterator[Candidate]:
        """Candidates, refill by refill, until a refill finds none, or none of its candidates could be claimed."""
        while self.refill():
            while candidate := self.take():
                yield candidate
            if self.is_fruitless():
                return

    def refill(self, in_hand: Iterable[str] = ()) -> int:
        """Fill the window again; returns how many candidates there are. One LIST if the queue is idle.

        Other threads may take candidates meanwhile. `in_hand` are the paths that they work on: these are left out.
        """
        refills = self._refills
        with self._refill_mutex:
            if self._refills != refills:
                return len(self._window)  # another thread has just refilled it
            with self._mutex:
                self._is_refilling = True
                self._taken = set(in_hand)
                # What is in hand may be held back yet, and is not in the new window.
                self._is_limited = bool(self._taken) and self._queue.gate is not None
                wins, began = self._wins, self._queue.clock.monotonic()
            try:
                found = self._list_candidates()
                with self._mutex:
                    self._window = [one for one in found if one.path not in self._taken]
                    self._found = len(found)
                    self._refilled_at, self._misses = began, 0
                    self._stretch.begin()
                    # Only now: a refill that failed does not prove that nothing is there.
                    self._wins_at_refill = wins
                    self._refills += 1
                    return len(self._window)
            finally:
                self._is_refilling = False

    def _list_candidates(self) -> list[Candidate]:
        queue = self._queue
        root, kinds = find_kinds(queue.store, queue.keys, ("messages", "delayed", "leases", "retries"))
        self.saw_leases = "leases" in kinds
        self.due_in, self.saw_partitions = None, False
        leases = LeaseAges(queue) if self.saw_leases else None
        found: list[Candidate] = []
        if "retries" in kinds:
            found += self._reminded(root.at)
        if "delayed" in kinds:
            prefix = queue.keys.prefix("delayed")
            found += self._first_unleased(queue.store.list(prefix), prefix, leases, due_by=root.at)
        if "messages" in kinds:
            found += self._messages(leases)
        if self._overdue:
            # Some of these may be alive: they must not always be the ones that are tried.
            overdue = queue.chance.shuffled([one for one in found if one.is_overdue])[:OVERDUE]
            found = [*(one for one in found if not one.is_overdue), *overdue]
        window = sorted(
            (one for one in found if not is_partition(one.path)),
            key=lambda one: (-one.priority, True) if one.is_overdue else (-one.priority, False, one.since, one.path),
        )
        urgent = sum(one.priority > 0 for one in window)
        for one in found:
            if is_partition(one.path):
                # Anywhere: how long its messages have waited is not known, and neither may always come first.
                window.insert(int(queue.chance.uniform(urgent, len(window) + 1 - 1e-9)), one)
        return window

    def _reminded(self, now: datetime) -> Iterator[Candidate]:
        """Retries that are due; the keys of reminders are in the order of their due times."""
        keys = self._queue.keys
        for entry in self._queue.store.list(keys.prefix("retries")).objects:
            if reminded := keys.reminded(entry.key):
                due_at, path = reminded
                if due_at > now:
                    return
                if partition_of(path) and not self._partitions:
                    continue
                yield Candidate(path, priority_of(path), due_at, read_first=True, reminder=entry.key)

    def _messages(self, leases: LeaseAges | None) -> list[Candidate]:
        """The first messages of each priority, highest first, without those that have a lease."""
        queue = self._queue
        prefix = queue.keys.prefix("messages")
        top = queue.store.list(prefix, delimiter="/")
        groups = set(top.prefixes)
        groups.update(self._groups_beyond(prefix, top.next_after))
        partitions = {group for group in groups if is_partition(group.removeprefix(queue.keys.root))}
        groups -= partitions
        self.saw_partitions = bool(partitions)
        ranked = {group: priority_of(group.removeprefix(queue.keys.root)) for group in groups}
        urgent = sorted((group for group in ranked if ranked[group]), key=lambda group: (-ranked[group], group))
        found: list[Candidate] = []
        for group in urgent:
            found += self._first_unleased(queue.store.list(group), group, leases)
            if len(found) >= WINDOW:
                return found
        found += self._first_unleased(top, prefix, leases, delimiter="/", groups=groups)
        if self._partitions:
            found += self._partitioned(partitions, top)
        groups = {group for group in groups if not is_partition(group.removeprefix(queue.keys.root))}
        for group in queue.chance.shuffled(sorted(groups - set(urgent))):
            if len(found) >= WINDOW:
                break
            found += self._first_unleased(queue.store.list(group), group, leases)
        return found

    def _partitioned(self, partitions: set[str], top: Page) -> Iterator[Candidate]:
        # Not above: most queues have no partitions.
        from .partition_backlog import find_partitions

        since = top.at - self._queue.settings.rescue_after
        for path, is_leased in find_partitions(self._queue, partitions, pages=PAGES, most=WINDOW):
            yield Candidate(path, 0, since, read_first=True, is_overdue=is_leased)

    def _groups_beyond(self, prefix: str, cursor: str | None) -> Iterator[str]:
        """The partitions and groups of priorities that the first page did not reach. Names such as `p1000234.json` lie
        between them, any number of these: each LIST starts at the next group that is possible.
        """
        # The first possible key of each group, and one just before it.
        starts = [(PARTITION, chr(ord(PARTITION) - 1) + "\U0010ffff")]
        starts += [(f"p{priority:03d}/", f"p{priority:03d}") for priority in range(HIGHEST_PRIORITY + 1)]
        for first, before in starts:
            if cursor is None:
                return
            if cursor < prefix + first:
                page = self._queue.store.list(prefix, after=prefix + before, delimiter="/")
                yield from page.prefixes
                cursor = page.next_after

    def _first_unleased(
        self,
        page: Page,
        prefix: str,
        leases: LeaseAges | None,
        *,
        delimiter: str = "",
        groups: set[str] | None = None,
        due_by: datetime | None = None,
    ) -> list[Candidate]:
        """The messages of a page without a lease. If nearly all have one, the next pages are read too: the first page
        must not hide them. With `due_by`, up to the first that is due later: their keys are in that order.
        """
        found: list[Candidate] = []
        for turned in range(1, PAGES + 1):
            due = list(self._until(due_by, page.objects)) if due_by else page.objects
            found += self._unleased(due, leases)
            if len(found) >= CHOICES or page.next_after is None or turned == PAGES or len(due) < len(page.objects):
                break
            page = self._queue.store.list(prefix, after=page.next_after, delimiter=delimiter)
            if groups is not None:
                groups.update(page.prefixes)
        return found

    def _until(self, due_by: datetime, messages: Iterable[ObjectInfo]) -> Iterator[ObjectInfo]:
        for message in messages:
            due_at = due_of(self._queue.keys.path(message.key) or "")
            if due_at and due_at > due_by:
                self.due_in = (due_at - due_by).total_seconds()
                return
            yield message

    def _is_held_back(self, path: str) -> bool:
        """Whether the rate of its folder is used up, as far as this process knows."""
        gate = self._queue.gate
        is_held = bool(gate and self._queue.settings.rate_key and gate.wait(path))
        self._is_limited = self._is_limited or is_held
        return is_held

    def _unleased(self, messages: Iterable[ObjectInfo], leases: LeaseAges | None) -> Iterator[Candidate]:
        keys = self._queue.keys
        paths = {
            path: message
            for message in messages
            if not is_placeholder(message)
            and self._wants(message.size)
            and (path := keys.path(message.key))
            and path not in self._queue.set_aside
            and not self._is_held_back(path)
        }
        ages = leases.between(min(paths), max(paths)) if paths and leases else {}
        limit = self._queue.settings.visibility_timeout + GRAIN
        for path, message in paths.items():
            age, due_at = ages.get(path), due_of(path)
            is_overdue = self._overdue and age is not None and age > limit
            if age is None or is_overdue:
                yield Candidate(
                    path,
                    priority_of(path),
                    due_at or message.modified_at,
                    # S3's clock decides whether a delayed message is due.
                    read_first=is_overdue or path.startswith("delayed/"),
                    size=message.size,
                    etag=message.etag,
                    put_at=message.modified_at,
                    is_overdue=is_overdue,
                )
