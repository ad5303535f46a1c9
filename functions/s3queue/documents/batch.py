"""Batches: an `.ndjson` object in which every line is a message, and the progress of its lines.

One claim, one GET and one record serve all lines. The lease keeps which lines are done, so that a retry runs only the
lines that failed.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import IO, Any

from .message import INLINE_BYTES
from .record import Failure

#: Results of lines that one batch keeps, in bytes; further results are dropped.
RESULTS_BYTES = 64 * 1024
#: Dead lines that a record lists by number.
LISTED_LINES = 100
_BOM = b"\xef\xbb\xbf"
#: Made once: with options, json.dumps makes a new encoder for every call.
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def read_lines(stream: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """The messages of a batch with their line numbers (counted from 1, as an editor shows them).

    Blank lines are skipped; CRLF and a missing last newline are fine. Only one line at a time is in memory.
    """
    for number, raw in enumerate(stream, start=1):
        line = raw.rstrip(b"\r\n")
        if number == 1:
            line = line.removeprefix(_BOM)
        if line.strip():
            yield number, line


def spooled(stream: IO[bytes]) -> IO[bytes]:
    """A copy of the whole stream: handlers may take longer than S3 keeps a connection open.

    A small one is kept in memory, a larger one in a temporary file.
    """
    spool = tempfile.SpooledTemporaryFile(max_size=INLINE_BYTES)  # noqa: SIM115 (the caller closes it)
    with stream:
        shutil.copyfileobj(stream, spool, length=1024 * 1024)
    spool.seek(0)
    return spool


def join_lines(bodies: Iterable[Any]) -> bytes:
    """Bodies as one batch, one per line. Text and bytes must be a single line each; anything else becomes JSON."""
    lines = []
    for body in bodies:
        if isinstance(body, str):
            body = body.encode()
        if isinstance(body, bytes):
            if b"\n" in body or b"\r" in body or not body.strip():
                raise ValueError("a body must be a single line, and not blank")
            lines.append(body)
        else:
            lines.append(_encode(body).encode())
    return b"\n".join(lines) + b"\n" if lines else b""


class LineNumbers(Set[int]):
    """Line numbers, kept as ranges: a batch is processed in order, so a million lines are one range."""

    __slots__ = ("_count", "_firsts", "_lasts")

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._count = 0
        for number in numbers:
            self.add(number)

    def add(self, number: int) -> None:
        if self._lasts and self._lasts[-1] == number - 1:  # in order, as nearly always
            self._lasts[-1] = number
            self._count += 1
            return
        after = bisect_right(self._firsts, number)
        if after and number <= self._lasts[after - 1]:
            return
        self._count += 1
        follows = after > 0 and self._lasts[after - 1] == number - 1
        precedes = after < len(self._firsts) and self._firsts[after] == number + 1
        if follows and precedes:
            self._lasts[after - 1] = self._lasts.pop(after)
            del self._firsts[after]
        elif follows:
            self._lasts[after - 1] = number
        elif precedes:
            self._firsts[after] = number
        else:
            self._firsts.insert(after, number)
            self._lasts.insert(after, number)

    def __contains__(self, number: object) -> bool:
        after = bisect_right(self._firsts, number) if isinstance(number, int) else 0
        return after > 0 and number <= self._lasts[after - 1]  # type: ignore[operator]

    def __iter__(self) -> Iterator[int]:
        for first, last in zip(self._firsts, self._lasts, strict=True):
            yield from range(first, last + 1)

    def __len__(self) -> int:
        return self._count

    def to_json(self) -> list[list[int]]:
        return [[first, last] for first, last in zip(self._firsts, self._lasts, strict=True)]

    @classmethod
    def from_json(cls, ranges: Iterable[tuple[int, int]]) -> LineNumbers:
        """Raises TypeError or ValueError unless these are ranges in ascending order."""
        found = cls()
        for first, last in ranges:
            length = len(range(first, last + 1))
            if not length or (found._lasts and first <= found._lasts[-1]):
                raise ValueError(f"lines {first} to {last} do not follow the range before")
            found._firsts.append(first)
            found._lasts.append(last)
            found._count += length
        return found


@dataclass(slots=True)
class Lines:
    """The progress of a batch's lines. The worker that holds the lease changes it; it is stored in the lease."""

    done: LineNumbers = field(default_factory=LineNumbers)
    #: Line → in which attempt it failed last, and why.
    failed: dict[int, tuple[int, Failure]] = field(default_factory=dict)
    dead: dict[int, Failure] = field(default_factory=dict)
    results: dict[int, Any] = field(default_factory=dict)
    results_bytes: int = 0
    #: How many lines the batch has; known once it was read to its end and no line is left to retry.
    total: int | None = None

    def is_pending(self, line: int, attempt: int) -> bool:
        """Whether the line runs in this attempt. A continued attempt does not repeat its own failures.  [P5]"""
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

    def failure(self, total: int) -> Failure:
        """Why the batch as a whole needs another attempt: how many of its lines failed, and the first reason."""
        first = next(iter(self.failed.values()))[1]
        return Failure(first.type, f"{len(self.failed)} of {total} lines failed, the first: {first.message}")

    def is_empty(self) -> bool:
        return not (self.done or self.failed or self.dead)

    def summary(self) -> dict[str, Any]:
        """For the record. If the total is None, an unknown number of lines is neither done nor dead."""
        described: dict[str, Any] = {"total": self.total, "completed": len(self.done), "dead": len(self.dead)}
        if self.dead:
            listed = sorted(self.dead)[:LISTED_LINES]
            described["dead_lines"] = [[line, self.dead[line].type, self.dead[line].message] for line in listed]
        if self.results:
            described["results"] = [[line, result] for line, result in sorted(self.results.items())]
        return described

    def to_json(self) -> dict[str, Any]:
        """Lines that are done are ranges, and all lines share one table of errors, so that a lease stays small."""
        table: dict[Failure, int] = {}
        failed = [
            [line, tries, table.setdefault(failure, len(table))]
            for line, (tries, failure) in sorted(self.failed.items())
        ]
        dead = [[line, table.setdefault(failure, len(table))] for line, failure in sorted(self.dead.items())]
        return {
            "done": self.done.to_json(),
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
            done=LineNumbers.from_json(found.get("done", ())),
            failed={line: (tries, errors[index]) for line, tries, index in found.get("failed", ())},
            dead={line: errors[index] for line, index in found.get("dead", ())},
            results=dict(found.get("results", ())),
            results_bytes=len(json.dumps(found.get("results", ()))),
            total=found.get("total"),
        )
