"""Every code block of the documents is run, literally: a reader who copies one gets what the document says.

Blocks of one document run in their order, in one folder, against one bucket of an S3 server (moto). Python blocks are
programs of their own, with the imports that they show. Console blocks go through a shell; what their commands are
here is said in support/document_commands.py. A block that is not run is in NOT_RUN, with the reason.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import smtplib
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import boto3
import pytest

from s3queue import Queue, QueueSettings, Worker, connect
from support import document_commands
from support.documents import DOCUMENTS, ROOT, Block, blocks, read

BUCKET = "my-bucket"
PYTHON, CONSOLE, JAVASCRIPT = "python", "console", "javascript"
#: Where a block begins → why it is not run.
NOT_RUN = {
    ("docs/architecture.md", "text"): "a picture of who asks what of the bucket",
    ("docs/archive.md", "sql"): "for Athena, which runs on AWS only",
    ("docs/operations.md", "text"): "a picture of a message's states",
    ("docs/producers.md", "go"): "a Go of 75 MB for one block; with Go 1.27 it does what Node's does",
}
#: A part of a block → what it prints, exactly.
PRINTED = {
    "Worker(queue, lambda email: print(email))": "{'to': 'ada@example.com'}\n",
    "mixed.settings.is_heavy(100_000_000)": "True False\n",
    "queue.configure(concurrency=10, max_depth=100_000)": "{'concurrency': 10, 'max_depth': 100000}\n",
    'print(worker.stats()["succeeded"])': "3\n",
    'orders.connect("memory://checked")': (
        "the handler of 'orders' cannot take this payload: Order.id: must be a JSON int, not str\n"
    ),
    'define("orders", keep_payload=True)': "completed True\n1 0\n",
    "def double(order: Order)": "{'price': '19.80', 'placed': '2026-11-16'}\n",
    "print(charged)": "ours: True\n[17]\n",
    'store="direct")': "messages/hello.json\n",
    "print(revoke(app, later.id), later.state)": "revoked REVOKED\n",
    "print(result.status, result.return_value)": "SUCCESSFUL sent to ada@example.com\n",
    "TestClient(app)": "202 True\n{'state': 'pending'}\n",
    "with MetricsServer(": 's3queue_succeeded_total{queue="orders"} 1\n',
    "provider = TracerProvider()": "process orders True\n",
    "app.test_client()": "202\n{'If-None-Match': '*'}\n",
}
#: What the readers of a document have in their environment.
ENVIRONMENT = {"docs/django.md": {"DJANGO_SETTINGS_MODULE": "settings"}}


@dataclass(frozen=True, slots=True)
class Stage:
    """A folder, a bucket with something in it, and the environment of a reader."""

    folder: Path
    environment: dict[str, str]

    def queue(self, name: str) -> Queue:
        return connect(f"s3://{BUCKET}/{name}", endpoint_url=self.environment["AWS_ENDPOINT_URL"])

    def run(self, block: Block) -> str:
        """What the block printed; fails with everything that it said."""
        if block.language == PYTHON:
            # A block that begins with a file's name is that file.
            named = re.match(r"# (?:\S+/)?(\w+\.py)\n", block.text)
            program = self.folder / (named[1] if named else f"block_{block.line}.py")
            program.write_text(block.text, encoding="utf-8")
            command = [sys.executable, str(program)]
        elif block.language == JAVASCRIPT:
            # A program that a console block calls.
            named = re.match(r"// (\w+\.mjs)", block.text)
            assert named, f"{block.where} does not begin with its file's name"
            (self.folder / named[1]).write_text(block.text, encoding="utf-8")
            command = ["node", "--check", named[1]]
        else:
            command = ["bash", "-euo", "pipefail", "-c", script_of(block)]
        ran = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=240,
            check=False,
        )
        assert ran.returncode == 0, f"{block.where} ended with {ran.returncode}:\n{block.text}{ran.stdout}{ran.stderr}"
        return ran.stdout


def script_of(block: Block) -> str:
    """The commands behind the prompts; a line without one goes on with the line before."""
    lines = block.text.splitlines()
    assert lines[0].startswith("$ "), f"{block.where}: a console block begins with a prompt"
    assert all(line.startswith(("$ ", "    ")) for line in lines), f"{block.where}: output is not shown in blocks"
    return "\n".join(line.removeprefix("$ ") for line in lines)


def is_run(block: Block) -> bool:
    return (block.document, block.language) not in NOT_RUN


@pytest.fixture
def stage(moto_endpoint, tmp_path, monkeypatch) -> Iterator[Stage]:
    document_commands.install(tmp_path / "bin")
    folder = tmp_path / "reader"
    folder.mkdir()
    for name in ("order", "urgent", "later"):
        (folder / f"{name}.json").write_text('{"to": "ada@example.com", "subject": "Hello"}')
    (folder / "orders.ndjson").write_text('{"to": "ada@example.com", "subject": "1"}\n' * 3)
    s3 = boto3.client("s3", endpoint_url=moto_endpoint)
    s3.create_bucket(Bucket=BUCKET)
    emr = boto3.client("emr-serverless", endpoint_url=moto_endpoint)
    application = emr.create_application(name="docs", releaseLabel="emr-7.0.0", type="SPARK")["applicationId"]
    environment = os.environ | {
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        # The second for `spark`, which is in no wheel.
        "PYTHONPATH": f"{ROOT / 'functions'}{os.pathsep}{ROOT}",
        "AWS_ENDPOINT_URL": moto_endpoint,
        "BUCKET": BUCKET,
        "BROWSER": "true",
        "BULK_REQUEST": json.dumps(bulk_request(application)),
    }
    found = Stage(folder, environment)
    kill_one(found.queue("emails"))
    yield found
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
        for entry in page.get("Contents", ()):
            s3.delete_object(Bucket=BUCKET, Key=entry["Key"])
    s3.delete_bucket(Bucket=BUCKET)


def bulk_request(application: str) -> dict[str, object]:
    """The stack's output `BulkRequest`, as tests/infra holds it against the stack, with what the service asks for."""
    return {
        "applicationId": application,
        "executionRoleArn": "arn:aws:iam::123456789012:role/bulk",
        "name": "bulk",
        "jobDriver": {"sparkSubmit": {"entryPoint": "s3://code/pipeline.py", "entryPointArguments": ["--help"]}},
    }


