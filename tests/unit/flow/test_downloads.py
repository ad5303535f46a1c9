"""URLs for what handlers made, and for kept payloads; for nothing else of a queue."""

from __future__ import annotations

from datetime import timedelta

import pytest

from s3queue import InvalidRequest, MessageNotFound
from s3queue.keys import owner_of


def test_what_a_handler_made_is_signed_for_as_long_as_asked(bench, queue):
    bench.memory.put("orders/results/17.pdf", b"pdf")
    bench.store.take()
    assert queue.presign_get("results/17.pdf", expires=timedelta(minutes=5)).endswith(
        "/orders/results/17.pdf?expires=300"
    )
    assert bench.store.take() == {"head": 1}
    by_url = queue.presign_get(f"{queue.store.url}/orders/results/17.pdf")
    assert by_url.endswith("/orders/results/17.pdf?expires=3600")


def test_what_lies_elsewhere_in_the_bucket_is_named_by_its_url(bench, queue):
    bench.memory.put("exports/out/part-0.parquet", b"x")
    url = queue.presign_get(f"{queue.store.url}/exports/out/part-0.parquet")
    assert "/exports/out/part-0.parquet?" in url


def test_a_completed_message_s_kept_payload_can_be_fetched(bench):
    keeping, plain = bench.queue(keep_payload=True), bench.queue()
    path = keeping.enqueue("x", name="m")
    keeping.complete(keeping.claim(path))
    assert f"/orders/done/{path}?" in keeping.presign_get(path)
    # Completed anew with other bytes, and not kept: what lies there is the former one's.
    plain.enqueue("y", name="m")
    plain.complete(plain.claim(path))
    with pytest.raises(MessageNotFound, match="no kept payload"):
        plain.presign_get(path)


def test_a_payload_that_is_not_the_record_s_is_not_signed(bench):
    queue = bench.queue(keep_payload=True)
    path = queue.enqueue("x", name="m")
    queue.complete(queue.claim(path))
    bench.memory.put(queue.keys.done(path), b"another")
    with pytest.raises(MessageNotFound):
        queue.presign_get(path)


def test_what_is_not_there_is_not_signed(bench, queue):
    pending = queue.enqueue({})
    for what in ("results/none", pending, "messages/never", f"{queue.store.url}/exports/none"):
        with pytest.raises(MessageNotFound, match="nothing to download"):
            queue.presign_get(what)


@pytest.mark.parametrize(
    "what",
    [
        *("", "results/", "results/../leases/messages/m", "results/%2e%2e/x", "results/./x", "results/" + "x" * 1020),
        *("leases/messages/m", "records/messages/m", "queue.json", "s3://another-bucket/x", "/etc/passwd"),
    ],
)
def test_anything_else_is_refused(bench, queue, what):
    with pytest.raises(InvalidRequest):
        queue.presign_get(what)


@pytest.mark.parametrize("rest", ["", "orders/leases/messages/m", "orders/messages/m", "orders/queue.json"])
def test_a_url_does_not_open_the_queue_itself(bench, queue, rest):
    bench.memory.put("orders/leases/messages/m", b"x")
    with pytest.raises(InvalidRequest):
        queue.presign_get(f"{queue.store.url}/{rest}")


@pytest.mark.parametrize("expires", [0, -1, 0.5, timedelta(days=7, seconds=1), float("inf"), float("nan")])
def test_a_time_that_cannot_be_signed_for_is_refused(bench, queue, expires):
    bench.memory.put("orders/results/x", b"x")
    with pytest.raises(InvalidRequest):
        queue.presign_get("results/x", expires=expires)


@pytest.mark.parametrize(
    "key",
    [
        "emails/messages/secret",
        "emails/done/messages/secret",
        "emails/dead/messages/secret",
        "emails/records/messages/secret",
        "emails/results/17.pdf",
        "emails/queue.json",
        "flows/order-17/flow.json",
        "archive/queue=emails/day=2026-11-16/part.parquet",
        "analytics/latest.json",
        "datasets/customers.parquet",
    ],
)
def test_nothing_of_other_queues_or_of_the_library_is_signed(bench, queue, key):
    bench.memory.put(key, b"x")
    bench.store.take()
    with pytest.raises(InvalidRequest, match=r"belongs to the queue 'emails'|own data"):
        queue.presign_get(f"{queue.store.url}/{key}")
    assert bench.store.take() == {}


def test_every_kind_of_key_that_a_queue_has_is_its_own(queue):
    """A kind that is added to Keys, and not to KINDS, would be signed for other queues."""
    keys = queue.keys
    now = queue.clock.now()
    made = [
        *(getattr(keys, kind)("messages/x") for kind in ("message", "lease", "record", "dead", "done")),
        *(
            getattr(keys, kind)("x")
            for kind in ("outbox", "lock", "limit", "idempotency", "dedup", "worker", "schedule")
        ),
        *(
            keys.overrides,
            keys.stats,
            keys.progress,
            keys.breaker,
            keys.slot(1),
            keys.manifest("x"),
            keys.bulk("x", "y"),
        ),
        *(keys.reminder(now, "messages/x"), keys.message("delayed/x"), keys.prefix("flows") + "x"),
    ]
    assert {owner_of(key) for key in made} == {"orders"}
