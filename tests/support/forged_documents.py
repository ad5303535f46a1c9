"""Forged state: what someone who may write into a queue may leave in place of a document."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import IO, Any

from hypothesis import strategies as some

from s3queue.documents.heartbeat import Heartbeat
from s3queue.documents.lock_document import LockDocument
from s3queue.documents.run_documents import Manifest, Slot
from s3queue.errors import AccessDenied, Unreadable
from s3queue.protocol.stats import Stats
from s3queue.store import Object, ObjectInfo, Written
from s3queue.stores.memory import MemoryStore
from support.drawn_documents import AT, FULL_LEASE, FULL_RECORD

#: A forged object that says it has this many bytes; whoever reads one of them fails the test.
GIGABYTES = 5 * 2**30
HUGE = b"two gigabytes of nothing"
#: Objects with these bytes are listed, and a GET is refused: of one that is archived, and of one under a key that only
#: its producer has (SSE-C), of which a HEAD is refused, too. So is a COPY of both.
ARCHIVED, FOREIGN = b"archived", b"under the key of its producer"
DEEP = b"[" * 5000 + b"]" * 5000
#: In the place of a value: as JSON, because Python writes no NaN that it would read.
EXTREMES = (
    "null",
    "true",
    "0",
    "-1",
    "1e308",
    "-1e308",
    "1e999",
    "NaN",
    "Infinity",
    "9" * 4000,
    "9" * 5000,
    '""',
    '"x"',
    '"1"',
    '"\\ud800"',
    '"\\u0000"',
    json.dumps("x" * 5000),
    '"0001-01-01T00:00:00+14:00"',
    '"9999-12-31T23:59:59-14:00"',
    '"9999-12-31T00:00:00Z"',
    '"1970-01-01T00:00:00Z"',
    "[]",
    "{}",
    "[[]]",
    "[null]",
    '["x","x"]',
    "[[1,2]]",
    "[[1,1000000000000]]",
    "[[1,2,3]]",
    '{"x":[]}',
    "[" * 90 + "]" * 90,
    "[" * 5000 + "]" * 5000,
)
_MARK = "\u2620 here \u2620"


def places(document: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to every value of a document."""
    if at:
        yield at
    inner = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for name, value in inner:
        yield from places(value, (*at, name))


def with_value(body: bytes, at: tuple[Any, ...], value: str) -> bytes:
    """The document with another value, given as JSON, in one place."""
    document = json.loads(body)
    target = document
    for name in at[:-1]:
        target = target[name]
    target[at[-1]] = _MARK
    return json.dumps(document, ensure_ascii=False).replace(f'"{_MARK}"', value).encode("utf-8", "backslashreplace")


def without_value(body: bytes, at: tuple[Any, ...]) -> bytes:
    document = json.loads(body)
    target = document
    for name in at[:-1]:
        target = target[name]
    del target[at[-1]]
    return json.dumps(document).encode()


def forgeries(body: bytes, seed: int = 0, few: int | None = None) -> list[bytes]:
    """Every value of a real document replaced by every extreme, or left out, and bytes cut; a `few` if asked."""
    forged = [b"", b"\xff\xfe\x00", b"null", DEEP, b'{"v":1}', b'{"v":true}', b'{"v":' + b"9" * 4000 + b"}"]
    forged += [body[:end] for end in range(0, len(body), 7)]
    for at in places(json.loads(body)):
        forged += [with_value(body, at, value) for value in EXTREMES]
        forged.append(without_value(body, at))
    return forged if few is None else random.Random(seed).sample(forged, few)


