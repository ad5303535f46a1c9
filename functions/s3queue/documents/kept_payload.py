"""Kept payloads: what lies under `done/`: a completed message as it was, with the generation in its metadata.

Whoever reads one compares the ETag of that generation with the record's: the payload of an earlier message of the name
may lie there, if `keep_payload` was off when the later one was completed.
"""

from __future__ import annotations

import hashlib

from s3queue.encoding import METADATA_BYTES, encode_metadata, format_instant, metadata_size
from s3queue.store import ObjectInfo

from .dead_facts import DEAD_METADATA, dead_facts, own_metadata
from .message import MOVED
from .record import Record


def payload_metadata(message: ObjectInfo, record: Record) -> dict[str, str]:
    """The producer's metadata and the generation; without the former if S3's limit leaves no room for both."""
    facts = {"etag": record.generation.etag, "enqueued-at": format_instant(record.generation.put_at)}
    own = own_metadata(message)
    metadata = own | encode_metadata({DEAD_METADATA + name: text for name, text in facts.items()})
    if metadata_size(metadata) <= METADATA_BYTES:
        return metadata
    return encode_metadata({DEAD_METADATA + name: text for name, text in (facts | {"dropped": "all"}).items()})


def is_payload_of(kept: ObjectInfo, record: Record) -> bool:
    """Whether this is what the record is the outcome of. By the ETag alone: equal bytes are the same payload."""
    return dead_facts(kept.metadata).get("etag") == record.generation.etag


def replay_id(record: Record) -> str:
    """Names this very completion: one that is replayed again has another record by then, and another id."""
    named = f"replay {record.path} {record.generation.etag} {format_instant(record.generation.put_at)} {record.nonce}"
    return MOVED + hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()[:16]
