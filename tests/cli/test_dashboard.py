"""`s3queue dashboard`: the page and the API on this machine."""

from __future__ import annotations

import json
import threading
import urllib.request
from typing import Any

import pytest

from s3queue.dashboard.server import KEY_HEADER, Server


def test_it_prints_an_address_that_works(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("send", "orders", "hello")
    seen: list[Any] = []

    def serve_once(server: Server) -> None:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        request = urllib.request.Request(f"{server.address}/api/queues", headers={KEY_HEADER: server.key})
        with urllib.request.urlopen(request, timeout=10) as answer:
            seen.append(json.load(answer))
        thread.join()
        raise KeyboardInterrupt

    monkeypatch.setattr(Server, "serve_forever", serve_once)
    ran = cli("dashboard", "--no-open", "--port", "0", "--json")
    assert ran.json["url"].startswith("http://127.0.0.1:")
    assert [queue["name"] for queue in seen[0]["queues"]] == ["orders"]


def test_read_only_refuses_changes(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("send", "orders", "hello")
    roles: list[str] = []
    monkeypatch.setattr(Server, "serve_forever", lambda server: roles.append(server.app.role))
    assert cli("dashboard", "--no-open", "--port", "0", "--json").json["role"] == "operator"
    assert cli("dashboard", "--no-open", "--port", "0", "--read-only", "--json").json["role"] == "reader"
    assert roles == ["operator", "reader"]


def test_a_port_that_is_taken_is_said(cli: Any) -> None:
    with Server(cli.queue().store) as taken:
        ran = cli("dashboard", "--no-open", "--port", str(taken.server_port), code=2)
    assert "choose another with --port" in ran.err
