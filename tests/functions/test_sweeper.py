"""The sweeper function: what it hands over, when, and what it does when something fails."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aws_lambda_powertools import Logger
from botocore.exceptions import ClientError

from handlers import sweeper, worker
from handlers.sweeper import Round, Runtime
from handlers.telemetry import Telemetry, start_tracing
from s3queue import Queue, Reject, Sweeper, Unavailable
from s3queue.costs.delays import requests_of_delay
from s3queue.paths import due_of
from s3queue.worker.application import Application
from support.installation import Installation, LambdaContext, Told
from support.outside_services import AwsEndpoint
from support.workbench import Workbench

WORKERS = {"emails": "s3queue-emails", "webhooks": "s3queue-webhooks"}


@pytest.fixture
def installation(installation: Installation) -> Installation:
    installation.configure(workers=WORKERS)
    return installation


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a real clock, one look at every queue."""
    monkeypatch.setattr(sweeper, "SWEEPER_STAYS_SECONDS", 0.0)


def orphan(installation: Installation) -> str:
    """A message that has been there for a moment, in a queue that does not wait longer for its event."""
    installation.queue("emails").configure(rescue_after=1)
    path = installation.email("orphan")
    time.sleep(2.1)  # S3's clock ticks in whole seconds
    return path


def test_what_only_pull_workers_run_is_swept_and_nobody_is_invoked(
    installation: Installation, aws: AwsEndpoint
) -> None:
    installation.configure(workers={"emails": "", "webhooks": "s3queue-webhooks"})
    queue = installation.queue("emails")
    orphan(installation)
    waiting = installation.email("waiting")
    queue.fail(queue.claim(waiting), "again", retry_after=0)
    sweeper.handle({}, LambdaContext(90))
    assert aws.invocations == []
    stats = queue.published_stats()
    assert stats is not None
    assert (stats.pending, stats.failed) == (1, 1)
    # Its pull worker finds both by itself.
    time.sleep(2.1)
    assert len(queue.claim_next(5)) == 2


def test_a_message_whose_event_was_lost_reaches_its_worker(installation: Installation, aws: AwsEndpoint) -> None:
    path = orphan(installation)
    sweeper.handle({}, LambdaContext(90))
    assert aws.invocations == [("s3queue-emails", {"paths": [path]})]
    told = installation.told()
    assert told.metric("Rescued") == [1.0]
    assert told.metric("AgeOfOldest", "emails")[0] >= 1
    assert told.metric("AgeOfOldest", "webhooks") == [0.0]
    assert (told.metric("Pending", "emails"), told.metric("Pending", "webhooks")) == ([1.0], [0.0])
    assert told.line("swept")["orphans"] == 1
    # What was sent is what the worker takes.
    installation.configure(queue="emails")
    assert worker.handle(aws.invocations[0][1], LambdaContext()) == {"completed": 1}


def test_what_dies_in_spark_or_a_pull_worker_is_counted_once_by_the_sweeper(installation: Installation) -> None:
    installation.configure(workers={"exports": "s3queue-exports"})
    # The run's own process, and the sweeper's: it buries what a crashed worker has left.
    for queue in (installation.queue("exports"), sweeper.runtime().rounds["exports"].sweeper.queue):
        claim = queue.claim(queue.enqueue({"source": "emails"}))
        assert claim
        queue.fail(claim, Reject("no"))
    time.sleep(3.1)  # what was stored so lately may not be dated yet
    for _ in range(2):
        sweeper.handle({}, LambdaContext(90))
    told = installation.told()
    assert told.metric("Dead", "exports") == [2.0]
    assert told.metric("Failed", "exports") == [1.0]


