"""A payload is kept and run again on every server: its bytes, its content type, and its metadata."""

from __future__ import annotations

from s3queue import Queue, QueueSettings
from s3queue.store import ObjectStore


def test_a_completed_message_is_kept_and_runs_again(store: ObjectStore) -> None:
    queue = Queue(store=store, name="orders", settings=QueueSettings.of(keep_payload=True))
    path = queue.enqueue(b"\x00\xff", metadata={"note": "grüße"}, content_type="image/png")
    claim = queue.claim(path)
    assert claim
    queue.complete(claim, "first")
    seen = queue.status(path)
    assert (seen.state, seen.kept is not None) == ("completed", True)

    assert queue.replay(path, of=seen.record) == queue.replay(path, of=seen.record) == path
    again = queue.claim(path, read_first=True)
    assert again
    assert (again.message.body, again.message.content_type) == (b"\x00\xff", "image/png")
    assert again.message.metadata == {"note": "grüße"}
    queue.complete(again, "second")

    assert queue.replay(path, of=seen.record) == path
    last = queue.status(path)
    assert (last.state, last.message, last.record.result if last.record else None) == ("completed", None, "second")
