"""What hinders flows for longer than any crash does.  [P3] [P8]

In some schedules functions and sweepers may not write to `flows/`, for longer than records are kept, and the bucket
deletes records by their age: the outcome of whatever cannot be finished meanwhile has to be the same afterwards.

In others nobody may read some messages of flows: they die where they lie, and their flows go on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from greenlet import getcurrent

from s3queue.documents.flow import FlowDocument
from s3queue.errors import AccessDenied, Unreadable
from s3queue.flow import flow_repair
from s3queue.keys import Keys

from .judge import Judge
from .machines import EPOCH
from .world import Actor, World

#: Of so many seeds, this one: a remainder of those that have flows.
HINDERED_OF, UNTOLD, UNREAD = 400, 199, 399
#: Seconds that a record is kept: longer than any request is late, or a process asleep.
RETENTION = 60.0
#: From about when, and until when, the right to write to `flows/` is missing.
BEGINS, ENDS = 12.0, 165.0
#: How often the bucket deletes what is too old.
EXPIRES_EVERY = 5.0
#: The share of messages that nobody may read, and the seconds after which a sweeper looks whether one is dead.
UNREAD_SHARE, LIES_FOR_LONG = 0.35, 15.0
#: Who has lost the right: a deployment took it away from these.
_DEPLOYED = ("function", "sweeper")


class Untold:
    """Flows that cannot be told what became of their messages."""

    def __init__(self, world: World, judges: dict[str, Judge]) -> None:
        self._world = world
        self._roots = tuple(f"{name}/records/" for name in judges)
        self._begins = world.random.random() * BEGINS

    def begin(self) -> None:
        self._world.store.denies = self._denies
        self._world.at(EXPIRES_EVERY, self._expire)

    def _denies(self, operation: str, key: str) -> bool:
        if operation != "put" or not key.startswith("flows/") or not self._begins <= self._world.now < ENDS:
            return False
        actor = getcurrent()
        return isinstance(actor, Actor) and actor.process.name.startswith(_DEPLOYED)

    def _expire(self) -> None:
        """As the bucket's lifecycle does it. The judge is not told: what it has seen stays the outcome."""
        before = EPOCH + timedelta(seconds=self._world.now - RETENTION)
        objects = self._world.objects
        for key in [key for key, stored in objects.items() if key.startswith(self._roots)]:
            if objects[key].modified_at < before:
                self._world.note(self._world.nobody, "expire", key, "deleted")
                del objects[key]
        if self._world.now < ENDS:
            self._world.at(self._world.now + EXPIRES_EVERY, self._expire)


class Unread:
    """Messages of flows that nobody may read: archived ones can be described, forbidden ones cannot."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.kind = world.random.choice((Unreadable, AccessDenied))

    def hide(self, flow: FlowDocument) -> None:
        """Before it is started."""
        for node, member in enumerate((*flow.members, *flow.steps)):
            if isinstance(member, FlowDocument):
                self.hide(member)
            elif self._world.random.random() < UNREAD_SHARE:
                self._world.store.refused[Keys(member.queue).message(flow.path(node))] = self.kind


@contextmanager
def looked_at_soon(*, is_wanted: bool) -> Iterator[None]:
    """A sweeper looks after what lies there for seconds, not for an hour."""
    kept = flow_repair.LIES_FOR_LONG
    flow_repair.LIES_FOR_LONG = timedelta(seconds=LIES_FOR_LONG) if is_wanted else kept
    try:
        yield
    finally:
        flow_repair.LIES_FOR_LONG = kept
