"""Metrics: what pull workers count, for Prometheus to scrape: `s3queue work --metrics-port 9100`.

No request to S3 is made for it: these are the worker's own counts, and what its own sweeper has counted last.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from types import TracebackType

from s3queue.errors import InvalidRequest
from s3queue.protocol.stats import Stats

from .pull_worker import Worker
from .statistics import BOUNDS

_log = logging.getLogger(__name__)
HOST = "127.0.0.1"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: Seconds that a client may take for its request.
PATIENCE = 10.0
#: A name of `Worker.stats` → what it says.
_COUNTED = {
    "processed": "Attempts that ended: succeeded and failed.",
    "succeeded": "Messages that were completed.",
    "failed": "Attempts that failed: retried and dead.",
    "retried": "Attempts that failed, whose message is tried again.",
    "dead": "Messages that died.",
    "cancelled": "Messages that an operator cancelled while they ran.",
    "released": "Messages that were given back or postponed, without using an attempt.",
    "lost": "Attempts whose outcome is another worker's, or unknown.",
}
#: Of the worker's own sweeper: a name → what it says.
_SWEPT = {
    "pending": "Messages that may run, as this worker's sweeper counted them last.",
    "delayed": "Messages that are not due yet, as this worker's sweeper counted them last.",
    "waiting": "Messages that wait for their next attempt, as this worker's sweeper counted them last.",
    "oldest_seconds": "Age of the oldest message that may run, at the last count; 0 without one.",
    "counted_timestamp_seconds": "When that was, by S3's clock.",
}


def exposition(workers: Sequence[Worker]) -> str:
    """All metrics of these workers in Prometheus' text format. Each has the label `queue`."""
    lines: list[str] = []
    # The name of a queue needs no escapes: it has letters, digits, - and _ only.
    stats = [(f'{{queue="{worker.queue.name}"}}', worker.stats()) for worker in workers]
    for name, text in _COUNTED.items():
        lines += _family(f"s3queue_{name}_total", "counter", text, ((label, counts[name]) for label, counts in stats))
    running = ((label, counts["running"]) for label, counts in stats)
    lines += _family("s3queue_in_progress", "gauge", "Messages that this worker holds now.", running)
    lines += _family("s3queue_handler_seconds", "histogram", "How long calls of the handler took.", ())
    for worker in workers:
        lines += _histogram(worker)
    swept = [(f'{{queue="{one.queue.name}"}}', _swept(one.statistics.counted)) for one in workers]
    for name, text in _SWEPT.items():
        known = [(label, counts[name]) for label, counts in swept if counts]
        lines += _family(f"s3queue_{name}", "gauge", text, known) if known else ()
    return "\n".join(lines) + "\n"


def _family(name: str, kind: str, text: str, values: Iterable[tuple[str, float]]) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    for label, value in values:
        yield f"{name}{label} {value}"


def _histogram(worker: Worker) -> Iterator[str]:
    counts, seconds = worker.statistics.handler_times.read()
    queue, name = f'queue="{worker.queue.name}"', "s3queue_handler_seconds"
    for bound, count in zip((*map(str, BOUNDS), "+Inf"), counts, strict=True):
        yield f'{name}_bucket{{{queue},le="{bound}"}} {count}'
    yield f"{name}_sum{{{queue}}} {seconds}"
    yield f"{name}_count{{{queue}}} {counts[-1]}"


def _swept(stats: Stats | None) -> dict[str, float]:
    if stats is None:
        return {}
    return {
        "pending": stats.pending,
        "delayed": stats.delayed,
        "waiting": stats.failed,
        "oldest_seconds": stats.oldest_seconds or 0,
        "counted_timestamp_seconds": stats.at.timestamp(),
    }


class MetricsServer:
    """Answers `GET /metrics` for workers of this process, in threads of its own, from `start` until `close`.

    Whoever reaches the port learns the names of the queues and how many messages they have, and nothing else; it takes
    no key, so listen on other addresses than this machine's own only in a network of your own.
    """

    def __init__(self, workers: Sequence[Worker], *, port: int, host: str = HOST) -> None:
        """Port 0 is one that is free; `port` says which.

        Raises:
            InvalidRequest: nothing can listen there: the port is taken, or the host is not this machine's.
        """
        try:
            self._server = _Server(host, port)
        except (OSError, OverflowError) as error:
            raise InvalidRequest(f"metrics cannot be served on {host}, port {port}: {error}; choose another") from None
        self._server.workers = tuple(workers)
        self.host, self.port = host, int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="s3queue-metrics", daemon=True)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/metrics"

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> MetricsServer:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class _Server(ThreadingTCPServer):
    # Not http.server's: that asks the name server for this machine's name, which may take long.
    allow_reuse_address = True
    daemon_threads = True
    # A client that is slow must not keep the worker from ending.
    block_on_close = False
    workers: Sequence[Worker] = ()

    def __init__(self, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Answer)

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), OSError):  # a client that went away in between is nobody's concern
            _log.exception("unexpected error while answering a scrape, continuing")


class _Answer(BaseHTTPRequestHandler):
    timeout = PATIENCE
    server: _Server
    server_version = "s3queue"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        is_known = self.path.partition("?")[0] == "/metrics"
        body = exposition(self.server.workers).encode() if is_known else b"the metrics are at /metrics\n"
        self.send_response(200 if is_known else 404)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """A scrape every few seconds is nothing to log."""
