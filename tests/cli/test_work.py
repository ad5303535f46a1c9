"""Those who work: the pull worker, a sweep by hand, workers, runs, locks."""

from __future__ import annotations

import json
import logging
import socket
from datetime import timedelta

import pytest

from s3queue.protocol.liveness import HeartbeatWriter
from s3queue.protocol.locks import Lock

MODULE = """
from s3queue import define

queue = define("orders", max_attempts=2)


@queue.handler
def handle(body: dict) -> str:
    if body.get("bad"):
        raise ValueError("bad order")
    return "done"
"""


@pytest.fixture
def module(tmp_path):
    file = tmp_path / "orders_module.py"
    file.write_text(MODULE)
    return str(file)


def test_what_a_handler_logs_cannot_steer_the_terminal(cli, tmp_path):
    file = tmp_path / "hostile_module.py"
    file.write_text(
        MODULE.replace('return "done"', 'import logging; logging.getLogger("orders").warning("%s", body["n"])')
    )
    cli("send", "orders", json.dumps({"n": "\x1b]0;owned\x07\x9b2J\nforged"}))
    logger = logging.getLogger()
    before, logger.handlers = logger.handlers, []
    try:
        ran = cli("work", str(file), "--until-empty", "--no-sweep", "--poll-interval", "10ms")
    finally:
        logger.handlers = before
    assert "\\x1b]0;owned\\x07\\x9b2J\\nforged" in ran.err
    assert not {"\x1b", "\x07", "\x9b"} & set(ran.err + ran.out)


def test_work_runs_the_handler_of_a_module(cli, module):
    good = cli("send", "orders", '{"n": 1}').out.strip()
    bad = cli("send", "orders", '{"bad": true}').out.strip()

    ran = cli("work", module, "--until-empty", "--no-sweep", "--poll-interval", "10ms", "--json")

    assert ran.json["succeeded"] == 1
    assert ran.json["retried"] >= 1
    assert cli.queue().status(good).state == "completed"
    assert cli.queue().status(bad).state in ("waiting", "dead")
    assert f"retry     {bad}, attempt 1: ValueError: bad order" in ran.err


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("x = 1", "defines no queue; add `queue = define('broken')`"),
        ("from s3queue import define\na = define('a')\nb = define('b')", ":a"),
        ("from s3queue import define\nqueue = define('orders')", "has no handler"),
        ("1 / 0", "cannot be imported: ZeroDivisionError"),
        ("import no_such_module_at_all", "needs the module 'no_such_module_at_all'"),
        ("from s3queue import define\nqueue = define('orders', speed=3)", "unknown setting 'speed'"),
    ],
)
def test_a_module_that_cannot_work_says_why_in_one_line(cli, tmp_path, source, said):
    file = tmp_path / "broken.py"
    file.write_text(source)
    err = cli("work", str(file), code=2).err
    assert said in err
    assert len(err.splitlines()) == 1


def test_a_module_for_another_queue_than_the_url_s_is_a_mistake(cli, module):
    assert "defines orders" in cli("work", module, code=2, url=f"{cli.url}/emails").err


def test_a_sweep_must_know_the_attempts(cli, module):
    cli("send", "orders", "x")
    cli("sweep", "orders", code=2)
    assert cli("sweep", "orders", "--defaults", "--json").json["complete"] is True
    assert cli("sweep", "orders", "--module", module, "--json").json["function"] is None
    cli("configure", "orders", "max_attempts=4")
    swept = cli("sweep", "orders")
    assert "left to pull workers" in swept.out
    assert cli("stats", "orders", "--json").json["swept_at"]


def test_a_sweep_finds_the_definition_in_the_project_s_queues(cli):
    cli("send", "emails", "x")
    assert cli("sweep", "emails", "--json").json["complete"] is True


@pytest.mark.parametrize("pause", [None, "paused=no"])
def test_a_sweep_by_hand_leaves_reminders_to_pull_workers(cli, pause):
    if pause:  # as `resume` writes it if the definition says that the queue is paused
        cli("create", "orders", pause)
    from s3queue.clock import SystemClock

    queue = cli.queue()
    queue.enqueue(b"x")
    (claim,) = queue.claim_next()
    queue.fail(claim, ValueError("again"), retry_after=0)
    SystemClock().sleep(1.5)  # the reminder is due
    cli("sweep", "orders", "--defaults")
    assert len(cli.stored_keys("orders/retries/")) == 1


