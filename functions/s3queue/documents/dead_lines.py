"""Dead lines: all lines of a batch that did not complete lie in one object, `dead/{path}.lines`, each with its number
and its error.

Such an object is a batch itself: PUT back under `messages/`, its lines run again.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any

from s3queue.paths import is_lines

from .batch import PIECE_BYTES, LongLine, located_lines, read_lines
from .message import INLINE_BYTES
from .record import Failure

#: A dead line begins with its number and its error, and its body comes last.
_HEAD = re.compile(
    rb'\{"line": [0-9]+, "error_type": (?P<type>"(?:[^"\\]|\\.)*"), "error": (?P<error>"(?:[^"\\]|\\.)*"), '
    rb'(?="body(?:_base64)?": ")'
)
#: Longer than any such head: texts are cut to 2,000 characters, of at most 12 bytes each.
_HEAD_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class DeadLine:
    """A line of a batch that did not complete, and why."""

    number: int
    failure: Failure
    body: bytes

    def to_bytes(self) -> bytes:
        """One line of JSON, newline included. A body that is not UTF-8 is written as Base64."""
        described: dict[str, Any] = {
            "line": self.number,
            "error_type": self.failure.type,
            "error": self.failure.message,
        }
        try:
            described["body"] = self.body.decode()
        except UnicodeDecodeError:
            described["body_base64"] = base64.b64encode(self.body).decode()
        return json.dumps(described, ensure_ascii=True).encode() + b"\n"

    @classmethod
    def from_bytes(cls, line: bytes) -> DeadLine | None:
        """None if these bytes are not a dead line."""
        try:
            found = json.loads(line)
            if not isinstance(found, dict):
                return None
            body = found["body"].encode() if "body" in found else base64.b64decode(found["body_base64"], validate=True)
            failure = Failure(str(found["error_type"]), str(found["error"]))
            return cls(int(found["line"]), failure, body)
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError, OverflowError, binascii.Error):
            return None


def messages_of(path: str, batch: IO[bytes], max_bytes: int | None = None) -> Iterator[tuple[int, bytes | LongLine]]:
    """The messages of a batch with their line numbers; of one whose lines died before, the bodies that died.

    Of a message longer than `max_bytes`, only where its line lies.
    """
    if not is_lines(path):
        yield from read_lines(batch, max_bytes)
        return
    for number, start, line in located_lines(batch, None if max_bytes is None else _longest_dead_line(max_bytes)):
        dead = DeadLine.from_bytes(line) if isinstance(line, bytes) else None
        if isinstance(line, bytes) and dead and max_bytes is not None and len(dead.body) > max_bytes:
            yield number, LongLine(start, len(line))
        else:
            yield number, dead.body if dead else line


def _longest_dead_line(body_bytes: int) -> int:
    """How long the dead line of such a body can be: up to 8 MiB it is JSON, in which a byte may become six
    (`\\u0001`); beyond that it is Base64.
    """
    return max(6 * min(body_bytes, INLINE_BYTES), body_bytes * 4 // 3 + 4) + _HEAD_BYTES


def bury_line(
    letter: IO[bytes], number: int, failure: Failure, line: bytes | LongLine, batch: IO[bytes], *, died_before: bool
) -> None:
    """Write a line of a batch and its failure into a letter.

    A line that died before is a dead line already: its body is kept and its failure replaced, so that no body is ever
    wrapped twice.
    """
    if isinstance(line, bytes):
        dead = DeadLine.from_bytes(line) if died_before else None
        letter.write(DeadLine(number, failure, dead.body if dead else line).to_bytes())
        return
    start = b"".join(LongLine(line.start, min(line.size, _HEAD_BYTES)).pieces(batch)) if died_before else b""
    if head := _HEAD.match(start):
        letter.write(_head(number, failure))
        for piece in LongLine(line.start + head.end(), line.size - head.end()).pieces(batch):
            letter.write(piece)
        letter.write(b"\n")
    else:
        _write_long(letter, number, failure, line.pieces(batch))


def _write_long(letter: IO[bytes], number: int, failure: Failure, pieces: Iterable[bytes]) -> None:
    """A dead line that is too long to be held in memory, as Base64."""
    letter.write(_head(number, failure) + b'"body_base64": "')
    rest = b""
    for piece in pieces:
        piece = rest + piece
        whole = len(piece) - len(piece) % 3
        letter.write(base64.b64encode(piece[:whole]))
        rest = piece[whole:]
    letter.write(base64.b64encode(rest) + b'"}\n')


def _head(number: int, failure: Failure) -> bytes:
    described = json.dumps({"line": number, "error_type": failure.type, "error": failure.message})
    return described.encode()[:-1] + b", "


def dead_lines(letter: IO[bytes]) -> list[DeadLine]:
    """The lines of a batch that a letter holds; what is not a dead line is left out."""
    with letter:
        return [dead for _, line in read_lines(letter) if (dead := DeadLine.from_bytes(line))]


def line_failures(letter: IO[bytes]) -> Iterator[Failure]:
    """Why each line of a letter died. Only the beginning of a line is ever in memory."""
    with letter:
        while line := letter.readline(_HEAD_BYTES):
            tail = line
            while not tail.endswith(b"\n") and (tail := letter.readline(PIECE_BYTES)):
                pass
            if head := _HEAD.match(line):
                # What only looks like a head, with an escape that JSON does not have, is no dead line either.
                with contextlib.suppress(ValueError):
                    yield Failure(json.loads(head["type"]), json.loads(head["error"]))
            elif dead := DeadLine.from_bytes(line):
                yield dead.failure


def count_lines(letter: IO[bytes]) -> dict[str, int]:
    """How many lines of a letter died of which error."""
    return dict(Counter(failure.type for failure in line_failures(letter)).most_common())
