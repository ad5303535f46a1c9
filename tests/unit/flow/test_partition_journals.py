"""A message that may be a repetition is looked for in the journals, and its partition is kept meanwhile.  [P9]"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import ClassVar

from s3queue.documents.message import Generation, Message
from s3queue.documents.once import reserved_id
from s3queue.documents.partition import journal_bytes
from s3queue.documents.record import Record
from s3queue.encoding import with_put_id
from s3queue.flow import partition_journals
from s3queue.flow.partition_journals import HeldJournals


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


def finished(path: str, put_id: str, put_at: datetime) -> bytes:
    """A journal with this outcome."""
    record = Record(
        path=path,
        outcome="completed",
        generation=Generation(etag="1", put_at=put_at),
        finished_at=put_at,
        attempt=1,
        worker="w",
        put_id=put_id,
    )
    return journal_bytes((record,))


class Interrupted(datetime):
    """When it was compared, another thread comes first."""

    others: ClassVar[list[Callable[[], None]]] = []

    def __le__(self, other: datetime) -> bool:
        is_no_later = super().__le__(other)
        if self.others:
            thread = threading.Thread(target=self.others.pop())
            thread.start()
            thread.join()
        return is_no_later


def test_a_thread_searches_the_journals_that_it_knows_of_whatever_another_one_lists_meanwhile(bench, monkeypatch):
    """[P4] Else what was finished runs again: the threads of a worker share the messages of a partition."""
    queue = bench.queue(partitions=1)
    since = partition_journals.ended_since
    monkeypatch.setattr(
        partition_journals, "ended_since", lambda put_id: Interrupted.fromtimestamp(since(put_id).timestamp(), UTC)
    )

    def message(number: int, put_at: datetime) -> Message:
        return Message(
            queue="orders",
            path=f"messages/@=0/{number}",
            generation=Generation(etag="1", put_at=put_at),
            size=1,
            metadata=with_put_id({}, reserved_id(str(number), put_at)),
        )

    repeated = message(1, bench.clock.now())
    name = queue.chance.name(bench.clock.now())
    bench.put(f"orders/records/@=0/{name}-1.json", finished(repeated.path, repeated.put_id, repeated.enqueued_at))
    bench.clock.advance(100)
    journals = HeldJournals(queue, "@=0", lambda: None)
    assert journals.find(message(2, repeated.enqueued_at)) is None
    bench.clock.advance(100)
    # It has an id that was reserved after the journal was written, so it lists none.
    Interrupted.others.append(lambda: journals.find(message(3, bench.clock.now())))

    assert journals.find(repeated)


def test_what_a_thread_has_read_of_a_journal_is_its_own(bench, monkeypatch):
    """Another thread may forget it: only so many are kept in memory."""
    queue = bench.queue(partitions=1)
    bench.put("orders/records/@=0/0199a-1.json", finished("messages/@=0/1", "once-1", bench.clock.now()))
    monkeypatch.setattr(partition_journals, "MOST_KEPT", 0)

    class Forgetful(dict[str, frozenset[str]]):
        def __setitem__(self, key: str, names: frozenset[str]) -> None:
            """It is gone when it is asked for again."""

    journals = HeldJournals(queue, "@=0", lambda: None, _kept=Forgetful())

    assert journals._names("orders/records/@=0/0199a-1.json") == {"messages/@=0/1", "once-1"}
