"""Schedules over HTTP: listed, made, paused, resumed, removed; payloads for operators only."""

from __future__ import annotations

from s3queue.dashboard.api import build
from support.api_calls import Ask, asking
from support.workbench import Workbench

AT = "/api/queues/orders/schedules"


def test_a_schedule_is_made_listed_paused_resumed_and_removed(bench: Workbench, ask: Ask) -> None:
    bench.queue().pause()
    wanted = {"cron": "15 9 * * 1-5", "tz": "Europe/Berlin", "body": {"a": 1}, "missed": "all"}
    made = ask("PUT", f"{AT}/report", body=wanted)
    assert (made.status, made.body["source"], made.body["body"]) == (200, "runtime", '{"a":1}')
    assert len(made.body["next_at"]) == 5

    assert ask("GET", AT).body["schedules"] == [made.body]
    assert ask("POST", f"{AT}/report/pause").body["paused"] is True
    assert ask("GET", AT).body["schedules"][0]["next_at"] == []
    assert ask("POST", f"{AT}/report/resume").body["paused"] is False
    assert ask("DELETE", f"{AT}/report").body == {"name": "report"}
    assert bench.keys("orders/schedules/") == []


def test_mistakes_are_named(bench: Workbench, ask: Ask) -> None:
    bench.queue().pause()
    for body, says in (
        ({"cron": "0 0 31 2 *"}, "never due"),
        ({"cron": "15 9 * * 1-5", "tz": "Mars/Olympus"}, "time zone"),
        ({"cron": "15 9 * * 1-5", "missed": "some"}, "missed"),
        ({"cron": "15 9 * * 1-5", "often": True}, "often"),
        ({}, "cron"),
    ):
        refused = ask("PUT", f"{AT}/report", body=body)
        assert refused.status == 422
        assert says in refused.body["message"]
    for method, path in (("POST", "report/pause"), ("POST", "report/resume"), ("DELETE", "report")):
        refused = ask(method, f"{AT}/{path}")
        assert (refused.status, refused.body["error"]) == (404, "NotFound")
    assert ask("PUT", f"{AT}/Report", body={"cron": "15 9 * * 1-5"}).status == 422
    assert bench.keys("orders/schedules/") == []


def test_a_reader_sees_when_but_not_what_and_changes_nothing(bench: Workbench) -> None:
    bench.queue().every("15 9 * * 1-5", name="report", body="secret")
    read = asking(build(bench.store, role="reader"))

    (seen,) = read("GET", AT).body["schedules"]
    assert seen["body"] is None
    assert len(seen["next_at"]) == 5
    for method, path in (("PUT", "report"), ("POST", "report/pause"), ("DELETE", "report")):
        assert read(method, f"{AT}/{path}", body={"cron": "0 * * * *"} if method == "PUT" else None).status == 403
