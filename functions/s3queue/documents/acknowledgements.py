"""Acknowledgements: which dead letters an operator has seen and left; `{queue}/queue-acknowledged.json`.

Such letters stay, and can be replayed; they do not count for the verdict. A LIST shows whether a letter is one of them,
so that a count needs no request for each: the document has a mark of its key and of when it was written. What dies
later has another mark, and counts again, also in the same group.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from s3queue.encoding import NONSENSE, as_list, as_name, as_text, cut, dump, format_instant, load_current, parse_instant
from s3queue.errors import CorruptState
from s3queue.store import Object

from .failure_group import GroupKey

#: Letters of single groups that the document has room for; `everything` needs none.
MOST_LETTERS = 10_000
MOST_GROUPS = 200
#: A larger document is not read.
ACKNOWLEDGED_BYTES = 1024 * 1024
_MARK = 12


def letter_mark(path: str, written_at: datetime) -> str:
    """Names this letter, and no later one of its path. S3's HEAD tells whole seconds, so no more is used."""
    named = f"{path} {int(written_at.timestamp())}"
    return hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()[:_MARK]


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgements:
    """What an operator has acknowledged: everything before an instant, and letters of single groups."""

    before: datetime | None = None
    letters: frozenset[str] = frozenset()
    #: When each group was acknowledged last: of a batch, some lines may be, and others not.
    groups: Mapping[GroupKey, datetime] = field(default_factory=dict)

    def covers(self, path: str, written_at: datetime) -> bool:
        """Whether all of this letter is acknowledged."""
        return self.is_before(written_at) or letter_mark(path, written_at) in self.letters

    def covers_group(self, key: GroupKey, written_at: datetime) -> bool:
        """Whether the lines of this group are, in the letter of a batch that was written then."""
        at = self.groups.get(key)
        return self.is_before(written_at) or (at is not None and written_at <= at)

    def is_before(self, written_at: datetime) -> bool:
        """Whether it is, as everything was that had died by an instant."""
        return self.before is not None and written_at < self.before

    def to_bytes(self, nonce: str) -> bytes:
        return dump(
            {
                "before": format_instant(self.before) if self.before else None,
                "groups": [[key.error_type, key.message, format_instant(at)] for key, at in self.groups.items()],
                "letters": sorted(self.letters),
                "nonce": nonce,
            }
        )

    @classmethod
    def read(cls, found: Object) -> Acknowledgements:
        """Raises CorruptState, which names the key, if it is none; NewerFormat if a newer version wrote it."""
        document = load_current(found.read(ACKNOWLEDGED_BYTES), found.key)
        try:
            return cls._from_json(document)
        except NONSENSE as error:
            raise CorruptState(f"{found.key} has no acknowledgements: {cut(error)}; delete it") from None

    @classmethod
    def _from_json(cls, found: dict[str, Any]) -> Acknowledgements:
        groups = {
            GroupKey(as_text(kind), as_text(message)): parse_instant(at)
            for kind, message, at in as_list(found.get("groups", []))
        }
        return cls(
            before=parse_instant(found["before"]) if found.get("before") else None,
            letters=frozenset(as_name(mark) for mark in as_list(found.get("letters", []))),
            groups=groups,
        )


def latest_groups(groups: Iterable[tuple[GroupKey, datetime]]) -> dict[GroupKey, datetime]:
    """As many as the document keeps, those that were acknowledged last."""
    kept = sorted(dict(groups).items(), key=lambda one: one[1])
    return dict(kept[-MOST_GROUPS:])
