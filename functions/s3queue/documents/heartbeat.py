"""Heartbeat: one small object that keeps every lease of a long-lived worker alive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from s3queue.encoding import dump, format_instant, load, parse_instant
from s3queue.errors import CorruptState

from .lease import GRAIN


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
                "ttl_seconds": self.ttl.total_seconds(),
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
                worker=str(found["worker"]),
                started_at=parse_instant(found["started_at"]),
                ttl=timedelta(seconds=float(found["ttl_seconds"])),
                nonce=str(found["nonce"]),
                holds=tuple(found.get("holds", ())),
                run=str(found.get("run", "")),
                stats=dict(found.get("stats", {})),
                progress={path: (float(said[0]), str(said[1])) for path, said in found.get("progress", {}).items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise CorruptState(f"{key} is not a heartbeat: {error!r}") from None
