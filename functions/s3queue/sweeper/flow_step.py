"""FlowStep: the part of a sweep that repairs flows whose processes crashed.  [P8]

A flow that is at work has a marker in one queue, so that the sweep's first LIST shows whether there is any.
"""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from s3queue.errors import CorruptState, QueueError
from s3queue.protocol.access import QueueAccess
from s3queue.store import ObjectInfo, delete_unique

from .budget import OutOfBudget
from .progress import Progress
from .report import Report

_log = logging.getLogger(__name__)
#: Flows may use this part of a sweep's budget: one in so many.
SHARE = 4
#: A flow is looked at when it is as old as `rescue_after`, and again after a quarter of its age, at most an hour.
LONGEST_PAUSE = timedelta(hours=1)
#: The marker of a flow that has no document: whoever wrote it died before that, or is very slow.
MARKER_KEPT = timedelta(days=1)
#: The requests of a usual look.
LOOK_REQUESTS = 6


@dataclass(slots=True)
class FlowStep:
    """The flows whose home is one queue. Keep the instance between sweeps."""

    queue: QueueAccess
    #: Marker → when it was written, and when its flow is looked at again, by the age that it has then. Whoever starts
    #: the flow again writes it anew, and it is as young as that.
    _next: dict[str, tuple[datetime, timedelta]] = field(default_factory=dict)
    #: Those that this pass over the markers has shown: of others, nothing more is remembered when it is at its end.
    _seen: set[str] = field(default_factory=set)

    def take(self, kinds: set[str], report: Report, progress: Progress) -> None:
        if "flows" not in kinds or self.queue.flows is False:
            self._next.clear()
            self._seen.clear()
            progress.flows = ""
            return
        with report.budget.step(SHARE):
            try:
                prefix = self.queue.keys.prefix("flows")
                for page in report.budget.pages(prefix, progress.flows or prefix):
                    for entry in page.objects:
                        self._look(entry, page.at - entry.modified_at, report)
                        self._seen.add(entry.key)
                        progress.flows = entry.key
                progress.flows = ""
                self._next = {key: when for key, when in self._next.items() if key in self._seen}
                self._seen.clear()
            except OutOfBudget:
                report.complete = False

    def _look(self, entry: ObjectInfo, age: timedelta, report: Report) -> None:
        first = self.queue.settings.rescue_after
        written_at, due = self._next.get(entry.key, (entry.modified_at, first))
        if age < (due if written_at == entry.modified_at else first):
            return
        report.budget.check(LOOK_REQUESTS)
        self._next[entry.key] = entry.modified_at, age + min(max(age / 4, first), LONGEST_PAUSE)
        # Not before: a queue without a flow imports nothing for it.
        from s3queue.documents.flow import is_id
        from s3queue.flow.flow_repair import repair

        flow_id = entry.key.rpartition("/")[2]
        queue = copy.copy(self.queue)
        queue.store = report.budget.store
        try:
            is_over = repair(queue, flow_id) if is_id(flow_id) else None
        except CorruptState as error:
            report.corrupt[f"flows/{flow_id}"] = str(error)
            return
        except QueueError as error:
            # One flow must not keep the others from being looked at.
            _log.warning("flow not repaired, trying again: %s: %s", flow_id, error)
            report.complete = False
            return
        if is_over is None and age > MARKER_KEPT:
            delete_unique(report.budget.store, entry.key, if_match=entry.etag)
        if is_over:
            self._next.pop(entry.key, None)