@pytest.mark.parametrize(
    ("settings", "counted"),
    [({}, [1.0]), ({"heavy_above": 1000}, []), ({"engine": "pull"}, []), ({"engine": "spark"}, [])],
)
def test_deaths_are_counted_from_events_unless_the_sweeper_counts_those_of_all_processes(
    installation: Installation, settings: dict[str, Any], counted: list[float]
) -> None:
    queue = Workbench().queue("orders", **settings)
    telemetry = Telemetry(queue, Logger(service="test-sweeper"))
    claim = queue.claim(queue.enqueue(b"x"))
    assert claim
    queue.fail(claim, Reject("no"))
    telemetry.flush()
    told = installation.told()
    assert (told.metric("Dead", "orders"), told.metric("Failed", "orders")) == (counted, [1.0])


def test_a_failed_message_is_handed_over_when_it_is_due(installation: Installation, aws: AwsEndpoint) -> None:
    path = installation.email("flaky")
    queue = installation.queue()
    claim = queue.claim(path)
    assert claim
    queue.fail(claim, "try again", retry_after=0)
    time.sleep(1.1)
    sweeper.handle({}, LambdaContext(90))
    assert aws.invocations == [("s3queue-emails", {"paths": [path]})]
    assert installation.keys("emails/retries/") == []


