"""How few journals are read to find an outcome of a message of a partition.  [P9]"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from s3queue import Context, MessageNotFound, Queue
from s3queue.documents.partition import journal_bytes, read_journal
from s3queue.paths import named_at
from support.manual_clock import ManualClock
from support.workbench import Workbench


def journaled(bench: Workbench, commits: int, *, group: str = "ada", name: str = "orders") -> list[str]:
    """A partition with so many journals of one outcome each, one a minute; the paths."""
    queue = bench.queue(name=name)
    path = queue.enqueue({}, group=group)
    bench.processor(queue, lambda body: None).run(path)
    [first] = bench.keys(f"{name}/records/@{group}/")
    (record,) = read_journal(bench.memory.open(first))
    paths = [path]
    for _ in range(commits - 1):
        bench.clock.advance(60)
        path = f"messages/@{group}/{bench.chance.name(bench.clock.now())}"
        paths.append(path)
        generation = replace(record.generation, put_at=bench.clock.now())
        journal = f"{bench.chance.name(bench.clock.now())}-1"
        bench.put(
            queue.keys.journal(f"@{group}", journal),
            journal_bytes((replace(record, path=path, generation=generation),)),
        )
    bench.clock.advance(60)
    bench.store.take()
    return paths


def test_the_status_of_a_late_message_reads_few_of_a_thousand_journals(bench):
    paths = journaled(bench, 1000)
    queue = bench.queue()

    for back in (1, 2, 10, 50):
        assert queue.status(paths[-back]).state == "completed"
        spent = bench.store.take()
        # The lease, the journals since it was named, ten minutes of a producer's clock, and the rest of a chunk.
        assert spent["get"] <= 1 + back + 10 + 16, spent
        assert spent["list"] == 1


def test_the_status_of_an_old_message_reads_no_older_journals(bench):
    paths = journaled(bench, 1000)
    queue = bench.queue()

    assert queue.status(paths[900]).state == "completed"
    assert bench.store.take()["get"] <= 1 + 100 + 16


def test_a_producer_whose_clock_was_ahead_hides_no_outcome(bench):
    queue = bench.queue()
    path = f"messages/@ada/{bench.chance.name(bench.clock.now().replace(year=2030))}"
    bench.put(f"orders/{path}", b"{}")
    bench.processor(queue, lambda body: None).run(path)

    assert queue.status(path).state == "completed"


def test_a_message_that_never_was_is_not_found_however_many_journals_there_are(bench):
    journaled(bench, 40)
    with pytest.raises(MessageNotFound):
        bench.queue().status(f"messages/@ada/{bench.chance.name(bench.clock.now())}")


def test_a_message_that_waits_reads_no_journals_from_before_it(bench):
    journaled(bench, 300)
    queue = bench.queue()
    path = queue.enqueue({}, group="ada")
    bench.store.take()

    assert queue.status(path).state == "pending"
    assert bench.store.take() == {"head": 2, "get": 1, "list": 1}


def test_sent_messages_of_a_hold_share_one_list_and_read_no_journals_from_before_their_sender(bench):
    journaled(bench, 1000, name="emails")
    queue, emails = bench.queue(), bench.queue(name="emails")

    def many(body: dict, context: Context) -> None:
        for number in range(50):
            context.send("emails", {"n": number}, group="ada")

    queue.sends_to = ("emails",)
    bench.processor(queue, many, sends_to=["emails"]).run(queue.enqueue({}))
    path = bench.keys("emails/messages/")[0].removeprefix("emails/")
    bench.clock.advance(5)
    bench.store.take()
    ran: list[dict] = []

    bench.processor(emails, ran.append).run(path)

    assert len(ran) == 50
    asked = [key for verb, key in bench.store.log if "emails/records/" in key and verb in ("list", "get")]
    # What was committed in the last seconds before the sender may be listed; the first LIST answers for all.
    assert len(asked) <= 2, asked


def test_messages_with_a_dedup_id_read_each_journal_once_in_a_hold(bench):
    journaled(bench, 100)
    queue = bench.queue()
    for number in range(20):
        path = queue.enqueue({"n": number}, group="ada", dedup_id=f"order-{number}", dedup_for=60)
    bench.clock.advance(5)
    bench.store.take()
    ran: list[dict] = []

    bench.processor(queue, ran.append).run(path)

    assert len(ran) == 20
    asked = [key for verb, key in bench.store.log if "orders/records/" in key and verb in ("list", "get")]
    # What was committed within the seconds by which the producer's clock may be ahead.
    assert len(asked) <= 1 + 1


@pytest.mark.parametrize("journals", [10, 400])
def test_a_message_with_a_dedup_id_reads_as_few_journals_of_many_as_of_few(bench, journals):
    journaled(bench, journals)
    queue = bench.queue()
    path = queue.enqueue({}, group="ada", dedup_id="order-17", dedup_for=60)
    assert bench.store.take() == {"get": 1, "put": 2}

    # Whoever enqueues it again finds it there; or its outcome; or, if the first one had died, neither.
    queue.enqueue({}, group="ada", dedup_id="order-17", dedup_for=60)
    assert bench.store.take() == {"get": 1, "head": 1}
    stored = bench.memory.open(f"orders/{path}")
    bench.memory.delete(f"orders/{path}")
    assert queue.enqueue({}, group="ada", dedup_id="order-17", dedup_for=60) == path
    assert bench.store.take() == {"get": 2, "head": 1, "list": 1, "put": 1}

    ran: list[dict] = []
    bench.processor(queue, ran.append).run(path)
    asked = [key for verb, key in bench.store.log if "orders/records/" in key and verb in ("list", "get")]
    assert (len(ran), len(asked)) == (1, 1)

    # A repetition that comes late is found all the same.
    bench.clock.advance(30)
    bench.put(f"orders/{path}", stored.read(), metadata=stored.metadata)
    bench.store.take()
    bench.processor(queue, ran.append).run(path)
    asked = [key for verb, key in bench.store.log if "orders/records/" in key and verb in ("list", "get")]
    assert (len(ran), len(asked)) == (1, 3)
    assert bench.keys("orders/messages/") == []


class Ahead(ManualClock):
    """A producer's clock that is an hour ahead of S3's."""

    def __init__(self, inner: ManualClock) -> None:
        super().__init__()
        self.inner = inner

    def now(self) -> datetime:
        return self.inner.now() + timedelta(hours=1)


@pytest.mark.parametrize("who", ["alone", "another finds its marker"])
def test_a_producers_clock_that_is_ahead_hides_no_outcome_of_a_dedup_id(bench, who):
    """[P4] The late repetition of its PUT is looked for in journals from before its own time."""
    queue, ran = bench.queue(), []
    ahead = Queue(store=bench.store, name="orders", clock=Ahead(bench.clock), chance=bench.chance)
    if who == "alone":
        path = ahead.enqueue({}, group="ada", dedup_id="order-17", dedup_for=60)
        assert bench.store.take() == {"get": 2, "put": 3}, "the marker is dated anew, by S3's clock"
    else:
        bench.around = die_after_the_marker
        with pytest.raises(Died):
            ahead.enqueue({}, group="ada", dedup_id="order-17", dedup_for=60)
        bench.around = None
        path = queue.enqueue({}, group="ada", dedup_id="order-17", dedup_for=60)
    stored = bench.memory.open(f"orders/{path}")
    bench.processor(queue, ran.append).run(path)
    # By now its clock's time has come, and gone.
    bench.clock.advance(4000)
    bench.put(f"orders/{path}", stored.read(), metadata=stored.metadata)

    bench.processor(queue, ran.append).run(path)

    assert len(ran) == 1
    assert bench.keys("orders/messages/") == []


class Died(BaseException):
    pass


def die_after_the_marker(operation: str, key: str, perform):
    if operation == "put" and key.startswith("orders/messages/"):
        raise Died
    done = perform()
    if operation == "put" and key.startswith("orders/dedup/"):
        raise Died
    return done


def test_a_repetition_that_comes_within_the_same_hold_is_found_in_its_own_journal(bench):
    """The list of journals that was made for the messages before it does not answer for it."""
    queue, emails = bench.queue(), bench.queue(name="emails")

    def many(body: dict, context: Context) -> None:
        for number in range(12):
            context.send("emails", number, group="a")

    queue.sends_to = ("emails",)
    bench.processor(queue, many, sends_to=["emails"]).run(queue.enqueue({}))
    keys = bench.keys("emails/messages/")
    stored = bench.memory.open(keys[0])
    content, metadata = stored.read(), dict(stored.metadata)
    bench.clock.advance(5)
    ran: list[int] = []

    def handler(body: int) -> None:
        ran.append(body)
        if body == 11:
            # Enough that the hold goes on, and looks for more after them.
            for number in range(100, 112):
                emails.enqueue(number, group="a")
        if body == 100:
            assert not bench.memory.head(keys[0])
            bench.put(keys[0], content, metadata=metadata)

    bench.processor(emails, handler).run(keys[0].removeprefix("emails/"))

    assert ran == [*range(12), *range(100, 112)]
    assert bench.keys("emails/messages/") == []
    claims = [key for verb, key in bench.store.log if key == "emails/leases/@a" and verb == "delete"]
    assert len(claims) == 1, "one hold"


def test_names_tell_their_time(bench):
    now = bench.clock.now()
    assert named_at(f"messages/@a/{bench.chance.name(now)}") == now
    assert named_at("messages/@a/order-17") is None


def test_a_forged_name_tells_no_time_and_fails_nobody_who_asks_for_it(bench, queue):
    """Its digits are those of the year 10889."""
    path = "messages/@a/ffffffff-ffff-7000-8000-000000000000"
    assert named_at(path) is None

    with pytest.raises(MessageNotFound):
        queue.status(path)
    bench.put(f"orders/{path}", b"{}")
    assert queue.status(path).state == "pending"
    assert queue.cancel(path).outcome == "cancelled"
