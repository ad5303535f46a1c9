"""Bulk runs: the report of one, and the rows that it rejected, as they lie under `{queue}/bulk/{run}/`."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from s3queue.encoding import NONSENSE, as_text, as_whole, cut, parse_json
from s3queue.errors import CorruptState

#: Larger reports and plans are not read: short fields, and an example of each problem.
BULK_BYTES = 1024 * 1024
#: Larger objects of rejected rows are not read: 4 MiB of bodies, or a single row of 64 MiB, quoted.
REJECTED_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkReport:
    """What a bulk run did; `rows` is None if the run did not count them."""

    run: str
    rows: int | None
    batches: int
    messages: int
    #: How many rows, for each reason.
    rejected: Mapping[str, int]

    @classmethod
    def from_bytes(cls, body: bytes, key: str) -> BulkReport:
        """Raises CorruptState, which names the key."""
        try:
            stored = parse_json(body)
            rejected = stored.get("rejected", {})
            return cls(
                run=as_text(stored["run"]),
                rows=as_whole(stored["rows"]) if "rows" in stored else None,
                batches=as_whole(stored["batches"]),
                messages=as_whole(stored["messages"]),
                rejected={as_text(reason): as_whole(count) for reason, count in rejected.items()},
            )
        except NONSENSE as error:
            raise CorruptState(f"{key} is not the report of a bulk run: {cut(error)}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedRow:
    """A row that cannot be a message: where it comes from, as far as that is known, and why it was rejected."""

    reason: str
    body: bytes
    #: The object or file.
    source: str | None = None
    #: Its number in the source, from 1.
    row: int | None = None

    def to_bytes(self) -> bytes:
        """One line, in ASCII, so that it is a line for every reader."""
        told: dict[str, Any] = {"source": self.source, "row": self.row, "reason": self.reason}
        try:
            told["body"] = self.body.decode()
        except UnicodeDecodeError:
            told["body_base64"] = base64.b64encode(self.body).decode()
        return json.dumps(told).encode() + b"\n"

    @classmethod
    def from_bytes(cls, line: bytes, key: str) -> RejectedRow:
        """Raises CorruptState, which names the key."""
        try:
            stored = parse_json(line)
            source, row = stored.get("source"), stored.get("row")
            quoted = stored.get("body_base64")
            # JSON may hold half a surrogate pair, UTF-8 may not.
            text = as_text(stored["body"]).encode("utf-8", "replace") if quoted is None else b""
            return cls(
                reason=as_text(stored["reason"]),
                body=base64.b64decode(as_text(quoted), validate=True) if quoted is not None else text,
                source=None if source is None else as_text(source),
                row=None if row is None else as_whole(row),
            )
        except NONSENSE as error:
            raise CorruptState(f"{key} has a line that is not a rejected row: {cut(error)}") from None