def test_a_dispatch_that_lambda_refused_leaves_the_reminder(
    installation: Installation, aws: AwsEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    queue = installation.queue()
    claim = queue.claim(installation.email("flaky"))
    assert claim
    queue.fail(claim, "try again", retry_after=0)
    time.sleep(1.1)
    aws.refuses = "TooManyRequestsException"
    with pytest.raises(ClientError, match="TooManyRequests"):
        sweeper.handle({}, LambdaContext(90))
    assert len(installation.keys("emails/retries/")) == 1
    assert installation.told().line("sweep failed, trying again: emails")["level"] == "ERROR"
    # The other queue had its turn all the same.
    assert installation.keys("webhooks/") == ["webhooks/queue-settings.json", "webhooks/stats.json"]
    aws.refuses = ""
    sweeper.handle({}, LambdaContext(90))
    assert [function for function, _ in aws.invocations] == ["s3queue-emails"]


def test_an_idle_installation_costs_one_look_and_publishes_its_stats_once(installation: Installation) -> None:
    assert sweeper.handle({}, LambdaContext(90)) == {"emails": 1, "webhooks": 1}
    published = installation.queue().published_settings()
    assert published
    assert (published.by, published.settings) == ("deployment", Application().load_one("emails").settings)
    before = installation.s3.head_object(Bucket=installation.bucket, Key="emails/stats.json")["LastModified"]
    assert sweeper.handle({}, LambdaContext(90)) == {"emails": 1, "webhooks": 1}
    after = installation.s3.head_object(Bucket=installation.bucket, Key="emails/stats.json")["LastModified"]
    assert before == after
    assert installation.told().lines == []


def test_a_queue_whose_module_does_not_load_is_an_error_and_stops_no_other(
    installation: Installation, aws: AwsEndpoint
) -> None:
    installation.configure(workers=WORKERS | {"renamed": "s3queue-renamed"})
    orphan(installation)
    for _ in range(2):
        with pytest.raises(ValueError, match="no module in queues defines the queue 'renamed'"):
            sweeper.handle({}, LambdaContext(90))
    assert [function for function, _ in aws.invocations] == ["s3queue-emails"]


class Jobs:
    """Spark runs that keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[list[str], Mapping[str, Any]]] = []

    def launch(self, queue: Queue, paths: Sequence[str], time_left: Callable[[], float]) -> None:
        raise AssertionError("the sweeper launches nothing")

    def check(self, queue: Queue) -> int:
        return 0

    def job_changed(self, queues: Mapping[str, Queue], detail: Mapping[str, Any]) -> None:
        self.heard.append((list(queues), detail))


def test_the_end_of_a_spark_run_is_passed_to_the_runs(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Jobs()
    monkeypatch.setattr(sweeper.SparkRuns, "of", lambda deployment: runs)
    event = installation.event("emr_failed")
    assert sweeper.handle(event, LambdaContext(90)) == {}
    assert runs.heard == [(["emails", "webhooks"], event["detail"])]
    assert installation.told().line("Spark job changed: 00f9s0pl8vr4mo0l: FAILED")


def test_a_spark_run_that_failed_is_an_event_of_ours(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    kept = sweeper.runtime()
    kept.events.on("run.failed", seen.append)
    event = installation.event("emr_failed")
    sweeper.handle(event, LambdaContext(90))
    sweeper.handle(event | {"detail": event["detail"] | {"state": "SUCCESS"}}, LambdaContext(90))
    (told,) = seen
    assert (told["event"], told["job"], told["state"]) == ("run.failed", "00f9s0pl8vr4mo0l", "FAILED")
    assert told["application"] == event["detail"]["applicationId"]
    assert told["at"] == event["time"]


@pytest.mark.parametrize(("bus", "published"), [("default", 1), ("", 0)])
def test_one_of_several_sweepers_publishes_that_a_run_failed(
    installation: Installation, aws: AwsEndpoint, bus: str, published: int
) -> None:
    # Queues of both have events, and both hear of the run.
    installation.configure(workers=WORKERS, event_bus="default", run_event_bus=bus)
    sweeper.handle(installation.event("emr_failed"), LambdaContext(90))
    assert [event["DetailType"] for event in aws.events] == ["run.failed"] * published


def test_a_spark_run_without_a_spark_application_is_someone_elses(installation: Installation) -> None:
    sweeper.handle(installation.event("emr_failed"), LambdaContext(90))
    assert installation.told().line("Spark job change ignored")["level"] == "WARNING"
    assert installation.keys() == []


def test_a_hundred_long_names_are_several_small_invocations() -> None:
    paths = [f"messages/{number:03d}{'ü' * 480}\x01" for number in range(500)]
    sent = [json.loads(payload)["paths"] for payload in sweeper.payloads(paths)]
    assert [path for chunk in sent for path in chunk] == paths
    assert all(len(payload) <= 256 * 1000 for payload in sweeper.payloads(paths))
    assert len(sent) > 1
    assert list(sweeper.payloads([])) == []


# In virtual time: a bucket in memory, and a Lambda that notes when it was called


class Minute:
    """The sweeper's minutes over some queues."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bench = Workbench()
        self.clock = self.bench.clock
        self.sent: list[tuple[datetime, str]] = []
        self.refusals = 0
        self.rounds: dict[str, Round] = {}
        self.broken: dict[str, Exception] = {}
        self.published: set[str] = set()
        monkeypatch.setattr(sweeper, "SWEEPER_STAYS_SECONDS", 54.0)
        monkeypatch.setattr(sweeper, "runtime", self._runtime)

    def _runtime(self) -> Runtime:
        return Runtime(self.rounds, self.broken, None, self.clock, self.published)

    def queue(self, name: str, **settings: Any) -> Queue:
        queue = self.bench.queue(name, **settings)
        telemetry = Telemetry(queue, Logger(service="test-sweeper"), start_tracing())
        self.rounds[name] = Round(f"stack-{name}", Sweeper(queue=queue, dispatch=self._dispatch), telemetry)
        return queue

    def _dispatch(self, paths: Sequence[str]) -> None:
        if self.refusals:
            self.refusals -= 1
            raise ConnectionError("throttled")
        self.sent += [(self.clock.now(), path) for path in paths]

    def pass_by(self, event: Any = None) -> tuple[dict[str, int], float]:
        """One invocation: how often it looked at which queue, and how many seconds it took."""
        start = self.clock.monotonic()
        return sweeper.handle(event or {}, LambdaContext(90)), self.clock.monotonic() - start

    def crash_record(self, function: str) -> Any:
        """S3's notification of the record that Lambda leaves in the bucket of failed events."""
        key = f"aws/lambda/async/{function}/2026/11/16/2026-11-16T12.00.00-0a1b"
        return {"Records": [{"eventSource": "aws:s3", "s3": {"bucket": {"name": "failed"}, "object": {"key": key}}}]}

    def put(self, path: str, queue: str = "orders") -> Any:
        """S3's notification of a message."""
        key = f"{queue}/{path}"
        return {"Records": [{"eventSource": "aws:s3", "s3": {"bucket": {"name": "bench"}, "object": {"key": key}}}]}


@pytest.fixture
def minute(monkeypatch: pytest.MonkeyPatch) -> Minute:
    return Minute(monkeypatch)


def test_a_backoff_of_two_seconds_takes_two_to_four(minute: Minute) -> None:
    queue = minute.queue("orders")
    for fraction in (0.0, 0.3, 0.9):
        minute.clock.advance(fraction)
        claim = queue.claim(queue.enqueue({}))
        assert claim
        queue.fail(claim, "try again", retry_after=2)
        failed_at = minute.clock.now().replace(microsecond=0)  # as S3's clock shows it
        minute.sent.clear()
        minute.pass_by()
        (handed_over_at, path), *_ = minute.sent
        assert path == claim.path
        assert timedelta(seconds=2) <= handed_over_at - failed_at <= timedelta(seconds=4)
        queue.purge()


def test_a_delay_within_the_minute_is_kept_to_two_seconds(minute: Minute) -> None:
    queue = minute.queue("orders")
    due = {queue.enqueue({}, delay=seconds): minute.clock.now() + timedelta(seconds=seconds) for seconds in (7, 20, 41)}
    minute.pass_by()
    assert {path for _, path in minute.sent} == due.keys()
    for sent_at, path in minute.sent:
        assert timedelta() <= sent_at - due[path] <= timedelta(seconds=2.1)


def test_it_stays_its_minute_while_something_is_at_work_and_leaves_at_once_otherwise(minute: Minute) -> None:
    queue = minute.queue("orders")
    assert minute.pass_by() == ({"orders": 1}, 0.0)
    assert queue.claim(queue.enqueue({}))
    minute.clock.advance(60)
    looks, seconds = minute.pass_by()
    assert 50 <= seconds <= 55
    assert 20 <= looks["orders"] <= 30


@pytest.mark.parametrize("ran_for", [0.0, 2.5, 4.9])
@pytest.mark.parametrize("idle_for", [1.0, 17.0, 55.0])
def test_the_record_of_a_crash_wakes_it_between_its_minutes(minute: Minute, idle_for: float, ran_for: float) -> None:
    queue = minute.queue("orders", visibility_timeout=5, rescue_after=60)
    others = [minute.queue(name) for name in ("orders-eu", "mails")]
    assert minute.pass_by()[1] == 0.0  # idle: it sleeps until its next minute
    minute.clock.advance(idle_for)
    path = queue.enqueue({})
    assert minute.bench.queue("orders", worker_id="crashes").claim(path, timeout=5)
    claimed_at = minute.clock.now()
    minute.clock.advance(ran_for)
    minute.bench.store.take()

    minute.pass_by(minute.crash_record("stack-orders"))

    (handed_over_at, handed_over), *_ = minute.sent
    assert handed_over == path
    assert handed_over_at - claimed_at.replace(microsecond=0) <= timedelta(seconds=5 + 3)
    if idle_for < 30:
        listed = [key for verb, key in minute.bench.store.log if not key.startswith("orders/")]
        assert listed == [], f"{[one.name for one in others]} were swept a moment ago"


def test_the_record_of_a_crash_in_a_queue_that_is_not_swept_is_no_error(minute: Minute) -> None:
    minute.queue("orders")
    minute.pass_by()
    assert minute.pass_by(minute.crash_record("stack-orders-eu")) == ({"orders": 1}, 0.0)


@pytest.mark.parametrize(
    "records",
    [[{"messageId": "1", "body": "{}"}], [{"s3": {"object": {"key": 7}}}], ["text"], [None], "text", 7, {"a": 1}],
)
def test_an_event_of_anyone_elses_is_logged_and_the_sweep_goes_on(
    minute: Minute, records: Any, caplog: pytest.LogCaptureFixture
) -> None:
    queue = minute.queue("orders")
    path = queue.enqueue({})
    minute.clock.advance(60)

    minute.pass_by({"Records": records})

    assert path in [sent for _, sent in minute.sent]
    assert caplog.text.count("event record skipped, not from S3") == (len(records) if isinstance(records, list) else 0)


def test_a_record_of_anyone_elses_hides_no_other(minute: Minute) -> None:
    queue = minute.queue("orders")
    minute.pass_by()
    path = queue.enqueue({}, delay=7)
    event = minute.put(path)
    event["Records"].insert(0, {"messageId": "1", "body": "{}"})

    minute.pass_by(event)

    assert [sent for _, sent in minute.sent] == [path]


def test_what_is_due_in_an_hour_keeps_nobody_awake(minute: Minute) -> None:
    minute.queue("orders").enqueue({}, delay=3600)
    assert minute.pass_by()[1] == 0.0


def test_a_busy_queue_does_not_cost_an_idle_one_more_looks(minute: Minute) -> None:
    busy = minute.queue("busy")
    minute.queue("idle")
    assert busy.claim(busy.enqueue({}))
    looks, _ = minute.pass_by()
    assert looks["idle"] == 1
    assert looks["busy"] > 20


def test_a_throttled_dispatch_is_tried_again_within_the_minute(minute: Minute) -> None:
    queue = minute.queue("orders")
    claim = queue.claim(queue.enqueue({}))
    assert claim
    queue.fail(claim, "try again", retry_after=2)
    due_at = minute.clock.now() + timedelta(seconds=2)
    minute.refusals = 2
    # It ended well: Lambda need not count an error.
    minute.pass_by()
    assert minute.sent[0][0] - due_at <= timedelta(seconds=15)


def test_one_queue_that_cannot_be_listed_does_not_stop_the_others(minute: Minute) -> None:
    minute.queue("broken")
    queue = minute.queue("orders", rescue_after=5)
    queue.enqueue({})
    minute.clock.advance(6)

    def fail(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if key.startswith("broken/"):
            raise Unavailable("503")
        return perform()

    minute.bench.around = fail
    with pytest.raises(Unavailable):
        minute.pass_by()
    assert len({path for _, path in minute.sent}) == 1


def test_two_sweepers_at_once_hand_over_twice_and_one_worker_wins(minute: Minute) -> None:
    queue = minute.queue("orders", rescue_after=5)
    path = queue.enqueue({})
    minute.clock.advance(6)
    first = minute.rounds["orders"]
    minute.pass_by()
    minute.queue("orders", rescue_after=5)
    assert minute.rounds["orders"] is not first
    minute.pass_by()
    assert {sent for _, sent in minute.sent} == {path}
    assert [bool(queue.claim(sent, read_first=True)) for _, sent in minute.sent[:2]] == [True, False]


def test_a_worker_that_fell_silent_is_counted_and_named(
    minute: Minute, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = minute.queue("orders", visibility_timeout=30)
    crashed = minute.bench.queue("orders", worker_id="crashed", visibility_timeout=30)
    path = queue.enqueue({})
    assert crashed.claim(path)
    minute.clock.advance(40)
    minute.pass_by()
    (line,) = (record.__dict__ for record in caplog.records if record.getMessage() == "failed, will be retried")
    assert (line["queue"], line["path"], line["attempt"]) == ("orders", path, 1)
    assert (line["worker"], line["error_type"]) == ("crashed", "LeaseExpired")
    told = Told(capsys.readouterr().out)
    assert (told.metric("Failed", "orders"), told.metric("Retried", "orders")) == ([1.0], [1.0])
    # How long it ran, nobody knows: its lease tells only when it was given up.
    assert told.metric("RunTime", "orders") == []


def test_a_rescue_is_counted_once(minute: Minute, capsys: pytest.CaptureFixture[str]) -> None:
    queue = minute.queue("orders", rescue_after=5)
    queue.enqueue({})
    minute.clock.advance(6)
    minute.pass_by()
    queue.purge()
    for _ in range(3):
        minute.clock.advance(5)
        minute.pass_by()
    told = Told(capsys.readouterr().out)
    assert sum(told.metric("Rescued", "orders")) == len(minute.sent)


def test_every_queue_is_looked_at_however_long_the_others_take(minute: Minute) -> None:
    queues = [minute.queue(f"queue-{number}") for number in range(5)]

    def slow(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        minute.clock.advance(20)
        return perform()

    minute.bench.around = slow
    looks, _ = minute.pass_by()
    assert set(looks.values()) == {1}
    assert len(looks) == len(queues)


def test_every_minute_begins_with_another_queue(minute: Minute) -> None:
    order: list[str] = []
    for name in ("a", "b", "c"):
        minute.queue(name)

    def note(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if operation == "list":
            order.append(key)
        return perform()

    minute.bench.around = note
    for _ in range(3):
        minute.pass_by()
        minute.clock.advance(60)
    assert {order[0], order[3], order[6]} == {"a/", "b/", "c/"}


def test_five_large_queues_share_the_time_and_none_is_killed(minute: Minute) -> None:
    for number in range(5):
        queue = minute.queue(f"queue-{number}")
        for _ in range(300):
            assert queue.claim(queue.enqueue({}))
    minute.clock.advance(60)

    def slow(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        minute.clock.advance(0.3)
        return perform()

    minute.bench.around = slow
    looks, seconds = minute.pass_by()
    assert all(looks.values())
    assert seconds < 90
    # Each came to read some of its leases.
    assert all(minute.bench.keys(f"queue-{number}/retries/") or minute.sent for number in range(5))


def test_the_last_of_seven_large_queues_has_as_much_time_as_the_first(minute: Minute) -> None:
    """Those that were swept want another look soon; that took time from those that were not, up to three fifths."""
    queues = [minute.queue(f"queue-{number}") for number in range(7)]
    minute.pass_by()
    for queue in queues:
        for _ in range(100):
            assert queue.claim(queue.enqueue({}))
    minute.clock.advance(60)
    spent: Counter[str] = Counter()

    def slow(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        spent[key.partition("/")[0]] += 1
        minute.clock.advance(0.3)
        return perform()

    minute.bench.around = slow
    _, seconds = minute.pass_by()
    assert seconds < 90
    assert len(spent) == 7
    assert min(spent.values()) > 0.8 * max(spent.values())


def test_ten_kilobytes_of_bad_lines_stop_no_other_queue(minute: Minute) -> None:
    """The attack: whoever may PUT into one queue leaves 5,000 lines that all die, and a worker dies over them. The
    sweeper then wrote a letter for each, was killed by its time limit at every try, and swept nothing else."""
    attacked, other = minute.queue("attacked", max_attempts=1), minute.queue("other")
    minute.bench.put("attacked/messages/hostile.ndjson", b"x\n" * 5000)

    class Died(BaseException):
        pass

    def die_before_the_outcome(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if operation == "put" and key.startswith(("attacked/records/", "attacked/dead/")):
            raise Died
        return perform()

    def refuse(body: str) -> None:
        raise Reject("nonsense")

    minute.bench.around = die_before_the_outcome
    with pytest.raises(Died):
        minute.bench.processor(attacked, refuse).run("messages/hostile.ndjson")
    waiting = other.enqueue({"its event": "was lost"})
    minute.clock.advance(300)

    def slow(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        # A request to S3 takes about so long.
        minute.clock.advance(0.02)
        return perform()

    minute.bench.around = slow
    for _ in range(2):
        looks, seconds = minute.pass_by()
        assert seconds < 90, "no invocation is killed"
        assert looks["other"]
        minute.clock.advance(60)
    assert waiting in {path for _, path in minute.sent}
    assert attacked.status("messages/hostile.ndjson").state == "dead"
    assert minute.bench.keys("attacked/leases/") == []
    assert len(minute.bench.keys("attacked/dead/")) == 1


# Delayed messages wake it


@pytest.mark.parametrize("delay", [1, 3, 10, 30, 54, 58, 59])
@pytest.mark.parametrize("fraction", [0.0, 0.5])
def test_a_short_delay_on_an_idle_queue_is_on_time(minute: Minute, delay: int, fraction: float) -> None:
    queue = minute.queue("orders")
    minute.pass_by()
    minute.clock.advance(1 + fraction)

    path = queue.enqueue({}, delay=delay)
    due_at = due_of(path)
    assert due_at
    minute.pass_by(minute.put(path))

    (handed_over_at, sent), *_ = minute.sent
    assert sent == path
    assert timedelta() <= handed_over_at - due_at <= timedelta(seconds=1.1)


def test_a_message_that_is_due_later_costs_no_request_and_no_time(minute: Minute) -> None:
    queue = minute.queue("orders")
    minute.pass_by()
    path = queue.enqueue({}, delay=90)
    minute.bench.store.take()

    assert minute.pass_by(minute.put(path)) == ({}, 0.0)

    assert minute.bench.store.take() == {}


def test_what_is_due_later_than_its_stay_is_on_time_by_the_minutes_sweep(minute: Minute) -> None:
    queue = minute.queue("orders")
    minute.pass_by()
    path = queue.enqueue({}, delay=75)
    minute.pass_by(minute.put(path))
    minute.clock.advance(60)

    minute.pass_by()

    (handed_over_at, _), *_ = minute.sent
    due_at = due_of(path)
    assert due_at
    assert handed_over_at - due_at <= timedelta(seconds=1.1)


def test_it_leaves_when_the_message_was_handed_over_and_looks_at_no_other_queue(minute: Minute) -> None:
    queue, _ = minute.queue("orders"), minute.queue("emails")
    minute.pass_by()
    minute.clock.advance(5)
    path = queue.enqueue({}, delay=5)
    minute.bench.store.take()
    processor = minute.bench.processor(queue, lambda body: None)
    minute.rounds["orders"].sweeper.dispatch = lambda paths: [processor.run(one) for one in paths] and len(paths)

    ticks, seconds = minute.pass_by(minute.put(path))

    assert set(ticks) == {"orders"}
    assert 5 <= seconds <= 6.1
    # One GET for the settings, a LIST at once, every two seconds, and when it is due.
    asked = [(verb, key) for verb, key in minute.bench.store.log if verb == "list" or key.endswith("queue.json")]
    assert len(asked) == requests_of_delay(5).total()
    assert not minute.bench.keys("orders/delayed/")


def test_an_event_that_comes_when_all_is_done_ends_at_once(minute: Minute) -> None:
    """One of many that waited while the sweeper was at work."""
    queue = minute.queue("orders")
    minute.pass_by()
    path = queue.enqueue({}, delay=2)
    queue.purge()
    minute.clock.advance(20)
    minute.bench.store.take()

    _, seconds = minute.pass_by(minute.put(path))

    assert seconds == 0.0
    assert minute.bench.store.take() == {"get": 1, "list": 1}


def test_what_schedules_put_wakes_nobody_and_an_event_puts_nothing(minute: Minute) -> None:
    """Else Lambda would see a loop: the sweeper wakes itself."""
    queue = minute.queue("orders")
    queue.every("16 10 * * *", name="report")

    assert minute.pass_by(minute.put("delayed/20261116T101600Z/scheduled-report")) == ({}, 0.0)
    path = queue.enqueue({}, delay=2)
    minute.pass_by(minute.put(path))
    assert not minute.bench.keys("orders/delayed/20261116T101600Z/")

    # The minute's own sweep does.
    minute.clock.advance(30)
    minute.pass_by()
    due_at = datetime(2026, 11, 16, 10, 16, tzinfo=UTC)
    sent = [(at.replace(microsecond=0), path) for at, path in minute.sent]
    assert (due_at, "delayed/20261116T101600Z/scheduled-report") in sent
