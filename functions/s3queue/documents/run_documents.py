"""The documents of Spark runs: the slot that allows a run, and the manifest that names the messages of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from s3queue.encoding import (
    NONSENSE,
    Json,
    as_list,
    as_name,
    as_object,
    as_text,
    as_whole,
    cut,
    dump,
    format_instant,
    load_current,
    parse_instant,
)
from s3queue.errors import CorruptState
from s3queue.store import Object

SlotState = Literal["launching", "started", "cooling"]
ManifestState = Literal["launching", "running", "closed", "failed"]
#: Larger objects are not read: a slot has six short fields, a manifest up to eight thousand long paths.
SLOT_BYTES = 64 * 1024
MANIFEST_BYTES = 8 * 1024 * 1024
#: While its driver runs, the object of a run is younger than this.
RUN_SILENT = timedelta(minutes=15)
#: As EMR names its states; `closed` is a manifest's own.
_ENDED = frozenset({"SUCCESS", "FAILED", "CANCELLED", "CLOSED"})
_WORDS = {
    "launching": "Starting",
    "running": "Running",
    "closed": "Ended",
    "failed": "Failed",
    "started": "Taken",
    "cooling": "Cooling",
}


def is_silent(state: str, age: timedelta) -> bool:
    """Whether a run has not ended, and has given no sign of life for long."""
    return age > RUN_SILENT and state.upper() not in _ENDED


def state_word(state: str, *, is_silent: bool = False) -> str:
    """The state of a run or a slot as people read it, in the command and on the page."""
    return "Silent" if is_silent else _WORDS.get(state, state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """`runs/slot-{k}`: the run that has this slot. Every write is conditional."""

    run: str
    state: SlotState
    #: Gives two writes of equal content different ETags.
    nonce: str
    #: EMR's id of the job; empty until EMR has answered.
    job: str = ""
    #: In the state `cooling`: why no run could be started.
    reason: str = ""
    #: How many runs in a row failed before they had started a message.
    failures: int = 0

    def to_bytes(self) -> bytes:
        return dump(
            {
                "run": self.run,
                "state": self.state,
                "nonce": self.nonce,
                "job": self.job,
                "reason": self.reason,
                "failures": self.failures,
            }
        )

    @classmethod
    def from_bytes(cls, body: bytes, key: str) -> Slot:
        """Raises CorruptState, with the key, if it is not a slot; NewerFormat if a newer version wrote it."""
        found = load_current(body, key)
        try:
            if found["state"] not in ("launching", "started", "cooling"):
                raise ValueError(f"unknown state {found['state']!r}")
            return cls(
                run=as_name(found["run"]),
                state=found["state"],
                nonce=as_text(found["nonce"]),
                job=as_text(found.get("job", "")),
                reason=as_text(found.get("reason", "")),
                failures=as_whole(found.get("failures", 0), most=10**9),
            )
        except NONSENSE as error:
            raise CorruptState(f"{key} is not a slot: {cut(error)}") from None

    @classmethod
    def read(cls, found: Object) -> Slot:
        """`from_bytes` of an object that was opened; one that is too large is corrupt, and is not read."""
        return cls.from_bytes(found.read(SLOT_BYTES), found.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """`runs/{run}.json`: the messages of a run, and its progress. Written by the launcher, then by the driver."""

    run: str
    slot: int
    state: ManifestState
    opened_at: datetime
    nonce: str = ""
    #: The messages of the present round, in the order in which they are started.
    paths: tuple[str, ...] = ()
    #: How many of them, counted from the first, may have been started; the others can be given back.  [P5]
    started: int = 0
    #: What was started and is named no longer though nobody knows its outcome: if it has the run's lease yet, that was
    #: an attempt. None: not known, of a run that lost very many, or by an older version.  [P5]
    lost: tuple[str, ...] | None = ()
    #: How many times the run has claimed messages. The stored name is `batches`.
    rounds: int = 0
    #: How many messages ended in which way.
    counts: Mapping[str, int] = field(default_factory=dict)
    note: str = ""
    #: The settings that the run was asked for with: a request that is repeated must be the same. Empty: an older
    #: version wrote it.
    asked: Mapping[str, Json] = field(default_factory=dict)

    @property
    def is_unstarted(self) -> bool:
        """Whether the run has certainly started no message: if it fails like this, that has cost no attempt.

        One that is at work and names no message may have held a partition, whose lease counts attempts.
        """
        is_at_work = self.state in ("running", "closed")
        return not (self.started or self.counts) and not (is_at_work and not self.paths)

    def has_not_started(self, path: str) -> bool:
        """Whether the run has certainly not started the message under a lease that it has yet: it says so here before
        it starts one.  [P5]

        Without `lost`, only of what it names: anything else may have been started, and dropped.
        """
        if self.lost is None:
            return path in self.paths[self.started :]
        return path not in self.paths[: self.started] and path not in self.lost

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
                # An empty list is not stored, and an older version stores none.
                "names_lost": None if self.lost is None else True,
                "lost": list(self.lost or ()),
                "batches": self.rounds,
                "counts": dict(self.counts),
                "note": self.note,
                "asked": dict(self.asked),
            }
        )

    @classmethod
    def from_bytes(cls, body: bytes, key: str) -> Manifest:
        """Raises CorruptState, with the key, if it is not a manifest; NewerFormat if a newer version wrote it."""
        found = load_current(body, key)
        try:
            if found["state"] not in ("launching", "running", "closed", "failed"):
                raise ValueError(f"unknown state {found['state']!r}")
            paths = tuple(as_name(path) for path in as_list(found.get("paths", [])))
            lost = tuple(as_name(path) for path in as_list(found.get("lost", [])))
            if len(set(paths)) < len(paths):
                raise ValueError("a message is named twice")
            return cls(
                run=as_name(found["run"]),
                slot=as_whole(found["slot"], most=10**9),
                state=found["state"],
                opened_at=parse_instant(found["opened_at"]),
                nonce=as_text(found.get("nonce", "")),
                paths=paths,
                started=as_whole(found.get("started", 0), most=len(paths)),
                lost=lost if found.get("names_lost") is True else None,
                rounds=as_whole(found.get("batches", 0)),
                counts={name: as_whole(count) for name, count in as_object(found.get("counts", {})).items()},
                note=as_text(found.get("note", "")),
                asked=as_object(found.get("asked", {})),
            )
        except NONSENSE as error:
            raise CorruptState(f"{key} is not a manifest: {cut(error)}") from None

    @classmethod
    def read(cls, found: Object) -> Manifest:
        """`from_bytes` of an object that was opened; one that is too large is corrupt, and is not read."""
        return cls.from_bytes(found.read(MANIFEST_BYTES), found.key)
