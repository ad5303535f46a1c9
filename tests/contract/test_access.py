"""Missing permissions, buckets and servers: the error says what is missing, and nobody spins."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from s3queue import (
    AccessDenied,
    NotFound,
    Queue,
    Unavailable,
    Worker,
    connect,
)
from support.s3_servers import s3_client
from support.workbench import Workbench


class _Refusing(BaseHTTPRequestHandler):
    """An S3 that refuses some requests with 403 and has no objects."""

    protocol_version = "HTTP/1.1"
    refused: ClassVar[set[str]]
    code: ClassVar[str]
    requests: ClassVar[list[str]]

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.requests.append(f"{self.command} {self.path}")
        verb = "LIST" if "list-type" in self.path else self.command
        if verb in self.refused:
            status, body = 403, f"<Error><Code>{self.code}</Code><Message>Access Denied</Message></Error>".encode()
        elif verb == "LIST":
            status, body = 200, b"<ListBucketResult></ListBucketResult>"
        elif verb in ("GET", "HEAD"):
            status, body = 404, b"<Error><Code>NoSuchKey</Code></Error>"
        else:
            status, body = 200, b""
        self.send_response(status)
        self.send_header("ETag", '"0"')
        self.send_header("Content-Length", "0" if self.command == "HEAD" else str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_HEAD = do_DELETE = _answer  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def refusing(*verbs: str, code: str = "AccessDenied") -> Iterator[tuple[Queue, list[str]]]:
    """A queue on a server that refuses these verbs, and the requests that it got."""
    handler = type("Refusing", (_Refusing,), {"refused": set(verbs), "code": code, "requests": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        client = s3_client(f"http://127.0.0.1:{server.server_port}")
        yield connect("s3://jobs/orders", client=client), handler.requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("verb", "call", "action", "permission", "resource"),
    [
        ("PUT", lambda queue: queue.enqueue(b"x", name="n"), "PUT", "s3:PutObject", "orders/messages/n"),
        ("PUT", lambda queue: queue.claim("messages/n"), "PUT", "s3:PutObject", "orders/leases/messages/n"),
        ("GET", lambda queue: queue.store.open("orders/messages/n"), "GET", "s3:GetObject", "orders/messages/n"),
        ("HEAD", lambda queue: queue.status("messages/n"), "HEAD", "s3:GetObject", "orders/messages/n"),
        ("DELETE", lambda queue: queue.claim("messages/n"), "DELETE", "s3:DeleteObject", "orders/leases/messages/n"),
        ("LIST", lambda queue: queue.stats(), "LIST", "s3:ListBucket", "jobs for the prefix 'orders/'"),
    ],
)
def test_access_denied_names_the_action_the_key_and_the_missing_permission(verb, call, action, permission, resource):
    with refusing(verb) as (queue, requests):
        with pytest.raises(AccessDenied) as denied:
            call(queue)
        text = str(denied.value)

    assert text.startswith(f"{action} s3://jobs/")
    assert permission in text
    assert resource in text
    # Refused is refused: it is not tried again.
    assert len([line for line in requests if line.startswith("GET" if verb == "LIST" else verb)]) <= 2


def test_a_403_for_reading_mentions_the_permission_that_tells_missing_from_forbidden():
    with refusing("GET") as (queue, _), pytest.raises(AccessDenied, match="s3:ListBucket"):
        queue.store.open("orders/messages/n")


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch"])
def test_bad_credentials_are_not_called_a_missing_permission(code):
    with refusing("PUT", code=code) as (queue, _), pytest.raises(AccessDenied) as denied:
        queue.enqueue(b"x")

    assert "log in again" in str(denied.value)
    assert "allow s3:" not in str(denied.value)


def test_a_worker_without_permission_says_so_and_does_not_spin(caplog):
    with refusing("LIST") as (queue, requests):
        worker = Worker(queue, lambda body: None, concurrency=2, poll_interval=0.5)
        began = time.monotonic()
        worker.start()
        threading.Event().wait(1.2)
        assert worker.stop(timeout=60)
        passed = time.monotonic() - began

    assert "s3:ListBucket" in caplog.text
    # Two threads that try every half second, and what a worker asks at its start.
    assert len(requests) <= 12 + 4 * passed


def test_a_missing_bucket_is_called_one(moto_endpoint):
    queue = connect("s3://no-such-bucket-here/orders", client=s3_client(moto_endpoint))

    for call in (
        lambda: queue.enqueue(b"x"),
        lambda: queue.claim("messages/x"),
        lambda: queue.claim_next(),
        lambda: queue.stats(),
        lambda: Workbench().sweeper(queue).sweep(),
    ):
        with pytest.raises(NotFound, match="no-such-bucket-here"):
            call()


def test_a_server_that_is_not_there_is_unavailable():
    client = s3_client("http://127.0.0.1:9", retries={"total_max_attempts": 1}, connect_timeout=1)

    with pytest.raises(Unavailable):
        connect("s3://jobs/orders", client=client).enqueue(b"x")
