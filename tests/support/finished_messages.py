"""Finished messages without their lives: records, dead letters and garbage put straight into a bucket."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from s3queue.documents.message import Generation
from s3queue.documents.record import Attempt, Failure, Record
from s3queue.keys import Keys
from s3queue.store import ObjectStore

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


def record(path: str, **changes: Any) -> Record:
    """Enqueued 10 s before it started, ran for 2 s; `failure` kills it, `tries` failed before."""
    finished_at: datetime = changes.pop("finished_at", NOON)
    wait, run = changes.pop("wait", 10), changes.pop("run", 2)
    failure: Failure | None = changes.get("failure")
    tries, worker = changes.pop("tries", 0), changes.setdefault("worker", "worker-1")
    started_at = finished_at - timedelta(seconds=run)
    attempts = [
        Attempt(number=n, worker=worker, started_at=started_at, ended_at=started_at, failure=Failure("Flaky", "again"))
        for n in range(1, tries + 1)
    ]
    attempts.append(
        Attempt(number=tries + 1, worker=worker, started_at=started_at, ended_at=finished_at, failure=failure)
    )
    given: dict[str, Any] = {
        "path": path,
        "outcome": "dead" if failure else "completed",
        "generation": Generation(etag="e" * 32, put_at=started_at - timedelta(seconds=wait)),
        "finished_at": finished_at,
        "attempt": tries + 1,
        "attempts": tuple(attempts),
        "size": 100,
        "nonce": f"nonce-{path}-{finished_at}",
    }
    return Record(**(given | changes))


def put_record(store: ObjectStore, queue: str, found: Record) -> str:
    key = Keys(queue).record(found.path)
    store.put(key, found.to_bytes())
    return key


def put_records(store: ObjectStore, queue: str, count: int, *, start: int = 0, **changes: Any) -> list[str]:
    return [put_record(store, queue, record(f"messages/m{n:05d}", **changes)) for n in range(start, start + count)]


def keys_under(store: ObjectStore, prefix: str) -> dict[str, str]:
    """Key → ETag of everything behind a prefix."""
    found: dict[str, str] = {}
    after: str | None = ""
    while after is not None:
        page = store.list(prefix, after=after)
        found |= {entry.key: entry.etag for entry in page.objects}
        after = page.next_after
    return found
