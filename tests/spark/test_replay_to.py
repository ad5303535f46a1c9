"""Dead letters go to another queue, each once, from the executors."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime

import pytest

from s3queue import InvalidRequest, Queue, QueueSettings, Reject
from s3queue.errors import Unavailable
from s3queue.stores.memory import MemoryStore
from spark.replay import Filter, main, replay, replay_one
from support.finished_messages import keys_under
from support.manual_clock import ManualClock
from support.workbench import Workbench

pytestmark = pytest.mark.filterwarnings("ignore:.PYARROW_IGNORE_TIMEZONE.")
FUTURE = datetime(2100, 1, 1, tzinfo=UTC)


def opened(store, name: str, **more) -> Queue:
    return Queue(store=store, name=name, settings=QueueSettings.of(max_attempts=1), **more)


def die(queue: Queue, number: int, error: Exception) -> str:
    path = queue.enqueue({"n": number})
    queue.fail(queue.claim(path), error)
    return path


def test_a_filter_selects_what_goes_to_another_queue_and_a_rerun_changes_nothing(spark, bucket, capsys):
    store = bucket.store()
    emails, by_hand = opened(store, "emails"), opened(store, "by-hand")
    by_hand.configure(max_attempts=3)
    paths = [die(emails, number, TimeoutError("away") if number < 2 else Reject("no")) for number in range(3)]
    chosen = Filter(before=FUTURE, error_types=("TimeoutError",))

    shown = replay(spark, bucket, "emails", chosen, dry_run=True, to="by-hand")
    told = replay(spark, bucket, "emails", chosen, to="by-hand")

    assert shown["counts"] == {"unwanted": 1, "would replay": 2}
    assert (told["to"], told["counts"]) == ("by-hand", {"replayed": 2, "unwanted": 1})
    assert sorted(claim.path for claim in by_hand.claim_next(10)) == sorted(paths[:2])
    assert list(keys_under(store, "emails/dead/")) == [f"emails/dead/{paths[2]}"]
    given = ["--bucket", bucket.name, "--endpoint-url", bucket.endpoint_url, "--queue", "emails"]
    assert main([*given, "--to", "by-hand", "--before", "2100-01-01T00:00:00Z"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"] == {"replayed": 1}


def test_what_the_other_queue_refuses_stays_and_its_partitions_are_its_own(spark, bucket):
    store = bucket.store()
    emails = Queue(store=store, name="emails", settings=QueueSettings.of(max_attempts=1, partitions=3))
    for name, settings in (("mixed", {"heavy_above": 1000}), ("shared", {"partitions": 1})):
        Queue(store=store, name=name, settings=QueueSettings.of(**settings)).publish_settings("deployment")
    paths = [emails.enqueue({"n": 1}, group="ada"), emails.enqueue({"n": 2})]
    for path in paths:
        assert Workbench().processor(emails, _reject).run(path) == "dead"
    grouped = Filter(before=FUTURE, path_prefix="messages/@ada/")

    told = replay(spark, bucket, "emails", grouped, to="mixed")

    assert told["counts"] == {"failed": 1}
    assert "whose large messages go to Spark, cannot have" in told["examples"]["failed"][0]
    assert f"emails/dead/{paths[0]}" in keys_under(store, "emails/dead/")
    # What had a share of its own queue has one of the other.
    assert replay(spark, bucket, "emails", Filter(before=FUTURE), to="shared")["counts"] == {"replayed": 2}
    assert any(key.startswith("shared/messages/@=0/") for key in keys_under(store, "shared/messages/"))


def _reject(body: object) -> None:
    raise Reject("no")


@pytest.mark.parametrize(
    ("to", "said"), [("emails", "the queue itself"), ("nowhere", "no queue 'nowhere'"), ("../x", "x")]
)
def test_a_queue_that_is_none_gets_nothing(bucket, capsys, to, said):
    path = die(opened(bucket.store(), "emails"), 1, Reject("no"))
    with pytest.raises(InvalidRequest, match=said):
        replay(None, bucket, "emails", Filter(before=FUTURE), to=to)
    given = ["--bucket", bucket.name, "--endpoint-url", bucket.endpoint_url, "--queue", "emails"]
    with pytest.raises(SystemExit) as ended:
        main([*given, "--to", to])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    assert bucket.store().head(f"emails/dead/{path}")


class Died(Exception):
    """The task was killed."""


@pytest.mark.parametrize("lost", ["request", "answer", "unknown"])
@pytest.mark.parametrize("at", range(1, 8))
def test_a_replay_killed_at_any_request_is_finished_by_the_next_and_runs_once(lost, at):
    clock, left = ManualClock(), 0

    def around(operation, key, perform):
        nonlocal left
        left -= 1
        if left != 0:
            return perform()
        if lost == "request":
            raise Died
        perform()
        raise Died if lost == "answer" else Unavailable("no answer")

    store = MemoryStore("bench", clock=clock, around=around)
    emails, by_hand = opened(store, "emails", clock=clock), opened(store, "by-hand", clock=clock)
    path = die(emails, 1, TimeoutError("away"))
    clock.sleep(10)

    def once() -> str:
        return replay_one(emails, emails.keys.dead(path), Filter(before=FUTURE), False, by_hand)[1]

    left = at
    with contextlib.suppress(Died):
        once()
    left = 0
    ran = [by_hand.complete(claim).path for claim in by_hand.claim_next(10)]
    clock.sleep(10)
    assert once() in ("replayed", "gone")
    ran += [by_hand.complete(claim).path for claim in by_hand.claim_next(10)]
    assert ran == [path]
    assert keys_under(store, "emails/dead/") == {}


def test_the_lines_of_a_batch_go_together_or_not_at_all():
    bench = Workbench()
    queue, by_hand = bench.queue("emails", max_attempts=1), bench.queue("by-hand")
    (path,) = queue.enqueue_many(["Away", "Bad"])

    def handle(body: str) -> None:
        raise type(body, (Exception,), {})("x")

    bench.processor(queue, handle).run(path)
    key = queue.keys.dead(f"{path}.lines")

    def ends(*errors: str) -> str:
        return replay_one(queue, key, Filter(before=FUTURE, error_types=errors), False, by_hand)[1]

    assert ends("Other") == "unwanted"
    assert ends("Bad") == "failed"
    assert bench.keys("by-hand/") == []
    assert ends("Bad", "Away") == "replayed"
    assert len(bench.keys("by-hand/messages/")) == 1
    assert bench.keys("emails/dead/") == []
