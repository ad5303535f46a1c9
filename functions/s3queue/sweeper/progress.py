"""Progress: how far a sweep came that could not finish, kept in the bucket so that a new process goes on from there.

`{queue}/sweep.json` exists only while a queue is too large for one sweep: the LIST that begins every sweep shows it, so
that a queue whose sweeps finish pays nothing for it.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, fields
from typing import Any

from s3queue.encoding import NONSENSE, as_text, as_whole, cut, dump, load
from s3queue.errors import CorruptState, QueueError
from s3queue.protocol.access import QueueAccess
from s3queue.store import ObjectStore, Page, open_state

_log = logging.getLogger(__name__)
#: Larger objects are not read: six keys and four numbers.
PROGRESS_BYTES = 64 * 1024
#: A key, and the last character that there is: see `cursor_after`.
CURSOR_BYTES = 1024 + 4


@dataclass(slots=True)
class Progress:
    """Where each step of the next sweep starts; an empty cursor: at the beginning."""

    #: The key after which the LIST of leases goes on.
    leases: str = ""
    #: The path from which overdue leases are read.
    overdue: str = ""
    #: The key after which the LIST of messages goes on.
    messages: str = ""
    #: The key after which the clean-up goes on.
    cleanup: str = ""
    #: The name of the schedule with which the next sweep begins, and the key after which the LIST of flows goes on.
    schedules: str = ""
    flows: str = ""
    #: What the LISTs before `messages` have counted, and what the last complete count was.
    pending: int = 0
    delayed: int = 0
    last_pending: int = 0
    last_delayed: int = 0

    def counts(self) -> tuple[int, int]:
        """Pending and delayed messages: a count that is not at its end yet must not hide what the last one found."""
        if self.messages:
            return max(self.pending, self.last_pending), max(self.delayed, self.last_delayed)
        self.last_pending, self.last_delayed = self.pending, self.delayed
        return self.pending, self.delayed

    def is_resumed(self) -> bool:
        """Whether a step has not come to its end."""
        return any(getattr(self, name) for name in _CURSORS)

    @classmethod
    def read(cls, queue: QueueAccess, store: ObjectStore, root: Page) -> Progress:
        """What the last process left; read only if the LIST of the queue shows it, or cannot tell."""
        key = queue.keys.progress
        is_shown = any(entry.key == key for entry in root.objects)
        if not is_shown and (root.next_after is None or root.next_after >= key):
            return cls()
        found = open_state(store, key)
        if found is None:
            return cls()
        try:
            document = load(found.read(PROGRESS_BYTES), key)
            names = [one.name for one in fields(cls) if one.name in document]
            return cls(**{name: _value(name, document[name]) for name in names})
        except (CorruptState, *NONSENSE) as error:
            _log.warning("progress of the last sweep ignored: %s: %s", queue.name, cut(error))
        return cls()

    def keep(self, queue: QueueAccess, store: ObjectStore, *, was_resumed: bool) -> None:
        """At the end of a sweep: for the next process, if there is something to go on with."""
        if self.is_resumed():
            self.write(queue, store)
        elif was_resumed:
            self.forget(queue, store)

    def write(self, queue: QueueAccess, store: ObjectStore) -> None:
        """Last writer wins: two sweepers at once only repeat some of each other's work."""
        try:
            store.put(queue.keys.progress, dump(asdict(self)), content_type="application/json")
        except QueueError as error:
            _log.warning("progress of the sweep not kept: %s: %s", queue.name, error)

    @staticmethod
    def forget(queue: QueueAccess, store: ObjectStore) -> None:
        try:
            store.delete(queue.keys.progress)
        except QueueError as error:
            _log.warning("progress of the sweep not deleted, trying again: %s: %s", queue.name, error)


def _value(name: str, value: Any) -> Any:
    """Raises one of NONSENSE if nobody could go on from there: every sweep would fail, and the document would stay."""
    if name not in _CURSORS:
        return as_whole(value)
    if len(as_text(value).encode()) > CURSOR_BYTES:
        raise ValueError(f"{name} is no key")
    return str(value)


_CURSORS = frozenset({"leases", "overdue", "messages", "cleanup", "schedules", "flows"})
