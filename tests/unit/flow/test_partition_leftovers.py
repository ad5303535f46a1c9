"""The lease of a partition goes with the last message that it is for.  [P6] [P9]"""

from __future__ import annotations

from datetime import timedelta

from s3queue.documents.lease import Lease
from s3queue.documents.partition import PartitionLease, Waiting


def test_an_open_lease_is_deleted_when_all_that_waited_was_deleted_by_hand(bench, queue):
    """It was never tried, so no record says that it vanished; else the sweeper would hand the lease over for ever."""
    lease = Lease(
        state="waiting",
        attempt=0,
        owner="w",
        nonce="",
        timeout=timedelta(),
        expected_etag="e",
        retry_at=bench.clock.now(),
    )
    waiting = Waiting("messages/@a/gone", lease, is_suspect=True)
    stored = PartitionLease(
        state="open", owner="w", nonce="n", timeout=timedelta(seconds=30), waiting={waiting.path: waiting}
    )
    bench.put("orders/leases/@a", stored.to_bytes())

    bench.processor(queue, lambda body: None).run("messages/@a/")

    assert bench.keys("orders/leases/") == []
