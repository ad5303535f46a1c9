"""What `make up` keeps over a restart, and the events that its Lambda keeps while a function is at its limit."""

from __future__ import annotations

import contextvars
import io
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from infra.local.cdk import Cdk
from infra.local.home import Home
from infra.local.ministack.server import Server, kept_or_new, start
from infra.local.ministack.throttled_events import LONGEST_SECONDS, keep_throttled_events, patiently
from infra.local.processes import end_group
from infra.local.stack import LocalStack
from infra.local.steps import Steps


def test_a_throttled_event_waits_longer_and_longer_and_is_no_attempt() -> None:
    answers = [{"throttle": True, "error": True}] * 12 + [{"body": "done"}]
    waits: list[float] = []
    found = patiently(lambda: answers.pop(0), 6 * 3600, sleep=waits.append, chance=lambda: 1.0)
    assert found == {"body": "done"}
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, LONGEST_SECONDS, LONGEST_SECONDS, LONGEST_SECONDS]


def test_an_event_that_becomes_too_old_is_given_up() -> None:
    waits: list[float] = []
    found = patiently(lambda: {"throttle": True}, 10, sleep=waits.append, chance=lambda: 1.0)
    assert found == {"throttle": True}
    assert waits == [1, 2, 4]


def test_an_error_of_the_function_and_a_call_that_waits_are_not_repeated() -> None:
    assert patiently(lambda: {"error": True}, 3600, sleep=lambda _: pytest.fail("waits")) == {"error": True}
    assert patiently(lambda: {"throttle": True}, 0, sleep=lambda _: pytest.fail("waits")) == {"throttle": True}


def test_only_asynchronous_invocations_are_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """As MiniStack does it: the asynchronous one runs in a thread with a copy of the context."""
    monkeypatch.setattr("infra.local.ministack.throttled_events.FIRST_SECONDS", 0.001)
    results = [{"throttle": True}, {"throttle": True}, {"body": "done"}]
    seen: list[dict[str, Any]] = []
    module = SimpleNamespace(_execute_function=lambda function, event: results.pop(0))

    def begin(function: dict[str, Any], event: dict[str, Any]) -> None:
        context = contextvars.copy_context()
        work = threading.Thread(target=context.run, args=(lambda: seen.append(module._execute_function({}, {})),))
        work.start()
        work.join()

    module.invoke_async_with_retry = begin
    keep_throttled_events(module)
    module.invoke_async_with_retry({"event_invoke_config": {"MaximumEventAgeInSeconds": 60}}, {})
    assert seen == [{"body": "done"}]
    results += [{"throttle": True}]
    assert module._execute_function({}, {}) == {"throttle": True}


def test_a_restart_has_the_port_the_key_and_what_was_deployed(tmp_path: Path) -> None:
    home = Home(tmp_path)
    first = kept_or_new(home, auth=False, keep=True)
    home.keep(first, deployed="hash")
    again = kept_or_new(home, auth=False, keep=True)
    same = ("port", "endpoint", "key", "secret", "emr_port", "emr_token", "auth")
    assert [getattr(again, name) for name in same] == [getattr(first, name) for name in same]
    assert again.deployed == "", "nothing was saved of what was deployed: it is deployed again"
    (home.kept / "state").mkdir(parents=True)
    (home.kept / "state" / "cloudformation.json").write_text("{}")
    assert kept_or_new(home, auth=False, keep=True).deployed == "hash"
    assert kept_or_new(home, auth=False, keep=False).key != first.key, "tests and the demo are strangers to it"


def test_a_port_that_is_taken_meanwhile_is_replaced(tmp_path: Path) -> None:
    home = Home(tmp_path)
    first = kept_or_new(home, auth=False, keep=True)
    home.keep(first)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first.port))
        taken.listen()
        again = kept_or_new(home, auth=False, keep=True)
    assert again.port != first.port
    assert str(again.port) in again.endpoint
    assert again.key == first.key


def test_what_was_kept_without_iam_is_not_taken_with_it(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.keep(kept_or_new(home, auth=False, keep=True))
    (home.kept / "data").mkdir()
    again = kept_or_new(home, auth=True, keep=True)
    assert again.endpoint.startswith("https://")
    assert not (home.kept / "data").exists(), "its bucket has other policies"


def test_fresh_forgets_all_of_it_and_nobody_else_may_read_what_is_kept(tmp_path: Path) -> None:
    home = Home(tmp_path)
    first = kept_or_new(home, auth=False, keep=True)
    home.keep(first)
    assert (home.kept / "stack.json").stat().st_mode & 0o077 == 0
    home.start_fresh()
    assert not home.kept.exists()
    assert kept_or_new(home, auth=False, keep=True).secret != first.secret
    home.start_fresh()
    home.start_fresh()


@pytest.mark.slow
def test_a_real_one_finds_its_bucket_again_also_after_it_was_killed(tmp_path: Path) -> None:
    home, steps = Home(tmp_path), Steps(Console(file=io.StringIO()))

    def s3(server: Server) -> Any:
        return LocalStack(server, Cdk(home, steps)).client("s3")

    first = start(home, steps, keep=True)
    try:
        s3(first).create_bucket(Bucket="kept-bucket")
        s3(first).put_object(Bucket="kept-bucket", Key="orders/messages/a=b c", Body=b"body", Metadata={"trace": "7"})
        before = s3(first).head_object(Bucket="kept-bucket", Key="orders/messages/a=b c")
    finally:
        first.stop()
    second = start(home, steps, keep=True)
    try:
        assert (second.state.port, second.state.key) == (first.state.port, first.state.key)
        after = s3(second).head_object(Bucket="kept-bucket", Key="orders/messages/a=b c")
        same = ("ETag", "LastModified", "Metadata", "ContentLength")
        assert {name: after[name] for name in same} == {name: before[name] for name in same}
        s3(second).put_object(Bucket="kept-bucket", Key="late", Body=b"x")
        # As if its starter had been killed: nothing is asked of it, and its standard input ends.
        assert second._process
        assert second._process.stdin
        second._process.stdin.close()
        second._process.wait(30)
    finally:
        end_group(second.state.pid, grace=1)
        home.forget()
    third = start(home, steps, keep=True)
    try:
        listed = s3(third).list_objects_v2(Bucket="kept-bucket")["Contents"]
        assert [entry["Key"] for entry in listed] == ["late", "orders/messages/a=b c"]
    finally:
        third.stop()
