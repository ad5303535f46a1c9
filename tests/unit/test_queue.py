"""Queue: what producers, workers and operators may rely on."""

from __future__ import annotations

import hashlib
import json
import threading
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta

import pytest

from s3queue import (
    AccessDenied,
    InvalidName,
    InvalidPriority,
    InvalidRequest,
    LeaseLost,
    MessageNotFound,
    MessageTooLarge,
    QueueFull,
    QueueSettings,
    Record,
    Reject,
    Stats,
    Unavailable,
    connect,
)
from s3queue.documents.lease import Lease
from support.s3_servers import fresh_bucket, s3_client
from support.workbench import Workbench


@pytest.fixture
def bench():
    return Workbench()


@pytest.fixture
def queue(bench):
    return bench.queue()


def put(bench, key: str, body: bytes, **options):
    """As a stranger does it: plain PutObject, without the library."""
    return bench.memory.put(key, body, **options)


# Enqueue


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
    with pytest.raises(InvalidRequest, match="neither bytes, str, nor JSON"):
        queue.enqueue({"when": datetime(2026, 1, 1, tzinfo=UTC)})

    assert bench.keys() == []


def test_names_made_by_the_library_sort_by_time(bench, queue):
    paths = []
    for _ in range(5):
        paths.append(queue.enqueue(b"x"))
        bench.clock.advance(1)

    assert paths == sorted(paths)
    assert len(set(paths)) == 5


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


# Batches


def test_enqueue_many_writes_one_object_per_batch(bench, queue):
    paths = queue.enqueue_many(({"n": number} for number in range(250)), per_object=100, priority=3)

    assert len(paths) == 3
    assert all(path.startswith("messages/p003/") and path.endswith(".ndjson") for path in paths)
    lines = [json.loads(line) for path in paths for line in bench.read(f"orders/{path}").splitlines()]
    assert lines == [{"n": number} for number in range(250)]


def test_enqueue_many_does_not_wait_for_one_answer_before_it_sends_the_next_batch(bench, queue):
    both_under_way = threading.Barrier(2, timeout=30)

    def answer_together(operation, key, perform):
        both_under_way.wait()
        return perform()

    bench.around = answer_together

    assert len(queue.enqueue_many(range(4), per_object=1, concurrency=2)) == 4


def test_enqueue_many_says_so_when_it_is_unknown_whether_a_batch_was_written(bench, queue):
    puts = []

    def lose_the_fourth(operation, key, perform):
        written = perform()
        puts.append(key)
        if len(puts) == 4:
            raise Unavailable("time-out")
        return written

    bench.around = lose_the_fourth

    with pytest.raises(Unavailable):
        queue.enqueue_many(range(8), per_object=1, concurrency=1)

    bench.around = None
    assert [bench.read(key) for key in puts[:4]] == [b"0\n", b"1\n", b"2\n", b"3\n"]


def test_enqueue_many_of_nothing_writes_nothing(bench, queue):
    assert queue.enqueue_many([]) == []
    assert bench.keys() == []


def test_enqueue_many_starts_a_new_batch_before_one_becomes_too_large(bench):
    queue = bench.queue(max_message_size=20)

    paths = queue.enqueue_many(["x" * 8] * 5)

    assert [len(bench.read(f"orders/{path}")) for path in paths] == [18, 18, 9]


def test_enqueue_many_may_be_delayed(bench, queue):
    (path,) = queue.enqueue_many([1, 2], delay=60)

    assert path.startswith("delayed/")
    assert path.endswith(".ndjson")


@pytest.mark.parametrize("body", ["two\nlines", b"a\rb", "", b"  ", {1, 2}])
def test_a_body_that_is_no_single_line_is_refused_by_its_number(bench, queue, body):
    with pytest.raises(InvalidRequest, match="body number 1"):
        queue.enqueue_many([{"fine": True}, body])


def test_a_batch_with_a_line_that_is_too_large_says_which(bench):
    with pytest.raises(MessageTooLarge, match="body number 1"):
        bench.queue(max_message_size=10).enqueue_many(["x", "x" * 20])


def test_concurrency_must_be_at_least_one(queue):
    with pytest.raises(InvalidRequest, match="concurrency 0"):
        queue.enqueue_many([1], concurrency=0)


