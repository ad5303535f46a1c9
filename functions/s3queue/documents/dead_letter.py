"""Dead letters: what lies under `dead/`: a message with its failure in the metadata, or the dead lines of a batch."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from s3queue.encoding import format_instant, parse_instant
from s3queue.store import ObjectInfo

from .dead_facts import dead_facts, generation_mark
from .message import MOVED, Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that died, or the dead lines of a batch, and the last error."""

    path: str
    #: The path of the message that died: that of the letter, without the mark of a second letter of one name.
    origin: str
    size: int
    died_at: datetime
    error_type: str
    error: str
    attempts: int
    worker: str = ""
    #: How many lines of a batch it holds; 0 if it is a whole message.
    lines: int = 0
    #: How many of its lines have which error type; empty for a whole message, and if they are too many for its
    #: metadata. `DeadLetters.list` then reads them.
    error_types: Mapping[str, int] = field(default_factory=dict, compare=False)
    enqueued_at: datetime | None = None
    #: The PUT that died; None if the letter does not name it.
    generation: Generation | None = None
    #: The message could not be read, so it lies where it was PUT; this letter stands for it.
    is_unreadable: bool = False
    #: The ETag, for conditional deletes.
    etag: str = ""
    #: When the letter was written, by S3's clock.
    written_at: datetime | None = field(default=None, compare=False)

    @property
    def counts(self) -> Mapping[str, int]:
        """Dead messages by error type; a batch counts as its lines."""
        return self.error_types or {"unknown" if self.lines else self.error_type: max(1, self.lines)}

    def has_only(self, error_type: str) -> bool:
        """Whether all lines of a batch died of this error; not if that cannot be told without reading it."""
        return self.error_types.keys() == {error_type}

    @property
    def replay_id(self) -> str:
        """Names this very death: equal bytes die again under the same name, and each letter has its own replay, which
        runs once.
        """
        death = (self.path, self.etag, str(self.enqueued_at), str(self.died_at))
        return MOVED + hashlib.sha256(" ".join(death).encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "size": self.size,
            "died_at": format_instant(self.died_at),
            "error_type": self.error_type,
            "error": self.error,
            "attempts": self.attempts,
            "worker": self.worker,
            "lines": self.lines,
            "enqueued_at": format_instant(self.enqueued_at) if self.enqueued_at else None,
        }

    @classmethod
    def of(cls, path: str, info: ObjectInfo) -> DeadLetter:
        """From the object's own facts; what someone else wrote there is left out."""
        facts = dead_facts(info.metadata)
        put_at = _instant(facts.get("enqueued-at"))
        generation = Generation(etag=facts["etag"], put_at=put_at) if put_at and "etag" in facts else None
        lines = _number(facts.get("lines"))
        return cls(
            path=path,
            # Not by its looks: a producer's own name may end like a mark.
            origin=path.removesuffix(f"~{generation_mark(generation)}") if generation else path,
            size=info.size,
            died_at=_instant(facts.get("died-at")) or info.modified_at,
            error_type=facts.get("error-type", "unknown"),
            error=facts.get("error", ""),
            attempts=_number(facts.get("attempts")),
            worker=facts.get("worker", ""),
            lines=lines,
            error_types=_counts(facts.get("error-types")) if lines else {},
            enqueued_at=put_at,
            generation=generation,
            is_unreadable=facts.get("unreadable") == "true",
            etag=info.etag,
            written_at=info.modified_at,
        )


def count_by_error_type(letters: Iterable[DeadLetter]) -> dict[str, int]:
    """How many died of which error, most frequent first; a batch counts as its lines."""
    counts: Counter[str] = Counter()
    for letter in letters:
        counts.update(letter.counts)
    return dict(counts.most_common())


def _counts(text: str | None) -> dict[str, int]:
    try:
        found = json.loads(text) if text else {}
        return {str(kind): int(count) for kind, count in found.items()}
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError):
        return {}


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 12 else 0


def _instant(text: str | None) -> datetime | None:
    try:
        return parse_instant(text) if text else None
    except ValueError:
        return None
