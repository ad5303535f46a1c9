"""The local server: for the operator who started it, and for nobody else on this machine or on the web."""

from __future__ import annotations

import http.client
import json
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from s3queue.dashboard.api import build
from s3queue.dashboard.server import KEY_HEADER, Server, serve
from s3queue.store import Page
from support.api_calls import serving
from support.workbench import Workbench


class Slow:
    """A store whose LISTs wait for each other: only requests that are served side by side get through."""

    def __init__(self, inner: Any, parties: int) -> None:
        self._inner = inner
        self._barrier = threading.Barrier(parties)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def list(self, prefix: str, **options: Any) -> Page:
        if prefix.endswith("/") and prefix.count("/") == 1 and options.get("limit") == 1:
            self._barrier.wait(timeout=10)
        return self._inner.list(prefix, **options)


@pytest.fixture
def server() -> Iterator[Server]:
    bench = Workbench()
    bench.queue().enqueue("x")
    with serving(Server(build(bench.memory))) as server:
        yield server


def ask(server: Server, path: str, method: str = "GET", **headers: str) -> tuple[int, Any, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    given = {"host": f"127.0.0.1:{server.server_port}", KEY_HEADER: server.key}
    given |= {name.replace("_", "-"): text for name, text in headers.items()}
    connection.request(method, path, headers={name: text for name, text in given.items() if text})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body, answer.headers


def test_it_listens_on_this_machine_only(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"


def test_a_name_that_resolves_here_is_not_this_host(server: Server) -> None:
    assert ask(server, "/", host="evil.example")[0] == 421
    assert ask(server, "/", host=f"localhost:{server.server_port}")[0] == 200


KEYLESS = {KEY_HEADER.replace("-", "_"): ""}


def test_without_the_key_nothing_is_shown(server: Server) -> None:
    for path in ("/api/queues", f"/api/queues?key={server.key}", "/openapi.json", "/nothing"):
        status, body, _ = ask(server, path, **KEYLESS)
        assert status == 401, path
        assert "printed" in json.loads(body)["way_out"]
    for method in ("POST", "DELETE", "PUT", "OPTIONS"):
        assert ask(server, "/", method, **KEYLESS)[0] == 401


def test_the_pages_own_files_need_no_key_and_hold_none(server: Server) -> None:
    for path in ("/", "/app.js", "/api.js", "/style.css", "/mark.svg"):
        status, body, _ = ask(server, path, **KEYLESS)
        assert status == 200, path
        assert server.key.encode() not in body
    for path in ("/../server.py", "/static/app.js", "/%2e%2e/server.py", "/__init__.py"):
        assert ask(server, path, **KEYLESS)[0] == 401, path


def test_the_key_is_where_no_other_port_gets_it(server: Server) -> None:
    """Cookies know no ports: whatever else runs on this machine was sent the key by the operator's browser."""
    address, _, fragment = server.url.partition("#")
    assert fragment == f"key={server.key}"
    assert server.key not in address
    for path in ("/", f"/?key={server.key}", "/api/queues"):
        _, _, headers = ask(server, path)
        assert "set-cookie" not in headers
    cookie = f"s3queue-{server.server_port}={server.key}"
    assert ask(server, "/api/queues", cookie=cookie, **KEYLESS)[0] == 401
    assert ask(server, f"/api/queues?key={server.key}", **KEYLESS)[0] == 401


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("POST /api/queues HTTP/1.1\r\nHost: evil.example\r\nContent-Length: {length}", 421),
        ("POST /api/queues HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}", 401),
        ("POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}", 401),
        ("POST /api/queues HTTP/1.1\r\nHost: {host}\r\n{key}\r\nTransfer-Encoding: chunked", 411),
        ("POST /api/queues HTTP/1.1\r\nHost: {host}\r\n{key}\r\nContent-Length: \xb2", 411),
        ("POST /api/queues HTTP/1.1\r\nHost: {host}\r\n{key}\r\nContent-Length: 0\r\nContent-Length: 5", 411),
        ("POST /api/queues HTTP/1.1\r\nHost: {host}\r\n{key}\r\nContent-Length: 99999999", 413),
    ],
)
def test_a_body_that_was_not_read_is_not_the_next_request(server: Server, head: str, status: int) -> None:
    host = f"127.0.0.1:{server.server_port}"
    key = f"{KEY_HEADER}: {server.key}"
    hidden = f"GET /api/queues HTTP/1.1\r\nHost: {host}\r\n{key}\r\n\r\n"
    request = head.format(host=host, key=key, length=len(hidden)) + "\r\n\r\n" + hidden
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as raw:
        raw.sendall(request.encode("latin-1"))
        said = b""
        while read := raw.recv(65536):
            said += read
    assert said.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"connection: close" in said.lower()
    assert said.count(b"HTTP/1.1 ") == 1
    assert b'"queues"' not in said