def test_per_object_must_be_at_least_one(queue):
    with pytest.raises(InvalidRequest):
        queue.enqueue_many([1], per_object=0)


# Presigned


def test_a_presigned_url_enqueues_one_message_once_without_credentials(moto_endpoint):
    client = s3_client(moto_endpoint)
    queue = connect(f"s3://{fresh_bucket(client)}/orders", client=client)
    url, path = queue.presign(priority=5, expires=timedelta(minutes=5))
    assert path.startswith("messages/p005/")

    def send(body: bytes) -> int:
        request = urllib.request.Request(url, data=body, method="PUT", headers={"If-None-Match": "*"})
        request.add_unredirected_header("Content-Type", "")
        return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=20).status

    assert send(b"from outside") == 200
    with pytest.raises(urllib.error.HTTPError) as refused:
        send(b"again")

    assert refused.value.code == 412
    (claim,) = queue.claim_next()
    assert (claim.path, claim.message.body) == (path, b"from outside")


# Claim


def test_a_claim_says_all_there_is_to_know(bench, queue):
    path = queue.enqueue(b"payload", priority=9, metadata={"k": "v"})
    bench.clock.advance(3)

    claim = queue.claim(path)

    assert claim.message.body == b"payload"
    assert (claim.attempt, claim.message.priority, claim.message.metadata) == (1, 9, {"k": "v"})
    assert claim.claimed_at - claim.message.enqueued_at == timedelta(seconds=3)
    assert claim.remaining() == timedelta(seconds=30)
    assert claim.lease.owner == queue.worker_id


def test_of_two_workers_one_gets_the_message(bench, queue):  # [P2]
    path = queue.enqueue(b"x")

    assert queue.claim(path)
    assert bench.queue(worker_id="rival").claim(path) is None
    assert bench.queue(worker_id="rival").claim(path, read_first=True) is None
    assert bench.queue(worker_id="rival").claim_next() == []


def test_a_claim_of_nothing_leaves_nothing_behind(bench, queue):
    assert queue.claim("messages/none") is None
    assert queue.claim("messages/none", read_first=True) is None
    assert bench.keys() == []


def test_a_claim_may_have_a_timeout_of_its_own(bench, queue):
    path = queue.enqueue(b"x")

    claim = queue.claim(path, timeout=300)

    assert claim.remaining() == timedelta(seconds=300)
    bench.clock.advance(100)
    bench.sweeper(bench.queue(worker_id="sweeper")).sweep()
    queue.complete(claim)
    assert queue.status(path).state == "completed"


def test_claim_next_takes_the_highest_priority_first_then_the_oldest(bench, queue):
    paths = {}
    for priority in (0, 255, 7, 100):
        for age in ("old", "new"):
            # Old and new lie further apart than workers reach at random, or the order would be theirs.
            paths[priority, age] = [queue.enqueue(b"x", priority=priority) for _ in range(40 if age == "old" else 1)]
            bench.clock.advance(2)

    claimed = [claim.path for claim in queue.claim_next(200)]

    assert [_priority(path) for path in claimed] == sorted((_priority(path) for path in claimed), reverse=True)
    for priority in (0, 255, 7, 100):
        of_priority = [path for path in claimed if _priority(path) == priority]
        assert len(of_priority) == 41
        # The newest of them is never among the first eight: it comes into reach only then.
        assert of_priority.index(paths[priority, "new"][0]) >= 8


def _priority(path: str) -> int:
    part = path.split("/")[1]
    return int(part[1:]) if len(part) == 4 and part.startswith("p") else 0


def test_the_oldest_of_several_shards_comes_first(bench):
    queue = bench.queue(shards=16)
    old = {queue.enqueue(b"x") for _ in range(40)}
    bench.clock.advance(10)
    young = {queue.enqueue(b"x") for _ in range(40)}

    claimed = [claim.path for claim in queue.claim_next(80)]

    assert set(claimed) == old | young
    assert set(claimed[:8]) <= old


def test_claim_next_looks_past_names_that_anyone_may_choose(bench, queue):
    for number in range(1100):
        put(bench, f"orders/messages/order-{number:05d}", b"x")
    put(bench, "orders/messages/p200/urgent", b"x")
    put(bench, "orders/messages/zebra", b"x")

    (claim,) = queue.claim_next()

    assert claim.path == "messages/p200/urgent"