@some.composite
def drawn_forgeries(draw: some.DrawFn, body: bytes) -> bytes:
    """Some values replaced, some left out, then perhaps the bytes themselves changed."""
    for _ in range(draw(some.integers(1, 4))):
        found = list(places(json.loads(body)))
        if not found:
            break
        at = draw(some.sampled_from(found))
        forged = (
            without_value(body, at)
            if draw(some.booleans())
            else with_value(body, at, draw(some.sampled_from(EXTREMES)))
        )
        try:
            json.loads(forged)
        except (ValueError, RecursionError):
            return forged
        body = forged
    if draw(some.booleans()):
        cut = draw(some.integers(0, len(body)))
        body = body[:cut] + draw(some.binary(max_size=4)) + body[cut + draw(some.integers(0, 4)) :]
    return body


#: A batch whose documents lead to each other, and what each of them is in a queue where all is well.
VICTIM = "messages/a.ndjson"
HOLDER = Heartbeat(worker="w", started_at=AT, ttl=timedelta(seconds=60), nonce="n", holds=(VICTIM,), run="run-1")
MANIFEST = Manifest(run="run-1", slot=0, state="running", opened_at=AT, nonce="n", paths=(VICTIM,), started=1)
SLOT = Slot(run="run-1", state="started", nonce="n", job="job-run-1")
KEYS: dict[str, tuple[str, bytes]] = {
    "lease": (f"leases/{VICTIM}", FULL_LEASE.to_bytes()),
    "record": (f"records/{VICTIM}", FULL_RECORD.to_bytes()),
    "heartbeat": ("workers/w", HOLDER.to_bytes()),
    "lock": ("locks/nightly", LockDocument(7, "w", timedelta(seconds=30), AT).to_bytes("n")),
    "slot": ("runs/slot-0", SLOT.to_bytes()),
    "manifest": ("runs/run-1.json", MANIFEST.to_bytes()),
    "stats": ("stats.json", Stats(pending=1, at=AT).to_bytes()),
    "settings": ("queue.json", b'{"max_attempts": 5, "visibility_timeout_seconds": 20, "max_message_size": "1 MiB"}'),
}


def put_forged(store: MemoryStore, queue: str, kind: str, body: bytes) -> None:
    """A message of which one document is forged; the others are real ones, because they lead to it."""
    store.put(f"{queue}/{VICTIM}", b'{"n":1}\n{"n":2}\n')
    for name, (key, real) in KEYS.items():
        if name == kind or name in ("lease", "heartbeat", "manifest"):
            store.put(f"{queue}/{key}", body if name == kind else real)


class NothingToRead(io.RawIOBase):
    """The stream of an object that must not be read."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        raise AssertionError("an object of gigabytes was read")

    readall = readinto  # type: ignore[assignment]


class ForgedStore(MemoryStore):
    """A bucket in which every object with the bytes `HUGE` has gigabytes, and nobody can read those that are `ARCHIVED`
    or `FOREIGN`.
    """

    def open(self, key: str, *, if_match: str | None = None) -> Object | None:
        found = super().open(key, if_match=if_match)
        if found and self._objects[key].body in (ARCHIVED, FOREIGN):
            raise Unreadable(f"GET {key}: InvalidObjectState")
        if found is None or found.size != len(HUGE) or found.stream.read() != HUGE:
            if found:
                found.stream.seek(0)
            return found
        stream: IO[bytes] = NothingToRead()  # type: ignore[assignment]
        return replace(found, size=GIGABYTES, stream=stream)

    def head(self, key: str) -> ObjectInfo | None:
        found = super().head(key)
        if found and self._objects[key].body == FOREIGN:
            raise AccessDenied(f"HEAD {key}: 400")
        return found

    def copy(
        self,
        source: str,
        target: str,
        *,
        if_match: str | None = None,
        if_absent: bool = False,
        metadata: Mapping[str, str] | None = None,
        content_type: str = "",
    ) -> Written | None:
        found = self._objects.get(source)
        if found and found.body in (ARCHIVED, FOREIGN):
            raise Unreadable(f"COPY {source}: InvalidObjectState")
        return super().copy(
            source, target, if_match=if_match, if_absent=if_absent, metadata=metadata, content_type=content_type
        )
