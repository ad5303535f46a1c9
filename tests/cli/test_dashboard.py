"""`s3queue dashboard`: the page and the API on this machine."""

from __future__ import annotations

import json
import threading
import urllib.request
from typing import Any

import pytest

from s3queue.dashboard.api import build
from s3queue.dashboard.server import KEY_HEADER, Server
from support.function_url import REGION, function_url


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


def test_its_address_is_not_broken_however_narrow_the_terminal_is(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    addresses: list[str] = []
    monkeypatch.setattr(Server, "serve_forever", lambda server: addresses.append(server.url))
    ran = cli("dashboard", "--no-open", "--port", "0", COLUMNS="40")
    assert f" at {addresses[0]}\n" in ran.out


def test_read_only_refuses_changes(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("send", "orders", "hello")
    roles: list[str] = []
    monkeypatch.setattr(Server, "serve_forever", lambda server: roles.append(server.app.role))
    assert cli("dashboard", "--no-open", "--port", "0", "--json").json["role"] == "operator"
    assert cli("dashboard", "--no-open", "--port", "0", "--read-only", "--json").json["role"] == "reader"
    assert roles == ["operator", "reader"]


def test_a_port_that_is_taken_is_said(cli: Any) -> None:
    with Server(build(cli.queue().store)) as taken:
        ran = cli("dashboard", "--no-open", "--port", str(taken.server_port), code=2)
    assert "choose another with --port" in ran.err


def test_a_deployed_api_is_shown_with_ones_own_signature(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("send", "orders", "hello")
    roles: list[str] = []
    monkeypatch.setattr(Server, "serve_forever", lambda server: roles.append(server.app.role))
    keys = {
        "AWS_ACCESS_KEY_ID": "AKIAME",
        "AWS_SECRET_ACCESS_KEY": "mine",
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": "",
    }
    with function_url(build(cli.queue().store), {"AKIAME": "mine"}) as deployed:
        asked = ("dashboard", "--api", deployed.url, "--no-open", "--port", "0", "--json")
        shown = cli(*asked, **keys).json
        assert (shown["api"], shown["role"], "bucket" in shown) == (deployed.url, "operator", False)
        assert cli(*asked, "--read-only", **keys).json["role"] == "reader"
        refused = cli(*asked, **keys | {"AWS_SECRET_ACCESS_KEY": "another"}, code=3)
        assert "OperatorPolicy" in refused.err
        assert "one of them" in cli(*asked, "--url", "s3://bucket", code=2).err
    assert "did not answer" in cli(*asked, **keys, code=3).err
    assert roles == ["operator", "reader"]