def test_urgent_messages_are_found_behind_a_thousand_names_that_begin_with_p(bench, queue):
    for number in range(1100):
        put(bench, f"orders/messages/p-{number:05d}", b"x")
    put(bench, "orders/messages/p200/urgent", b"x")

    (claim,) = queue.claim_next()

    assert claim.path == "messages/p200/urgent"


@pytest.mark.parametrize("prefix", ["", "p009/", "7f/"])
def test_a_thousand_messages_at_work_do_not_hide_the_ones_behind_them(bench, queue, prefix):
    for number in range(1500):
        put(bench, f"orders/messages/{prefix}{number:05d}", b"x")
        assert queue.claim(f"messages/{prefix}{number:05d}")
    put(bench, f"orders/messages/{prefix}99999", b"still here")

    (claim,) = queue.claim_next()

    assert claim.message.body == b"still here"


def test_workers_that_look_at_the_same_time_do_not_all_reach_for_the_same_message(bench):
    queue = bench.queue()
    for _ in range(40):
        queue.enqueue(b"x")

    first = {queue.claim_next()[0].path for _ in range(5)}
    untouched = sorted(f"messages/{key.rpartition('/')[2]}" for key in bench.keys("orders/messages/"))

    assert first != set(untouched[:5])


def test_a_message_that_only_a_newer_version_understands_does_not_stop_the_others(bench, queue):
    paths = [queue.enqueue(b"x") for _ in range(3)]
    for path in paths[1:]:
        queue.fail(queue.claim(path), "once")
        put(bench, f"orders/records/{path}", b'{"v":99}')
    bench.clock.advance(10)

    assert [claim.path for claim in queue.claim_next(3)] == paths[:1]


def test_claim_next_hands_over_what_it_has_when_the_store_falls_silent(bench):
    requests = []

    def falls_silent(operation, key, perform):
        requests.append(operation)
        if operation == "put" and "/leases/" in key and requests.count("put") > 5:
            raise Unavailable("no answer")
        return perform()

    queue = bench.queue()
    for _ in range(3):
        queue.enqueue(b"x")
    bench.around = falls_silent
    requests += ["put"] * 3

    assert len(queue.claim_next(3)) == 2
    with pytest.raises(Unavailable):
        queue.claim_next(3)


# Outcomes


def test_a_completed_message_leaves_a_record_and_nothing_else(bench, queue):  # [P1]
    path = queue.enqueue(b"x")
    bench.clock.advance(2)
    claim = queue.claim(path)
    bench.clock.advance(5)

    record = queue.complete(claim, {"rows": 7})

    assert bench.keys() == [f"orders/records/{path}"]
    status = queue.status(path)
    assert status.state == "completed"
    assert status.record == record
    assert (record.outcome, record.result, record.attempt, record.worker) == (
        "completed",
        {"rows": 7},
        1,
        queue.worker_id,
    )
    (attempt,) = record.attempts
    assert attempt.ended_at - attempt.started_at == timedelta(seconds=5)


def test_the_first_outcome_stands_and_a_zombie_gets_to_see_it(bench, queue):  # [P3]
    path = queue.enqueue(b"x")
    zombie = queue.claim(path)
    bench.clock.advance(60)
    bench.sweeper(queue).sweep()
    bench.clock.advance(60)
    heir = bench.queue(worker_id="heir")
    record = heir.complete(heir.claim(path, read_first=True), "by the heir")

    assert queue.complete(zombie, "by the zombie") == record
    assert queue.status(path).record.result == "by the heir"


def test_a_zombie_cannot_fail_a_message_that_someone_else_holds(bench, queue):  # [P3] [P5]
    path = queue.enqueue(b"x")
    zombie = queue.claim(path)
    bench.clock.advance(60)
    bench.sweeper(queue).sweep()
    bench.clock.advance(60)
    heir = bench.queue(worker_id="heir")
    claim = heir.claim(path, read_first=True)

    with pytest.raises(LeaseLost):
        queue.fail(zombie, "too late")
    with pytest.raises(LeaseLost):
        queue.fail(zombie, "too late", dead=True)
    with pytest.raises(LeaseLost):
        queue.extend(zombie)
    with pytest.raises(LeaseLost):
        queue.release(zombie)

    assert heir.status(path).lease.owner == "heir"
    heir.complete(claim)


