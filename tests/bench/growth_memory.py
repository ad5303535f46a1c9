"""The child processes of growth.py: each does one thing to N messages and prints how much memory that took, in MiB.

`python -m bench.growth_memory drain|enqueue|process N [URL]`; the last two need a bucket on a real server, so that the
messages are not in the memory that is measured.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from io import BytesIO
from pathlib import Path
from typing import IO, Any

from s3queue.clock import Clock
from s3queue.connect import connect
from s3queue.documents.batch import LineNumbers
from s3queue.queue import Queue
from s3queue.settings import QueueSettings
from s3queue.store import Object, ObjectInfo, Page, Written
from s3queue.stores.memory import MemoryStore
from s3queue.worker.definition import define
from s3queue.worker.processor import Processor
from s3queue.worker.pull_worker import Worker

QUEUE = "orders"
MESSAGES = f"{QUEUE}/messages/"
BODY = b'{"order": 4711, "city": "Reykjavik"}'


class EndlessStore(MemoryStore):
    """A bucket with N messages that takes no memory for them: they are made when asked for, and of what is finished
    only the numbers are known. Records are taken and forgotten, as on a server whose memory is not ours."""

    def __init__(self, size: int, *, clock: Clock | None = None) -> None:
        super().__init__("endless", clock=clock)
        self._size = size
        self._gone = LineNumbers()
        self._put_at = self._date()

    def put(self, key: str, body: bytes | IO[bytes], **options: Any) -> Written:
        if key.startswith(f"{QUEUE}/records/"):
            return Written("forgotten", self._date())
        return super().put(key, body, **options)

    def open(self, key: str, *, if_match: str | None = None) -> Object | None:
        if not key.startswith(MESSAGES):
            return super().open(key, if_match=if_match)
        return Object(**self._described(key), stream=BytesIO(BODY)) if self._number(key) not in self._gone else None

    def head(self, key: str) -> ObjectInfo | None:
        if not key.startswith(MESSAGES):
            return super().head(key)
        return ObjectInfo(**self._described(key)) if self._number(key) not in self._gone else None

    def delete(self, key: str, *, if_match: str | None = None) -> datetime:
        if not key.startswith(MESSAGES):
            return super().delete(key, if_match=if_match)
        with self._mutex:
            self._gone.add(self._number(key))
        return self._date()

    def delete_many(self, seen: Mapping[str, str]) -> frozenset[str]:
        for key, etag in seen.items():
            self.delete(key, if_match=etag)
        return frozenset()

    def list(self, prefix: str, *, after: str = "", delimiter: str = "", limit: int = 1000) -> Page:
        if prefix.startswith(MESSAGES):
            name = after.removeprefix(MESSAGES)
            # What is no number comes after all of them: a look for priorities (`p000`).
            return self._page((int(name) + 1 if name.isdigit() else self._size) if name else 0, limit)
        page = super().list(prefix, after=after, delimiter=delimiter, limit=limit)
        if prefix == f"{QUEUE}/" and delimiter and len(self._gone) < self._size:
            return Page(page.objects, (*page.prefixes, MESSAGES), page.next_after, page.at)
        return page

    def _page(self, start: int, limit: int) -> Page:
        with self._mutex:
            done = self._gone.to_json()
        # Nearly in order, so the first range is nearly all of it.
        start = max(start, done[0][1] + 1) if done and done[0][0] == 0 else start
        found = (number for number in range(start, self._size) if number not in self._gone)
        numbers = [number for number, _ in zip(found, range(limit + 1), strict=False)]
        objects = tuple(ObjectInfo(**self._described(f"{MESSAGES}{number:08d}")) for number in numbers[:limit])
        return Page(objects, (), objects[-1].key if len(numbers) > limit else None, self._date())

    def _described(self, key: str) -> Mapping[str, Any]:
        return {"key": key, "etag": "e", "size": len(BODY), "modified_at": self._put_at, "at": self._date()}

    def _number(self, key: str) -> int:
        return int(key.removeprefix(MESSAGES))


def drain(count: int, _: str) -> float:
    """A pull worker with its heartbeat, until nothing is left."""
    queue = Queue(store=EndlessStore(count), name=QUEUE, settings=QueueSettings())
    worker = Worker(queue, handle, concurrency=8)
    before = start_of_peak()
    worker.run_until_empty()
    assert worker.stats()["succeeded"] == count, worker.stats()
    return peak() - before


def enqueue(count: int, url: str) -> float:
    """One batch of `count` lines."""
    queue = connect(url)
    queue.stats()
    before = start_of_peak()
    paths = queue.enqueue_many(lines(count), per_object=count)
    assert len(paths) == 1, paths
    return peak() - before


def process(count: int, url: str) -> float:
    """The batch that `enqueue` left."""
    definition = define(QUEUE)
    definition.handler(handle)
    queue = connect(url)
    queue.stats()
    before = start_of_peak()
    (claim,) = queue.claim_next()
    outcome = Processor(queue=queue, definition=definition).process(claim)
    assert (outcome, len(claim.lines.done)) == ("completed", count), outcome
    return peak() - before


def handle(body: dict) -> None:
    """Nothing: what is measured is ours."""


def lines(count: int) -> Iterator[dict[str, Any]]:
    return ({"order": number, "city": "Reykjavik"} for number in range(count))


def start_of_peak() -> float:
    """Forget the highest so far; how much there is now."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> float:
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM:"))


if __name__ == "__main__":
    what, count, *url = sys.argv[1:]
    measure = {"drain": drain, "enqueue": enqueue, "process": process}[what]
    print(json.dumps(measure(int(count), "".join(url))))
