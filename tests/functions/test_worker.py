"""The worker function against an S3 server: events in, outcomes, log lines and metrics out."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import uuid
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote_plus

import pytest

import infra
import queues
from handlers import worker
from s3queue import NotFound
from s3queue.costs.monitoring import EMF_BYTES
from support.installation import SECRET_WORDS, Installation, LambdaContext
from support.outside_services import HOST, AwsEndpoint
from support.recorded_events import NAMED

CREATED = ["put", "post", "copy", "multipart", "encoded_keys", "several_records", "eventbridge"]
LONG_AGO = datetime.now(UTC) - timedelta(minutes=5)
#: What was PUT just now is not left to its own event: these tests have no time to wait.
AT_ONCE = {"late_after_seconds": 0}


def outbox(tmp_path: Path) -> list[str]:
    return [path.read_text() for path in (tmp_path / "outbox").iterdir()]


@pytest.mark.parametrize("name", CREATED)
def test_every_kind_of_created_object_is_run(installation: Installation, name: str, tmp_path: Path) -> None:
    for path in NAMED[name]:
        installation.email(path.removeprefix("messages/"))
    assert worker.handle(installation.event(name), LambdaContext()) == {"completed": len(NAMED[name])}
    assert len(outbox(tmp_path)) == len(NAMED[name])
    assert {installation.outcome(path) for path in NAMED[name]} == {"completed"}
    assert installation.keys("emails/messages/") == installation.keys("emails/leases/") == []


@pytest.mark.parametrize("name", ["test_event", "deleted", "delete_marker", "folder", "other_bucket", "emr_failed"])
def test_an_event_without_a_message_of_this_queue_writes_nothing(installation: Installation, name: str) -> None:
    installation.put("emails/messages/newsletters/")
    worker.handle(installation.event(name), LambdaContext())
    assert installation.keys() == ["emails/messages/newsletters/"]


def test_a_record_that_makes_no_sense_does_not_stop_the_next_one(installation: Installation) -> None:
    installation.email("good.json")
    assert worker.handle(installation.event("malformed_record"), LambdaContext()) == {"completed": 1}


def test_an_unknown_event_is_an_error_in_the_log_and_no_crash(installation: Installation) -> None:
    assert worker.handle({"hello": "world"}, LambdaContext()) == {}
    assert installation.told().line("event skipped, neither")["level"] == "ERROR"


def test_every_step_is_a_line_if_the_function_is_asked_to(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S3QUEUE_LOG", "debug")
    installation.email("welcome.json")
    worker.handle(installation.event("put"), LambdaContext())
    told = installation.told()
    assert told.line("recorded: emails/messages/welcome.json, attempt 1: completed")["level"] == "DEBUG"
    assert told.line("handler started: ")["path"] == "messages/welcome.json"
    assert SECRET_WORDS not in told.text


def test_one_poison_message_does_not_stop_the_good_ones(installation: Installation) -> None:
    first, poison, last = (installation.email(name) for name in ("first.json", "second.json", "third.json"))
    installation.put(f"emails/{poison}", b"{not json")
    assert worker.handle(installation.event("several_records"), LambdaContext()) == {"completed": 2, "dead": 1}
    assert [installation.outcome(path) for path in (first, poison, last)] == ["completed", "dead", "completed"]
    assert installation.keys("emails/dead/") == [f"emails/dead/{poison}"]


def test_a_second_event_for_the_same_message_runs_nothing(installation: Installation, tmp_path: Path) -> None:
    installation.email("welcome.json")
    worker.handle(installation.event("put"), LambdaContext())
    assert worker.handle(installation.event("put"), LambdaContext()) == {"not claimed": 1}
    assert len(outbox(tmp_path)) == 1
    assert installation.keys("emails/leases/") == []


def test_metrics_have_one_dimension_the_queue(installation: Installation) -> None:
    for name, to in {"first.json": "ada@example.com", "second.json": "ada@bounce.example"}.items():
        installation.email(name, to)
    worker.handle(installation.event("several_records"), LambdaContext())
    told = installation.told()
    (emf,) = told.emf
    (described,) = emf["_aws"]["CloudWatchMetrics"]
    assert (described["Namespace"], described["Dimensions"]) == ("s3queue", [["queue"]])
    units = {metric["Name"]: metric["Unit"] for metric in described["Metrics"]}
    assert units == {
        "Completed": "Count",
        "Failed": "Count",
        "Dead": "Count",
        "WaitTime": "Seconds",
        "RunTime": "Seconds",
    }
    assert (told.metric("Completed"), told.metric("Failed"), told.metric("Dead")) == ([1.0], [1.0], [1.0])
    assert all(0 <= seconds < 30 for name in ("WaitTime", "RunTime") for seconds in told.metric(name))


@pytest.mark.parametrize(
    ("chosen", "names"),
    [("alarms", {"Dead"}), ("off", set()), ("all", {"Completed", "Failed", "Dead", "WaitTime", "RunTime"})],
)
def test_only_the_metrics_that_were_asked_for_are_published(
    installation: Installation, monkeypatch: pytest.MonkeyPatch, chosen: str, names: set[str]
) -> None:
    monkeypatch.setenv("S3QUEUE_METRICS", chosen)
    worker.runtime.cache_clear()
    for name, to in {"first.json": "ada@example.com", "second.json": "ada@bounce.example"}.items():
        installation.email(name, to)
    worker.handle(installation.event("several_records"), LambdaContext())
    emf = installation.told().emf
    assert {metric["Name"] for line in emf for metric in line["_aws"]["CloudWatchMetrics"][0]["Metrics"]} == names


def test_an_event_that_came_late_is_counted_and_a_dispatch_is_not(installation: Installation) -> None:
    installation.email("welcome.json")
    worker.handle(installation.event("put", at=LONG_AGO), LambdaContext())
    assert installation.told().metric("LateEvents") == [1.0]
    worker.handle({"paths": ["messages/welcome.json"]}, LambdaContext())
    assert installation.told().metric("LateEvents") == []


def test_the_line_of_metrics_is_as_long_as_the_estimate_says(installation: Installation) -> None:
    installation.email("welcome.json")
    worker.handle(installation.event("put"), LambdaContext())
    (emf,) = installation.told().emf
    assert len(json.dumps(emf, separators=(",", ":"))) == pytest.approx(EMF_BYTES, rel=0.15)


def test_an_invocation_without_news_writes_no_metrics(installation: Installation) -> None:
    worker.handle(installation.event("test_event"), LambdaContext())
    assert installation.told().emf == []


def test_a_retry_and_a_lost_claim_are_counted(installation: Installation) -> None:
    path = installation.email("first.json", "ada@flaky.example")
    held = installation.email("second.json")
    installation.queue().claim(held)
    # Too little time is left to wait for the retry: the sweeper gets it.
    seconds = queues.load_one("emails").settings.handler_timeout.total_seconds() + 3.5
    assert worker.handle(installation.event("several_records"), LambdaContext(seconds)) == {
        "retried": 1,
        "not claimed": 2,
    }
    told = installation.told()
    assert (told.metric("Failed"), told.metric("Retried"), told.metric("ClaimConflicts")) == ([1.0], [1.0], [1.0])
    assert installation.outcome(path) == "waiting"


def test_every_line_about_a_message_says_which_and_none_shows_its_payload(installation: Installation) -> None:
    installation.email("first.json")
    installation.email("second.json", f"{SECRET_WORDS}@bounce.example")
    installation.put("emails/messages/third.json", {"to": "nobody", "subject": SECRET_WORDS, "extra": SECRET_WORDS})
    worker.handle(installation.event("several_records"), LambdaContext())
    told = installation.told()
    assert [(line["message"], line["path"]) for line in told.lines] == [
        ("completed", "messages/first.json"),
        ("dead", "messages/second.json"),
        ("dead", "messages/third.json"),
    ]
    for line in told.lines:
        assert (line["queue"], line["attempt"], line["service"]) == ("emails", 1, "s3queue")
        assert line["worker"].startswith("emails-")
        assert line["request_id"] == LambdaContext.aws_request_id
    assert SECRET_WORDS not in told.text
    # Nor does a record's reason quote what a pydantic model refused.
    record = installation.s3.get_object(Bucket=installation.bucket, Key="emails/records/messages/third.json")
    assert SECRET_WORDS not in record["Body"].read().decode()


def test_the_lines_after_a_message_are_not_about_it(installation: Installation) -> None:
    installation.email("welcome.json")
    worker.handle(installation.event("put"), LambdaContext())
    worker.handle({"hello": "world"}, LambdaContext())
    line = installation.told().line("event skipped, neither")
    assert "path" not in line
    assert "attempt" not in line


def test_a_late_event_drains_the_queue_in_priority_order(installation: Installation) -> None:
    installation.put("emails/queue.json", AT_ONCE)
    for name in ("ordinary", "p100/high", "p255/first", "p001/low"):
        installation.email(name)
    event = installation.created("emails/messages/ordinary", at=LONG_AGO)
    assert worker.handle(event, LambdaContext()) == {"completed": 4}
    order = [line["path"].removeprefix("messages/") for line in installation.told().lines]
    # Its own message first: it is at hand, and a claim costs what it costs anyway.
    assert order == ["ordinary", "p255/first", "p100/high", "p001/low"]


def test_an_event_in_time_leaves_the_other_messages_to_their_own_events(installation: Installation) -> None:
    # In time, however long this machine takes.
    installation.put("emails/queue.json", {"late_after_seconds": 3600})
    installation.email("welcome.json")
    other = installation.email("other.json")
    assert worker.handle(installation.event("put"), LambdaContext()) == {"completed": 1}
    assert installation.outcome(other) == "pending"


def test_a_dispatched_orphan_runs_and_so_does_what_lies_around_it(installation: Installation) -> None:
    installation.put("emails/queue.json", AT_ONCE)
    paths = [installation.email("orphan"), installation.email("another")]
    due = "delayed/20200101T000000Z/overdue"
    installation.put(f"emails/{due}", {"to": "ada@example.com", "subject": "Late"})
    later = "delayed/29990101T000000Z/not-due"
    installation.put(f"emails/{later}", {"to": "ada@example.com", "subject": "Later"})
    assert worker.handle({"paths": paths[:1]}, LambdaContext()) == {"completed": 3}
    assert [installation.outcome(path) for path in (*paths, due)] == ["completed"] * 3
    assert installation.outcome(later) == "delayed"


def test_a_dispatch_of_what_is_done_meanwhile_claims_nothing(installation: Installation) -> None:
    assert worker.handle({"paths": ["messages/done-long-ago"]}, LambdaContext()) == {"not claimed": 1}
    assert installation.keys() == []


def test_no_handler_starts_that_could_not_finish_in_time(installation: Installation) -> None:
    paths = [installation.email(name) for name in ("first.json", "second.json", "third.json")]
    limit = queues.load_one("emails").settings.handler_timeout.total_seconds()
    assert worker.handle(installation.event("several_records"), LambdaContext(limit + 1)) == {}
    assert {installation.outcome(path) for path in paths} == {"pending"}
    assert installation.told().line("out of time")["level"] == "INFO"


def test_a_paused_queue_claims_nothing_until_it_is_resumed(installation: Installation) -> None:
    path = installation.email("welcome.json")
    installation.queue().pause()
    assert worker.handle(installation.event("put"), LambdaContext()) == {}
    assert installation.outcome(path) == "pending"
    installation.queue().resume()
    installation.configure(queue="emails")  # a new execution environment; an old one notices within ten seconds
    assert worker.handle({"paths": [path]}, LambdaContext()) == {"completed": 1}


def test_a_batch_is_one_claim_and_every_line_a_mail(installation: Installation, tmp_path: Path) -> None:
    lines = [{"to": f"reader{number}@example.com", "subject": "News"} for number in range(1000)]
    lines[17]["to"] = "gone@bounce.example"
    installation.put("emails/messages/news.ndjson", b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    assert worker.handle(installation.created("emails/messages/news.ndjson"), LambdaContext()) == {"completed": 1}
    assert len(outbox(tmp_path)) == 999
    assert installation.keys("emails/dead/") == ["emails/dead/messages/news.ndjson.lines"]


def test_a_heavy_message_without_a_spark_application_stays_and_uses_no_attempt(installation: Installation) -> None:
    installation.configure(queue="exports", workers={"exports": "s3queue-exports"})
    key = installation.put("exports/messages/november.json", {"source": "emails"})
    for event in (installation.created(key), {"paths": ["messages/november.json"]}):
        assert worker.handle(event, LambdaContext()) == {"heavy": 1}
        line = installation.told().line("no Spark application deployed, heavy messages kept")
        assert (line["level"], line["queue"]) == ("WARNING", "exports")
    assert installation.keys() == [key]


def test_failures_go_to_eventbridge_if_the_queue_says_so(
    installation: Installation, aws: AwsEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEBHOOK_SECRET", "secret")
    installation.configure(queue="webhooks", workers={"webhooks": "s3queue-webhooks"}, event_bus="default")
    key = installation.put("webhooks/messages/bad", b"{not json")
    worker.handle(installation.created(key), LambdaContext())
    (event,) = aws.events
    assert (event["EventBusName"], event["Source"], event["DetailType"]) == ("default", "s3queue", "message.dead")
    detail = json.loads(event["Detail"])
    assert (detail["queue"], detail["path"], detail["attempt"]) == ("webhooks", "messages/bad", 1)


def test_a_worker_keeps_its_name_for_as_long_as_its_process_lives(installation: Installation) -> None:
    workers = []
    for _ in range(2):
        installation.email("welcome.json")
        worker.handle(installation.event("put"), LambdaContext())
        workers.append(installation.told().line("completed")["worker"])
    installation.configure(queue="emails")
    installation.email("welcome.json")
    worker.handle(installation.event("put"), LambdaContext())
    assert workers[0] == workers[1] != installation.told().line("completed")["worker"]


def test_a_deployment_without_its_bucket_is_an_error_that_lambda_counts(installation: Installation) -> None:
    installation.configure(queue="emails", bucket=f"nowhere-{uuid.uuid4().hex}")
    with pytest.raises(NotFound, match="check name, region and endpoint"):
        worker.handle({"paths": ["messages/a"]}, LambdaContext())


def test_importing_a_handler_asks_aws_nothing_and_loads_no_sdk() -> None:
    for module in ("worker", "sweeper"):
        code = f"import sys, handlers.{module}; print(sorted({{'boto3', 'aws_xray_sdk', 'PIL'}} & set(sys.modules)))"
        assert run(code, infra.FUNCTIONS) == "[]"


def test_what_an_invocation_needs_is_made_in_lambdas_init_phase(installation: Installation) -> None:
    code = "import sys, handlers.{0}; print('boto3' in sys.modules, handlers.{0}.runtime.cache_info().currsize)"
    for module in ("worker", "sweeper"):
        started = run(code.format(module), infra.FUNCTIONS, AWS_LAMBDA_INITIALIZATION_TYPE="on-demand")
        assert started == "True 1"
        # Every copy of a snapshot would have the same name.
        snapshot = run(code.format(module), infra.FUNCTIONS, AWS_LAMBDA_INITIALIZATION_TYPE="snap-start")
        assert snapshot == "False 0"


def test_a_message_is_traced_by_its_queue_and_never_by_its_payload(installation: Installation) -> None:
    installation.email("traced")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as daemon:
        daemon.bind((HOST, 0))
        daemon.settimeout(5)
        code = (
            "import handlers.worker as worker\n"
            "class Context: get_remaining_time_in_millis = lambda self: 60000\n"
            "worker.handle({'paths': ['messages/traced']}, Context())"
        )
        run(
            code,
            infra.FUNCTIONS,
            LAMBDA_TASK_ROOT=str(infra.FUNCTIONS),
            AWS_XRAY_DAEMON_ADDRESS=f"{HOST}:{daemon.getsockname()[1]}",
            _X_AMZN_TRACE_ID="Root=1-5759e988-bd862e3fe1be46a994272793;Parent=557abcec3ee5a047;Sampled=1",
        )
        assert installation.outcome("messages/traced") == "completed"
        sent = [daemon.recv(65_536).decode()]
        daemon.settimeout(0.2)
        with suppress(TimeoutError):
            while True:
                sent.append(daemon.recv(65_536).decode())
    (message,) = (json.loads(text.partition("\n")[2]) for text in sent if "## message" in text)
    assert message["annotations"]["queue"] == "emails"
    assert message["metadata"]["s3queue"]["path"] == "messages/traced"
    assert SECRET_WORDS not in "".join(sent)


def test_a_worker_imports_the_module_of_its_own_queue_only() -> None:
    code = "import sys, queues; queues.load_one('emails'); print([m for m in sys.modules if m.startswith('queues.')])"
    assert run(code, infra.FUNCTIONS) == "['queues.emails']"


def run(code: str, folder: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_keys_in_events_are_encoded_as_s3_does_it(installation: Installation) -> None:
    name = "späti/100% + ½.json"
    installation.email(name)
    event = installation.created(quote_plus(f"emails/messages/{name}", safe="/"))
    assert worker.handle(event, LambdaContext()) == {"completed": 1}
