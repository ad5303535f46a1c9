"""The command against an S3 server: as a process of its own, and where AWS is asked for more than objects."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from s3queue.cli.session import Session
from s3queue.errors import Unavailable
from support.s3_servers import fresh_bucket, s3_client

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "s3queue.cli"]
ARN = "arn:aws:lambda:us-east-1:123456789012:function:orders-worker"
MODULE = """
import time
from s3queue import define

queue = define("orders", visibility_timeout=30)

@queue.handler
def handle(body: dict) -> dict:
    print("started", flush=True)
    time.sleep(body.get("seconds", 0))
    return {"slept": body.get("seconds", 0)}
"""


@pytest.fixture
def bucket(moto_endpoint):
    return fresh_bucket(s3_client(moto_endpoint))


@pytest.fixture
def environment(moto_endpoint, bucket):
    return os.environ | {
        "PYTHONPATH": str(ROOT / "functions"),
        "AWS_ENDPOINT_URL": moto_endpoint,
        "S3QUEUE_URL": f"s3://{bucket}",
        "PYTHONWARNINGS": "default",
    }


@pytest.fixture
def run(environment, tmp_path):
    def call(*args, code=0, stdin=subprocess.DEVNULL, **changes):
        ended = subprocess.run(
            [*COMMAND, *args],
            env=environment | changes,
            cwd=tmp_path,
            stdin=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ended.returncode == code, f"{args}: {ended.returncode}\n{ended.stdout}\n{ended.stderr}"
        return ended

    return call


@pytest.fixture
def on_s3(cli, moto_endpoint, bucket):
    """In this process, for what needs no process of its own."""
    cli.url = f"s3://{bucket}"

    def call(*args, **more):
        return cli(*args, "--endpoint-url", moto_endpoint, **more)

    return call


def test_a_message_from_send_to_show(run, on_s3, tmp_path):
    (tmp_path / "orders.py").write_text(MODULE)
    path = on_s3("send", "orders", '{"seconds": 0}').out.strip()
    assert on_s3("stats", "orders", "--json").json["pending"] == 1
    worked = run("work", "orders", "--until-empty", "--no-sweep", "--json")
    assert json.loads(worked.stdout.removeprefix("started\n"))["succeeded"] == 1
    shown = run("show", "orders", path)
    assert "completed" in shown.stdout
    assert "\x1b" not in shown.stdout + shown.stderr
    assert on_s3("show", "orders", path, "--json").json["result"] == {"slept": 0}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_is_told_to_stop_finishes_what_runs(on_s3, environment, tmp_path, number):
    (tmp_path / "orders.py").write_text(MODULE)
    path = on_s3("send", "orders", '{"seconds": 2}').out.strip()
    with subprocess.Popen(
        [*COMMAND, "work", "./orders.py", "--json"],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as worker:
        try:
            assert worker.stdout.readline() == "started\n"
            worker.send_signal(number)
            out, err = worker.communicate(timeout=60)
        finally:
            worker.kill()
    assert worker.returncode == 0, err
    assert json.loads(out)["succeeded"] == 1
    assert "waiting for running handlers" in err
    assert on_s3("show", "orders", path, "--json").json["state"] == "completed"
    assert on_s3("workers", "orders", "--json").json == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "Could not connect"),
        ({"AWS_PROFILE": "nobody"}, "check AWS_PROFILE"),
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "AWS_PROFILE"),
    ],
)
def test_a_store_that_cannot_be_asked_is_code_3_in_one_line(run, changes, said):
    ended = run("stats", "orders", code=3, **changes)
    assert said in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_a_bucket_that_is_not_there(on_s3):
    ran = on_s3("stats", "orders", url="s3://there-is-no-such-bucket", code=3)
    assert "there is no bucket 'there-is-no-such-bucket' here" in ran.err
    assert len(ran.err.splitlines()) == 1
    assert "Traceback" in on_s3("stats", "orders", "--debug", url="s3://there-is-no-such-bucket", code=3).err
    checks = on_s3("doctor", "orders", "--json", url="s3://there-is-no-such-bucket", code=1).json["checks"]
    assert [one["verdict"] for one in checks] == ["ok", "problem"]
    assert "there is no bucket" in checks[-1]["found"]


def test_an_endpoint_that_is_no_address_is_a_mistake(cli):
    ran = cli("stats", "orders", "--endpoint-url", "nonsense", url="s3://bucket", code=2)
    assert "write --endpoint-url http://host:port" in ran.err


def test_a_reader_that_leaves_early_is_no_error(on_s3, environment):
    on_s3("send", "orders", "--count", "50", '{"n": {n}}')
    shell = f"{sys.executable} -m s3queue.cli peek orders --limit 50 --json | head -c 1"
    ended = subprocess.run(["sh", "-c", shell], env=environment, capture_output=True, text=True, check=False)
    assert ended.stdout == "["
    assert "Traceback" not in ended.stderr


def on_a_terminal(args, environment, typed=b""):
    """What a terminal shows, and the exit code."""
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, *args], env=environment, stdin=follower, stdout=follower, stderr=follower
    ) as process:
        os.close(follower)
        os.write(leader, typed)
        shown = b""
        with contextlib.suppress(OSError):
            while chunk := os.read(leader, 4096):
                shown += chunk
        process.wait(timeout=60)
    os.close(leader)
    return shown.decode(), process.returncode


def test_a_person_is_asked_and_may_say_no(on_s3, environment):
    on_s3("create", "orders")
    on_s3("send", "orders", "x")
    shown, code = on_a_terminal(["purge", "orders"], environment, b"n\n")
    assert "Delete 1 message of orders for good? [y/N]" in shown
    assert "nothing was changed" in shown
    assert code == 1
    assert on_s3("size", "orders").out == "1\n"
    _, code = on_a_terminal(["purge", "orders"], environment, b"y\n")
    assert code == 0
    assert on_s3("size", "orders").out == "0\n"


def test_colour_is_for_terminals_that_want_it(on_s3, environment):
    on_s3("send", "orders", "x")
    terminal = environment | {"TERM": "xterm-256color"}
    assert "\x1b[" in on_a_terminal(["queues"], terminal)[0]
    plain = on_a_terminal(["queues"], terminal | {"NO_COLOR": "1"})[0]
    assert not any(f"\x1b[{colour}m" in plain for colour in (31, 32, 33, 36, "1;31"))
    assert "\x1b" not in on_s3("queues", NO_COLOR="").out


def test_the_shell_completes_commands_queues_and_settings(cli):
    cli("create", "orders", url="memory://completion")
    cli("create", "other", url="memory://completion")

    def complete(line, url="memory://completion"):
        asked = {"_S3QUEUE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
        return cli(url=url, **asked).out.split()

    assert complete("s3queue conf") == ["configure"]
    assert complete("s3queue stats o") == ["orders", "other"]
    assert "max_attempts=" in complete("s3queue configure orders max_a")
    assert complete("s3queue stats o", url="not-a-url") == []


# What is asked of AWS besides objects


def notify(endpoint, bucket, prefix):
    rules = [{"Name": "prefix", "Value": prefix}]
    s3_client(endpoint).put_bucket_notification_configuration(
        Bucket=bucket,
        NotificationConfiguration={
            "LambdaFunctionConfigurations": [
                {"LambdaFunctionArn": ARN, "Events": ["s3:ObjectCreated:*"], "Filter": {"Key": {"FilterRules": rules}}}
            ]
        },
    )


class Functions:
    """Lambda, as far as the command asks it."""

    def __init__(self):
        self.asked = []
        self.error = None

    def put_function_concurrency(self, **asked):
        if self.error:
            raise self.error
        self.asked.append(asked)

    def invoke(self, **asked):
        self.asked.append(asked)


@pytest.fixture
def functions(monkeypatch):
    fake = Functions()
    monkeypatch.setattr(Session, "client", lambda self, service: fake)
    return fake


def test_the_doctor_on_s3(on_s3, moto_endpoint, bucket):
    on_s3("create", "orders")

    def checks(code):
        answer = on_s3("doctor", "orders", "--races", "2", "--json", code=code).json
        return {one["check"]: (one["verdict"], one["found"]) for one in answer["checks"]}

    found = checks(1)
    assert found["events"][0] == "problem"
    assert found["credentials"][0] == found["bucket"][0] == found["versioning"][0] == "ok"
    assert found["race to replace"][0] == found["permissions: messages/"][0] == found["clock"][0] == "ok"

    notify(moto_endpoint, bucket, "orders/messages/")
    found = checks(0)
    assert found["events"] == ("ok", "orders/messages/ notifies orders-worker")

    notify(moto_endpoint, bucket, "orders/")
    assert checks(1)["event filter"][0] == "problem"
    keys = [entry["Key"] for entry in s3_client(moto_endpoint).list_objects_v2(Bucket=bucket)["Contents"]]
    assert keys == ["orders/queue.json"]


def test_set_concurrency_reserves_it_for_the_function_that_s3_wakes(on_s3, functions, moto_endpoint, bucket):
    on_s3("create", "orders")
    notify(moto_endpoint, bucket, "orders/messages/")
    answer = on_s3("set-concurrency", "orders", "7", "--json").json
    assert answer == {"queue": "orders", "concurrency": 7, "function": "orders-worker"}
    assert functions.asked == [{"FunctionName": "orders-worker", "ReservedConcurrentExecutions": 7}]
    on_s3("set-concurrency", "orders", "8", "--function", "another")
    assert functions.asked[-1]["FunctionName"] == "another"


def test_set_concurrency_says_what_was_done_when_the_function_refuses(on_s3, functions):
    on_s3("create", "orders")
    functions.error = Unavailable("no answer")
    ran = on_s3("set-concurrency", "orders", "7", "--function", "f", code=3)
    assert "queue.json has 7 now, but the function was not changed" in ran.err


def test_a_sweep_wakes_the_function_for_what_is_due(on_s3, functions, moto_endpoint, bucket):
    notify(moto_endpoint, bucket, "orders/messages/")
    due = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time.time() - 60))
    s3_client(moto_endpoint).put_object(Bucket=bucket, Key=f"orders/delayed/{due}/one", Body=b"x")
    swept = on_s3("sweep", "orders", "--defaults", "--json").json
    assert (swept["function"], swept["due"]) == ("orders-worker", 1)
    (asked,) = functions.asked
    assert json.loads(asked["Payload"]) == {"paths": [f"delayed/{due}/one"]}
    assert asked["InvocationType"] == "Event"


def test_groups_are_sent_to_and_shown_in_pages(on_s3):
    # `@a-b/` comes before `@a/`, as S3 orders folders.
    for group in ("a", "a-b", "a b"):
        on_s3("send", "orders", "{n}", "--group", group, "--count", "2")
    seen, after = [], ""
    while after is not None:
        page = on_s3("partitions", "orders", "--limit", "1", "--after", after, "--json").json
        seen += [(one["group"], one["state"], one["messages"]) for one in page["partitions"]]
        after = page["next_after"]
    assert seen == [("a b", "free", 2), ("a-b", "free", 2), ("a", "free", 2)]
