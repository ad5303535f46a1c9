"""What the holder of a partition writes can be read by the next one, whatever was returned, or failed.  [P3] [P5]"""

from __future__ import annotations

import pytest

from s3queue.documents.partition import PARTITION_BYTES, PartitionLease, read_journal

OPTIONS = {"partitions": 1, "collect": 200, "within_seconds": 0}


@pytest.mark.parametrize("dies", [False, True])
def test_large_results_are_committed_in_parts_that_can_be_read(bench, dies):
    queue, later = bench.queue(**OPTIONS), bench.queue(worker_id="later", **OPTIONS)
    paths = [queue.enqueue({"n": number}) for number in range(120)]
    calls: list[int] = []

    def around(operation, key, perform):
        done = perform()
        if dies and operation == "put" and key.startswith("orders/records/") and not died:
            died.append(key)
            raise KeyboardInterrupt  # between the journal and the deletions of the first part
        return done

    died: list[str] = []
    bench.around = around

    def handler(bodies: list[dict]) -> list[str]:
        calls.append(len(bodies))
        return ["x" * 250_000] * len(bodies)

    if dies:
        with pytest.raises(KeyboardInterrupt):
            bench.processor(queue, handler).run(paths[0])
        bench.around = None
        lease = PartitionLease.read(bench.memory.open("orders/leases/@=0"))
        assert {record.path for record in lease.ended}.isdisjoint(lease.taken)
        assert {record.path for record in lease.ended} | lease.taken.keys() == set(paths)
        bench.clock.advance(60)
        bench.processor(later, handler).run(paths[0])
    else:
        bench.processor(queue, handler).run(paths[0])
    bench.around = None

    journals = [read_journal(bench.memory.open(key)) for key in bench.keys("orders/records/")]
    assert len(journals) > 1
    assert sorted(record.path for journal in journals for record in journal) == sorted(paths)
    assert bench.keys("orders/messages/") == bench.keys("orders/leases/") == []
    assert calls[0] == 120


def test_long_errors_of_many_messages_do_not_lose_their_attempts(bench):
    queue = bench.queue(max_attempts=5, retry_base=1, **(OPTIONS | {"collect": 1000}))
    paths = [queue.enqueue({"n": number}) for number in range(1000)]

    def handler(bodies: list[dict]) -> None:
        raise ValueError("\N{PILE OF POO}" * 2000)

    for _ in range(3):
        bench.processor(queue, handler).run(paths[0])
        bench.clock.advance(20)

    stored = bench.memory.open("orders/leases/@=0")
    assert stored.size < PARTITION_BYTES
    lease = PartitionLease.read(stored)
    assert {one.lease.attempt for one in lease.waiting.values()} == {3}
    assert len(lease.waiting) == 1000
