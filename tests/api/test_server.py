"""The local server: for the operator who started it, and for nobody else on this machine or on the web."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from s3queue.dashboard.server import KEY_HEADER, Server, serve
from s3queue.store import Page
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
    with running(Server(bench.memory)) as server:
        yield server


class running:  # noqa: N801
    def __init__(self, server: Server) -> None:
        self.server = server
        self.thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def __enter__(self) -> Server:
        self.thread.start()
        return self.server

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


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


def test_without_the_key_nothing_is_shown(server: Server) -> None:
    for path in ("/", "/api/queues", "/?key=wrong", "/openapi.json"):
        status, body, _ = ask(server, path, **{KEY_HEADER.replace("-", "_"): ""})
        assert status == 401
        assert "printed" in json.loads(body)["way_out"]


def test_the_printed_address_lets_the_operator_in_and_hides_the_key(server: Server) -> None:
    without = {KEY_HEADER.replace("-", "_"): ""}
    status, _, headers = ask(server, server.url.removeprefix(server.address), **without)
    assert (status, headers["location"]) == (303, "/")
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert ask(server, "/api/queues", cookie=cookie.partition(";")[0], **without)[0] == 200


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
    with running(Server(Slow(bench.memory, 8))) as server:

        def look(number: int) -> None:
            seen[number] = json.loads(ask(server, f"/api/queues/queue-{number}")[1]).get("name", "")

        threads = [threading.Thread(target=look, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert seen == {number: f"queue-{number}" for number in range(8)}


def test_it_serves_the_bucket_that_a_url_names() -> None:
    with running(serve("memory://served", port=0)) as server:
        assert json.loads(ask(server, "/api/queues")[1])["bucket"] == "memory://served"


def test_a_silent_client_is_left_after_a_while(server: Server) -> None:
    started = time.monotonic()
    with socket.create_connection(("127.0.0.1", server.server_port)):
        assert ask(server, "/api/queues")[0] == 200
    assert time.monotonic() - started < 10
