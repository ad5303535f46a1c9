"""Runs: the slots that bound how many Spark runs a queue has, and the manifest that says what each of them holds.

`runs/slot-{k}` exists while a run is being launched or at work; whoever creates it may launch one. `runs/{run}.json`
names the messages of the run's present batch: the run's one heartbeat keeps all of their leases alive.  [P2]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from .encoding import FORMAT, dump, format_instant, load, parse_instant
from .errors import CorruptState, NewerFormat
from .queue import Queue
from .store import delete_surely, listing, put_surely

SlotState = Literal["launching", "started", "cooling"]
ManifestState = Literal["launching", "running", "closed", "failed"]
#: A run that was asked for may take this long to start; until then its launcher's heartbeat keeps its messages.
START_WITHIN = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """`runs/slot-{k}`: which run has it. Every write is conditional."""

    run: str
    state: SlotState
    #: Makes two writes of equal content two different ETags.
    nonce: str
    #: EMR's id of the job; empty until its answer came.
    job: str = ""
    #: Why no run could be started, while it cools.
    reason: str = ""

    def to_bytes(self) -> bytes:
        described = {"run": self.run, "state": self.state, "nonce": self.nonce, "job": self.job, "reason": self.reason}
        return dump(described)

    @classmethod
    def from_bytes(cls, body: bytes, key: str) -> Slot:
        """Raises CorruptState, naming the key, if these bytes are no slot."""
        found = load(body, key)
        try:
            if found["state"] not in ("launching", "started", "cooling"):
                raise ValueError(f"no such state: {found['state']!r}")
            job, reason = str(found.get("job", "")), str(found.get("reason", ""))
            return cls(run=str(found["run"]), state=found["state"], nonce=str(found["nonce"]), job=job, reason=reason)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptState(f"{key} is not a slot: {error!r}; delete it if no run is at work") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSlot:
    """A slot as it was found."""

    number: int
    slot: Slot
    etag: str
    age: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """`runs/{run}.json`: what a run holds, and how far it is. Written by the launcher, then by the driver."""

    run: str
    slot: int
    state: ManifestState
    opened_at: datetime
    nonce: str = ""
    #: The messages of the present batch, in the order in which they are started.
    paths: tuple[str, ...] = ()
    #: How many of them, from the first on, may have been started: the others can be given back.  [P5]
    started: int = 0
    batches: int = 0
    #: How many messages came to which outcome.
    counts: Mapping[str, int] = field(default_factory=dict)
    note: str = ""

    def to_bytes(self) -> bytes:
        return dump(
            {
                "run": self.run,
                "slot": self.slot,
                "state": self.state,
                "opened_at": format_instant(self.opened_at),
                "nonce": self.nonce,
                "paths": list(self.paths),
                "started": self.started,
                "batches": self.batches,
                "counts": dict(self.counts),
                "note": self.note,
            }
        )

    @classmethod
    def from_bytes(cls, body: bytes, key: str) -> Manifest:
        """Raises CorruptState, naming the key, if these bytes are no manifest; NewerFormat if a later one's."""
        found: dict[str, Any] = load(body, key)
        if found["v"] > FORMAT:
            raise NewerFormat(f"{key} has format {found['v']}, this version reads up to {FORMAT}: upgrade this side")
        try:
            return cls(
                run=str(found["run"]),
                slot=int(found["slot"]),
                state=found["state"],
                opened_at=parse_instant(found["opened_at"]),
                nonce=str(found.get("nonce", "")),
                paths=tuple(found.get("paths", ())),
                started=int(found.get("started", 0)),
                batches=int(found.get("batches", 0)),
                counts=dict(found.get("counts", {})),
                note=str(found.get("note", "")),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptState(f"{key} is not a manifest: {error!r}") from None


@dataclass(frozen=True, slots=True)
class RunBook:
    """Reads and writes the slots and manifests of one queue."""

    queue: Queue

    def new_run(self) -> str:
        """An id that sorts by time, fit for a worker's name and for EMR's client token."""
        return f"run-{self.queue.chance.name(self.queue.clock.now())}"

    def slots(self) -> Iterator[HeldSlot]:
        """Every slot that is taken. One LIST, and a GET for each."""
        for page in listing(self.queue.store, f"{self.queue.keys.prefix('runs')}slot-"):
            for entry in page.objects:
                number = self.queue.keys.slot_number(entry.key)
                if number is not None and (held := self.slot(number)):
                    yield held

    def slot(self, number: int) -> HeldSlot | None:
        """Raises CorruptState if something else lies there."""
        found = self.queue.store.open(self.queue.keys.slot(number))
        if found is None:
            return None
        slot = Slot.from_bytes(found.read(), found.key)
        return HeldSlot(number=number, slot=slot, etag=found.etag, age=found.at - found.modified_at)

    def open_slot(self, number: int, run: str, *, over: HeldSlot | None = None) -> HeldSlot:
        """Take a slot that is free, or one that was found and is nobody's.

        Raises:
            Conflict: someone else was faster.
        """
        return self._put(number, Slot(run=run, state="launching", nonce=""), over)

    def write_slot(self, held: HeldSlot, **changes: Any) -> HeldSlot:
        """Raises Conflict if it was written since it was read."""
        return self._put(held.number, replace(held.slot, **changes), held)

    def _put(self, number: int, slot: Slot, over: HeldSlot | None) -> HeldSlot:
        slot = replace(slot, nonce=self.queue.chance.token())
        key, if_match = self.queue.keys.slot(number), over.etag if over else None
        written = put_surely(self.queue.store, key, slot.to_bytes(), if_match=if_match, if_absent=if_match is None)
        return HeldSlot(number=number, slot=slot, etag=written.etag, age=timedelta())

    def free_slot(self, number: int, run: str) -> bool:
        """Give a run's slot up; False if it is not that run's."""
        while (held := self.slot(number)) and held.slot.run == run:
            if delete_surely(self.queue.store, self.queue.keys.slot(number), if_match=held.etag):
                return True
        return False

    def manifest(self, run: str) -> tuple[Manifest, str] | None:
        """A run's manifest and its ETag; None if there is none, or garbage in its place."""
        found = self.queue.store.open(self.queue.keys.manifest(run))
        if found is None:
            return None
        try:
            return Manifest.from_bytes(found.read(), found.key), found.etag
        except NewerFormat:
            raise
        except CorruptState:
            return None

    def write_manifest(self, manifest: Manifest, etag: str | None) -> tuple[Manifest, str]:
        """Raises Conflict if it was written since it was read: the run is no longer the writer's."""
        manifest = replace(manifest, nonce=self.queue.chance.token())
        written = put_surely(
            self.queue.store,
            self.queue.keys.manifest(manifest.run),
            manifest.to_bytes(),
            if_match=etag,
            if_absent=etag is None,
        )
        return manifest, written.etag


def as_run(queue: Queue, run: str) -> Queue:
    """The same queue, claimed from in the name of a run."""
    other = Queue(
        store=queue.store,
        name=queue.name,
        settings=queue.defined,
        worker_id=run,
        clock=queue.clock,
        chance=queue.chance,
        events=queue.events,
    )
    other.settings = queue.settings
    return other