def test_a_failed_message_waits_as_long_as_the_policy_says(bench, queue):
    path = queue.enqueue(b"x")

    lease = queue.fail(queue.claim(path), ValueError("no luck"))

    assert isinstance(lease, Lease)
    status = queue.status(path)
    assert (status.state, status.lease.failure.type, status.lease.failure.message) == (
        "waiting",
        "ValueError",
        "no luck",
    )
    assert bench.keys("orders/retries/") == [f"orders/retries/20261116T101501Z/{path}"]
    assert queue.claim(path, read_first=True) is None
    bench.clock.advance(1)
    claim = queue.claim(path, read_first=True)
    assert claim.attempt == 2


def test_backoff_doubles_and_is_capped(bench):
    queue = bench.queue(max_attempts=6, retry_base=2, retry_cap=9)
    path = queue.enqueue(b"x")
    waits = []
    for _ in range(5):
        claim = queue.claim(path, read_first=True)
        lease = queue.fail(claim, "again")
        waits.append((lease.retry_at - claim.now()).total_seconds())
        bench.clock.advance(waits[-1])

    assert waits == [2, 4, 8, 9, 9]


def test_the_last_failure_buries_the_message_with_its_payload_and_its_story(bench):  # [P1] [P5]
    queue = bench.queue(max_attempts=2)
    path = queue.enqueue(b"payload", metadata={"who": "Zoë"}, content_type="text/csv")
    queue.fail(queue.claim(path), KeyError("first"))
    bench.clock.advance(5)

    record = queue.fail(queue.claim(path, read_first=True), ValueError("second"))

    assert isinstance(record, Record)
    assert [(attempt.number, attempt.failure.type) for attempt in record.attempts] == [
        (1, "KeyError"),
        (2, "ValueError"),
    ]
    assert queue.status(path).state == "dead"
    dead = bench.memory.open(f"orders/dead/{path}")
    assert (dead.read(), dead.content_type) == (b"payload", "text/csv")
    assert dead.metadata["s3queue-error-type"] == "ValueError"
    assert not bench.keys("orders/messages/")
    assert not bench.keys("orders/leases/")


@pytest.mark.parametrize("how", [{"dead": True, "error": "told so"}, {"error": Reject("no good")}])
def test_a_message_may_be_buried_at_once(bench, queue, how):
    path = queue.enqueue(b"x")

    record = queue.fail(queue.claim(path), how.pop("error"), **how)

    assert record.outcome == "dead"
    assert bench.keys(f"orders/dead/{path}")


def test_a_failure_may_say_when_to_come_back(bench, queue):
    path = queue.enqueue(b"x")

    lease = queue.fail(queue.claim(path), "busy", retry_after=timedelta(minutes=10))

    assert lease.retry_at == bench.clock.now() + timedelta(minutes=10)


def test_an_extended_claim_outlives_its_first_timeout(bench, queue):  # [P2]
    path = queue.enqueue(b"x")
    claim = queue.claim(path)
    for _ in range(5):
        bench.clock.advance(25)
        queue.extend(claim)
        bench.sweeper(bench.queue(worker_id="sweeper")).sweep()

    assert claim.remaining() == timedelta(seconds=30)
    queue.extend(claim, 100)
    assert claim.remaining() == timedelta(seconds=100)
    assert queue.complete(claim).outcome == "completed"


def test_a_released_message_is_free_at_once_and_has_had_no_attempt(bench, queue):  # [P5]
    path = queue.enqueue(b"x")

    queue.release(queue.claim(path))

    assert bench.keys() == [f"orders/{path}"]
    assert queue.claim(path).attempt == 1


def test_a_release_after_a_failure_keeps_the_count_of_attempts(bench, queue):  # [P5]
    path = queue.enqueue(b"x")
    queue.fail(queue.claim(path), "first")
    bench.clock.advance(5)

    for _ in range(10):
        claim = queue.claim(path, read_first=True)
        assert claim.attempt == 2
        queue.release(claim)
        bench.clock.advance(1)

    claim = queue.claim(path, read_first=True)
    assert [attempt.failure.message for attempt in claim.lease.attempts] == ["first"]


