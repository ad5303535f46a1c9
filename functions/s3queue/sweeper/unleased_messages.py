"""UnleasedMessages: counts the messages without a lease, and hands over those whose event was lost."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from s3queue.documents.message import is_placeholder
from s3queue.paths import due_of, partition_of, partition_path
from s3queue.protocol.counting import Counter
from s3queue.queue import Queue
from s3queue.store import ObjectInfo

from .expired_leases import ExpiredLeases
from .hand_over import HandOver
from .progress import Progress
from .report import Report


@dataclass(slots=True)
class UnleasedMessages:
    """The messages of one queue that nobody works on."""

    queue: Queue
    _hand_over: HandOver
    _leases: ExpiredLeases

    def hand_over(self, kinds: set[str], report: Report, progress: Progress, counter: Counter) -> None:
        """Hand over messages without a lease whose event should have come by now; count all messages without one."""
        prefixes = [self.queue.keys.prefix(kind) for kind in ("messages", "delayed") if kind in kinds]
        resumed = next((prefix for prefix in prefixes if progress.messages.startswith(prefix)), None)
        before = (progress.pending, progress.delayed) if resumed else (0, 0)
        try:
            for prefix in prefixes[prefixes.index(resumed) :] if resumed else prefixes:
                progress.messages = progress.messages if prefix == resumed else prefix
                # The prefix itself says where to begin, and is no place to go on after: it may be the key of a message.
                after = "" if progress.messages == prefix else progress.messages
                for page in report.budget.pages(prefix, after):
                    leased = self._leased(page.objects, report)
                    self._leases.see_messages(page.objects)
                    counter.add(page.objects, leased)
                    orphans = [path for entry in page.objects if (path := self._orphaned(entry, page.at, leased))]
                    handed_over = self._hand_over.once(orphans)
                    if self.queue.settings.is_limited:
                        report.due += handed_over  # their events came: they wait for their turn
                    else:
                        report.orphans += handed_over
                    progress.messages = page.next_after or progress.messages
            progress.messages = ""
        finally:
            progress.pending, progress.delayed = before[0] + counter.unleased, before[1] + counter.delayed

    def _leased(self, messages: tuple[ObjectInfo, ...], report: Report) -> set[str]:
        """The paths that have a lease, at least among these messages. A process that has not listed all leases yet
        lists those of the page.
        """
        if messages and not self._leases.are_all_known:
            first, last = (self.queue.keys.path(entry.key) or "" for entry in (messages[0], messages[-1]))
            self._leases.list_between(first, last, report)
            if any(partition_of(self.queue.keys.path(entry.key) or "") for entry in messages):
                self._leases.list_partitions(report)
        return self._leases.known.keys() - self._leases.open_partitions

    def _orphaned(self, entry: ObjectInfo, now: datetime, leased: set[str]) -> str | None:
        path = self.queue.keys.path(entry.key)
        if path is None or path in leased or is_placeholder(entry):
            return None
        if partition := partition_of(path):
            # Whoever is handed any message of a partition takes the whole of it.
            path = partition_path(partition)
            if path in leased:
                return None
        due_at = due_of(path)
        since = max(entry.modified_at, due_at) if due_at else entry.modified_at
        return path if now - since >= self.queue.settings.rescue_after else None
