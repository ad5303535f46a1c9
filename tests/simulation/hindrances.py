"""What hinders flows for longer than any crash does.  [P3] [P8]

In some schedules functions and sweepers may not write to `flows/`, for longer than records are kept, and the bucket
deletes records by their age: the outcome of whatever cannot be finished meanwhile has to be the same afterwards.
"""

from __future__ import annotations

from datetime import timedelta

from greenlet import getcurrent

from .judge import Judge
from .machines import EPOCH
from .world import Actor, World

#: Of so many seeds, this one: a remainder of those that have flows.
HINDERED_OF, UNTOLD = 400, 199
#: Seconds that a record is kept: longer than any request is late, or a process asleep.
RETENTION = 60.0
#: From about when, and until when, the right to write to `flows/` is missing.
BEGINS, ENDS = 12.0, 165.0
#: How often the bucket deletes what is too old.
EXPIRES_EVERY = 5.0
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
