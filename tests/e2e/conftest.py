"""The deployed stack, once for all of these tests, with IAM enforced: a missing permission is really missed."""

from __future__ import annotations

import io
import json
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import queues
from infra.local.application import for_this_machine
from infra.local.home import Home
from infra.local.stack import LocalStack, local_stack
from infra.local.steps import Steps
from s3queue.connect import connect
from s3queue.documents.record import Record
from s3queue.protocol.status import Status
from s3queue.queue import Queue
from tests.e2e.endpoint import Endpoint

HERE = Path(__file__).parent
#: Far beyond anything seen, because a machine may be busy: it ends a wait that is in vain, and measures nothing.
PATIENCE_SECONDS = 120.0
#: How often the sweeper is woken while a test waits for it: its own schedule may be a minute away.
WAKE_SECONDS = 5.0


# First, because pytest-xdist reads the marks in this same hook.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            # One process for all of them: every other one would deploy a stack of its own.
            item.add_marker(pytest.mark.xdist_group("e2e"))
            item.add_marker(pytest.mark.slow)


@dataclass
class Bench:
    """The stack as tests use it."""

    stack: LocalStack
    outbox: Path

    def queue(self, name: str) -> Queue:
        settings = queues.load_one(name).settings
        return connect(f"s3://{self.stack.bucket}/{name}", settings=settings, client=self.stack.client("s3"))

    def put(self, queue: str, path: str, body: bytes | dict[str, Any]) -> str:
        """A plain PutObject, as any producer's; its path."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.stack.client("s3").put_object(Bucket=self.stack.bucket, Key=f"{queue}/{path}", Body=raw)
        return path

    def read(self, key: str) -> bytes:
        return self.stack.client("s3").get_object(Bucket=self.stack.bucket, Key=key)["Body"].read()

    def wake_sweeper(self) -> None:
        self.stack.client("lambda").invoke(FunctionName=self.stack.sweeper, InvocationType="Event", Payload=b"{}")

    def invoke(self, queue: str, event: dict[str, Any]) -> dict[str, int]:
        """Call a worker as S3 or the sweeper would, and wait for what it says."""
        answer = self.stack.client("lambda").invoke(
            FunctionName=self.stack.workers[queue], Payload=json.dumps(event).encode()
        )
        said = json.loads(answer["Payload"].read())
        assert "FunctionError" not in answer, said
        return said

    def event_of(self, queue: str, path: str) -> dict[str, Any]:
        """What S3 sends when an object was created."""
        found = self.stack.client("s3").head_object(Bucket=self.stack.bucket, Key=f"{queue}/{path}")
        where = {
            "bucket": {"name": self.stack.bucket},
            "object": {"key": f"{queue}/{path}", "size": found["ContentLength"]},
        }
        at = found["LastModified"].isoformat()
        return {"Records": [{"eventSource": "aws:s3", "eventName": "ObjectCreated:Put", "eventTime": at, "s3": where}]}

    def until(self, question: Callable[[], Any], *, sweeping: bool = False, seconds: float = PATIENCE_SECONDS) -> Any:
        """The first answer that is not false; with `sweeping` the sweeper is kept awake meanwhile."""
        deadline, wake_at = time.monotonic() + seconds, 0.0
        while not (answer := question()):
            now = time.monotonic()
            assert now < deadline, f"not within {seconds:.0f} s; the log is {self.stack.server.home.server_log}"
            if sweeping and now >= wake_at:
                self.wake_sweeper()
                wake_at = now + WAKE_SECONDS
            time.sleep(0.2)
        return answer

    def outcome(self, queue: Queue, path: str, *, sweeping: bool = False, seconds: float = PATIENCE_SECONDS) -> Record:
        """The record of a message, once it is written and the message is cleared away."""

        def ended() -> Status | None:
            status = queue.status(path)
            return status if status.state in ("completed", "dead") and not status.message else None

        record = self.until(ended, sweeping=sweeping, seconds=seconds).record
        assert record
        return record

    def logged(self, function: str) -> list[str]:
        """Every line that a function has logged."""
        pages = self.stack.client("logs").get_paginator("filter_log_events")
        found = pages.paginate(logGroupName=f"/aws/lambda/{function}")
        return [event["message"] for page in found for event in page["events"]]

    def mails_to(self, address: str) -> int:
        return sum(f"To: {address}".encode() in mail.read_bytes() for mail in self.outbox.glob("*.eml"))


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    home = Home(tmp_path_factory.mktemp("stack"))
    variables = for_this_machine(home)
    # Quiet while all is well; a failure brings the CLI's last words with it.
    steps = Steps(Console(file=io.StringIO()))
    with local_stack(home, auth=True, variables=variables, steps=steps) as stack:
        made = Bench(stack, Path(variables["EMAIL_OUTBOX"]))
        # Not thumbnails: what runs there within a minute was woken by its event and by nothing else.
        made.queue("emails").configure(rescue_after=5, retry_jitter=False)
        made.queue("webhooks").configure(rescue_after=5, visibility_timeout=10)
        yield made


@pytest.fixture
def emails(bench: Bench) -> Queue:
    return bench.queue("emails")


@pytest.fixture
def webhooks(bench: Bench) -> Queue:
    return bench.queue("webhooks")


@pytest.fixture
def thumbnails(bench: Bench) -> Queue:
    return bench.queue("thumbnails")


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint().listening() as listening:
        yield listening


@pytest.fixture
def unique() -> str:
    """For names and addresses: the tests share their queues."""
    return uuid.uuid4().hex[:8]