def kill_one(queue: Queue) -> None:
    """A dead letter, for the commands that look for one."""

    def fail(_: bytes) -> None:
        raise smtplib.SMTPServerDisconnected("the server hung up")

    queue.enqueue({"to": "ada@example.com", "subject": "Hello"}, name="died.json")
    once = Queue(store=queue.store, name=queue.name, settings=QueueSettings.of(max_attempts=1))
    Worker(once, fail, concurrency=1, sweep=False).run_until_empty()


@pytest.mark.slow
@pytest.mark.parametrize("document", [document for document in DOCUMENTS if any(blocks(document))])
def test_every_block_runs_as_it_is(document, stage):
    stage.environment.update(ENVIRONMENT.get(document, {}))
    for block in filter(is_run, blocks(document)):
        assert block.language in (PYTHON, CONSOLE, JAVASCRIPT), (
            f"{block.where}: a block of {block.language!r} cannot be run"
        )
        printed = stage.run(block)
        for part, expected in PRINTED.items():
            if part in block.text:
                assert printed == expected, f"{block.where} printed {printed!r}"
    if after := AFTERWARDS.get(document):
        after(stage)


def test_what_is_not_run_is_listed_with_a_reason_and_exists():
    left_out = {(block.document, block.language) for document in DOCUMENTS for block in blocks(document)} & set(NOT_RUN)

    assert left_out == set(NOT_RUN)
    assert all(NOT_RUN.values())


def test_every_expected_output_belongs_to_a_block():
    texts = [block.text for document in DOCUMENTS for block in blocks(document)]

    assert [part for part in PRINTED if not any(part in text for text in texts)] == []


# What the blocks have to have done


def after_readme(stage: Stage) -> None:
    queue = stage.queue("emails")
    stored = {entry.key for entry in queue.store.list("emails/").objects}
    assert {
        "emails/messages/order.json",
        "emails/messages/orders.ndjson",
        "emails/messages/p255/urgent.json",
        "emails/delayed/20261224T180000Z/later.json",
    } <= stored
    assert_the_emails_module_does_what_it_says(stage)


