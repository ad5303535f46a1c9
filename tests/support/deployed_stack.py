"""The stack that infra/local deployed, as tests use it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import queues
from infra.local.stack import LocalStack
from s3queue.connect import connect
from s3queue.documents.record import Record
from s3queue.protocol.status import Status
from s3queue.queue import Queue

#: Far beyond anything seen, because a machine may be busy: it ends a wait that is in vain, and measures nothing.
PATIENCE_SECONDS = 120.0
#: How often the sweeper is woken while a test waits for it: its own schedule may be a minute away.
WAKE_SECONDS = 5.0


@dataclass
class DeployedStack:
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
        body: bytes = self.stack.client("s3").get_object(Bucket=self.stack.bucket, Key=key)["Body"].read()
        return body

    def wake_sweeper(self) -> None:
        self.stack.client("lambda").invoke(FunctionName=self.stack.sweeper, InvocationType="Event", Payload=b"{}")

    def invoke(self, queue: str, event: dict[str, Any]) -> dict[str, int]:
        """Call a worker as S3 or the sweeper would, and wait for what it says."""
        answer = self.stack.client("lambda").invoke(
            FunctionName=self.stack.workers[queue], Payload=json.dumps(event).encode()
        )
        said: dict[str, int] = json.loads(answer["Payload"].read())
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

        record: Record | None = self.until(ended, sweeping=sweeping, seconds=seconds).record
        assert record
        return record

    def logged(self, function: str) -> list[str]:
        """Every line that a function has logged."""
        pages = self.stack.client("logs").get_paginator("filter_log_events")
        found = pages.paginate(logGroupName=f"/aws/lambda/{function}")
        return [event["message"] for page in found for event in page["events"]]

    def mails_to(self, address: str) -> int:
        return sum(f"To: {address}".encode() in mail.read_bytes() for mail in self.outbox.glob("*.eml"))
