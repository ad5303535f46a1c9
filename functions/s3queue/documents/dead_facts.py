"""What the metadata of a dead letter says: why it died, of which generation, and what its producer wrote."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from s3queue.encoding import METADATA_BYTES, decode_metadata, encode_metadata, format_instant, metadata_size
from s3queue.store import ObjectInfo

from .message import Generation
from .record import Failure, Record

if TYPE_CHECKING:
    from .dead_lines import DeadLine

#: Metadata that a dead letter carries, and that a replayed message does not.
DEAD_METADATA = "s3queue-"
#: Room that the producer's own metadata leaves for the facts about the death.
_FACTS_BYTES = 700
_ERROR_CHARACTERS = 600
#: The names and counts of a batch's errors go into its letter's metadata if they are no longer than this.
TYPES_CHARACTERS = _FACTS_BYTES // 2


def own_metadata(stored: ObjectInfo) -> dict[str, str]:
    """The metadata that its producer gave a message, encoded."""
    return {name: text for name, text in stored.metadata.items() if not name.lower().startswith(DEAD_METADATA)}


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
