"""DueMessages: hands over retries and delayed messages whose time has come."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from s3queue.documents.message import is_placeholder
from s3queue.encoding import EARLIEST
from s3queue.paths import due_of
from s3queue.protocol.counting import lines_at
from s3queue.queue import Queue
from s3queue.store import ObjectInfo, Page

from .cleanup import remove
from .hand_over import HandOver
from .report import Report


@dataclass(slots=True)
class DueMessages:
    """The retries and delayed messages of one queue."""

    queue: Queue
    _hand_over: HandOver
    #: When the next one is due, as far as the last LISTs told.
    next_at: datetime | None = None
    #: The `Date` of the last LIST of delayed messages.
    seen_at: datetime = EARLIEST

    def hand_over(self, kinds: set[str], report: Report, leased: set[str] | None = None) -> None:
        """Hand over what is due, and count the reminders.

        Their keys begin with their due time, so the first one that is not due ends the LIST.
        """
        self.next_at = None
        if "retries" in kinds:
            self.hand_over_retries(report)
        if "delayed" in kinds:
            self._hand_over_delayed(report, leased or set())

    def _hand_over_delayed(self, report: Report, leased: set[str]) -> None:
        for page in report.budget.pages(self.queue.keys.prefix("delayed")):
            self.seen_at = page.at
            found = (entry for entry in page.objects if not is_placeholder(entry))
            paths = [path for entry in found if (path := self.queue.keys.path(entry.key))]
            due = [path for path in paths if (due_of(path) or page.at) <= page.at]
            report.due += self._hand_over.once(path for path in due if path not in leased)
            if len(due) < len(paths):
                later = min(due_at for path in paths if (due_at := due_of(path)) and due_at > page.at)
                self.next_at = min(self.next_at or later, later)
                break

    def hand_over_retries(self, report: Report) -> None:
        for page in report.budget.pages(self.queue.keys.prefix("retries")):
            reminded = (self.queue.keys.reminded(entry.key) for entry in page.objects)
            report.reminders += sum(lines_at(one[1]) for one in reminded if one)
            if not self._hand_over_reminded(page, report):
                break

    def _hand_over_reminded(self, page: Page, report: Report) -> bool:
        """Dispatch and delete the due reminders of a page; False if the next page need not be read.

        A reminder is only a hint: if the dispatch is lost, a later sweep finds the waiting lease.
        """
        due: list[tuple[ObjectInfo, str]] = []
        is_last = False
        for entry in page.objects:
            reminded = self.queue.keys.reminded(entry.key)
            if reminded is None:
                remove([entry], report)
            elif reminded[0] > page.at:
                self.next_at = reminded[0]
                is_last = True
                break
            else:
                due.append((entry, reminded[1]))
        if due and not self.queue.settings.paused:
            # Dispatched even if the path was dispatched lately: another reminder means another attempt. No more than
            # can be deleted: a reminder that stays is dispatched again.
            sent = self._hand_over.again(path for _, path in due[: report.budget.left()])
            report.due += len(sent)
            remove((entry for entry, path in due if path in sent), report)
            if len(sent) < len({path for _, path in due}):
                return False  # enough for now: paths that were not dispatched keep their reminders
        return not is_last
