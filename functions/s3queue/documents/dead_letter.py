"""Dead letters: what lies under `dead/`: a message with its failure in the metadata, or the dead lines of a batch.

All lines of a batch that did not complete lie in one object, `dead/{path}.lines`, each with its number and its error.
Such an object is a batch itself: PUT back under `messages/`, its lines run again.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import IO, Any

from s3queue.encoding import (
    METADATA_BYTES,
    decode_metadata,
    encode_metadata,
    format_instant,
    metadata_size,
    parse_instant,
)
from s3queue.paths import is_lines
from s3queue.store import ObjectInfo

from .batch import PIECE_BYTES, LongLine, located_lines, read_lines
from .message import INLINE_BYTES, MOVED, Generation
from .record import Failure, Record

#: Metadata that a dead letter carries, and that a replayed message does not.
DEAD_METADATA = "s3queue-"
#: Room that the producer's own metadata leaves for the facts about the death.
_FACTS_BYTES = 700
_ERROR_CHARACTERS = 600
#: The names and counts of a batch's errors go into its letter's metadata if they are no longer than this.
TYPES_CHARACTERS = _FACTS_BYTES // 2
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
        """Whether all of it died of this error; not if that cannot be told without reading it."""
        return not self.lines or self.error_types.keys() == {error_type}

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
            lines=_number(facts.get("lines")),
            error_types=_counts(facts.get("error-types")),
            enqueued_at=put_at,
            generation=generation,
            is_unreadable=facts.get("unreadable") == "true",
            etag=info.etag,
            written_at=info.modified_at,
        )


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


def count_by_error_type(letters: Iterable[DeadLetter]) -> dict[str, int]:
    """How many died of which error, most frequent first; a batch counts as its lines."""
    counts: Counter[str] = Counter()
    for letter in letters:
        counts.update(letter.counts)
    return dict(counts.most_common())


def dead_metadata(
    message: ObjectInfo, record: Record, failure: Failure | None, counts: Mapping[str, int] | None = None, **more: str
) -> dict[str, str]:
    """The failure, then as much of the producer's metadata as S3's limit leaves room for, then the error's text.

    `counts`: how many lines of a batch died of which error type.
    """
    facts = {
        "error-type": (failure.type if failure else "Error")[:100],
        "attempts": str(record.attempt),
        "died-at": format_instant(record.finished_at),
        "enqueued-at": format_instant(record.generation.put_at),
        "etag": record.generation.etag,
        "worker": record.worker[:100],
    }
    facts |= (_line_facts(counts) if counts else {}) | more
    metadata = encode_metadata({DEAD_METADATA + name: value for name, value in facts.items() if value})
    dropped = []
    for name, value in message.metadata.items():
        if name.lower().startswith(DEAD_METADATA):
            continue
        if metadata_size(metadata) + len(name) + len(value) > METADATA_BYTES - _FACTS_BYTES // 4:
            dropped.append(name)
        else:
            metadata[name] = value
    if dropped:
        metadata |= _shortened("dropped", ", ".join(dropped), metadata)
    return metadata | _shortened("error", failure.message[:_ERROR_CHARACTERS] if failure else "", metadata)


def kept_metadata(letter: ObjectInfo, lines: Sequence[DeadLine]) -> dict[str, str]:
    """The metadata of a letter that is to keep only these of its lines."""
    first = lines[0].failure
    changed = {f"{DEAD_METADATA}{name}" for name in ("error-type", "error-types", "lines", "error")}
    facts = {"error-type": first.type[:100]} | _line_facts(Counter(line.failure.type for line in lines))
    metadata = {name: text for name, text in letter.metadata.items() if name not in changed}
    metadata |= encode_metadata({DEAD_METADATA + name: text for name, text in facts.items() if text})
    return metadata | _shortened("error", first.message[:_ERROR_CHARACTERS], metadata)


def _line_facts(counts: Mapping[str, int]) -> dict[str, str]:
    """How many lines died, and of what, most frequent first; not of what if that does not fit."""
    kinds = json.dumps(dict(sorted(counts.items(), key=lambda one: -one[1])))
    return {"lines": str(sum(counts.values())), "error-types": kinds if len(kinds) <= TYPES_CHARACTERS else ""}


def dead_facts(metadata: Mapping[str, str]) -> dict[str, str]:
    """What a dead letter's metadata says about the failure: error-type, error, attempts, died-at, worker, lines."""
    decoded = decode_metadata(metadata)
    return {name.removeprefix(DEAD_METADATA): text for name, text in decoded.items() if name.startswith(DEAD_METADATA)}


def is_letter_of(letter: ObjectInfo, generation: Generation) -> bool:
    """Whether a dead letter is that of this generation of its name."""
    facts = dead_facts(letter.metadata)
    return (facts.get("etag"), facts.get("enqueued-at")) == (generation.etag, format_instant(generation.put_at))


def generation_mark(generation: Generation) -> str:
    """Tells the dead letters of two generations of one name apart."""
    return hashlib.sha256(f"{generation.etag} {format_instant(generation.put_at)}".encode()).hexdigest()[:12]


def _shortened(name: str, value: str, beside: Mapping[str, str]) -> dict[str, str]:
    """One more fact, as long as it may be beside the others."""
    room = METADATA_BYTES - metadata_size(beside) - len(DEAD_METADATA + name)
    encoded = encode_metadata({DEAD_METADATA + name: value})
    while value and len(next(iter(encoded.values()))) > room:
        value = value[: len(value) // 2]
        encoded = encode_metadata({DEAD_METADATA + name: value})
    return encoded if value else {}


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
