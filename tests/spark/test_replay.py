"""Dead letters come back once, by filter; a replay that died half-way loses nothing and repeats nothing."""

from __future__ import annotations

import contextlib
import json
import time
from datetime import UTC, datetime, timedelta

import pytest

from s3queue import DeadLetters, Queue, QueueSettings, Reject
from s3queue.errors import Unavailable
from s3queue.stores.memory import MemoryStore
from spark.replay import Filter, main, replay, replay_one
from support.data_frames import assertDataFrameEqual
from support.finished_messages import keys_under
from support.killing_bucket import killing_bucket
from support.manual_clock import ManualClock
from support.workbench import Workbench

pytestmark = pytest.mark.filterwarnings("ignore:.PYARROW_IGNORE_TIMEZONE.")
FUTURE = datetime(2100, 1, 1, tzinfo=UTC)


class SMTPError(Exception):
    """The server was away."""


def queue_of(store, **settings) -> Queue:
    return Queue(store=store, name="emails", settings=QueueSettings.of(**{"max_attempts": 1} | settings))


def die(queue: Queue, path: str, error: Exception) -> None:
    queue.fail(queue.claim(path), error)


def finish(queue: Queue) -> list[bytes]:
    """Complete whatever may run."""
    bodies = []
    for claim in queue.claim_next(100):
        bodies.append(claim.message.body)
        queue.complete(claim)
    return bodies


@pytest.fixture
def queue(bucket) -> Queue:
    """Five dead letters: three of the mail server, two rejected; one of each has priority."""
    queue = queue_of(bucket.store())
    for number, (priority, error) in enumerate(
        [
            (0, SMTPError("away")),
            (0, SMTPError("away")),
            (200, SMTPError("away")),
            (0, Reject("no")),
            (200, Reject("no")),
        ]
    ):
        die(queue, queue.enqueue({"n": number}, priority=priority), error)
    return queue


def test_a_filter_selects_by_error_type_and_path_and_a_rerun_changes_nothing(spark, bucket, queue):
    chosen = Filter(before=FUTURE, error_types=("SMTPError",))
    narrow = Filter(before=FUTURE, error_types=("SMTPError",), path_prefix="messages/p200/")

    assert replay(spark, bucket, "emails", narrow, dry_run=True)["counts"] == {"unwanted": 1, "would replay": 1}
    assert len(keys_under(bucket.store(), "emails/dead/")) == 5
    assert replay(spark, bucket, "emails", narrow)["counts"] == {"replayed": 1, "unwanted": 1}
    assert replay(spark, bucket, "emails", chosen)["counts"] == {"replayed": 2, "unwanted": 2}

    before = keys_under(bucket.store(), "emails/")
    assert replay(spark, bucket, "emails", chosen)["counts"] == {"unwanted": 2}
    assert keys_under(bucket.store(), "emails/") == before
    assert sorted(json.loads(body)["n"] for body in finish(queue)) == [0, 1, 2]
    assert len(list(DeadLetters(queue).list())) == 2


def test_a_run_whose_executor_was_killed_is_completed_by_the_next(spark, bucket, queue, tmp_path):
    path = queue.enqueue({"n": 5}, name="last.json")
    die(queue, path, SMTPError("away"))
    chosen = Filter(before=FUTURE, error_types=("SMTPError",))

    # A second later: what S3 wrote within one second it cannot put in order.
    time.sleep(1.1)
    with pytest.raises(Exception, match="worker exited"):
        replay(spark, killing_bucket(bucket, tmp_path / "died", "/last.json"), "emails", chosen)
    ran = finish(queue)
    replay(spark, bucket, "emails", chosen)
    ran += finish(queue)

    assert sorted(json.loads(body)["n"] for body in ran) == [0, 1, 2, 5]
    assert len(keys_under(bucket.store(), "emails/dead/")) == 2


def test_what_died_after_the_replay_was_decided_is_left(spark, bucket, queue):
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    assert replay(spark, bucket, "emails", Filter(before=long_ago))["counts"] == {}
    since = Filter(before=FUTURE, since=FUTURE - timedelta(days=1))
    assert replay(spark, bucket, "emails", since)["counts"] == {}


def test_by_age_is_a_plain_filter(spark):
    noon = datetime(2026, 11, 16, 12, tzinfo=UTC)
    listed = spark.createDataFrame(
        [(name, noon + timedelta(hours=hours)) for name, hours in (("a", -2), ("b", -1), ("c", 0))],
        "key string, modified_at timestamp",
    )
    found = Filter(before=noon, since=noon - timedelta(hours=1)).by_age(listed)
    assertDataFrameEqual(found, listed.filter("key = 'b'"))


