"""Batches: an `.ndjson` object in which every line is a message, and the progress of its lines.

One claim, one GET and one record serve all lines. The lease keeps which lines are done, so that a retry runs only the
lines that failed.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, Any, overload

from s3queue.encoding import MOST_LINES, as_list, as_object, as_stored, as_whole
from s3queue.errors import MessageTooLarge, NoSpace
from s3queue.paths import name_of

from .message import INLINE_BYTES, payload_json
from .record import Failure
from .sends import MARK, MERGED_FROM, MOST_BYTES, Send, part_names

#: Different errors that the lines of one batch keep; the texts of further ones are dropped.
ERRORS_KEPT = 1000
#: A long line is copied in pieces of this size.
PIECE_BYTES = 1024 * 1024
#: Results of lines that one batch keeps, in bytes; further results are dropped.
RESULTS_BYTES = 64 * 1024
#: Dead lines that a record lists by number.
LISTED_LINES = 100
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class LongLine:
    """A line that is longer than it may be: where it begins in the stream, and how long it is. It is never held."""

    start: int
    size: int

    def pieces(self, stream: IO[bytes]) -> Iterator[bytes]:
        """The line, from a stream that can seek; the stream is left where it was."""
        position, left = stream.tell(), self.size
        try:
            stream.seek(self.start)
            while left and (piece := stream.read(min(left, PIECE_BYTES))):
                left -= len(piece)
                yield piece
        finally:
            stream.seek(position)

    def copied(self, stream: IO[bytes]) -> IO[bytes]:
        """The line as a stream of its own, in the temporary folder. Raises NoSpace if that cannot hold it."""
        with _naming_the_folder():
            copy = empty_spool()
            for piece in self.pieces(stream):  # not `writelines`, which moves to a file only after the last piece
                copy.write(piece)
            copy.seek(0)
        return copy


@overload
def read_lines(stream: IO[bytes]) -> Iterator[tuple[int, bytes]]: ...
@overload
def read_lines(stream: IO[bytes], max_bytes: int | None) -> Iterator[tuple[int, bytes | LongLine]]: ...
def read_lines(stream: IO[bytes], max_bytes: int | None = None) -> Iterator[tuple[int, bytes | LongLine]]:
    """The messages of a batch with their line numbers (counted from 1, as an editor shows them).

    Blank lines are skipped; CRLF and a missing last newline are fine. Only one line at a time is in memory, and of a
    line longer than `max_bytes` only that much.
    """
    if max_bytes is not None:
        for number, _, line in located_lines(stream, max_bytes):
            yield number, line
        return
    for number, raw in enumerate(stream, 1):
        text = raw.rstrip(b"\r\n")
        if number == 1:
            text = text.removeprefix(_BOM)
        if text and not text.isspace():
            yield number, text


def located_lines(stream: IO[bytes], max_bytes: int | None) -> Iterator[tuple[int, int, bytes | LongLine]]:
    """As `read_lines`, each with the place in the stream at which it begins."""
    # What is not part of the message may come on top: a byte order mark, and the end of the line.
    most = -1 if max_bytes is None else max_bytes + len(_BOM) + len(b"\r\n")
    number, start = 0, 0
    while raw := stream.readline(most):
        number += 1
        size = len(raw)
        tail = raw
        while size >= most > 0 and not tail.endswith(b"\n") and (tail := stream.readline(PIECE_BYTES)):
            size += len(tail)
        mark = len(_BOM) if number == 1 and raw.startswith(_BOM) else 0
        line = raw[mark:].rstrip(b"\r\n")
        if size > len(raw) or (max_bytes is not None and len(line) > max_bytes):
            yield number, start + mark, LongLine(start + mark, size - mark - tail.endswith(b"\n"))
        elif line.strip():
            yield number, start + mark, line
        start += size


def empty_spool() -> IO[bytes]:
    """What is small in memory, what is larger in a temporary file; the caller closes it."""
    import tempfile  # brings shutil and three compressors: not for a function that never sees a batch

    return tempfile.SpooledTemporaryFile(max_size=INLINE_BYTES)


def spooled(stream: IO[bytes], *, max_lines: int | None = None) -> IO[bytes]:
    """A copy of the whole stream: handlers may take longer than S3 keeps a connection open.

    A small one is kept in memory, a larger one in a temporary file.

    Raises:
        MessageTooLarge: it has more lines than it may have; no more than these were copied.
        NoSpace: the temporary folder cannot hold it.
    """
    count = 0
    with stream, _naming_the_folder():
        spool = empty_spool()
        try:
            while piece := stream.read(PIECE_BYTES):
                # A last line without an end is not counted.
                count += piece.count(b"\n")
                check_lines(count, max_lines)
                spool.write(piece)
            spool.seek(0)
        except BaseException:
            with suppress(OSError):
                spool.close()
            raise
    return spool


def most_lines(path: str, most: int) -> int:
    """How many lines the batch at this path may have, where `most` is what the queue allows.

    Many messages that a handler sent share an object: each of them is one that the queue takes.  [P7]
    """
    return max(most, MERGED_FROM) if _is_sent(path) else most


def most_bytes(path: str, most: int) -> int:
    """How large the batch at this path may be, where `most` is what the queue allows; as `most_lines`."""
    # Each of them with the end of its line.
    return max(most, MOST_BYTES + MERGED_FROM) if _is_sent(path) else most


def _is_sent(path: str) -> bool:
    return name_of(path).rpartition("/")[2].startswith(MARK)


def check_lines(count: int, most: int | None) -> None:
    """Raises MessageTooLarge if a batch has more lines than it may have."""
    if most is not None and count > most:
        raise MessageTooLarge(f"the batch has more than {most} lines, which is max_batch_lines")


@contextmanager
def _naming_the_folder() -> Iterator[None]:
    """A store's streams raise Unavailable, so an OSError is the folder's: full, read-only, or missing."""
    try:
        yield
    except OSError as error:
        raise NoSpace(f"not copied to the temporary folder: {error}; give this process more room there") from error


def join_lines(bodies: Iterable[Any]) -> bytes:
    """Bodies as one batch, one per line. Text and bytes must be a single line each; anything else becomes JSON,
    as `encode_body` writes it.
    """
    lines = []
    for body in bodies:
        if isinstance(body, str):
            body = body.encode()
        if isinstance(body, (bytes, bytearray, memoryview)):
            body = bytes(body)
            if b"\n" in body or b"\r" in body or not body.strip():
                raise ValueError("a body must be a single line, and not blank")
            if body.startswith(_BOM):
                raise ValueError("a body must not begin with a byte order mark, which a batch's first line loses")
            lines.append(body)
        else:
            lines.append(payload_json(body).encode())
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

    def add_range(self, first: int, last: int) -> None:
        """All from the first to the last."""
        if self._lasts and self._lasts[-1] == first - 1:
            self._lasts[-1] = last
        elif not self._lasts or self._lasts[-1] < first:
            self._firsts.append(first)
            self._lasts.append(last)
        else:
            for number in range(first, last + 1):
                self.add(number)
            return
        self._count += last + 1 - first

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
    def from_json(cls, ranges: Any) -> LineNumbers:
        """Raises TypeError or ValueError unless these are ranges of possible numbers in ascending order."""
        found = cls()
        last_before = 0
        for first, last in as_list(ranges):
            if not last_before < _as_line(first) <= _as_line(last):
                raise ValueError(f"lines {first} to {last} do not follow the range before")
            found._firsts.append(first)
            found._lasts.append(last)
            found._count += last + 1 - first
            last_before = last
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
    #: What the lines that are done have sent, and the parts of it that were staged under `outbox/`.  [P7]
    sends: list[Send] = field(default_factory=list)
    outbox: list[str] = field(default_factory=list)
    #: All errors so far, each once.
    errors: dict[Failure, Failure] = field(default_factory=dict, repr=False, compare=False)

    def is_pending(self, line: int, attempt: int) -> bool:
        """Whether the line runs in this attempt. A continued attempt does not repeat its own failures.  [P5]"""
        return line not in self.done and line not in self.dead and self.failed.get(line, (0, None))[0] < attempt

    def complete_all(self, lines: Sequence[int]) -> None:
        """As `complete` of each, without a result; they are in order."""
        if len(lines) == lines[-1] + 1 - lines[0]:
            self.done.add_range(lines[0], lines[-1])
        else:
            for line in lines:
                self.done.add(line)
        if self.failed:
            for line in lines:
                self.failed.pop(line, None)

    def complete(self, line: int, result: Any = None) -> None:
        self.done.add(line)
        self.failed.pop(line, None)
        if result is not None and self.results_bytes <= RESULTS_BYTES:
            try:
                kept, size = as_stored(result)
            except Exception:  # a model's own code makes JSON of it: the line is completed all the same
                return
            self.results_bytes += size
            if self.results_bytes <= RESULTS_BYTES:
                self.results[line] = kept

    def fail(self, line: int, attempt: int, failure: Failure, *, dead: bool) -> None:
        failure = Failure(failure.type[:100], failure.message[:200])
        if len(self.errors) >= ERRORS_KEPT and failure not in self.errors:
            # A lease must stay small, even if every one of a million lines fails for a reason of its own.
            failure = Failure(failure.type, f"not kept: the batch has more than {ERRORS_KEPT} different errors")
        failure = self.errors.setdefault(failure, failure)
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
        } | self.sent()

    @property
    def has_sends(self) -> bool:
        return bool(self.sends or self.outbox)

    def sent(self) -> dict[str, Any]:
        """The sends, as far as there are any."""
        found = {"sends": [send.to_json() for send in self.sends], "outbox": self.outbox}
        return {name: value for name, value in found.items() if value}

    @classmethod
    def from_json(cls, found: Any) -> Lines:
        """Raises TypeError, ValueError or LookupError unless `to_json` wrote it."""
        as_object(found)
        errors = [Failure.from_json(error) for error in as_list(found.get("errors", []))]
        results = as_list(found.get("results", []))
        total = found.get("total")
        return cls(
            done=LineNumbers.from_json(found.get("done", [])),
            failed={
                _as_line(line): (as_whole(tries), errors[as_whole(index)])
                for line, tries, index in as_list(found.get("failed", []))
            },
            dead={_as_line(line): errors[as_whole(index)] for line, index in as_list(found.get("dead", []))},
            results={_as_line(line): result for line, result in results},
            results_bytes=len(json.dumps(results)),
            total=None if total is None else as_whole(total, most=MOST_LINES + 1),
            sends=[Send.from_json(send) for send in as_list(found.get("sends", []))],
            outbox=part_names(found.get("outbox", [])),
            errors={error: error for error in errors},
        )


def _as_line(number: Any) -> int:
    # One more than the limit counts: a last line without an end is not counted.
    return as_whole(number, least=1, most=MOST_LINES + 1)
