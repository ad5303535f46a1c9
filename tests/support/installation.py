"""An installation on an S3 server, as the deployed functions see one: environment variables, a bucket, a context."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

import queues._smoke
import queues.thumbnails
from handlers import sweeper, worker
from s3queue import Deployment, Queue, connect
from s3queue.stores.s3 import S3Store
from support.function_loggers import forget_loggers
from support.recorded_events import EVENTS
from support.s3_servers import fresh_bucket, s3_client

#: What telemetry must never show.
SECRET_WORDS = "the-payload-is-nobodys-business"


class LambdaContext:
    """What Lambda tells a function about its invocation; `seconds` is all that it ever has left."""

    aws_request_id = "7e9d6f3c-0000-4000-8000-000000000001"

    def __init__(self, seconds: float = 60.0) -> None:
        self.seconds = seconds

    def get_remaining_time_in_millis(self) -> int:
        return int(self.seconds * 1000)


class Installation:
    """A bucket with queues, and the functions as Lambda would run them."""

    def __init__(self, endpoint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.s3 = s3_client(endpoint)
        self.bucket = fresh_bucket(self.s3)
        # It makes the client ask before it sends large bodies only: moto never answers that question for empty ones.
        S3Store(self.bucket, client=self.s3)
        self.endpoint = endpoint
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def configure(self, **deployment: Any) -> None:
        """Start anew, as Lambda does after a deployment."""
        settings = {"bucket": self.bucket, "workers": {"emails": "s3queue-emails"}} | deployment
        for name in ("BUCKET", "QUEUE", "WORKERS", "EVENT_BUS", "RUN_EVENT_BUS", "SPARK_APPLICATION", "SPARK_ROLE"):
            self._monkeypatch.delenv(f"S3QUEUE_{name}", raising=False)
        for name, value in Deployment(**settings).to_env().items():
            self._monkeypatch.setenv(name, value)
        forget()

    def put(self, key: str, body: bytes | dict[str, Any] = b"", **options: Any) -> str:
        encoded = json.dumps(body).encode() if isinstance(body, dict) else body
        self.s3.put_object(Bucket=self.bucket, Key=key, Body=encoded, **options)
        return key

    def email(self, name: str, to: str = "ada@example.com") -> str:
        """PUT a message for `emails` and return its path."""
        self.put(f"emails/messages/{name}", {"to": to, "subject": "Hello", "body": SECRET_WORDS})
        return f"messages/{name}"

    def event(self, name: str, *, at: datetime | None = None) -> dict[str, Any]:
        """A recorded event, as if it had happened in this bucket, just now unless told otherwise."""
        event: dict[str, Any] = json.loads((EVENTS / f"{name}.json").read_text().replace("BUCKET", self.bucket))
        happened = (at or datetime.now(UTC)).isoformat().replace("+00:00", "Z")
        for record in event.get("Records", ()):
            record["eventTime"] = happened
        if "time" in event:
            event["time"] = happened
        return event

    def created(self, *keys: str, at: datetime | None = None, size: int = 52) -> dict[str, Any]:
        """An event that says that these keys (not URL-encoded here) were created."""
        template = self.event("put", at=at)["Records"][0]
        records = []
        for key in keys:
            record = json.loads(json.dumps(template))
            record["s3"]["object"] |= {"key": key, "size": size}
            records.append(record)
        return {"Records": records}

    def queue(self, name: str = "emails") -> Queue:
        """As an operator or producer sees it."""
        return connect(f"s3://{self.bucket}/{name}", client=self.s3)

    def keys(self, prefix: str = "") -> list[str]:
        found = self.s3.list_objects_v2(Bucket=self.bucket, Prefix=prefix)
        return [entry["Key"] for entry in found.get("Contents", ())]

    def outcome(self, path: str, queue: str = "emails") -> str:
        return self.queue(queue).status(path).state

    def told(self) -> Told:
        """What the functions wrote to stdout since the last time."""
        return Told(self._capsys.readouterr().out)


class Told:
    """Log lines and metrics, as CloudWatch would read them."""

    def __init__(self, text: str) -> None:
        self.text = text
        documents = [json.loads(line) for line in text.splitlines()]
        self.lines = [document for document in documents if "_aws" not in document]
        self.emf = [document for document in documents if "_aws" in document]

    def metric(self, name: str, queue: str = "emails") -> list[float]:
        """Every value of a metric that a queue reported."""
        return [value for document in self.emf if document["queue"] == queue for value in document.get(name, ())]

    def line(self, message: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = [line for line in self.lines if line["message"].startswith(message)]
        assert len(found) == 1, f"{len(found)} lines {message!r} in {self.text}"
        return found[0]


def forget() -> None:
    """End the execution environment: what a process keeps between invocations is gone."""
    for kept in (worker.runtime, sweeper.runtime, queues.thumbnails.bucket, queues._smoke.bucket):
        kept.cache_clear()
    forget_loggers()