@pytest.fixture
def reader() -> Iterator[Server]:
    bench = Workbench()
    bench.queue().enqueue("secret words")
    with serving(Server(build(bench.memory, role="reader"))) as server:
        yield server


def test_a_reader_looks_and_changes_nothing(reader: Server) -> None:
    status, body, headers = ask(reader, "/api/queues")
    assert (status, headers["x-s3queue-role"]) == (200, "reader")
    assert json.loads(body)["queues"][0]["stats"]["pending"] == 1
    for method, rest in (
        ("POST", "/pause"),
        ("POST", "/resume"),
        ("POST", "/messages"),
        ("POST", "/dead/replay"),
        ("DELETE", "/dead?path=messages/xx"),
    ):
        status, body, _ = ask(reader, f"/api/queues/orders{rest}", method, x_s3queue="1")
        assert (status, json.loads(body)["error"]) == (403, "ReadOnly"), rest
    assert json.loads(ask(reader, "/api/queues")[1])["queues"][0]["paused"] is False


def test_a_reader_sees_no_payload(reader: Server) -> None:
    listed = json.loads(ask(reader, "/api/queues/orders/messages")[1])["messages"]
    at = f"/api/queues/orders/message?path={listed[0]['path']}"
    status, body, _ = ask(reader, at)
    assert (status, json.loads(body)["state"]) == (200, "pending")
    for truth in ("1", "true", "yes", "on"):
        status, body, _ = ask(reader, f"{at}&body={truth}")
        assert (status, json.loads(body)["error"]) == (403, "ReadOnly"), truth
        assert b"secret words" not in body


def test_a_body_that_is_too_large_is_not_read(server: Server) -> None:
    headers = {"content_length": "99999999", "x_s3queue": "1"}
    assert ask(server, "/api/queues/orders/messages", "POST", **headers)[0] == 413


def test_garbage_does_not_end_it(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=5) as raw:
        raw.sendall(b"\x16\x03\x01 garbage\r\n\r\n")
        raw.recv(1000)
    assert ask(server, "/api/queues")[0] == 200


def test_a_head_is_a_get_without_the_body(server: Server) -> None:
    status, body, headers = ask(server, "/api/queues", "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) > 100


def test_requests_are_served_side_by_side_and_never_mixed_up() -> None:
    bench = Workbench()
    for number in range(8):
        bench.queue(f"queue-{number}").enqueue("x")
    seen: dict[int, str] = {}
    with serving(Server(build(Slow(bench.memory, 8)))) as server:

        def look(number: int) -> None:
            seen[number] = json.loads(ask(server, f"/api/queues/queue-{number}")[1]).get("name", "")

        threads = [threading.Thread(target=look, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert seen == {number: f"queue-{number}" for number in range(8)}


def test_it_serves_the_bucket_that_a_url_names() -> None:
    with serving(serve("memory://served", port=0)) as server:
        assert json.loads(ask(server, "/api/queues")[1])["bucket"] == "memory://served"


def test_a_silent_client_is_left_after_a_while(server: Server) -> None:
    started = time.monotonic()
    with socket.create_connection(("127.0.0.1", server.server_port)):
        assert ask(server, "/api/queues")[0] == 200
    assert time.monotonic() - started < 10


def test_the_key_is_on_no_command_line(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A browser is started with the address as an argument, which every user of this machine can read."""
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    with Server(build(bench.memory)) as server:
        server.open_browser()
        (address,) = opened
        assert server.key not in address
        door = Path(address.removeprefix("file://"))
        assert stat.S_IMODE(door.stat().st_mode) == 0o600
        assert server.url in door.read_text()
    assert not door.exists()
