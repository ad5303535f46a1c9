"""A receiver of webhooks that a test can make slow or unwell, and that counts how many deliveries it has at a time."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class WebhookReceiver:
    """`/ok` accepts after `pause` seconds; `/hang` never answers a first delivery. A payload is the delivery's name."""

    def __init__(self) -> None:
        self.url = ""
        self.pause = 0.0
        self.deliveries: dict[str, int] = defaultdict(int)
        self.most_at_once = 0
        self._at_once = 0
        self._mutex = threading.Lock()
        self._closing = threading.Event()

    @contextmanager
    def listening(self) -> Iterator[WebhookReceiver]:
        endpoint = self

        class Request(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                name = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                # Whoever was killed hangs up.
                with suppress(OSError):
                    endpoint._take(self.path, name)
                    self.send_response(204)
                    self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Nothing: pytest's output is for tests."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Request)
        server.daemon_threads, server.block_on_close = True, False
        self.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield self
        finally:
            self._closing.set()
            server.shutdown()
            server.server_close()

    def _take(self, path: str, name: str) -> None:
        with self._mutex:
            self.deliveries[name] += 1
            is_first = self.deliveries[name] == 1
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            if path == "/hang" and is_first:
                self._closing.wait(60)
            time.sleep(self.pause)
        finally:
            with self._mutex:
                self._at_once -= 1