def test_without_history_a_completion_leaves_nothing_but_a_death_still_does(bench):  # [P1]
    queue = bench.queue(history=False, max_attempts=1)
    done, dead = queue.enqueue(b"x"), queue.enqueue(b"y")

    queue.complete(queue.claim(done))
    assert not bench.keys("orders/records/")
    with pytest.raises(MessageNotFound):
        queue.status(done)

    queue.fail(queue.claim(dead), "no")
    assert bench.keys("orders/records/") == [f"orders/records/{dead}"]
    assert bench.keys("orders/dead/") == [f"orders/dead/{dead}"]


# The same name, PUT again


def test_a_name_that_is_put_again_after_completion_runs_again(bench, queue):
    put(bench, "orders/messages/report", b"monday")
    queue.complete(queue.claim("messages/report"), "monday's")
    bench.clock.advance(60)
    put(bench, "orders/messages/report", b"monday")

    queue.complete(queue.claim("messages/report"), "tuesday's")

    record = queue.status("messages/report").record
    assert (record.result, record.generation.put_at) == ("tuesday's", bench.clock.now())
    assert bench.keys() == ["orders/records/messages/report"]


def test_a_name_that_is_put_again_while_it_is_at_work_runs_afterwards(bench, queue):
    put(bench, "orders/messages/report", b"old")
    seen = []

    def handler(body: bytes) -> str:
        seen.append(body)
        if body == b"old":
            put(bench, "orders/messages/report", b"new")
        return body.decode()

    bench.processor(queue, handler).run("messages/report")

    assert seen == [b"old", b"new"]
    assert queue.status("messages/report").record.result == "new"
    assert bench.keys() == ["orders/records/messages/report"]


def test_equal_bytes_that_are_put_again_while_it_is_at_work_are_the_same_message(bench, queue):
    put(bench, "orders/messages/report", b"same")
    claim = queue.claim("messages/report")
    bench.clock.advance(5)
    put(bench, "orders/messages/report", b"same")

    queue.complete(claim)

    assert bench.keys() == ["orders/records/messages/report"]


def test_attempts_belong_to_a_generation(bench):  # [P5]
    queue = bench.queue(max_attempts=2)
    put(bench, "orders/messages/report", b"old")
    queue.fail(queue.claim("messages/report"), "first of old")
    bench.clock.advance(5)
    put(bench, "orders/messages/report", b"new")

    claim = queue.claim("messages/report", read_first=True)

    assert (claim.attempt, claim.message.body, claim.lease.attempts) == (1, b"new", ())


def test_a_record_of_a_newer_generation_is_never_replaced_by_an_older_ones(bench, queue):  # [P3]
    put(bench, "orders/messages/report", b"old")
    zombie = queue.claim("messages/report")
    bench.clock.advance(60)
    put(bench, "orders/messages/report", b"new")
    bench.sweeper(queue).sweep()
    bench.clock.advance(5)
    newer = queue.complete(queue.claim("messages/report", read_first=True), "new result")

    assert queue.complete(zombie, "old result") == newer
    assert queue.status("messages/report").record.result == "new result"


# Operators


def test_status_follows_a_message_through_its_life(bench):
    queue = bench.queue(max_attempts=2)
    path = queue.enqueue(b"x")
    assert queue.status(path).state == "pending"
    claim = queue.claim(path)
    assert queue.status(path).state == "processing"
    queue.fail(claim, "first")
    assert queue.status(path).state == "waiting"
    bench.clock.advance(5)
    claim = queue.claim(path, read_first=True)
    assert queue.status(path).to_json()["attempt"] == 2
    queue.fail(claim, "second")

    described = queue.status(path).to_json()
    assert described["state"] == "dead"
    assert described["failure"]["message"] == "second"
    assert [attempt["number"] for attempt in described["attempts"]] == [1, 2]
    json.dumps(described)


def test_the_status_of_an_unknown_path_says_how_paths_look(queue):
    with pytest.raises(MessageNotFound, match="paths start with messages/"):
        queue.status("0199-abc")


