"""Tracing: one X-Ray subsegment per message, sent to the daemon that Lambda runs beside a function.

Written by hand, because it is one datagram of JSON. X-Ray's SDK imports botocore, patches it and starts a recorder: a
quarter of a worker's cold start, also for the many traces that are not sampled.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

HEADER = b'{"format": "json", "version": 1}\n'


class Tracer:
    """Sends subsegments of sampled invocations to X-Ray; never fails, never waits."""

    def __init__(self, daemon: str, namespace: str) -> None:
        host, _, port = daemon.rpartition(":")
        self._daemon = (host, int(port))
        self._namespace = namespace
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    @contextmanager
    def subsegment(self, name: str, *, queue: str, path: str) -> Iterator[None]:
        """A subsegment for one message. Traces can be searched by queue, not by path."""
        started_at = time.time()
        is_fault = True
        try:
            yield
            is_fault = False
        finally:
            trace = _trace()
            if trace.get("Sampled") == "1":
                self._send(
                    {
                        "type": "subsegment",
                        "id": secrets.token_hex(8),
                        "trace_id": trace.get("Root"),
                        "parent_id": trace.get("Parent"),
                        "name": name,
                        "start_time": started_at,
                        "end_time": time.time(),
                        "fault": is_fault,
                        "annotations": {"queue": queue},
                        "metadata": {self._namespace: {"path": path}},
                    }
                )

    def _send(self, document: dict[str, object]) -> None:
        # A lost trace must not fail a message.
        with suppress(OSError):
            self._socket.sendto(HEADER + json.dumps(document).encode(), self._daemon)


def _trace() -> dict[str, str]:
    """The trace of this invocation, which Lambda sets for each one: `Root=1-…;Parent=…;Sampled=1`."""
    parts = (part.partition("=") for part in os.environ.get("_X_AMZN_TRACE_ID", "").split(";"))
    return {name: value for name, _, value in parts}