def test_a_sweep_fails_what_an_owner_forgot(cli):
    from s3queue.clock import SystemClock

    queue = cli.queue()
    path = queue.enqueue(b"x")
    queue.claim(path, timeout=0.1)
    cli("configure", "orders", "visibility_timeout=0.1s")
    SystemClock().sleep(4)
    assert cli("sweep", "orders", "--defaults", "--json").json["endings"] == {"retried": 1}
    assert queue.status(path).state == "waiting"


def test_workers_are_listed_with_what_they_hold(cli):
    cli("create", "orders")
    assert "no pull worker" in cli("workers", "orders").err
    queue = cli.queue(worker_id="worker-7")
    queue.enqueue(b"x")
    (claim,) = queue.claim_next()
    heartbeat = HeartbeatWriter(queue, timedelta(seconds=30))
    heartbeat.hold(claim)
    heartbeat.beat({"succeeded": 3})

    (worker,) = cli("workers", "orders", "--json").json

    assert (worker["id"], worker["is_fresh"], worker["holds"]) == ("worker-7", True, [claim.path])
    assert worker["stats"] == {"succeeded": 3}
    assert "fresh" in cli("workers", "orders").out


def test_runs_are_listed_whatever_they_hold(cli):
    cli("create", "exports")
    assert cli("runs", "exports", "--json").json == []
    store = cli.queue().store
    store.put("exports/runs/slot-0", json.dumps({"v": 1, "run": "r1", "state": "running"}).encode())
    store.put("exports/runs/r1.json", json.dumps({"v": 1, "run": "r1", "paths": ["messages/a", "messages/b"]}).encode())
    store.put("exports/runs/odd", b"\x00not json")

    found = {one["name"]: one for one in cli("runs", "exports", "--json").json}

    assert found["slot-0"]["kind"] == "slot"
    assert found["r1.json"]["document"]["paths"] == ["messages/a", "messages/b"]
    assert found["odd"]["document"] is None
    shown = cli("runs", "exports").out
    assert "running" in shown


def test_locks_are_listed_explained_and_broken(cli):
    cli("create", "orders")
    queue = cli.queue()
    assert cli("locks", "list", "orders", "--json").json == []
    assert "free: it was never used" in cli("locks", "why", "orders", "report").out
    lock = Lock(queue.store, queue.keys.lock("report"), ttl=60, owner="me")
    assert lock.acquire()

    (listed,) = cli("locks", "list", "orders", "--json").json
    assert (listed["name"], listed["state"], listed["owner"], listed["ttl_seconds"]) == ("report", "held", "me", 60)
    assert "held by me" in cli("locks", "why", "orders", "report").out
    assert cli("locks", "why", "orders", "report", "--json").json["token"] == lock.token
    assert "me" in cli("locks", "list", "orders").out

    assert "--yes" in cli("locks", "break", "orders", "report", code=2).err
    assert cli("locks", "break", "orders", "report", "--yes", "--json").json["broken"] is True
    assert cli("locks", "break", "orders", "report", "--yes", "--json", code=1).json["broken"] is False
    assert "released" in cli("locks", "why", "orders", "report").out
    assert lock.acquire()


def test_metrics_are_served_while_the_worker_runs(cli, tmp_path):
    """The handler itself reads them, while it runs."""
    file = tmp_path / "scraping_module.py"
    file.write_text(
        MODULE.replace(
            'return "done"', 'import urllib.request; return urllib.request.urlopen(body["url"]).read().decode()'
        )
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/metrics"
    path = cli("send", "orders", json.dumps({"url": url})).out.strip()

    ran = cli("work", str(file), "--until-empty", "--no-sweep", "--poll-interval", "10ms", "--metrics-port", str(port))

    assert f"metrics at {url}" in ran.err
    assert 's3queue_in_progress{queue="orders"} 1\n' in cli.queue().status(path).record.result
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_a_metrics_port_that_is_taken_is_a_clear_error_before_anything_runs(cli, module):
    path = cli("send", "orders", '{"n": 1}').out.strip()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        err = cli("work", module, "--until-empty", "--metrics-port", str(port), code=2).err

    assert f"metrics cannot be served on 127.0.0.1, port {port}" in err
    assert cli.queue().status(path).state == "pending"


def test_metrics_options_that_do_not_fit_are_refused(cli, module):
    assert "--metrics-host needs a --metrics-port" in cli("work", module, "--metrics-host", "::1", code=2).err
    many = ("--processes", "3", "--metrics-port", "65534")
    assert "the last port is 65535" in cli("work", module, *many, code=2, url="s3://bucket").err