def test_stats_count_every_state(bench):
    queue = bench.queue(max_attempts=2)
    paths = [queue.enqueue(b"x") for _ in range(8)]
    queue.enqueue(b"later", delay=600)
    queue.complete(queue.claim(paths[0]))
    queue.fail(queue.claim(paths[1]), "dead", dead=True)
    queue.fail(queue.claim(paths[2]), "again", retry_after=300)
    queue.claim(paths[3])
    queue.claim(paths[4])
    bench.clock.advance(10)
    queue.enqueue(b"x")

    stats = queue.stats()

    assert stats == Stats(
        pending=4,
        delayed=1,
        processing=2,
        failed=1,
        completed=1,
        dead=1,
        oldest_seconds=10.0,
        newest_seconds=0.0,
        finished_per_minute=2,
        at=bench.clock.now(),
    )
    assert stats.total == 10


def test_the_oldest_age_ignores_what_is_not_due_and_counts_delay_from_its_due_time(bench, queue):
    queue.enqueue(b"x", delay=100)
    bench.clock.advance(50)
    assert queue.stats().oldest_seconds is None
    bench.clock.advance(60)
    assert queue.stats().oldest_seconds == 10


def test_stats_of_more_than_a_page_are_exact_unless_bounded(bench, queue):
    for _ in range(2500):
        queue.enqueue(b"x")

    assert queue.stats().pending == 2500
    bounded = queue.stats(pages=1)
    assert (bounded.pending, bounded.exact) == (1000, False)


def test_a_paused_queue_gives_out_nothing_and_finishes_what_runs(bench, queue):
    path = queue.enqueue(b"x")
    running = queue.claim(path)
    queue.enqueue(b"y")
    queue.pause()

    assert queue.claim_next() == []
    assert bench.queue(worker_id="another process").claim_next() == []
    queue.complete(running)

    queue.resume()
    assert len(queue.claim_next()) == 1
    other = bench.queue(worker_id="another process")
    queue.enqueue(b"z")
    assert len(other.claim_next()) == 1


def test_a_pause_is_seen_by_other_processes_within_ten_seconds(bench, queue):
    other = bench.queue(worker_id="another process")
    assert other.claim_next() == []
    queue.enqueue(b"x")
    queue.pause()

    bench.clock.advance(10)
    assert other.claim_next() == []
    queue.resume()
    bench.clock.advance(10)
    assert len(other.claim_next()) == 1


def test_settings_change_at_run_time_for_every_process(bench, queue):
    assert queue.configure(visibility_timeout=120, max_attempts=7).max_attempts == 7

    other = bench.queue(worker_id="another process")
    assert other.refresh()
    assert other.settings.visibility_timeout == timedelta(seconds=120)
    assert other.settings.max_attempts == 7


def test_settings_are_read_at_most_every_ten_seconds(bench, queue):
    queue.refresh()
    bench.store.take()
    for _ in range(30):
        bench.clock.advance(1)
        queue.refresh()

    assert bench.store.take() == {"get": 3}


def test_a_setting_that_is_taken_back_is_what_it_was_defined_as(queue):
    queue.configure(max_attempts=9)

    assert queue.configure(max_attempts=None).max_attempts == 3
    assert queue.overrides() == {}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"visibility_timeout": timedelta(seconds=60)}, {"visibility_timeout": 45}),
        ({"visibility_timeout": 60}, {"visibility_timeout_seconds": 45}),
        ({"visibility_timeout_seconds": 60}, {"visibility_timeout": timedelta(seconds=45)}),
    ],
)
def test_the_last_change_of_a_duration_wins_however_it_was_written(bench, queue, first, second):
    queue.configure(**first)
    assert queue.configure(**second).visibility_timeout == timedelta(seconds=45)

    other = bench.queue(worker_id="another process")
    other.refresh()
    assert other.settings.visibility_timeout == timedelta(seconds=45)


def test_a_duration_that_is_taken_back_is_gone_however_it_was_written(queue):
    queue.configure(visibility_timeout=timedelta(seconds=60))

    assert queue.configure(visibility_timeout=None).visibility_timeout == timedelta(seconds=30)
    assert queue.overrides() == {}


@pytest.mark.parametrize("change", [{"no_such": 1}, {"max_attempts": 0}, {"visibility_timeout": "soon"}])
def test_a_change_that_makes_no_sense_changes_nothing(bench, queue, change):
    with pytest.raises(InvalidRequest, match=next(iter(change))):
        queue.configure(**change)

    assert bench.keys() == []