def test_the_command_tells_what_it_did(spark, bucket, queue, capsys):
    told = ["--bucket", bucket.name, "--endpoint-url", bucket.endpoint_url, "--queue", "emails"]
    assert main([*told, "--error-type", "Reject", "--before", "2100-01-01T00:00:00Z"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"] == {"replayed": 2, "unwanted": 3}
    assert main([*told, "--queue", "nothing"]) == 0


class Died(Exception):
    """The task was killed."""


class Bench:
    """One dead letter in memory, a clock, and a way to kill the replay at its n-th request."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.left = 0
        self.lost = "request"
        self.store = MemoryStore("bench", clock=self.clock, around=self.around)
        self.queue = Queue(store=self.store, name="emails", settings=QueueSettings.of(max_attempts=1), clock=self.clock)
        self.path = self.queue.enqueue({"n": 1})
        die(self.queue, self.path, SMTPError("away"))
        self.clock.sleep(10)

    def around(self, operation, key, perform):
        self.left -= 1
        if self.left != 0:
            return perform()
        if self.lost == "request":
            raise Died
        perform()
        raise Died if self.lost == "answer" else Unavailable("no answer")

    def replay(self) -> str:
        return replay_one(self.queue, self.queue.keys.dead(self.path), Filter(before=FUTURE), False)[1]


@pytest.mark.parametrize("lost", ["request", "answer", "unknown"])
@pytest.mark.parametrize("at", range(1, 8))
def test_a_replay_killed_at_any_request_is_finished_by_the_next_and_runs_once(lost, at):
    bench = Bench()
    bench.lost, bench.left = lost, at
    with contextlib.suppress(Died):
        bench.replay()
    bench.left = 0
    bench.clock.sleep(10)
    ran = finish(bench.queue)
    bench.clock.sleep(10)
    outcome = bench.replay()
    ran += finish(bench.queue)

    assert outcome in ("replayed", "cleared", "gone")
    assert ran == [b'{"n":1}']
    assert keys_under(bench.store, "emails/dead/") == {}
    assert bench.replay() == "gone"


def test_while_the_message_of_a_half_finished_replay_waits_its_letter_stays():
    bench = Bench()
    letter = bench.store.open(bench.queue.keys.dead(bench.path))
    bench.store.put(bench.queue.keys.message(bench.path), letter.read())

    assert bench.replay() == "waiting"
    assert bench.store.head(letter.key)


def test_a_letter_that_died_again_is_replayed_again():
    bench = Bench()
    assert bench.replay() == "replayed"
    bench.clock.sleep(10)
    die(bench.queue, bench.path, SMTPError("still away"))
    bench.clock.sleep(10)
    assert bench.replay() == "replayed"


def test_a_letter_that_died_anew_of_another_error_since_it_was_looked_at_is_left():
    bench = Bench()
    key = bench.queue.keys.dead(bench.path)
    head = bench.store.head

    def replaced(asked):
        found = head(asked)
        if asked == key and found.metadata["s3queue-error-type"] == "SMTPError":
            bench.store.put(key, b"{}", metadata={**found.metadata, "s3queue-error-type": "KeyError"})
        return found

    bench.store.head = replaced
    assert replay_one(bench.queue, key, Filter(before=FUTURE, error_types=("SMTPError",)), False)[1] == "gone"
    assert keys_under(bench.store, "emails/messages/") == {}


def test_a_twin_of_a_replayed_letter_is_replayed_and_not_cleared():
    """The same bytes died twice under one name; the first one's replay has completed."""
    bench = Bench()
    bench.path = "messages/tick"
    for _ in range(2):
        bench.store.put(bench.queue.keys.message(bench.path), b"tick")
        die(bench.queue, bench.path, SMTPError("away"))
        bench.clock.sleep(10)
    first, second = keys_under(bench.store, "emails/dead/messages/tick")
    ran = []
    for key in (first, second):
        assert replay_one(bench.queue, key, Filter(before=FUTURE), False)[1] == "replayed"
        bench.clock.sleep(10)
        ran += [body for body in finish(bench.queue) if body == b"tick"]
    assert ran == [b"tick", b"tick"]


@pytest.mark.parametrize("kinds", [3, 30], ids=["named in the metadata", "too many for the metadata"])
def test_of_a_batch_the_lines_with_a_wanted_error_are_replayed_and_the_others_stay(kinds):
    bench = Bench()
    bench.path = "messages/b.ndjson.lines"
    bench.store.put("emails/messages/b.ndjson", b"".join(b"%d\n" % number for number in range(kinds)))

    def handler(body: int) -> None:
        raise type(f"ProviderAnswered{body}", (Exception,), {})("no")

    Workbench().processor(bench.queue, handler).run("messages/b.ndjson")
    wanted = Filter(before=FUTURE, error_types=("ProviderAnswered1", "ProviderAnswered2", "KeyError"))
    unwanted = Filter(before=FUTURE, error_types=("KeyError",))
    key = bench.queue.keys.dead(bench.path)

    assert replay_one(bench.queue, key, unwanted, False)[1] == "unwanted"
    assert replay_one(bench.queue, key, wanted, True)[1] == "would replay"
    assert replay_one(bench.queue, key, wanted, False)[1] == "replayed"
    assert sorted(finish(bench.queue)) == [b"1\n", b"2\n"]
    assert len(DeadLetters(bench.queue).lines(bench.path)) == kinds - 2


def test_a_key_that_is_no_letter_is_told_of():
    bench = Bench()
    assert replay_one(bench.queue, "emails/dead/odd", Filter(before=FUTURE), False)[1] == "failed"
