"""The webhooks queue against a real HTTP endpoint."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from queues import webhooks
from s3queue import Processor
from s3queue.documents.lease import Lease
from support.outside_services import HttpEndpoint
from support.workbench import Workbench

SECRET = "known to sender and receiver"


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpEndpoint]:
    monkeypatch.setenv("WEBHOOK_SECRET", SECRET)
    monkeypatch.setenv("WEBHOOK_ALLOW_LOCAL", "true")
    with HttpEndpoint.serve() as endpoint:
        yield endpoint


class Webhooks:
    def __init__(self) -> None:
        self.bench = Workbench()
        self.queue = self.bench.queue("webhooks", max_attempts=3)
        self.processor = Processor(queue=self.queue, definition=webhooks.queue)

    def post(self, url: str, payload: Any = None) -> str:
        self.path = self.queue.enqueue({"url": url, "payload": payload})
        return self.run()

    def run(self) -> str:
        return str(self.processor.run(self.path, read_first=True))

    def told(self) -> str:
        """What is stored about the message: its record, or the lease that waits."""
        kind = "records" if self.bench.keys(f"webhooks/records/{self.path}") else "leases"
        return self.bench.read(f"webhooks/{kind}/{self.path}").decode()

    def waits_seconds(self) -> float:
        lease = Lease.from_bytes(self.bench.read(f"webhooks/leases/{self.path}"), self.path)
        assert lease.retry_at
        return (lease.retry_at - self.bench.clock.now()).total_seconds()


@pytest.fixture
def queue() -> Webhooks:
    return Webhooks()


def verify(headers: dict[str, str], body: bytes, key: bytes) -> bool:
    """As a receiver does it, by the text of Standard Webhooks."""
    content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
    return hmac.compare_digest(headers["webhook-signature"], f"v1,{expected}")


def test_a_webhook_arrives_with_a_signature_over_time_and_body(queue: Webhooks, receiver: HttpEndpoint) -> None:
    assert queue.post(f"{receiver.url}/hooks?tenant=7", {"order": 17, "name": "für Ada"}) == "completed"
    (request,) = receiver.requests
    assert (request.method, request.path) == ("POST", "/hooks?tenant=7")
    assert json.loads(request.body) == {"order": 17, "name": "für Ada"}
    assert request.headers["content-type"] == "application/json"
    assert verify(request.headers, request.body, SECRET.encode())
    assert not verify(request.headers, request.body + b" ", SECRET.encode())
    assert not verify(request.headers | {"webhook-timestamp": "1"}, request.body, SECRET.encode())
    assert abs(int(request.headers["webhook-timestamp"]) - time.time()) < 60


def test_a_secret_may_be_base64(queue: Webhooks, receiver: HttpEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBHOOK_SECRET", "whsec_" + base64.b64encode(b"\x00binary\xff").decode())
    assert queue.post(receiver.url) == "completed"
    assert verify(receiver.requests[0].headers, receiver.requests[0].body, b"\x00binary\xff")


def test_every_attempt_has_the_same_id_and_its_own_time(queue: Webhooks, receiver: HttpEndpoint) -> None:
    receiver.status = 503
    assert queue.post(receiver.url) == "retried"
    queue.bench.clock.advance(60)
    receiver.status = 204
    assert queue.run() == "completed"
    first, second = receiver.requests
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert all(verify(request.headers, request.body, SECRET.encode()) for request in receiver.requests)


@pytest.mark.parametrize("status", [400, 401, 404, 410, 422, 301, 302, 307])
def test_a_refusal_is_dead_at_once_and_a_redirect_is_not_followed(
    queue: Webhooks, receiver: HttpEndpoint, status: int
) -> None:
    receiver.status = status
    receiver.headers = {"Location": f"{receiver.url}/elsewhere"} if status < 400 else {}
    assert queue.post(receiver.url) == "dead"
    assert f"answered {status}" in queue.told()
    assert [request.path for request in receiver.requests] == ["/"]


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_trouble_at_the_receiver_is_retried(queue: Webhooks, receiver: HttpEndpoint, status: int) -> None:
    receiver.status = status
    assert queue.post(receiver.url) == "retried"
    assert f"answered {status}" in queue.told()


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("120", 120),
        ("0", 0),
        ("999999999", webhooks.LONGEST_RETRY_AFTER),
    ],
)
def test_a_receiver_says_how_long_to_wait(queue: Webhooks, receiver: HttpEndpoint, said: str, seconds: float) -> None:
    receiver.status, receiver.headers = 429, {"Retry-After": said}
    assert queue.post(receiver.url) == "retried"
    assert queue.waits_seconds() == pytest.approx(seconds, abs=1)


def test_a_receiver_may_name_an_instant_to_wait_for(queue: Webhooks, receiver: HttpEndpoint) -> None:
    said = format_datetime(datetime.now(UTC) + timedelta(minutes=30), usegmt=True)
    receiver.status, receiver.headers = 429, {"Retry-After": said}
    assert queue.post(receiver.url) == "retried"
    assert queue.waits_seconds() == pytest.approx(1800, abs=60)


@pytest.mark.parametrize("said", ["soon", "-5", "nan", "Wed, 21 Oct 2015 07:28:00 GMT", ""])
def test_a_wait_that_makes_no_sense_is_the_queues_own(queue: Webhooks, receiver: HttpEndpoint, said: str) -> None:
    receiver.status, receiver.headers = 429, {"Retry-After": said}
    assert queue.post(receiver.url) == "retried"
    assert 0 <= queue.waits_seconds() <= 2


def test_silence_is_retried(queue: Webhooks, receiver: HttpEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "STEP_SECONDS", 0.2)
    receiver.silence = 1.0
    assert queue.post(receiver.url) == "retried"
    assert "TimeoutError" in queue.told()


def test_an_answer_that_never_ends_is_cut_off(
    queue: Webhooks, receiver: HttpEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "ANSWER_SECONDS", 0.5)
    receiver.drip = 0.05
    start = time.monotonic()
    assert queue.post(receiver.url) == "retried"
    assert time.monotonic() - start < 5


def test_nobody_there_is_retried(queue: Webhooks, receiver: HttpEndpoint) -> None:
    with HttpEndpoint.serve() as gone:
        pass
    assert queue.post(gone.url) == "retried"
    assert "ConnectionRefusedError" in queue.told()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]"])
def test_local_addresses_are_not_called_unless_allowed(
    queue: Webhooks, receiver: HttpEndpoint, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.delenv("WEBHOOK_ALLOW_LOCAL")
    port = receiver.url.rpartition(":")[2]
    assert queue.post(f"http://{host}:{port}/2018-06-01/runtime/init/error") == "dead"
    assert "only public addresses" in queue.told()
    assert receiver.requests == []


@pytest.mark.parametrize("url", ["ftp://example.com/x", "file:///etc/passwd", "gopher://x", "/path", "http://", ""])
def test_only_http_is_spoken(queue: Webhooks, receiver: HttpEndpoint, url: str) -> None:
    assert queue.post(url) == "dead"
    assert "cannot be parsed" in queue.told()


def test_nothing_is_sent_unsigned(queue: Webhooks, receiver: HttpEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    for secret in ("", "whsec_not base64!"):
        monkeypatch.setenv("WEBHOOK_SECRET", secret)
        assert queue.post(receiver.url) == "retried"
        assert "WEBHOOK_SECRET" in queue.told()
        assert "not base64!" not in queue.told()
    assert receiver.requests == []
