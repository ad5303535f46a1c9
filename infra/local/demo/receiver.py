"""Receiver: an HTTP endpoint that takes webhooks as a cautious and not quite reliable company would."""

from __future__ import annotations

import base64
import hmac
import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: A signature older than this may be a replay.
SIGNATURE_SECONDS = 300
#: Longer than any patience: whoever waits for the slow answer is meant to be gone by then.
SLOW_SECONDS = 30.0


class Receiver:
    """What arrived, by the number of the order: every answer that it was given, in order."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()
        self._mutex = threading.Lock()
        self.answers: dict[int, list[int]] = defaultdict(list)
        self.forged = 0
        #: Set when someone waits for the slow answer.
        self.is_waited_for = threading.Event()
        self._closing = threading.Event()
        self.url = ""

    @contextmanager
    def listening(self) -> Iterator[Receiver]:
        """On a free port of 127.0.0.1, until the end of the block."""
        server = _Server(("127.0.0.1", 0), _Request)
        server.receiver = self
        self.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._closing.set()
            server.shutdown()
            server.server_close()
            thread.join()

    def answer(self, path: str, headers: Any, body: bytes) -> int:
        """The status for one delivery."""
        if not self._is_genuine(headers, body):
            with self._mutex:
                self.forged += 1
            return 401
        order = int(json.loads(body)["order"])
        with self._mutex:
            is_first = not self.answers[order]
            status = _mood(order) if is_first and path != "/slow" else 204
            self.answers[order].append(0 if is_first and path == "/slow" else status)
        if is_first and path == "/slow":
            self.is_waited_for.set()
            self._closing.wait(SLOW_SECONDS)
        return status

    def delivered(self) -> set[int]:
        """The orders that were accepted."""
        with self._mutex:
            return {order for order, answers in self.answers.items() if 204 in answers}

    def refused(self) -> int:
        """Deliveries that were asked to come again."""
        with self._mutex:
            return sum(status >= 400 for answers in self.answers.values() for status in answers)

    def _is_genuine(self, headers: Any, body: bytes) -> bool:
        # From the published form of Standard Webhooks, not from the code that signs.
        name, at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
        if not at.isdigit() or abs(time.time() - int(at)) > SIGNATURE_SECONDS:
            return False
        digest = hmac.digest(self._secret, f"{name}.{at}.".encode() + body, "sha256")
        wanted = f"v1,{base64.b64encode(digest).decode()}"
        return hmac.compare_digest(wanted, headers.get("webhook-signature", ""))


def _mood(order: int) -> int:
    """The answer to a first delivery: mostly fine, at times overloaded, once too busy."""
    if order == 7:
        return 429
    return 503 if order % 4 == 0 else 204


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # A burst of workers connects at once.
    request_queue_size = 64
    receiver: Receiver

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever was killed hangs up in the middle: nothing to report."""


class _Request(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status = self.server.receiver.answer(self.path, self.headers, body)
        self.send_response(status)
        if status == 429:
            self.send_header("Retry-After", "1")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Not to the terminal: a live table is there."""