def assert_the_emails_module_does_what_it_says(stage: Stage) -> None:
    definition = runpy.run_path(str(stage.folder / "emails.py"))["queue"]
    queue = connect(f"memory://{stage.folder.name}-{id(stage)}/emails", settings=definition.settings)
    sent = queue.enqueue({"to": "ada@example.com", "subject": "Hello"})
    refused = queue.enqueue({"to": "ada@example.org", "subject": "Hello"})
    unreadable = queue.enqueue({"to": "nobody", "subject": "Hello"})

    Worker(queue, definition, concurrency=1, sweep=False).run_until_empty()

    completed = queue.status(sent).record
    assert completed
    assert (completed.outcome, completed.result) == ("completed", {"sent_to": "ada@example.com"})
    for path, reason in {refused: "example.org", unreadable: "not a valid email address"}.items():
        record = queue.status(path).record
        assert record
        assert record.outcome == "dead"
        assert record.failure
        assert reason in record.failure.message
        assert len(record.attempts) == 1


def after_queues(stage: Stage) -> None:
    outcomes = stage.queue("orders").store.list("orders/records/").objects
    assert len(outcomes) == 1
    assert stage.queue("emails").store.list("emails/dead/").objects == ()


def after_celery(stage: Stage) -> None:
    celery = stage.queue("celery")
    assert len(celery.store.list("celery/records/delayed/").objects) == 1  # revoked
    assert celery.store.list("celery/leases/").objects == celery.store.list("celery/workers/").objects == ()


def after_producers(stage: Stage) -> None:
    queue = stage.queue("emails")
    bodies = [queue.store.open(entry.key).read() for entry in queue.store.list("emails/messages/").objects]
    order = (stage.folder / "order.json").read_bytes()
    assert sum(body == order for body in bodies) == 3  # by aws, by send, by curl
    assert sum(b"From Node" in body for body in bodies) == 1
    assert sum(body.count(b"\n") == 3 for body in bodies) == 1


def after_spark(stage: Stage) -> None:
    def lines(name: str) -> list[object]:
        store = stage.queue(name).store
        keys = [entry.key for entry in store.list(f"{name}/messages/").objects]
        return [json.loads(line) for key in keys for line in store.open(key).read().splitlines()]

    assert sorted(body["id"] for body in lines("orders")) == list(range(1000))
    (alert,) = lines("alerts")
    assert (alert["path"], alert["error_type"]) == ("messages/died.json", "SMTPServerDisconnected")


AFTERWARDS: dict[str, Callable[[Stage], None]] = {
    "README.md": after_readme,
    "docs/queues.md": after_queues,
    "docs/celery.md": after_celery,
    "docs/producers.md": after_producers,
    "docs/spark.md": after_spark,
}


# What the blocks say beside their code


def test_the_readme_names_what_its_block_needs_as_the_project_installs_it():
    named = re.search(r"EmailStr needs an extra: pip install '(.+)'", read("README.md"))
    assert named
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    assert any(requirement.startswith(named[1]) for requirements in extras.values() for requirement in requirements)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_make_target_and_extra_in_the_text_exists(document):
    text = read(document)
    for command in re.findall(r"`make ([^`]+)`", text):
        document_commands.make(shlex.split(command))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for named in re.findall(r"pip install '\.\[([^\]]+)\]'", text):
        assert set(named.split(",")) <= set(extras)


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("make", ["nonsense"]),
        ("make", ["test", "NONSENSE=1"]),
        ("make", ["cdk", "ARGS=deplyo"]),
        ("make", ["cdk", "ARGS=deploy"]),
        ("make", ["cdk", "ARGS=deploy --all -c nonsense=true"]),
        ("make", ["cdk", "ARGS=destroy --all -c keep_data=maybe"]),
        ("aws", ["s3", "sync", ".", "s3://my-bucket/"]),
    ],
)
def test_a_command_that_does_not_exist_is_found(program, arguments):
    with pytest.raises(document_commands.Wrong):
        document_commands.PROGRAMS[program](arguments)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_document_runs_what_the_network_has_today(document):
    assert not re.search(r"\b(npx|npm exec|uvx|pipx run)\b", "".join(block.text for block in blocks(document)))


@pytest.mark.parametrize("text", ["$ s3queue nonsense\n", "$ s3queue queues --nonsense\n", "$ false\n"])
def test_a_console_block_that_fails_fails_its_test(stage, text):
    with pytest.raises(AssertionError, match="ended with"):
        stage.run(Block("nowhere.md", 1, CONSOLE, text))


def test_a_python_block_without_its_imports_fails_its_test(stage):
    with pytest.raises(AssertionError, match="NameError"):
        stage.run(Block("nowhere.md", 1, PYTHON, 'connect("memory://x/y")\n'))