def test_two_operators_who_configure_at_once_both_get_their_way(bench, queue):
    other = bench.queue(worker_id="other operator")
    original = bench.memory.put
    raced = []

    def put_late(key, body, **options):
        if key.endswith("queue.json") and not raced:
            raced.append(True)
            other.configure(max_attempts=8)
        return original(key, body, **options)

    bench.memory.put = put_late
    queue.configure(concurrency=4)

    assert queue.overrides() == {"max_attempts": 8, "concurrency": 4}


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


def test_cleanup_deletes_what_is_past_its_retention_only(bench):
    queue = bench.queue(record_retention=100, dead_retention=1000)
    old, dead = queue.enqueue(b"x"), queue.enqueue(b"x")
    queue.complete(queue.claim(old))
    queue.fail(queue.claim(dead), "no", dead=True)
    bench.clock.advance(101)
    young, pending = queue.enqueue(b"x"), queue.enqueue(b"x")
    queue.complete(queue.claim(young))

    assert queue.cleanup() == 2
    assert bench.keys() == [f"orders/dead/{dead}", f"orders/{pending}", f"orders/records/{young}"]

    bench.clock.advance(1000)
    assert queue.cleanup() == 2
    assert bench.keys() == [f"orders/{pending}"]


def test_purge_deletes_what_nobody_works_on(bench):
    queue = bench.queue()
    running = queue.enqueue(b"x")
    claim = queue.claim(running)
    waiting = queue.enqueue(b"x")
    queue.fail(queue.claim(waiting), "once")
    for _ in range(3):
        queue.enqueue(b"x")
        queue.enqueue(b"x", delay=60)
    other = bench.queue("orders-eu")
    other.enqueue(b"not mine")

    assert queue.purge() == 7

    queue.complete(claim)
    assert queue.status(running).state == "completed"
    assert not bench.keys("orders/messages/")
    assert not bench.keys("orders/delayed/")
    assert not bench.keys("orders/leases/")
    assert len(bench.keys("orders-eu/messages/")) == 1


def test_connect_opens_a_queue_by_its_url():
    queue = connect("memory://try-it/emails", settings=QueueSettings.of(max_attempts=5))
    path = queue.enqueue({"to": "a@example.com"})

    assert connect("memory://try-it/emails").status(path).state == "pending"
    assert connect("memory://alone").name == "alone"
    assert queue.settings.max_attempts == 5


@pytest.mark.parametrize("url", ["s3://", "s3://bucket", "s3://bucket/", "http://bucket/queue", "bucket/queue", ""])
def test_a_url_that_names_no_queue_is_refused(url):
    with pytest.raises(InvalidRequest):
        connect(url)


def test_a_url_with_a_bad_queue_name_is_refused():
    with pytest.raises(InvalidName):
        connect("memory://x/Not A Queue")


def test_the_fence_differs_for_every_claim_and_grows_with_the_attempt(bench, queue):
    path = queue.enqueue(b"x")
    first = queue.claim(path)
    queue.fail(first, "once")
    bench.clock.advance(5)
    second = queue.claim(path, read_first=True)

    assert first.fence != second.fence
    assert [int(claim.fence.split("-")[0]) for claim in (first, second)] == [1, 2]


def test_a_large_message_is_not_kept_in_memory_but_can_be_read(bench, queue):
    body = hashlib.sha256(b"seed").digest() * 300_000
    path = queue.enqueue(body)

    claim = queue.claim(path)

    assert claim.message.inline is None
    assert claim.message.body == body
    with claim.message.open() as stream:
        assert stream.read(32) == body[:32]


def test_a_message_that_was_replaced_since_it_was_claimed_is_not_read_as_if_it_were_the_old_one(bench, queue):
    body = b"a" * (9 * 1024 * 1024)
    path = queue.enqueue(body)
    claim = queue.claim(path)
    put(bench, f"orders/{path}", b"b" * len(body))

    with pytest.raises(MessageNotFound):
        claim.message.open()


def test_a_completion_asked_for_again_spares_equal_bytes_that_were_put_since(bench, queue):  # [P1]
    path = queue.enqueue(b"the same", name="x")
    claim = queue.claim(path)
    queue.complete(claim)
    bench.clock.sleep(2)
    put(bench, f"{queue.name}/{path}", b"the same")
    queue.complete(claim)
    assert queue.status(path).state == "pending"
