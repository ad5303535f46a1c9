"""Batches: an `.ndjson` object in which every line is a message, and the outcomes of its lines.

One claim, one GET and one record serve all lines; the lease keeps what is done, so that a retry runs only what failed.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from .message import INLINE_BYTES
from .record import Failure

#: Results and error texts kept for the lines of one batch; beyond it they are counted only.
RESULTS_BYTES = 64 * 1024
#: Dead lines listed by number in a record.
LISTED_LINES = 100
_BOM = b"\xef\xbb\xbf"


def read_lines(stream: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """The messages of a batch with their line numbers (counted from 1, as an editor shows them).

    Blank lines are no messages; CRLF and a missing last newline are fine. One line at a time is in memory.
    """
    for number, raw in enumerate(stream, start=1):
        line = raw.rstrip(b"\r\n")
        if number == 1:
            line = line.removeprefix(_BOM)
        if line.strip():
            yield number, line


def spooled(stream: IO[bytes]) -> IO[bytes]:
    """The stream's bytes, fetched at once: handlers may take longer than S3 keeps a connection open.

    In memory while small, in a temporary file beyond that.
    """
    spool = tempfile.SpooledTemporaryFile(max_size=INLINE_BYTES)  # noqa: SIM115 (the caller closes it)
    with stream:
        shutil.copyfileobj(stream, spool, length=1024 * 1024)
    spool.seek(0)
    return spool


def join_lines(bodies: Iterable[Any]) -> bytes:
    """Bodies as one batch: JSON, one a line; text and bytes must already be single lines of it."""
    lines = []
    for body in bodies:
        if isinstance(body, str):
            body = body.encode()
        if isinstance(body, bytes):
            if b"\n" in body or b"\r" in body or not body.strip():
                raise ValueError("a body in a batch is one line that is not blank")
            lines.append(body)
        else:
            lines.append(json.dumps(body, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode())
    return b"\n".join(lines) + b"\n" if lines else b""


@dataclass(slots=True)
class Lines:
    """What became of the lines so far. Changed by the worker that holds the lease, stored with it."""

    done: set[int] = field(default_factory=set)
    #: Line → how many attempts it has failed, and why the last time.
    failed: dict[int, tuple[int, Failure]] = field(default_factory=dict)
    dead: dict[int, Failure] = field(default_factory=dict)
    results: dict[int, Any] = field(default_factory=dict)
    results_bytes: int = 0
    #: How many lines the batch has; known once it was read to its end with nothing left to retry.
    total: int | None = None

    def is_pending(self, line: int, attempt: int) -> bool:
        """Whether the line is to run in this attempt: a continued attempt does not repeat its own failures.  [P5]"""
        return line not in self.done and line not in self.dead and self.failed.get(line, (0, None))[0] < attempt

    def complete(self, line: int, result: Any = None) -> None:
        self.done.add(line)
        self.failed.pop(line, None)
        if result is not None and self.results_bytes <= RESULTS_BYTES:
            try:
                self.results_bytes += len(json.dumps(result, allow_nan=False))
            except (TypeError, ValueError, RecursionError):
                return
            if self.results_bytes <= RESULTS_BYTES:
                self.results[line] = result

    def fail(self, line: int, attempt: int, failure: Failure, *, dead: bool) -> None:
        failure = Failure(failure.type, failure.message[:200])
        if dead:
            self.failed.pop(line, None)
            self.dead[line] = failure
        else:
            self.failed[line] = (attempt, failure)

    def is_empty(self) -> bool:
        return not (self.done or self.failed or self.dead)

    def summary(self) -> dict[str, Any]:
        """For the record. Without a total, an unknown number of lines never came to an end."""
        described: dict[str, Any] = {"total": self.total, "completed": len(self.done), "dead": len(self.dead)}
        if self.dead:
            listed = sorted(self.dead)[:LISTED_LINES]
            described["dead_lines"] = [[line, self.dead[line].type, self.dead[line].message] for line in listed]
        if self.results:
            described["results"] = [[line, result] for line, result in sorted(self.results.items())]
        return described

    def to_json(self) -> dict[str, Any]:
        """Ranges for what is done, one table of errors for all lines: a lease stays small."""
        table: dict[Failure, int] = {}
        failed = [
            [line, tries, table.setdefault(failure, len(table))]
            for line, (tries, failure) in sorted(self.failed.items())
        ]
        dead = [[line, table.setdefault(failure, len(table))] for line, failure in sorted(self.dead.items())]
        return {
            "done": _ranges(sorted(self.done)),
            "failed": failed,
            "dead": dead,
            "errors": [failure.to_json() for failure in table],
            "total": self.total,
            "results": [[line, result] for line, result in sorted(self.results.items())],
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Lines:
        errors = [Failure.from_json(error) for error in found.get("errors", ())]
        return cls(
            done={line for first, last in found.get("done", ()) for line in range(first, last + 1)},
            failed={line: (tries, errors[index]) for line, tries, index in found.get("failed", ())},
            dead={line: errors[index] for line, index in found.get("dead", ())},
            results=dict(found.get("results", ())),
            results_bytes=len(json.dumps(found.get("results", ()))),
            total=found.get("total"),
        )


def _ranges(numbers: list[int]) -> list[list[int]]:
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges
