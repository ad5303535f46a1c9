"""Enqueue: how a message lies in the bucket, what is refused, and when a queue is full."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime

import pytest

from s3queue import (
    AccessDenied,
    InvalidPriority,
    InvalidRequest,
    MessageTooLarge,
    QueueFull,
    Unavailable,
)


@pytest.mark.parametrize(
    ("body", "stored", "content_type"),
    [
        (b"\x00\xff", b"\x00\xff", "application/octet-stream"),
        (bytearray(b"ab"), b"ab", "application/octet-stream"),
        ("grüße", "grüße".encode(), "text/plain; charset=utf-8"),
        ({"a": [1, "ü", None]}, '{"a":[1,"ü",null]}'.encode(), "application/json"),
        ([1, 2], b"[1,2]", "application/json"),
        (None, b"null", "application/json"),
        (7, b"7", "application/json"),
        (b"", b"", "application/octet-stream"),
    ],
)
def test_a_body_is_stored_as_what_it_is(bench, queue, body, stored, content_type):
    path = queue.enqueue(body)

    found = bench.memory.open(f"orders/{path}")
    assert found.read() == stored
    assert found.content_type == content_type


def test_a_body_that_json_cannot_hold_is_refused_before_anything_is_written(bench, queue):
    with pytest.raises(InvalidRequest, match="must be bytes, str, JSON, a model or a dataclass"):
        queue.enqueue({"when": object()})

    assert bench.keys() == []


def test_names_made_by_the_library_sort_by_time(bench, queue):
    paths = []
    for _ in range(5):
        paths.append(queue.enqueue(b"x"))
        bench.clock.advance(1)

    assert paths == sorted(paths)
    assert len(set(paths)) == 5


def test_threads_that_share_a_queue_never_share_an_instant_in_a_group(bench, queue):
    queue.enqueue(b"x", group="a")
    both = threading.Barrier(2)

    class Instant(datetime):
        """Whoever compares it waits for a second thread that does: a lock lets none come."""

        def __lt__(self, other: datetime) -> bool:
            with suppress(threading.BrokenBarrierError):
                both.wait(0.3)
            return super().__lt__(other)

    now = bench.clock.now()
    bench.clock.now = lambda: Instant.fromtimestamp(now.timestamp(), UTC)
    with ThreadPoolExecutor(2) as producers:
        tasks = [producers.submit(queue.enqueue, b"x", group="a") for _ in range(2)]
        times = {task.result().rpartition("/")[2][:13] for task in tasks}

    assert len(times) == 2


def test_a_priority_becomes_part_of_the_name(queue):
    assert queue.enqueue(b"x", priority=200).startswith("messages/p200/")
    assert queue.enqueue(b"x", priority=7).startswith("messages/p007/")
    assert not queue.enqueue(b"x", priority=0).startswith("messages/p")


@pytest.mark.parametrize("priority", [-1, 256, 1.5, "9", None, True])
def test_a_priority_that_is_no_whole_number_from_0_to_255_is_refused(bench, queue, priority):
    with pytest.raises(InvalidPriority):
        queue.enqueue(b"x", priority=priority)

    assert bench.keys() == []


def test_a_delayed_message_lies_under_its_due_time_and_is_not_claimed_before(bench, queue):
    path = queue.enqueue(b"x", delay=90.5)
    assert path.startswith("delayed/20261116T101631Z/")

    assert queue.status(path).state == "delayed"
    assert queue.claim_next() == []
    bench.clock.advance(90)
    assert queue.claim_next() == []

    bench.clock.advance(1)
    (claim,) = queue.claim_next()
    assert (claim.path, claim.message.body) == (path, b"x")


def test_a_due_instant_may_be_given_in_any_zone(bench, queue):
    due_at = datetime.fromisoformat("2026-11-16T12:00:00+01:00")

    assert queue.enqueue(b"x", due_at=due_at).startswith("delayed/20261116T110000Z/")


def test_a_due_instant_in_the_past_means_now(queue):
    assert queue.enqueue(b"x", due_at=datetime(2020, 1, 1, tzinfo=UTC)).startswith("messages/")
    assert queue.enqueue(b"x", delay=0).startswith("messages/")


def test_a_due_instant_without_a_zone_is_refused(queue):
    with pytest.raises(InvalidRequest, match="time zone"):
        queue.enqueue(b"x", due_at=datetime(2030, 1, 1))  # noqa: DTZ001


def test_a_due_at_that_is_no_time_is_refused(queue):
    with pytest.raises(InvalidRequest, match="must be a datetime"):
        queue.enqueue(b"x", due_at="2026-11-16T12:00:00Z")


def test_delay_and_due_at_together_are_refused(queue):
    with pytest.raises(InvalidRequest, match="not both"):
        queue.enqueue(b"x", delay=1, due_at=datetime(2030, 1, 1, tzinfo=UTC))


def test_a_delayed_message_keeps_its_priority(bench, queue):
    low = queue.enqueue(b"low", delay=5)
    high = queue.enqueue(b"high", delay=5, priority=200)
    bench.clock.advance(6)

    assert [claim.path for claim in queue.claim_next(2)] == [high, low]


def test_a_dedup_id_enqueues_once_while_the_first_is_pending_at_work_or_waiting(bench, queue):
    path = queue.enqueue(b"first", dedup_id="order 4711")
    assert queue.enqueue(b"second", dedup_id="order 4711") == path
    assert bench.read(f"orders/{path}") == b"first"

    claim = queue.claim(path)
    queue.enqueue(b"third", dedup_id="order 4711")
    queue.fail(claim, "once")
    queue.enqueue(b"fourth", dedup_id="order 4711")

    assert bench.read(f"orders/{path}") == b"first"
    assert queue.stats().pending == 0


def test_a_dedup_id_may_be_used_again_once_its_message_is_finished(bench, queue):
    path = queue.enqueue(b"first", dedup_id="daily")
    queue.complete(queue.claim(path))
    bench.clock.advance(1)

    assert queue.enqueue(b"second", dedup_id="daily") == path
    assert queue.claim(path).message.body == b"second"


def test_only_the_first_of_two_equal_dedup_ids_is_announced(bench, queue):
    heard = []
    queue.events.on("message.enqueued", heard.append)

    queue.enqueue(b"x", dedup_id="a")
    queue.enqueue(b"x", dedup_id="a")

    assert len(heard) == 1


def test_dedup_ids_of_any_form_become_names_that_a_key_can_hold(bench, queue):
    path = queue.enqueue(b"x", dedup_id="../ü\n" + "x" * 5000)

    assert queue.claim(path)


def test_an_empty_dedup_id_or_one_beside_a_name_is_refused(queue):
    with pytest.raises(InvalidRequest):
        queue.enqueue(b"x", dedup_id="")
    with pytest.raises(InvalidRequest, match="not both"):
        queue.enqueue(b"x", dedup_id="a", name="b")


def test_metadata_of_any_language_reaches_the_handler(bench, queue):
    metadata = {"Source": "plain", "city": "Köln → 東京", "blank": "  spaced  ", "looks": "utf-8''coded"}
    path = queue.enqueue(b"x", metadata=metadata)

    claim = queue.claim(path)

    assert claim.message.metadata == {name.lower(): value for name, value in metadata.items()}
    assert all(value.isascii() for value in bench.memory.head(f"orders/{path}").metadata.values())


def test_what_is_larger_than_max_message_size_is_refused_and_what_equals_it_is_not(bench):
    queue = bench.queue(max_message_size=10)

    queue.enqueue(b"x" * 10)
    with pytest.raises(MessageTooLarge, match="11 bytes; max_message_size is 10"):
        queue.enqueue(b"x" * 11)

    assert len(bench.keys()) == 1


def test_a_name_may_be_chosen(queue):
    assert queue.enqueue(b"x", name="2026/order 4711.json") == "messages/2026/order 4711.json"


def test_shards_spread_names_and_are_stable_for_a_name(bench):
    queue = bench.queue(shards=4)

    paths = [queue.enqueue(b"x") for _ in range(60)]

    assert {path.split("/")[1] for path in paths} == {"00", "01", "02", "03"}
    assert queue.enqueue(b"x", name="same") == queue.enqueue(b"y", name="same")


def test_a_full_queue_refuses_more_until_the_sweeper_has_counted_less(bench):
    queue = bench.queue(max_depth=3)
    paths = [queue.enqueue(b"x") for _ in range(3)]
    bench.sweeper(queue).sweep()
    bench.clock.advance(10)

    with pytest.raises(QueueFull, match="3 messages"):
        queue.enqueue(b"one too many")
    with pytest.raises(QueueFull):
        queue.enqueue_many([1])

    for path in paths:
        queue.complete(queue.claim(path))
    bench.sweeper(queue).sweep()
    bench.clock.advance(10)
    queue.enqueue(b"x")


def test_max_depth_costs_one_read_every_ten_seconds_not_one_a_message(bench):
    queue = bench.queue(max_depth=1000)

    for _ in range(100):
        queue.enqueue(b"x")

    assert bench.store.take() == {"put": 100, "get": 1}


def test_a_max_depth_set_at_run_time_holds_up_a_process_that_only_enqueues(bench):
    producer = bench.queue(worker_id="a producer")
    producer.enqueue(b"x")
    operator = bench.queue(worker_id="an operator")
    operator.configure(max_depth=1)
    bench.sweeper(operator).sweep()
    bench.clock.advance(10)

    with pytest.raises(QueueFull, match="max_depth is 1"):
        producer.enqueue(b"one too many")


def test_a_process_that_goes_on_enqueuing_reads_its_settings_every_ten_seconds_not_for_every_message(bench, queue):
    for _ in range(31):
        queue.enqueue(b"x")
        queue.enqueue(b"y")
        bench.clock.advance(1)

    assert bench.store.take() == {"put": 62, "get": 3}


@pytest.mark.parametrize("error", [AccessDenied("PUT only"), Unavailable("no answer")])
def test_who_cannot_read_the_settings_enqueues_all_the_same(bench, queue, error):
    queue.enqueue(b"x")
    bench.clock.advance(10)
    bench.memory.open = _raising(error)

    assert queue.enqueue(b"y").startswith("messages/")


def _raising(error):
    def refuse(*_args, **_options):
        raise error

    return refuse


def test_too_large_is_refused_with_both_numbers(bench):
    with pytest.raises(MessageTooLarge, match="101 bytes; max_message_size is 100"):
        bench.queue(max_message_size=100).enqueue(b"x" * 101)

    assert bench.keys() == []


@pytest.mark.parametrize("priority", [-1, 256, 1e3, "high", None])
def test_an_invalid_priority_is_refused_with_its_range(bench, queue, priority):
    with pytest.raises(InvalidPriority, match="0 to 255"):
        queue.enqueue(b"x", priority=priority)
    with pytest.raises(InvalidPriority):
        queue.enqueue_many([1], priority=priority)

    assert bench.keys() == []


@pytest.mark.parametrize("body", [object(), {"a": object()}, float])
def test_a_body_that_is_neither_bytes_text_nor_json_is_refused(bench, queue, body):
    with pytest.raises(InvalidRequest):
        queue.enqueue(body)

    assert bench.keys() == []
