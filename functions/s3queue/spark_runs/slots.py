"""RunStore: the slots that limit how many Spark runs a queue has, and the manifests that name their messages.

`runs/slot-{k}` exists while a run is being launched or is active; whoever creates it may launch one. `runs/{run}.json`
names the messages of the run's present round: the run's one heartbeat keeps all of their leases alive.  [P2]
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from s3queue.documents.run_documents import Manifest, Slot
from s3queue.errors import Conflict, CorruptState, NewerFormat, QueueError
from s3queue.protocol.liveness import RUN
from s3queue.queue import Queue
from s3queue.store import ObjectInfo, delete_unique, listing, open_state, put_surely

_log = logging.getLogger(__name__)
#: A run may take this long to start; until then the heartbeat that the launcher wrote keeps its messages.
START_WITHIN = timedelta(minutes=10)
#: No run is asked for after a refusal, or after a run that failed before it had started a message, for this long: such
#: a run uses no attempt, so nothing else would end its repetitions. Twice as long after each such run, up to the most.
COOL, MOST_COOL = timedelta(seconds=20), timedelta(hours=1)
#: A slot that cannot be read is deleted after this time; one that says it is of a newer version, once no run of that
#: version can be behind it.
FORGED_AFTER, NEWER_AFTER = timedelta(minutes=1), timedelta(days=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSlot:
    """A slot as it was read."""

    number: int
    slot: Slot
    etag: str
    age: timedelta

    @property
    def is_cooling(self) -> bool:
        """Whether no run is asked for now."""
        return self.slot.state == "cooling" and self.age <= cools_for(self.slot.failures)

    @property
    def is_cold(self) -> bool:
        """Whether it can be deleted. What has failed is remembered for longer, until the next run was asked for."""
        kept = cools_for(self.slot.failures) + (MOST_COOL if self.slot.failures else timedelta())
        return self.slot.state == "cooling" and self.age > kept


def cools_for(failures: int) -> timedelta:
    """How long no run is asked for after so many runs in a row that failed before they had started a message."""
    return min(COOL * (1 << min(max(failures - 1, 0), 20)), MOST_COOL)


@dataclass(frozen=True, slots=True)
class RunStore:
    """Reads and writes the slots and manifests of one queue."""

    queue: Queue

    def new_run(self) -> str:
        """An id that sorts by time, and that can be a worker's name and EMR's client token."""
        return f"{RUN}{self.queue.chance.name(self.queue.clock.now())}"

    def slots(self) -> Iterator[HeldSlot]:
        """Every slot that is taken and can be read. One LIST, and one GET for each slot.

        A slot that cannot be read was forged: no run is behind it, and with `max_runs=1` none could start any more. It
        is deleted. If it was forged over the slot of a live run, that run ends as it would, beside a new one.
        """
        for page in listing(self.queue.store, f"{self.queue.keys.prefix('runs')}slot-"):
            for entry in page.objects:
                number = self.queue.keys.slot_number(entry.key)
                try:
                    held = self.slot(number) if number is not None else None
                except CorruptState as error:
                    self._delete_forged(entry, page.at - entry.modified_at, error)
                    continue
                if held:
                    yield held

    def _delete_forged(self, entry: ObjectInfo, age: timedelta, error: QueueError) -> None:
        if age <= (NEWER_AFTER if isinstance(error, NewerFormat) else FORGED_AFTER):
            _log.error("slot skipped: %s", error)
        elif delete_unique(self.queue.store, entry.key, if_match=entry.etag):
            _log.error("slot deleted, it cannot be read: %s", error)

    def slot(self, number: int) -> HeldSlot | None:
        """The slot; None if it is free. Raises CorruptState if it is not a slot; NewerFormat: upgrade this side."""
        found = open_state(self.queue.store, self.queue.keys.slot(number))
        if found is None:
            return None
        slot = Slot.read(found)
        return HeldSlot(number=number, slot=slot, etag=found.etag, age=found.at - found.modified_at)

    def open_slot(self, number: int, run: str, *, over: HeldSlot | None = None) -> HeldSlot:
        """Take a slot that is free, or replace the one that was found (`over`), whose failures are remembered.

        Raises:
            Conflict: someone else was faster.
        """
        failures = over.slot.failures if over else 0
        return self._put(number, Slot(run=run, state="launching", nonce="", failures=failures), over)

    def write_slot(self, held: HeldSlot, **changes: Any) -> HeldSlot:
        """Raises Conflict if it was written since it was read."""
        return self._put(held.number, replace(held.slot, **changes), held)

    def _put(self, number: int, slot: Slot, over: HeldSlot | None) -> HeldSlot:
        slot = replace(slot, nonce=self.queue.chance.token())
        key, if_match = self.queue.keys.slot(number), over.etag if over else None
        written = put_surely(self.queue.store, key, slot.to_bytes(), if_match=if_match, if_absent=if_match is None)
        return HeldSlot(number=number, slot=slot, etag=written.etag, age=timedelta())

    def free_slot(self, number: int, run: str) -> bool:
        """Delete the slot of a run; False if it belongs to another run."""
        while (held := self.slot(number)) and held.slot.run == run:
            if delete_unique(self.queue.store, self.queue.keys.slot(number), if_match=held.etag):
                return True
        return False

    def cool_slot(self, number: int, run: str, reason: str) -> None:
        """Instead of `free_slot`, if the run failed before it had started a message: nobody asks for a while."""
        while (held := self.slot(number)) and held.slot.run == run and held.slot.state != "cooling":
            failures = held.slot.failures + 1
            seconds = cools_for(failures).total_seconds()
            said = f"failed before it started a message ({failures} in a row), no run for {seconds:g} s: {reason}"
            try:
                self.write_slot(held, state="cooling", failures=failures, reason=said[:500])
            except Conflict:
                continue
            _log.error("Spark runs pause: %s: %s: %s", self.queue.name, run, said)
            return

    def manifest(self, run: str) -> tuple[Manifest, str] | None:
        """A run's manifest and its ETag; None if there is none, or if it cannot be read."""
        found = open_state(self.queue.store, self.queue.keys.manifest(run))
        if found is None:
            return None
        try:
            manifest = Manifest.read(found)
        except NewerFormat:
            raise
        except CorruptState as error:
            _log.error("manifest not used: %s", error)
            return None
        # Another run's manifest would be written back to that run's key.
        return (manifest, found.etag) if manifest.run == run else None

    def write_manifest(self, manifest: Manifest, etag: str | None) -> tuple[Manifest, str]:
        """Raises Conflict if it was written since it was read: the run no longer belongs to the writer."""
        return self.put_manifest(replace(manifest, nonce=self.queue.chance.token()), etag)

    def put_manifest(self, manifest: Manifest, etag: str | None) -> tuple[Manifest, str]:
        """As `write_manifest`; its `nonce` is new, and known to the caller also if the write has no answer."""
        written = put_surely(
            self.queue.store,
            self.queue.keys.manifest(manifest.run),
            manifest.to_bytes(),
            if_match=etag,
            if_absent=etag is None,
        )
        return manifest, written.etag


def as_run(queue: Queue, run: str) -> Queue:
    """The same queue, with the run as its worker."""
    other = Queue(
        store=queue.store,
        name=queue.name,
        settings=queue.defined,
        worker_id=run,
        clock=queue.clock,
        chance=queue.chance,
        events=queue.events,
        sends_to=queue.sends_to,
        flows=queue.flows,
    )
    other.settings = queue.settings
    return other
