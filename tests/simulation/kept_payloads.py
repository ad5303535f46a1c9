"""Kept payloads, as the judge sees them.  [P1] [P6]

The record says whether a payload is kept: at the instant when such a message is deleted, its bytes lie under `done/`.
A replay is a PUT with an id of its own, and no such id is ever PUT twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from s3queue.documents.kept_payload import replay_id
from s3queue.documents.record import Record
from s3queue.encoding import put_id_of

from .ledger import Ledger, Life
from .machines import Process
from .world import World

if TYPE_CHECKING:
    from .history import Call


class Kept:
    """What was written into `done/`, and which replays were PUT."""

    def __init__(self, world: World, root: str, ledger: Ledger, broken: Callable[[str, str], None]) -> None:
        self._world = world
        self._root = root
        self._ledger = ledger
        self._broken = broken
        #: Id of a replay → who PUT it first, when, and whether it landed late.
        self._replayed: dict[str, tuple[Process, float, bool]] = {}
        self._replays: list[Life] = []

    def write(self, path: str, after: Any) -> None:
        """[P1] What is kept is what was completed: its bytes are those of the generation that it names."""
        named = after.metadata.get("s3queue-etag")
        lives = [life for life in self._ledger.lives.get(path, ()) if life.etag == named]
        if not lives or lives[0].body != after.body:
            self._broken("P1", f"done/{path} holds other bytes than what it says was completed")

    def check(self, life: Life) -> None:
        """[P1] [P6] A completed message that is to be kept is not deleted before it is."""
        if not (life.record and life.record.keeps_payload and life.record.outcome == "completed"):
            return
        stored = self._world.objects.get(f"{self._root}done/{life.path}")
        if stored is None or stored.body != life.body:
            self._broken("P1", f"{life.path} was completed and deleted, and its payload was not kept")

    def recorded(self, life: Life, record: Record) -> None:
        """[P5] No attempt of its former life is charged to a replay: it dies of its own alone."""
        if life in self._replays and record.outcome == "dead" and not life.runs and record.attempt > life.claims:
            self._broken("P5", f"the replay {life.path} died of attempt {record.attempt}, and was never claimed")

    def replay(self, call: Call, life: Life, after: Any) -> None:
        """[P1] [P5] One completion is replayed once, however often that is asked for."""
        if call.name == "replay":
            return  # of a dead letter, which has its own judge
        self._replays.append(life)
        path, put_id = life.path, put_id_of(after.metadata)
        records = [one.record for one in self._ledger.lives[path] if one.record]
        if put_id not in {replay_id(record) for record in records}:
            return  # of a dead letter, which has its own judge
        # Two who look at the same time find nothing, and a PUT on its way cannot be stopped: that neither runs, `Dedup`
        # knows.
        landing = self._world.is_landing
        first, at, was_late = self._replayed.setdefault(put_id, (call.process, self._world.now, landing))
        # Nor does he see his own PUT that lands after his last look.
        is_seen = (first is call.process and not was_late) or at < call.invoked_at
        # Someone deleted the first one by hand before it had run: only the second one does.
        is_gone = any(one.end == "removed" and one.path == path for one in self._replays)
        if at < self._world.now and is_seen and not is_gone and not landing:
            self._broken("P5", f"{path} was replayed twice for one completion")
