"""Heartbeat: one small object that keeps every lease of a long-lived worker alive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from s3queue.encoding import (
    LONGEST,
    NONSENSE,
    as_duration,
    as_list,
    as_name,
    as_number,
    as_object,
    as_text,
    as_whole,
    cut,
    dump,
    format_instant,
    load,
    parse_instant,
)
from s3queue.errors import CorruptState
from s3queue.store import Object

from .lease import GRAIN

#: Larger objects are not read. Two thousand threads with the longest names make so much.
HEARTBEAT_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """`workers/{id}`: that a worker is alive, and which messages it holds. Only that worker writes it."""

    worker: str
    started_at: datetime
    ttl: timedelta
    #: Makes every beat different, so that reading it back tells whether a write without an answer won.
    nonce: str
    holds: tuple[str, ...] = ()
    #: Instead of a long list: the run whose manifest names what is held.
    run: str = ""
    stats: Mapping[str, int] = field(default_factory=dict)
    #: Path → the fraction that is done, and a text.
    progress: Mapping[str, tuple[float, str]] = field(default_factory=dict)

    def is_fresh(self, age: timedelta) -> bool:
        """Whether a heartbeat written `age` ago, by S3's clock, still counts."""
        return age <= self.ttl + GRAIN

    def to_bytes(self) -> bytes:
        return dump(
            {
                "worker": self.worker,
                "started_at": format_instant(self.started_at),
                "ttl_seconds": min(self.ttl, LONGEST).total_seconds(),
                "nonce": self.nonce,
                "holds": list(self.holds),
                "run": self.run,
                "stats": dict(self.stats),
                "progress": {path: list(said) for path, said in self.progress.items()},
            }
        )

    @classmethod
    def from_bytes(cls, body: bytes, key: str) -> Heartbeat:
        """Raises CorruptState, which names the key, if the bytes are not a heartbeat."""
        found: dict[str, Any] = load(body, key)
        try:
            return cls(
                worker=as_text(found["worker"]),
                started_at=parse_instant(found["started_at"]),
                ttl=as_duration(found["ttl_seconds"]),
                nonce=as_text(found["nonce"]),
                holds=tuple(as_text(path) for path in as_list(found.get("holds", []))),
                run=as_name(found.get("run", "")),
                stats={name: as_whole(count) for name, count in as_object(found.get("stats", {})).items()},
                progress={
                    path: (as_number(said[0]), as_text(said[1]))
                    for path, said in as_object(found.get("progress", {})).items()
                },
            )
        except NONSENSE as error:
            raise CorruptState(f"{key} is not a heartbeat: {cut(error)}") from None

    @classmethod
    def read(cls, found: Object) -> Heartbeat:
        """`from_bytes` of an object that was opened; one that is too large is corrupt, and is not read."""
        return cls.from_bytes(found.read(HEARTBEAT_BYTES), found.key)
