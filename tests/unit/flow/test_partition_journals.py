"""A message that may be a repetition is looked for in the journals, and its partition is kept meanwhile.  [P9]"""

from __future__ import annotations

import json

from s3queue.documents.message import Generation
from s3queue.documents.partition import journal_bytes
from s3queue.documents.record import Record


def test_many_journals_do_not_outlast_the_lease(bench):
    """Else the partition is lost again and again, and its message never runs."""
    queue, seen = bench.queue(visibility_timeout=10), []
    processor = bench.processor(queue, seen.append)
    for number in range(8):
        processor.run(queue.enqueue(json.dumps(number), group="a"))
    path = queue.enqueue(json.dumps("once"), group="a", dedup_id="x", dedup_for=300)

    def slow(operation, key, perform):
        bench.clock.advance(3 * key.startswith("orders/records/@a/"))
        return perform()

    bench.around = slow
    processor.run(path)

    assert seen[-1] == "once"
    assert queue.outcome_of(path).attempt == 1


def test_many_journals_do_not_keep_a_message_from_being_cancelled(bench):
    queue = bench.queue(visibility_timeout=10)
    processor = bench.processor(queue, lambda body: None)
    for number in range(8):
        processor.run(queue.enqueue(json.dumps(number), group="a"))
    path = queue.enqueue(json.dumps("once"), group="a", dedup_id="x", dedup_for=300)

    def slow(operation, key, perform):
        bench.clock.advance(3 * key.startswith("orders/records/@a/"))
        return perform()

    bench.around = slow

    assert queue.cancel(path).outcome == "cancelled"
    assert bench.keys("orders/messages/") == []


def test_the_last_outcome_of_a_name_is_told_whichever_process_wrote_it(bench):
    """Journals of two processes may be named in the wrong order within a second; S3's dates decide."""
    queue = bench.queue()
    for number, name in enumerate(("0199b", "0199a")):
        put_at = bench.clock.now()
        record = Record(
            path="messages/@a/daily",
            outcome="completed",
            generation=Generation(etag=str(number), put_at=put_at),
            finished_at=put_at,
            attempt=1,
            worker="w",
        )
        bench.put(f"orders/records/@a/{name}-1.json", journal_bytes((record,)))
        bench.clock.advance(1)

    assert queue.outcome_of("messages/@a/daily").generation.etag == "1"
