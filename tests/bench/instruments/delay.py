"""A TCP proxy that makes an S3 server as far away as told, and counts the requests that pass; a process of its own.

    python delay.py PORT SECONDS

It listens on the port that it prints first. For every line on its standard input it prints what passed since the last
one, as JSON: requests by kind, and its own CPU seconds (a proxy that is busy all the time would measure itself).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
_VERBS = (b"PUT ", b"GET ", b"HEAD ", b"DELETE ", b"POST ")


@dataclass(frozen=True, slots=True)
class Passed:
    """What a proxy saw in a while."""

    requests: Counter[str]
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Proxy:
    """The parent's side."""

    port: int
    _process: subprocess.Popen[str]

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    def take(self) -> Passed:
        """What passed since the last `take`; the count starts again."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found = json.loads(self._process.stdout.readline())
        return Passed(Counter(found["requests"]), found["cpu_seconds"])


@contextlib.contextmanager
def proxy(endpoint: str, *, seconds: float) -> Iterator[Proxy]:
    """Put a server further away: every request reaches it that much later."""
    port = endpoint.rpartition(":")[2]
    # It ends when its standard input does, so it cannot outlive this process.
    with subprocess.Popen(
        [sys.executable, str(Path(__file__)), port, str(seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Proxy(int(process.stdout.readline()), process)
        process.stdin.close()


class _Server(asyncio.Protocol):
    """The connection to the server; it hands back what it hears at once."""

    def __init__(self, client: asyncio.Transport) -> None:
        self.client = client

    def data_received(self, data: bytes) -> None:
        self.client.write(data)

    def connection_lost(self, _error: Exception | None) -> None:
        self.client.close()


class _Client(asyncio.Protocol):
    """A client's connection; what it says is counted, and passed on late."""

    def __init__(self, port: int, seconds: float, requests: Counter[str]) -> None:
        self.port, self.seconds, self.requests = port, seconds, requests
        self.server: asyncio.Transport | None = None
        self.early: list[bytes] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.loop = asyncio.get_running_loop()
        self.connecting = self.loop.create_task(self._connect())

    async def _connect(self) -> None:
        server, _ = await self.loop.create_connection(lambda: _Server(self.transport), HOST, self.port)
        server.writelines(self.early)
        self.server = server

    def data_received(self, data: bytes) -> None:
        # Clients wait for an answer before they speak again, so a request starts where a chunk does.
        if data.startswith(_VERBS):
            verb, _, target = data[:2048].split(b"\r\n", 1)[0].partition(b" ")
            is_list = verb == b"GET" and b"list-type=2" in target
            is_delete = verb == b"POST" and b"?delete" in target
            self.requests["list" if is_list else "delete" if is_delete else verb.decode().lower()] += 1
        if self.seconds:
            self.loop.call_later(self.seconds, self._pass_on, data)
        else:
            self._pass_on(data)

    def _pass_on(self, data: bytes) -> None:
        if self.server is None:
            self.early.append(data)
        else:
            self.server.write(data)

    def connection_lost(self, _error: Exception | None) -> None:
        self.connecting.cancel()
        if self.server is not None:
            self.server.close()


async def _serve(port: int, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    requests: Counter[str] = Counter()
    server = await loop.create_server(lambda: _Client(port, seconds, requests), HOST, 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    ended = loop.create_future()
    cpu = time.process_time()

    def answer() -> None:
        nonlocal cpu
        if not sys.stdin.readline():
            ended.set_result(None)
            return
        now = time.process_time()
        print(json.dumps({"requests": requests, "cpu_seconds": now - cpu}), flush=True)
        requests.clear()
        cpu = now

    loop.add_reader(sys.stdin.fileno(), answer)
    await ended
    loop.remove_reader(sys.stdin.fileno())


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(int(sys.argv[1]), float(sys.argv[2])))
