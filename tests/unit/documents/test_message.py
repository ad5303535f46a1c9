"""A message's metadata and content type are written again as they were read, or left out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from s3queue.documents.message import Generation, Message
from s3queue.encoding import decode_metadata, encode_metadata, storable_type
from s3queue.errors import InvalidRequest
from s3queue.stores.memory import MemoryStore
from support.counting_store import CountingStore
from support.drawn_documents import AT

#: As S3 limits it: names and values.
METADATA_BYTES = 2048
#: 1,500 bytes that would be 4,500 if they were decoded and encoded again.
GROWING = "utf-8''" + "," * 1500 + "%C3%A9"


class StrictStore(MemoryStore):
    """Refuses to copy what S3 refuses: too much metadata, or headers that HTTP cannot carry."""

    def copy(self, source, target, *, metadata=None, content_type="", **conditions):
        if sum(len(name) + len(value) for name, value in (metadata or {}).items()) > METADATA_BYTES:
            raise InvalidRequest("MetadataTooLarge")
        if not (content_type.isascii() and content_type.isprintable()):
            raise InvalidRequest("a header cannot carry this")
        return super().copy(source, target, metadata=metadata, content_type=content_type, **conditions)


@pytest.mark.parametrize("content_type", ["text/plain", "text/\u00e9", "text/\x00plain", "x" * 5000])
@pytest.mark.parametrize("by_sweeper", [False, True])
def test_a_message_with_odd_metadata_or_type_can_be_buried(bench, content_type, by_sweeper):
    bench.memory = StrictStore("bench", clock=bench.clock)
    bench.store = CountingStore(bench.memory)
    queue = bench.queue(max_attempts=1)
    bench.put("orders/messages/a", b"payload", metadata={"note": GROWING}, content_type=content_type)
    claim = queue.claim("messages/a")
    assert claim.message.metadata == {"note": "," * 1500 + "\u00e9"}

    if by_sweeper:
        bench.clock.advance(60)
        bench.sweeper(queue).sweep()
    else:
        queue.fail(claim, "no")

    dead = bench.memory.open("orders/dead/messages/a")
    assert dead.read() == b"payload"
    assert dead.metadata["note"] == GROWING
    assert dead.content_type == ("text/plain" if content_type == "text/plain" else "binary/octet-stream")
    assert bench.keys("orders/messages/") == bench.keys("orders/leases/") == []


@given(some.dictionaries(some.from_regex(r"[a-z][a-z-]{0,9}", fullmatch=True), some.text(max_size=40), max_size=4))
def test_metadata_that_was_read_is_written_byte_for_byte(metadata):
    raw = encode_metadata(metadata) | {"theirs": "utf-8''%c3%a9,;"}
    assert encode_metadata(decode_metadata(raw)) == raw
    message = Message(
        queue="q", path="p", generation=Generation(etag="e", put_at=AT), size=0, metadata=decode_metadata(raw)
    )
    assert message.stored("k", AT).metadata == raw


def test_metadata_that_no_request_can_carry_is_encoded():
    assert encode_metadata(decode_metadata({"a": "\u00e9\x00"})) == {"a": "utf-8''%C3%A9%00"}
    assert storable_type("text/csv; charset=utf-8") == "text/csv; charset=utf-8"
